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
//! A volume that is used while it moves is copied in passes. Each copies a snapshot of it, and leaves a *point*
//! on the target: `incoming/<volume>.point`. The next pass, or that of the closed volume, begins as a clone of the
//! point, and only what differs from it is sent:
//!
//! ```text
//! snapshot 1 ─ all data ───▶ incoming/<volume> ─ rename ─▶ point ─ clone ─┐
//! snapshot 2 ─ changes ────▶ incoming/<volume> ◀──────────────────────────┘  ─ rename ─▶ point …
//! ```
//!
//! If the node of such a volume is lost, the point itself becomes the volume, as it was at the time of the snapshot
//! ([`Pool::promote_point`]).
//!
//! *Invariants:* what is sent never changes, so a copy that was interrupted goes on behind what is
//! on the disk. A volume is only created from a copy that is complete and synced. A copy is never the
//! only one before it is opened, so it may be removed at any time until then. A point is complete, and
//! its data is never written to; changes are applied only to a clone of the point that they are relative to.

mod folder;
mod incoming;
mod open;
mod outgoing;
mod point;
mod promote;

use serde::{Deserialize, Serialize};

#[cfg(doc)]
use crate::pool::Pool;
use crate::{
    id::Uid,
    image::{Identity, Owner},
};

pub(crate) use self::folder::list;
pub use self::{
    folder::IncomingCopy, incoming::Incoming, outgoing::Outgoing, promote::PromotedVolume,
};
use cistern_types::{Bytes, ExtentSize};

/// Largest number of data bytes in a [`Chunk`].
pub const CHUNK: usize = 1 << 20;

/// A part of an image that holds data, or that holds none any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Offset of the first byte, a multiple of 4096.
    pub offset: u64,
    /// The bytes, at most [`CHUNK`].
    pub data: Vec<u8>,
    /// Number of zeros after the bytes, of which the receiver makes a hole. Only changes have any.
    pub zeros: u64,
}

impl Chunk {
    /// Offset behind the last byte or zero; None if there is no such offset.
    fn end(&self) -> Option<u64> {
        let data = self.offset.checked_add(self.data.len() as u64)?;
        data.checked_add(self.zeros)
    }
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

impl Original {
    /// The volume that it is, or is a snapshot of: the name of its PoolVolume, and of its image.
    fn volume(&self) -> (&str, &Uid) {
        match &self.identity.owner {
            Owner::Volume(name) => (name, &self.identity.uid),
            Owner::Snapshot(record) => (&record.volume, &record.source),
        }
    }

    /// UID of the move that a copy is for: that of a pass, or that which the volume is closed for. None for the copy of a
    /// snapshot for a new volume.
    fn moved_by<'a>(&'a self, point_for: Option<&'a Uid>) -> Option<&'a Uid> {
        point_for.or(self.closed_for.as_ref())
    }
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
    /// UID of the move of the volume, if the original is a snapshot that was taken for it: the copy becomes a point.
    pub point_for: Option<Uid>,
    /// Image of the point that the copy begins with. None: nothing but what is sent.
    pub base: Option<Uid>,
}

impl CopyRequest {
    /// UID of the move that the copy is for; none for the copy of a snapshot.
    fn moved_by(&self) -> Option<&Uid> {
        self.original.moved_by(self.point_for.as_ref())
    }
}
