//! Accepts connections, and passes on those whose peer has a key that is admitted.
//!
//! *Invariants:* at most [`HANDSHAKES`] peers without a known key are served at a time, each for at most
//! [`HANDSHAKE`]. With more of them the oldest of the address that has most of them is disconnected. So peers that say nothing do
//! not delay others, and no address takes the handshakes of other addresses, however many it begins. A connection whose key is not
//! admitted any more is closed, also while its peer takes nothing. One that gets no place is closed soon, too.

use std::{
    collections::HashMap,
    io,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::{Stream, stream};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
    time::{Instant, Interval, MissedTickBehavior, interval_at, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tonic::transport::server::Connected;

use crate::{
    Admits, HANDSHAKE, PublicKey, WATCHED,
    places::{Peer, Place, Places},
};

/// Handshakes at a time.
const HANDSHAKES: usize = 64;
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
        begun: Vec::new(),
        places: Arc::default(),
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
    /// The handshakes and the addresses of their peers, in the order of their begin; some may have ended.
    begun: Vec<(IpAddr, AbortHandle)>,
    places: Arc<Places>,
}

impl Acceptor {
    async fn next(&mut self) -> Connection {
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, peer)) => self.begin(stream, peer.ip().to_canonical()),
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

    fn begin(&mut self, stream: TcpStream, address: IpAddr) {
        let (tls, places) = (self.tls.clone(), Arc::clone(&self.places));
        let admits = Arc::clone(&self.admits);
        self.begun.retain(|(_, handshake)| !handshake.is_finished());
        if self.begun.len() >= HANDSHAKES {
            let addresses: Vec<_> = self.begun.iter().map(|(address, _)| *address).collect();
            if let Some(crowding) = crowding(&addresses) {
                let (_, handshake) = self.begun.remove(crowding);
                handshake.abort();
            }
        }
        let begun = self.handshakes.spawn(async move {
            let stream = timeout(HANDSHAKE, tls.accept(stream)).await.ok()?.ok()?;
            let keys = stream.get_ref().1.peer_certificates()?;
            let key = PublicKey::from_der(keys.first()?).ok()?;
            let place = places.take(key)?;
            let watch = watch(place.peer());
            Some(Connection {
                stream,
                place,
                admits,
                watch,
            })
        });
        self.begun.push((address, begun));
    }
}

/// Index of the handshake that ends to make room: the oldest of the address that has most of them. None if there is none.
fn crowding(addresses: &[IpAddr]) -> Option<usize> {
    let mut counts = HashMap::<IpAddr, usize>::new();
    for address in addresses {
        *counts.entry(*address).or_default() += 1;
    }
    let most = counts.values().max()?;
    let has_most = |address: &IpAddr| counts.get(address) == Some(most);
    addresses.iter().position(has_most)
}

/// When to check whether a connection may still be open. One that is refused has time for a call, whose answer says why.
fn watch(peer: Peer) -> Interval {
    let first = if peer.is_ok() { WATCHED } else { HANDSHAKE };
    let mut watch = interval_at(Instant::now() + first, WATCHED);
    watch.set_missed_tick_behavior(MissedTickBehavior::Delay);
    watch
}

/// A connection whose peer has proved that it has its key.
pub(crate) struct Connection {
    stream: TlsStream<TcpStream>,
    place: Place,
    admits: Arc<Admits>,
    watch: Interval,
}

impl Connection {
    /// Fails once the key of the peer is not admitted any more, or once a refused connection has had its time, which ends the
    /// connection. Wakes the task when to look again.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        while self.watch.poll_tick(context).is_ready() {
            let peer = self.place.peer();
            if !peer.is_ok_and(|key| (self.admits)(&key)) {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
        }
        Ok(())
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.place.peer()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(last_bytes: &[u8]) -> Vec<IpAddr> {
        let address = |last: &u8| IpAddr::from([192, 0, 2, *last]);
        last_bytes.iter().map(address).collect()
    }

    #[test]
    fn an_address_that_begins_many_handshakes_takes_none_of_another_address() {
        assert_eq!(crowding(&addresses(&[1, 2, 2, 2])), Some(1));
        assert_eq!(crowding(&addresses(&[2, 1, 3, 1])), Some(1));
        // With the same number of each, the oldest of all ends.
        assert_eq!(crowding(&addresses(&[3, 1, 2])), Some(0));
        assert_eq!(crowding(&[]), None);

        let (mut begun, calm) = (addresses(&[1, 3]), addresses(&[1, 3]));
        for _ in 0..1000 {
            begun.push(IpAddr::from([192, 0, 2, 2]));
            if begun.len() > HANDSHAKES {
                begun.remove(crowding(&begun).unwrap());
            }
        }
        assert_eq!(begun.len(), HANDSHAKES);
        assert_eq!(begun[..2], calm);
    }
}
