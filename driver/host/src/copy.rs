//! Copies the data of a snapshot to a pool of another node, for a new volume there.
//!
//! ```text
//! pool of the source                         pool of the target
//! images/<snapshot> ─▶ Outgoing ─ chunks ─▶ Incoming ─▶ incoming/<volume> ─ clone ─▶ images/<volume>
//! ```
//!
//! The chunks are the data in ascending order; what no chunk covers is zeros. A volume is then created
//! as from a snapshot in its own pool, and the copy is removed.
//!
//! *Invariants:* a snapshot never changes, so a copy that was interrupted goes on behind what is
//! on the disk. A volume is only created from a copy that is complete and synced. A copy is never the
//! only one, so it may be removed at any time.

mod folder;
mod incoming;
mod outgoing;

use serde::{Deserialize, Serialize};

use crate::{id::Uid, image::Identity};

pub use self::{incoming::Incoming, outgoing::Outgoing};
use cistern_types::Bytes;

/// Largest number of data bytes in a [`Chunk`].
pub const CHUNK: usize = 1 << 20;

/// A part of a snapshot that holds data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Offset of the first byte, a multiple of 4096.
    pub offset: u64,
    /// The bytes, at least one and at most [`CHUNK`].
    pub data: Vec<u8>,
}

/// The snapshot that is copied: what the source says of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Original {
    /// Identity of its image.
    pub identity: Identity,
    /// Size of its image.
    pub size: Bytes,
}

/// A request for a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyRequest {
    /// UID of the PoolVolume that is created from the copy; names the copy.
    pub volume: Uid,
    /// The snapshot.
    pub original: Original,
}
