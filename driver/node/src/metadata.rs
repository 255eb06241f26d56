//! The ranges of a snapshot that hold data, and those that differ from an earlier snapshot. A backup
//! copies these ranges.
//!
//! ```text
//! query ─▶ find both ─▶ can they be compared? ─▶ walk ─▶ batch ─▶ batch ─▶ end
//! ```
//!
//! *Invariants:* a stream ends without an error only when it is complete (SMD-01, SMD-02). Work is done
//! only when the next batch is requested, so that a disconnect ends it and closes the images (SMD-03).

pub mod batch;
pub mod on_node;

use std::{fmt, ops::Range, sync::Arc};

use chrono::{DateTime, Utc};
use cistern_crds::{Bytes, ConditionType, PoolSnapshot, condition};
use cistern_host::{InvalidUid, Uid, image};
use futures::{future::BoxFuture, stream::BoxStream};
use kube::ResourceExt as _;

use crate::{
    agent::pools::Unavailable,
    blocking::{self, on_host},
};

/// Finds and reads snapshots.
pub trait Snapshots: fmt::Debug + Send + Sync {
    /// Finds a snapshot that can be read. Fails if it is not on this node or cannot be read now.
    fn find<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Snapshot, Error>>;

    /// Starts a walk from an offset through the data of a snapshot, or through its differences from
    /// another one. Blocks.
    fn walk(&self, base: Option<&Snapshot>, target: &Snapshot, from: u64) -> Result<Walk, Error>;
}

/// Byte ranges, ascending and disjoint, several at a time. Blocks. An error ends it.
pub type Walk = Box<dyn Iterator<Item = Result<Vec<Range<u64>>, image::Error>> + Send>;

/// The query of a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The id of the snapshot to compare with; None for all ranges that hold data.
    pub base: Option<String>,
    /// The id of the snapshot.
    pub target: String,
    /// Offset of the first byte.
    pub from: u64,
    /// Highest number of ranges in a batch.
    pub most: usize,
}

/// A snapshot that can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The id of the snapshot.
    pub id: String,
    /// Name of its pool.
    pub pool: String,
    /// Name of its image.
    pub image: Uid,
    /// Name of the image of its volume.
    pub source_image: String,
    /// Size of the volume when the snapshot was taken.
    pub size: Bytes,
    /// The time of the snapshot.
    pub creation_time: DateTime<Utc>,
}

/// The size of a snapshot and the stream of its ranges.
#[expect(missing_debug_implementations, reason = "a stream has nothing to show")]
pub struct RangeStream {
    /// Size of the snapshot.
    pub size: Bytes,
    /// The ranges in batches of the requested size; the last batch may be smaller.
    pub batches: BoxStream<'static, Result<Vec<Range<u64>>, Error>>,
}

/// Why a stream fails or is incomplete.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such snapshot on this node.
    #[error("there is no snapshot {snapshot} here{}", elsewhere(.node.as_deref()))]
    NotFound {
        /// The requested id.
        snapshot: String,
        /// The node that has it, if it is known.
        node: Option<String>,
    },
    /// The snapshot cannot be read now.
    #[error("snapshot {snapshot} cannot be read now: {why}; try again")]
    NotReady {
        /// Id of the snapshot.
        snapshot: String,
        /// Why it cannot be read.
        why: NotReady,
    },
    /// The API server did not answer, or answered with an error.
    #[error("cannot read PoolSnapshot {snapshot}")]
    Api {
        /// Id of the snapshot.
        snapshot: String,
        /// The error of the API server, or a timeout.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The snapshots are of different volumes, or in the wrong order (MDD-07).
    #[error("snapshot {target} cannot be compared with {base}: {why}")]
    NotComparable {
        /// Id of the earlier snapshot.
        base: String,
        /// Id of the later snapshot.
        target: String,
        /// Why they cannot be compared.
        why: Incomparable,
    },
    /// The offset is beyond the end of the snapshot (SMD-11).
    #[error("starting_offset {from} is beyond the end of snapshot {snapshot}, which has {size} bytes", size = .size.0)]
    OutOfRange {
        /// Id of the snapshot.
        snapshot: String,
        /// The requested offset in bytes.
        from: u64,
        /// Size of the snapshot.
        size: Bytes,
    },
    /// An image cannot be read.
    #[error(transparent)]
    Image(#[from] image::Error),
    /// The work panicked.
    #[error(transparent)]
    Broken(#[from] blocking::Broken),
}

/// Why a snapshot cannot be read now. The messages follow the name of the snapshot.
#[derive(Debug, thiserror::Error)]
pub enum NotReady {
    /// The agent has not reconciled its pools yet.
    #[error("the node plugin has just started and has not reconciled its pools yet")]
    Starting,
    /// The agent has not taken the snapshot yet.
    #[error("it is not taken yet")]
    NotTaken,
    /// Its condition `Ready` is not true: the message.
    #[error("{0}")]
    Condition(String),
    /// Its custom resource names its image with an invalid UID.
    #[error(transparent)]
    Uid(#[from] InvalidUid),
    /// Its pool cannot be used.
    #[error(transparent)]
    Pool(#[from] Unavailable),
}

/// Why two snapshots cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Incomparable {
    /// They are not of one volume.
    #[error("they are of different volumes")]
    Volumes,
    /// The base was taken after the target.
    #[error("it was taken at {base}, after that at {target}: exchange them")]
    Order {
        /// When the base was taken.
        base: DateTime<Utc>,
        /// When the target was taken.
        target: DateTime<Utc>,
    },
}

fn elsewhere(node: Option<&str>) -> String {
    node.map_or_else(String::new, |node| format!(": it is on node {node}"))
}

/// Streams the ranges of snapshots.
#[derive(Clone, Debug)]
pub struct Metadata {
    snapshots: Arc<dyn Snapshots>,
}

impl Metadata {
    /// Streams the ranges of these snapshots.
    pub fn new(snapshots: Arc<dyn Snapshots>) -> Self {
        Self { snapshots }
    }

    /// Starts the stream that a query requests. Fails if a snapshot cannot be read now, if the two
    /// cannot be compared, or if the offset is beyond the end.
    pub async fn stream_ranges(&self, query: Query) -> Result<RangeStream, Error> {
        let base = match &query.base {
            Some(id) => Some(self.snapshots.find(id).await?),
            None => None,
        };
        let target = self.snapshots.find(&query.target).await?;
        if let Some(base) = &base {
            base.precedes(&target)?;
        }
        let (from, size) = (query.from, target.size);
        if from > size.0 {
            let snapshot = target.id;
            return Err(Error::OutOfRange {
                snapshot,
                from,
                size,
            });
        }
        let snapshots = Arc::clone(&self.snapshots);
        let walk = on_host((), move || snapshots.walk(base.as_ref(), &target, from)).await??;
        Ok(RangeStream {
            size,
            batches: batch::stream(walk, query.most),
        })
    }
}

impl Snapshot {
    /// Reads the status of a snapshot. Fails if the snapshot is not ready, or if its deletion is
    /// requested.
    pub fn read(object: &PoolSnapshot) -> Result<Self, Error> {
        let id = object.name_any();
        if object.spec.deletion_requested {
            let snapshot = id;
            return Err(Error::NotFound {
                snapshot,
                node: None,
            });
        }
        let not_ready = |why| Error::NotReady {
            snapshot: id.clone(),
            why,
        };
        let unfinished = || not_ready(NotReady::NotTaken);
        let status = object.status.as_ref().ok_or_else(unfinished)?;
        let image = status.image.as_ref().ok_or_else(unfinished)?;
        match condition::find(&status.conditions, ConditionType::Ready) {
            Some(ready) if ready.status != "True" => {
                return Err(not_ready(NotReady::Condition(ready.message.clone())));
            }
            Some(_) => {}
            None => return Err(unfinished()),
        }
        Ok(Self {
            pool: object.spec.pool_name.clone(),
            image: image
                .uid
                .parse()
                .map_err(|error: InvalidUid| not_ready(error.into()))?,
            source_image: object.spec.source_image.clone(),
            size: status.size.ok_or_else(unfinished)?,
            creation_time: status.creation_time.ok_or_else(unfinished)?,
            id,
        })
    }

    /// Whether the other is a later snapshot of the same volume, or the same snapshot (MDD-07).
    fn precedes(&self, target: &Self) -> Result<(), Error> {
        let why = if self.source_image != target.source_image || self.pool != target.pool {
            Incomparable::Volumes
        } else if self.creation_time > target.creation_time {
            Incomparable::Order {
                base: self.creation_time,
                target: target.creation_time,
            }
        } else {
            return Ok(());
        };
        Err(Error::NotComparable {
            base: self.id.clone(),
            target: target.id.clone(),
            why,
        })
    }
}

#[cfg(test)]
mod tests;
