//! What the sender asks before it sends.

use std::fmt;

use cistern_host::copy::{Chunk, Original};
use futures::{future::BoxFuture, stream::BoxStream};

use crate::PublicKey;

/// The chunks of a snapshot, in ascending order. An error ends the stream.
pub type Data = BoxStream<'static, Result<Chunk, Refused>>;

/// Decides what peers may read, and reads it.
pub trait Source: fmt::Debug + Send + Sync + 'static {
    /// Whether a peer with this key may connect: whether anything is granted to it. Answers from memory.
    fn admits(&self, key: &PublicKey) -> bool;

    /// Whether a transfer is granted to the peer with this key, and of this image if one is named. Asked before each
    /// chunk, and every second while the peer takes none. Answers from memory.
    fn grants(&self, key: &PublicKey, transfer: &str, image: Option<&str>) -> bool;

    /// Opens the snapshot of a transfer that is granted, to read its data from an offset on. If the transfer names
    /// this base, and the source has it, only what differs from it is read.
    fn open<'a>(
        &'a self,
        transfer: &'a str,
        base: Option<&'a str>,
        from: u64,
    ) -> BoxFuture<'a, Result<Opened, Refused>>;
}

/// A snapshot that is open.
#[expect(missing_debug_implementations, reason = "a stream has nothing to show")]
pub struct Opened {
    /// What is copied.
    pub original: Original,
    /// Name of the image that the data is relative to; None if it is all data.
    pub base: Option<String>,
    /// Its data. Nothing is read before it is asked for.
    pub data: Data,
    /// Resolves once the data cannot be read any more.
    pub lost: BoxFuture<'static, ()>,
}

/// Why a peer gets nothing.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The peer may not have it, or there is no such transfer. It is not said which.
    #[error("this transfer is not granted to this key")]
    NotGranted,
    /// The offset is beyond the end.
    #[error("offset {from} is beyond the end of the snapshot, which has {size} bytes")]
    OutOfRange {
        /// The requested offset in bytes.
        from: u64,
        /// Size of the snapshot in bytes.
        size: u64,
    },
    /// It cannot be read now.
    #[error("it cannot be read now: {0}")]
    Unavailable(String),
}
