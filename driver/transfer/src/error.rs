//! Why a transfer failed.

use std::{io, net::SocketAddr};

use crate::{HANDSHAKE, InvalidKey};

/// Why a transfer failed, as the receiver sees it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A key cannot be made.
    #[error("cannot {0}")]
    Key(&'static str),
    /// A key that was published is not valid.
    #[error(transparent)]
    InvalidKey(#[from] InvalidKey),
    /// The peer cannot be reached, or does not have the expected key.
    #[error("cannot connect to {peer}")]
    Connect {
        /// Its address.
        peer: SocketAddr,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The peer did not answer in time.
    #[error("{peer} did not answer within {HANDSHAKE:?}")]
    Silent {
        /// Its address.
        peer: SocketAddr,
    },
    /// The peer refused, or the connection broke.
    #[error("the source answered {code:?}: {message}", code = .0.code(), message = .0.message())]
    Answer(Box<tonic::Status>),
    /// What the peer sent is not what it read.
    #[error("the {length} bytes at {offset} do not have the checksum with which they were read")]
    Checksum {
        /// Offset of the chunk.
        offset: u64,
        /// Its number of bytes.
        length: usize,
    },
    /// The peer sent what the protocol does not allow.
    #[error("the source broke the protocol: {0}")]
    Protocol(String),
}

impl From<tonic::Status> for Error {
    fn from(status: tonic::Status) -> Self {
        Self::Answer(Box::new(status))
    }
}
