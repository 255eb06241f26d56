//! Copies data to a pool of another node: of a snapshot, for a new volume there, or of a closed volume, which
//! moves there.
//!
//! ```text
//! pool of the source                         pool of the target
//! images/<snapshot> ─▶ Outgoing ─ chunks ─▶ Incoming ─▶ incoming/<volume> ─ clone ──▶ images/<volume>
//! closed/<volume>   ─▶ Outgoing ─ chunks ─▶ Incoming ─▶ incoming/<volume> ─ rename ─▶ images/<volume>
//! ```
//!
//! The chunks are the data in ascending order; what no chunk covers is zeros. From the copy of a snapshot, a
//! volume is created as from a snapshot in its own pool, and the copy is removed. The copy of a volume becomes
//! the volume itself ([`Pool::open_copy`]).
//!
//! *Invariants:* what is sent never changes, so a copy that was interrupted goes on behind what is
//! on the disk. A volume is only created from a copy that is complete and synced. A copy is never the
//! only one before it is opened, so it may be removed at any time until then.

mod folder;
mod incoming;
mod open;
mod outgoing;

use serde::{Deserialize, Serialize};

#[cfg(doc)]
use crate::pool::Pool;
use crate::{id::Uid, image::Identity};

pub use self::{folder::IncomingCopy, incoming::Incoming, outgoing::Outgoing};
use cistern_types::{Bytes, ExtentSize};

/// Largest number of data bytes in a [`Chunk`].
pub const CHUNK: usize = 1 << 20;

/// A part of an image that holds data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Offset of the first byte, a multiple of 4096.
    pub offset: u64,
    /// The bytes, at least one and at most [`CHUNK`].
    pub data: Vec<u8>,
}

/// The snapshot or the closed volume that is copied: what the source says of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Original {
    /// Identity of its image.
    pub identity: Identity,
    /// Size of its image.
    pub size: Bytes,
    /// UID of the move that the volume is closed for; none for a snapshot. Two moves of a volume never share
    /// a copy: it may have been written to in between.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed_for: Option<Uid>,
}

/// A request for a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyRequest {
    /// Name of the image that is made of the copy; names the copy. It is that of the original if the volume
    /// moves.
    pub volume: Uid,
    /// The snapshot or the closed volume.
    pub original: Original,
    /// The extent size hint of the volume, if it moves: a file with data does not get one any more.
    pub extent_size: Option<ExtentSize>,
}
