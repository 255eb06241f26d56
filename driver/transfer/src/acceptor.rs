//! Accepts connections, and passes on those whose peer has a key that is admitted.
//!
//! *Invariants:* at most [`HANDSHAKES`] peers without a known key are served at a time, each for at most
//! [`HANDSHAKE`]. With more of them the oldest is disconnected, so peers that say nothing do not delay others. A connection
//! whose key is not admitted any more is closed, also while its peer takes nothing.

use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::{Stream, stream};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::{AbortHandle, JoinSet},
    time::{Instant, Interval, MissedTickBehavior, interval_at, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tonic::transport::server::Connected;

use crate::{Admits, HANDSHAKE, PublicKey, WATCHED};

/// Handshakes at a time.
const HANDSHAKES: usize = 64;
/// Connections at a time: as many as nodes can receive from this one.
const CONNECTIONS: usize = 32;
/// Wait after an error of accept(2), such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections for ever.
pub(crate) fn connections(
    listener: TcpListener,
    tls: TlsAcceptor,
    admits: Arc<Admits>,
) -> impl Stream<Item = io::Result<Connection>> {
    let acceptor = Acceptor {
        listener,
        tls,
        admits,
        handshakes: JoinSet::new(),
        oldest: VecDeque::new(),
        connections: Arc::new(Semaphore::new(CONNECTIONS)),
    };
    stream::unfold(acceptor, async |mut acceptor| {
        let connection = acceptor.next().await;
        Some((Ok(connection), acceptor))
    })
}

struct Acceptor {
    listener: TcpListener,
    tls: TlsAcceptor,
    admits: Arc<Admits>,
    handshakes: JoinSet<Option<Connection>>,
    /// The handshakes in the order of their begin; some may have ended.
    oldest: VecDeque<AbortHandle>,
    connections: Arc<Semaphore>,
}

impl Acceptor {
    async fn next(&mut self) -> Connection {
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => self.begin(stream),
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection of another node");
                        tokio::time::sleep(PAUSE).await;
                    }
                },
                Some(ended) = self.handshakes.join_next() => {
                    if let Ok(Some(connection)) = ended {
                        return connection;
                    }
                }
            }
        }
    }

    fn begin(&mut self, stream: TcpStream) {
        let (tls, connections) = (self.tls.clone(), Arc::clone(&self.connections));
        let admits = Arc::clone(&self.admits);
        self.oldest.retain(|handshake| !handshake.is_finished());
        if self.oldest.len() >= HANDSHAKES
            && let Some(oldest) = self.oldest.pop_front()
        {
            oldest.abort();
        }
        let begun = self.handshakes.spawn(async move {
            let stream = timeout(HANDSHAKE, tls.accept(stream)).await.ok()?.ok()?;
            let keys = stream.get_ref().1.peer_certificates()?;
            let peer = PublicKey::from_der(keys.first()?).ok()?;
            let permit = connections.try_acquire_owned().ok()?;
            Some(Connection {
                stream,
                peer,
                admits,
                watch: watch(),
                _permit: permit,
            })
        });
        self.oldest.push_back(begun);
    }
}

/// When to check whether a key is still admitted.
fn watch() -> Interval {
    let mut watch = interval_at(Instant::now() + WATCHED, WATCHED);
    watch.set_missed_tick_behavior(MissedTickBehavior::Delay);
    watch
}

/// A connection whose peer has proved that it has its key.
pub(crate) struct Connection {
    stream: TlsStream<TcpStream>,
    peer: PublicKey,
    admits: Arc<Admits>,
    watch: Interval,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    /// Fails once the key of the peer is not admitted any more, which ends the connection. Wakes the task when to look again.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        while self.watch.poll_tick(context).is_ready() {
            if !(self.admits)(&self.peer) {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
        }
        Ok(())
    }
}

impl Connected for Connection {
    type ConnectInfo = PublicKey;

    fn connect_info(&self) -> PublicKey {
        self.peer
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    // HTTP/2 has the header of a frame and its data in two buffers. One call writes both.
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
