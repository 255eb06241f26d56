//! Serves gRPC on a socket, and logs and counts all operations.
//!
//! *Invariant:* each operation ends in one log line, also if its caller disconnects. A request is never
//! logged, only its method and the fields that the operation recorded with [`about`].

mod answer;

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use http::{Request, Response};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, histogram::Histogram},
    registry::{Registry, Unit},
};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Code, Status, body::Body, service::Routes};
use tower::{Layer, Service};
use tracing::{Instrument as _, Span, field::Empty};

use self::answer::Answer;
use crate::socket::Socket;

/// How long running operations may take to end after the process is asked to stop.
const GRACE: Duration = Duration::from_secs(20);

/// Serves until `shutdown`, waits for running operations, and removes the socket's file. Fails if
/// the gRPC server fails.
pub async fn serve(
    socket: Socket,
    services: Routes,
    operations: Operations,
    shutdown: impl Future<Output = ()> + Clone + Send + 'static,
) -> Result<(), tonic::transport::Error> {
    let Socket { listener, file } = socket;
    let server = tonic::transport::Server::builder()
        .layer(operations)
        .add_routes(services.into_axum_router().fallback(refuse).into())
        .serve_with_incoming_shutdown(UnixListenerStream::new(listener), shutdown.clone());
    let out_of_patience = async {
        shutdown.await;
        tokio::time::sleep(GRACE).await;
    };
    let result = tokio::select! {
        result = server => result,
        () = out_of_patience => {
            tracing::warn!("operations are still running, and the process stops without waiting for them");
            Ok(())
        }
    };
    drop(file);
    result
}

/// Answers calls of services that this process does not serve (GEN-02, GEN-08).
async fn refuse() -> Response<axum::body::Body> {
    let message =
        "this process does not serve that: controller and nodes have sockets of their own";
    Status::unimplemented(message).into_http()
}

/// The objects of the running operation, for its log lines.
#[derive(Clone, Copy, Debug, Default)]
pub struct Subject<'a> {
    /// Volume id.
    pub volume: Option<&'a str>,
    /// Snapshot id.
    pub snapshot: Option<&'a str>,
    /// Name of the StoragePool.
    pub pool: Option<&'a str>,
    /// Name of the node.
    pub node: Option<&'a str>,
}

/// Adds these objects to every log line of the running operation.
pub fn about(subject: Subject<'_>) {
    let span = Span::current();
    for (field, value) in [
        ("volume", subject.volume),
        ("snapshot", subject.snapshot),
        ("pool", subject.pool),
        ("node", subject.node),
    ] {
        if let Some(value) = value {
            // The ids of a request are recorded before they are checked.
            let end = value.floor_char_boundary(value.len().min(128));
            span.record(field, value.get(..end));
        }
    }
}

/// Times and logs every operation of a server.
#[derive(Clone, Debug)]
pub struct Operations {
    durations: Family<Labels, Histogram, fn() -> Histogram>,
    /// The node of all operations, if this is the node plugin.
    node: Option<Arc<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    method: String,
    code: String,
}

impl Operations {
    /// Registers `cistern_csi_operation_duration_seconds`, by method and code.
    pub fn new(registry: &mut Registry) -> Self {
        let durations: Family<_, _, fn() -> _> = Family::new_with_constructor(|| {
            Histogram::new([
                0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 120.0,
            ])
        });
        registry.register_with_unit(
            "cistern_csi_operation_duration",
            "Duration of CSI operations, by method and gRPC code",
            Unit::Seconds,
            durations.clone(),
        );
        Self {
            durations,
            node: None,
        }
    }

    /// Adds a node to every log line.
    #[must_use]
    pub fn on_node(mut self, name: &str) -> Self {
        self.node = Some(name.into());
        self
    }
}

impl<S> Layer<S> for Operations {
    type Service = Observed<S>;

    fn layer(&self, inner: S) -> Observed<S> {
        Observed {
            inner,
            operations: self.clone(),
        }
    }
}

/// A service whose operations are timed and logged.
#[derive(Clone, Debug)]
pub struct Observed<S> {
    inner: S,
    operations: Operations,
}

impl<S> Service<Request<Body>> for Observed<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let operation = Operation::new(request.uri().path(), self.operations.clone());
        let span = operation.span.clone();
        if let Some(node) = &self.operations.node {
            span.record("node", &**node);
        }
        let answer = self.inner.call(request);
        let answered = async move {
            let response = answer.await?;
            // Only a response without messages has the status in its headers.
            match Status::from_header_map(response.headers()) {
                Some(status) => {
                    operation.finish(Some(status));
                    Ok(response)
                }
                None => Ok(response.map(|body| Body::new(Answer::new(body, operation)))),
            }
        };
        Box::pin(answered.instrument(span))
    }
}

/// A running operation. One that is dropped unfinished was cancelled by its caller.
struct Operation {
    method: Arc<str>,
    operations: Operations,
    span: Span,
    started: Instant,
    finished: bool,
}

impl Operation {
    fn new(path: &str, operations: Operations) -> Self {
        let method = path.rsplit('/').next().unwrap_or_default();
        let span = if is_routine(method) {
            tracing::debug_span!(
                "rpc",
                rpc = method,
                volume = Empty,
                snapshot = Empty,
                pool = Empty,
                node = Empty
            )
        } else {
            tracing::info_span!(
                "rpc",
                rpc = method,
                volume = Empty,
                snapshot = Empty,
                pool = Empty,
                node = Empty
            )
        };
        Self {
            method: method.into(),
            operations,
            span,
            started: Instant::now(),
            finished: false,
        }
    }

    fn finish(mut self, status: Option<Status>) {
        self.finished = true;
        match status {
            Some(status) if status.code() != Code::Ok => {
                self.end(status.code(), Some(status.message()));
            }
            Some(_) | None => self.end(Code::Ok, None),
        }
    }

    fn end(&self, code: Code, error: Option<&str>) {
        let elapsed = self.started.elapsed();
        let elapsed_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        let code_name = format!("{code:?}");
        self.span.in_scope(|| match error {
            None if is_routine(&self.method) => {
                tracing::debug!(code = code_name, elapsed_ms, "the call succeeded");
            }
            None => tracing::info!(code = code_name, elapsed_ms, "the call succeeded"),
            Some(error) => tracing::warn!(code = code_name, elapsed_ms, error, "the call failed"),
        });
        // An unknown method must not create a time series.
        let known = code != Code::Unimplemented;
        let labels = Labels {
            method: if known { &self.method } else { "other" }.to_owned(),
            code: code_name,
        };
        let observed = self.operations.durations.get_or_create(&labels);
        observed.observe(elapsed.as_secs_f64());
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if !self.finished {
            self.end(Code::Cancelled, Some("the caller disconnected"));
        }
    }
}

/// Frequent calls that change nothing. Their success is logged at debug level.
fn is_routine(method: &str) -> bool {
    matches!(
        method,
        "Probe"
            | "GetPluginInfo"
            | "GetCapacity"
            | "ListVolumes"
            | "ListSnapshots"
            | "GetSnapshot"
            | "GetVolumeGroupSnapshot"
            | "ControllerGetVolume"
            | "NodeGetInfo"
            | "NodeGetVolumeStats"
            | "GetInfo"
    ) || method.ends_with("Capabilities") && method != "ValidateVolumeCapabilities"
}

#[cfg(test)]
mod tests {
    use cistern_client::http::Readiness;
    use cistern_proto::csi::v1::{
        GetMetadataAllocatedRequest, GetMetadataAllocatedResponse, ProbeRequest,
        identity_client::IdentityClient,
        identity_server::IdentityServer,
        snapshot_metadata_client::SnapshotMetadataClient,
        snapshot_metadata_server::{SnapshotMetadata, SnapshotMetadataServer},
    };
    use futures::{FutureExt as _, StreamExt as _, stream};
    use tokio::sync::oneshot;
    use tonic::codegen::BoxStream;

    use super::*;
    use crate::{csi::identity::Identity, socket};

    // Shows: GEN-02.
    #[tokio::test]
    async fn prt_01_a_served_socket_answers_counts_and_is_removed_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("csi.sock");
        let mut registry = Registry::default();
        let operations = Operations::new(&mut registry);
        let identity = Identity::new(Readiness::default(), Arc::new(|| Ok(())));
        let routes = Routes::new(IdentityServer::new(identity));
        let (stop, stopped) = oneshot::channel::<()>();
        let server = tokio::spawn(serve(
            socket::bind(&path).await.unwrap(),
            routes,
            operations,
            stopped.map(drop).shared(),
        ));

        let url = format!("unix://{}", path.display());
        let channel = tonic::transport::Endpoint::from_shared(url).unwrap();
        let channel = channel.connect().await.unwrap();
        let mut client = IdentityClient::new(channel.clone());
        let answer = client.probe(ProbeRequest {}).await.unwrap();
        assert_eq!(answer.into_inner().ready, Some(true));
        let mut unserved = cistern_proto::csi::v1::node_client::NodeClient::new(channel);
        let status = unserved
            .node_get_info(cistern_proto::csi::v1::NodeGetInfoRequest {})
            .await
            .unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented);
        assert!(!status.message().is_empty(), "GEN-02");

        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let count = "cistern_csi_operation_duration_seconds_count";
        assert!(text.contains(&format!("{count}{{method=\"Probe\",code=\"Ok\"}} 1")));
        assert!(text.contains(&format!(
            "{count}{{method=\"other\",code=\"Unimplemented\"}} 1"
        )));

        drop(stop);
        server.await.unwrap().unwrap();
        assert!(!path.exists());
    }

    /// Answers with one message, and then fails or hangs.
    struct Stream {
        breaks_off: bool,
    }

    #[tonic::async_trait]
    impl SnapshotMetadata for Stream {
        async fn get_metadata_allocated(
            &self,
            _: tonic::Request<GetMetadataAllocatedRequest>,
        ) -> Result<tonic::Response<BoxStream<GetMetadataAllocatedResponse>>, Status> {
            let message = stream::iter([Ok(GetMetadataAllocatedResponse::default())]);
            let rest = if self.breaks_off {
                stream::iter([Err(Status::internal("it broke off"))]).boxed()
            } else {
                stream::pending().boxed()
            };
            Ok(tonic::Response::new(message.chain(rest).boxed()))
        }
    }

    /// The metrics after a stream of which the caller reads the first message, and then the error if
    /// there is one.
    async fn counted(breaks_off: bool) -> String {
        let mut registry = Registry::default();
        let routes = Routes::new(SnapshotMetadataServer::new(Stream { breaks_off }));
        let observed = Operations::new(&mut registry).layer(routes);
        let mut client = SnapshotMetadataClient::new(observed);
        let request = GetMetadataAllocatedRequest::default();
        let answer = client.get_metadata_allocated(request).await.unwrap();
        let mut messages = answer.into_inner();
        messages.message().await.unwrap().unwrap();
        if breaks_off {
            let status = messages.message().await.unwrap_err();
            assert_eq!(status.code(), Code::Internal);
        }
        drop(messages);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }

    #[tokio::test]
    async fn smd_02_smd_03_a_stream_is_counted_at_its_end_with_its_code() {
        for (breaks_off, code) in [(true, "Internal"), (false, "Cancelled")] {
            let text = counted(breaks_off).await;
            let expected = format!("{{method=\"GetMetadataAllocated\",code=\"{code}\"}} 1");
            assert!(text.contains(&expected), "{text}");
            assert!(!text.contains("code=\"Ok\""), "{text}");
        }
    }
}
