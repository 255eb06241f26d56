//! The sender.

use std::{future::Future, sync::Arc};

use cistern_proto::transfer::v1alpha1::{
    self as proto, DescribeRequest, DescribeResponse, ReadRequest,
    transfer_server::{Transfer, TransferServer},
};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tonic::{
    Request, Response, Status,
    codegen::BoxStream,
    service::{InterceptorLayer, Routes},
    transport::Server,
};

use crate::{
    Error, KEEP_ALIVE, KeyPair, PublicKey, Rate, acceptor,
    places::Peer,
    sending::{Granted, Sending},
    source::{Opened, Refused, Source},
    tls::{self, Admits},
};

/// Calls at a time in a connection: a receiver has one.
const CALLS: usize = 4;

/// Serves the peers whose keys are admitted, until `stop` ends. A connection is closed whose key is not admitted any more. Calls
/// of a key that has too many connections are refused. Each service finds the key of its peer as an extension of the request, and
/// decides what that may ask. Fails if the key cannot be used.
pub async fn serve(
    listener: TcpListener,
    own: &KeyPair,
    admits: Arc<Admits>,
    services: Routes,
    stop: impl Future<Output = ()> + Send,
) -> Result<(), Error> {
    let config = tls::server(own, Arc::clone(&admits));
    let config = config.map_err(|_| Error::Key("use the key pair"))?;
    let tls = TlsAcceptor::from(Arc::new(config));
    let connections = acceptor::connections(listener, tls, admits);
    let served = Server::builder()
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE))
        .concurrency_limit_per_connection(CALLS)
        .layer(InterceptorLayer::new(let_in))
        .add_routes(services)
        .serve_with_incoming_shutdown(connections, stop)
        .await;
    served.map_err(|error| Error::Protocol(error.to_string()))
}

/// Passes a call on with the key of its peer. Refuses it if its connection has no place.
fn let_in(mut call: Request<()>) -> Result<Request<()>, Status> {
    let peer = call.extensions_mut().remove::<Peer>();
    let key = peer.ok_or(Refused::NotGranted)?;
    // The peer may try again: others may have ended by then.
    let key = key.map_err(|crowded| Status::unavailable(crowded.to_string()))?;
    call.extensions_mut().insert(key);
    Ok(call)
}

/// The service that sends what the source grants.
pub fn service(source: Arc<dyn Source>, rate: Arc<Rate>) -> TransferServer<impl Transfer> {
    TransferServer::new(Service { source, rate })
}

#[derive(Debug)]
struct Service {
    source: Arc<dyn Source>,
    rate: Arc<Rate>,
}

impl Service {
    /// The key of the peer, if the transfer is granted to it.
    fn granted<T>(&self, request: &Request<T>, transfer: &str) -> Result<PublicKey, Refused> {
        let key = request.extensions().get::<PublicKey>();
        key.filter(|key| self.source.grants(key, transfer, None))
            .copied()
            .ok_or(Refused::NotGranted)
    }
}

#[tonic::async_trait]
impl Transfer for Service {
    async fn describe(
        &self,
        request: Request<DescribeRequest>,
    ) -> Result<Response<DescribeResponse>, Status> {
        let DescribeRequest { transfer, base } = request.get_ref();
        self.granted(&request, transfer)?;
        let Opened { original, base, .. } = self.source.open(transfer, named(base), 0).await?;
        let original =
            serde_json::to_vec(&original).map_err(|error| Status::internal(error.to_string()))?;
        let base = base.unwrap_or_default();
        Ok(Response::new(DescribeResponse { original, base }))
    }

    async fn read(
        &self,
        request: Request<ReadRequest>,
    ) -> Result<Response<BoxStream<proto::Chunk>>, Status> {
        let key = self.granted(&request, &request.get_ref().transfer)?;
        let ReadRequest {
            transfer,
            offset,
            image,
            base,
        } = request.into_inner();
        let opened = self.source.open(&transfer, named(&base), offset).await?;
        let Opened {
            original,
            data,
            lost,
            base: relative_to,
        } = opened;
        let found = original.identity.uid.to_string();
        // The transfer of this name may be another one by now.
        if named(&image).is_some_and(|image| image != found) {
            return Err(Refused::NotGranted.into());
        }
        // All data would not remove from the copy what is only in the base.
        if relative_to.as_deref() != named(&base) {
            let why = format!("the source does not have {base}, which the copy begins with");
            return Err(Refused::Unavailable(why).into());
        }
        if offset > original.size.0 {
            let size = original.size.0;
            return Err(Refused::OutOfRange { from: offset, size }.into());
        }
        let granted = Granted {
            source: Arc::clone(&self.source),
            key,
            transfer,
            image: found,
        };
        let sending = Sending {
            granted,
            rate: Arc::clone(&self.rate),
            data,
            lost,
        };
        Ok(Response::new(Box::pin(sending.stream())))
    }
}

/// What a field names; None if it is empty.
fn named(field: &str) -> Option<&str> {
    (!field.is_empty()).then_some(field)
}

impl From<Refused> for Status {
    fn from(refused: Refused) -> Self {
        let message = refused.to_string();
        match refused {
            Refused::NotGranted => Self::permission_denied(message),
            Refused::OutOfRange { .. } => Self::out_of_range(message),
            Refused::Unavailable(_) => Self::unavailable(message),
        }
    }
}
