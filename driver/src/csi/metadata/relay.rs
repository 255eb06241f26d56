//! The SnapshotMetadata service of the controller: passes each request on to the node that has the snapshot, and its answer
//! back. Kubernetes' sidecar csi-snapshot-metadata serves it to backup programs.

use std::{future::Future, time::Duration};

use cistern_controller::metadata::{Error, NodePlugin, Relay};
use cistern_proto::csi::v1::{self, snapshot_metadata_client::SnapshotMetadataClient};
use futures::StreamExt as _;
use tokio::time::sleep;
use tonic::{Code, Request, Response, Status, Streaming, codegen::BoxStream, transport::Channel};

use super::request;
use crate::csi::status::{IntoStatus, OrStatus as _};
use crate::server::{Subject, about};

/// Attempts to ask a node plugin. One that has not seen the key of this controller yet closes the connection.
const ATTEMPTS: usize = 5;
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_secs(1);

/// Passes requests on.
#[derive(Clone, Debug)]
pub struct RelayedMetadata {
    relay: Relay,
}

impl RelayedMetadata {
    /// Creates the service.
    pub fn new(relay: Relay) -> Self {
        Self { relay }
    }

    /// Asks the node that has a snapshot.
    async fn ask<M, F>(
        &self,
        snapshot: &str,
        call: impl Fn(SnapshotMetadataClient<Channel>) -> F,
    ) -> Result<Response<BoxStream<M>>, Status>
    where
        M: Send + 'static,
        F: Future<Output = Result<Response<Streaming<M>>, Status>>,
    {
        about(Subject {
            snapshot: Some(snapshot),
            ..Subject::default()
        });
        let mut attempt = 1;
        loop {
            let NodePlugin { node, channel } = self.relay.node_of(snapshot).await.or_status()?;
            about(Subject {
                node: Some(&node),
                ..Subject::default()
            });
            match call(SnapshotMetadataClient::new(channel)).await {
                Ok(answer) => {
                    let messages = answer.into_inner();
                    let messages = messages.map(move |it| it.map_err(|why| passed_on(&why, &node)));
                    return Ok(Response::new(messages.boxed()));
                }
                Err(why) if is_of_connection(&why) && attempt < ATTEMPTS => attempt += 1,
                Err(why) => return Err(passed_on(&why, &node)),
            }
            sleep(PAUSE).await;
        }
    }
}

/// Whether a call failed with the connection, and was not answered.
fn is_of_connection(status: &Status) -> bool {
    matches!(status.code(), Code::Unknown | Code::Cancelled)
        || std::error::Error::source(status).is_some()
}

/// What a node plugin has answered. A broken connection can be resumed.
fn passed_on(status: &Status, node: &str) -> Status {
    if is_of_connection(status) {
        let said = status.message();
        return Status::unavailable(format!(
            "the connection to the node plugin on node {node} has ended: {said}; try again"
        ));
    }
    Status::new(status.code(), status.message())
}

#[tonic::async_trait]
impl v1::snapshot_metadata_server::SnapshotMetadata for RelayedMetadata {
    async fn get_metadata_allocated(
        &self,
        request: Request<v1::GetMetadataAllocatedRequest>,
    ) -> Result<Response<BoxStream<v1::GetMetadataAllocatedResponse>>, Status> {
        let request = request.into_inner();
        let query = request::allocated(request.clone())?;
        self.ask(&query.target, |mut node| {
            let request = request.clone();
            async move { node.get_metadata_allocated(request).await }
        })
        .await
    }

    async fn get_metadata_delta(
        &self,
        request: Request<v1::GetMetadataDeltaRequest>,
    ) -> Result<Response<BoxStream<v1::GetMetadataDeltaResponse>>, Status> {
        let request = request.into_inner();
        let query = request::delta(request.clone())?;
        self.ask(&query.target, |mut node| {
            let request = request.clone();
            async move { node.get_metadata_delta(request).await }
        })
        .await
    }
}

impl IntoStatus for Error {
    fn into_status(self) -> Status {
        let code = match &self {
            Self::NotFound { .. } => Code::NotFound,
            Self::Api { .. } | Self::NodePlugin { .. } => Code::Unavailable,
        };
        Status::new(code, cistern_client::Chain(&self).to_string())
    }
}

#[cfg(test)]
mod tests {
    use cistern_controller::node_plugins;

    use super::*;

    #[test]
    fn gen_10_every_error_has_its_code_and_a_message() {
        let (snapshot, node) = ("snapshot-1".to_owned(), "w1".to_owned());
        let not_found = Error::NotFound {
            snapshot: snapshot.clone(),
        };
        let source = node_plugins::Error::Unknown {
            node,
            why: "it has no StorageNode",
        };
        let unknown = Error::NodePlugin { snapshot, source };
        for (error, code, says) in [
            (not_found, Code::NotFound, "snapshot-1"),
            (unknown, Code::Unavailable, "node w1"),
        ] {
            let status = error.into_status();
            assert_eq!(status.code(), code, "{status}");
            assert!(status.message().contains(says), "{status}");
        }
    }

    #[test]
    fn an_answer_is_passed_on_and_a_broken_connection_can_be_resumed() {
        let answered = passed_on(&Status::out_of_range("beyond the end"), "w1");
        assert_eq!(answered.code(), Code::OutOfRange);
        assert_eq!(answered.message(), "beyond the end");
        let broken = passed_on(&Status::unknown("transport error"), "w1");
        assert_eq!(broken.code(), Code::Unavailable);
        assert!(broken.message().contains("node w1"), "{broken}");
    }
}
