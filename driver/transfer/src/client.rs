//! The receiver.

use std::{io, net::SocketAddr, sync::Arc};

use cistern_host::copy::{CHUNK, Chunk, Original};
use cistern_proto::transfer::v1alpha1::{
    self as proto, DescribeRequest, ReadRequest, transfer_client::TransferClient,
};
use futures::{Stream, StreamExt as _};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::{io::BufReader, net::TcpStream, time::timeout};
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

use crate::{Error, HANDSHAKE, KEEP_ALIVE, KeyPair, PublicKey, WINDOW, tls};

/// Bytes that are read from the socket at a time. TLS by itself reads 4 KiB.
const BUFFER: usize = 128 << 10;

/// Bytes of a frame of HTTP/2: as many as TLS takes at a time.
const FRAME: u32 = 64 << 10;

/// What is said of a connection that ended. A source closes it that does not know the key of the receiver.
const CLOSED: &str = "the connection is closed; after a start of this node plugin, the source learns its key within some seconds";

/// A connection to a source, for one transfer.
#[derive(Debug)]
pub struct Fetch {
    client: TransferClient<Channel>,
    transfer: String,
    original: Original,
    base: Option<String>,
}

/// Connects to a source, and asks what the transfer copies. `base` is the image of which the receiver has a complete
/// copy. Fails if the source cannot be reached, does not have the expected key, or refuses.
pub async fn fetch(
    own: &KeyPair,
    (address, peer): (SocketAddr, PublicKey),
    transfer: &str,
    base: Option<&str>,
) -> Result<Fetch, Error> {
    let channel = connect(own, (address, peer)).await?;
    let mut client = TransferClient::new(channel);
    let request = DescribeRequest {
        transfer: transfer.to_owned(),
        base: base.unwrap_or_default().to_owned(),
    };
    let described = timeout(HANDSHAKE, client.describe(request)).await;
    let described = described.map_err(|_| Error::Silent { peer: address })??;
    let described = described.into_inner();
    let original = serde_json::from_slice(&described.original)
        .map_err(|error| Error::Protocol(format!("the identity: {error}")))?;
    let relative_to = Some(described.base).filter(|base| !base.is_empty());
    if relative_to.is_some() && relative_to.as_deref() != base {
        return Err(Error::Protocol("a base that was not requested".to_owned()));
    }
    Ok(Fetch {
        client,
        transfer: transfer.to_owned(),
        original,
        base: relative_to,
    })
}

impl Fetch {
    /// What the source says of the snapshot.
    pub fn original(&self) -> &Original {
        &self.original
    }

    /// The image that its data is relative to; None if it is all data.
    pub fn base(&self) -> Option<&str> {
        self.base.as_deref()
    }

    /// Reads its data from an offset on. The stream ends without an error only after the last chunk. A
    /// chunk has the checksum with which it was read.
    pub async fn read(
        mut self,
        offset: u64,
    ) -> Result<impl Stream<Item = Result<Chunk, Error>> + Send + Unpin, Error> {
        let request = ReadRequest {
            transfer: self.transfer.clone(),
            offset,
            image: self.original.identity.uid.to_string(),
            base: self.base.clone().unwrap_or_default(),
        };
        let chunks = self.client.read(request).await?;
        let has_base = self.base.is_some();
        Ok(chunks
            .into_inner()
            .map(move |chunk| checked(chunk?, has_base)))
    }
}

/// Verifies a chunk of all data, or of differences from a base.
fn checked(chunk: proto::Chunk, has_base: bool) -> Result<Chunk, Error> {
    let proto::Chunk {
        offset,
        data,
        crc32c,
        zeros,
    } = chunk;
    let length = data.len();
    let is_empty = length == 0 && zeros == 0;
    if is_empty || length > CHUNK || zeros > 0 && !has_base {
        let what = format!("a chunk of {length} bytes and {zeros} zeros");
        return Err(Error::Protocol(what));
    }
    if crc32c::crc32c(&data) != crc32c {
        return Err(Error::Checksum { offset, length });
    }
    let data = data.into();
    Ok(Chunk {
        offset,
        data,
        zeros,
    })
}

/// Makes one connection to a node plugin. It is not made anew once it is broken. Fails if the node plugin cannot be reached or
/// does not have the expected key. One that does not admit the own key closes the connection later, at the first call.
pub async fn connect(
    own: &KeyPair,
    (address, peer): (SocketAddr, PublicKey),
) -> Result<Channel, Error> {
    let mut stream = Some(TokioIo::new(handshake(own, address, peer).await?));
    let once = service_fn(move |_: Uri| {
        let stream = stream.take();
        async move { stream.ok_or_else(|| io::Error::other(CLOSED)) }
    });
    let endpoint = Endpoint::from_static("http://source")
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_frame_size(FRAME)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE);
    let channel = endpoint.connect_with_connector(once).await;
    channel.map_err(|error| Error::Protocol(error.to_string()))
}

async fn handshake(
    own: &KeyPair,
    address: SocketAddr,
    peer: PublicKey,
) -> Result<tokio_rustls::client::TlsStream<BufReader<TcpStream>>, Error> {
    let failed = |source| Error::Connect {
        peer: address,
        source,
    };
    let config = tls::client(own, peer).map_err(|_| Error::Key("use the key pair"))?;
    let connecting = async {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        // The key names the peer, and no name is looked at.
        let name = ServerName::from(address.ip());
        let stream = BufReader::with_capacity(BUFFER, stream);
        TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
    };
    let connected = timeout(HANDSHAKE, connecting).await;
    connected
        .map_err(|_| Error::Silent { peer: address })?
        .map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_that_was_changed_on_its_way_is_refused() {
        let data = vec![7_u8; 4096];
        let sent = proto::Chunk {
            offset: 8192,
            crc32c: crc32c::crc32c(&data),
            data: data.clone().into(),
            zeros: 0,
        };
        let expected = Chunk {
            offset: 8192,
            data,
            zeros: 0,
        };
        assert_eq!(checked(sent.clone(), false).unwrap(), expected);
        let mut changed = sent.data.to_vec();
        changed[4095] ^= 1;
        let changed = proto::Chunk {
            data: changed.into(),
            ..sent.clone()
        };
        let error = checked(changed, false).unwrap_err();
        assert!(
            matches!(error, Error::Checksum { offset: 8192, .. }),
            "{error}"
        );
        let hole = proto::Chunk {
            offset: 8192,
            zeros: 4096,
            ..proto::Chunk::default()
        };
        assert_eq!(checked(hole.clone(), true).unwrap().zeros, 4096);
        let error = checked(hole, false).unwrap_err();
        assert!(matches!(error, Error::Protocol(_)), "{error}");
        for length in [0, CHUNK + 1] {
            let data = vec![0; length];
            let crc32c = crc32c::crc32c(&data);
            let sent = proto::Chunk {
                offset: 0,
                data: data.into(),
                crc32c,
                zeros: 0,
            };
            let checked = checked(sent, true);
            assert!(matches!(checked, Err(Error::Protocol(_))), "{length}");
        }
    }
}
