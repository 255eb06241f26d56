//! Which parts of a snapshot hold data, and which differ from an earlier one: what a backup has to
//! copy.
//!
//! ```text
//! query ─▶ find both ─▶ can they be compared? ─▶ walk ─▶ batch ─▶ batch ─▶ end
//! ```
//!
//! *Invariants:* a stream ends without an error only when everything was told (SMD-01, SMD-02); work
//! is done only when the next batch is asked for, so that whoever goes away ends it and lets go of
//! the images (SMD-03); and nothing here knows where the snapshots are.

pub mod batch;
pub mod on_node;

use std::{fmt, ops::Range, sync::Arc};

use chrono::{DateTime, Utc};
use cistern_client::Chain;
use cistern_crds::{Bytes, ConditionType, PoolSnapshot, condition};
use cistern_host::{Uid, image};
use futures::{future::BoxFuture, stream::BoxStream};
use kube::ResourceExt as _;

use crate::agent::blocking::{self, on_host};

/// Where snapshots are found and read.
pub trait Snapshots: fmt::Debug + Send + Sync {
    /// A snapshot that can be read.
    fn find<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Snapshot, Error>>;

    /// Begins to walk through what a snapshot holds from an offset on, or through what differs from
    /// another. Blocks.
    fn walk(&self, base: Option<&Snapshot>, target: &Snapshot, from: u64) -> Result<Walk, Error>;
}

/// Ranges of bytes, ascending and apart from each other, some at a time. Blocks; after an error it
/// has ended.
pub type Walk = Box<dyn Iterator<Item = Result<Vec<Range<u64>>, image::Error>> + Send>;

/// What somebody wants to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The id of the snapshot to compare with; none for all that holds data.
    pub base: Option<String>,
    /// The snapshot's id.
    pub target: String,
    /// The byte to begin at.
    pub from: u64,
    /// Most ranges of a batch.
    pub most: usize,
}

/// A snapshot that can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its id.
    pub id: String,
    /// Its pool's name.
    pub pool: String,
    /// Name of its image.
    pub image: Uid,
    /// Name of the image of the volume that it is of.
    pub source_image: String,
    /// Size of the volume when it was cut.
    pub size: Bytes,
    /// The moment that it shows.
    pub creation_time: DateTime<Utc>,
}

/// What a snapshot's ranges are told with.
#[expect(missing_debug_implementations, reason = "a stream has nothing to show")]
pub struct Told {
    /// Size of the snapshot.
    pub size: Bytes,
    /// The ranges, in batches of as many as were asked for; the last has fewer.
    pub batches: BoxStream<'static, Result<Vec<Range<u64>>, Error>>,
}

/// Why nothing is told, or not all.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such snapshot here.
    #[error("there is no snapshot {snapshot} here{}", elsewhere(.node.as_deref()))]
    NotFound {
        /// As it was asked for.
        snapshot: String,
        /// The node that has it, if it is known.
        node: Option<String>,
    },
    /// The snapshot cannot be read now.
    #[error("snapshot {snapshot} cannot be read now: {why}; try again")]
    NotReady {
        /// The snapshot.
        snapshot: String,
        /// Why.
        why: String,
    },
    /// The API server does not say whether there is such a snapshot.
    #[error("cannot read PoolSnapshot {snapshot}")]
    Api {
        /// The snapshot.
        snapshot: String,
        /// What it said, or that it said nothing.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// MDD-07.
    #[error("snapshot {target} cannot be compared with {base}: {why}")]
    NotComparable {
        /// The one to compare with.
        base: String,
        /// The other.
        target: String,
        /// Why not.
        why: String,
    },
    /// SMD-11.
    #[error("starting_offset {from} is beyond the end of snapshot {snapshot}, which has {size} bytes", size = .size.0)]
    OutOfRange {
        /// The snapshot.
        snapshot: String,
        /// Where to begin.
        from: u64,
        /// Its size.
        size: Bytes,
    },
    /// An image cannot be read.
    #[error(transparent)]
    Image(#[from] image::Error),
    /// The work ended in a panic.
    #[error(transparent)]
    Broken(#[from] blocking::Broken),
}

fn elsewhere(node: Option<&str>) -> String {
    node.map_or_else(String::new, |node| format!(": it is on node {node}"))
}

/// Tells of snapshots.
#[derive(Clone, Debug)]
pub struct Metadata {
    snapshots: Arc<dyn Snapshots>,
}

impl Metadata {
    /// Of these snapshots.
    pub fn new(snapshots: Arc<dyn Snapshots>) -> Self {
        Self { snapshots }
    }

    /// Begins to tell what is asked for.
    pub async fn tell(&self, query: Query) -> Result<Told, Error> {
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
        Ok(Told {
            size,
            batches: batch::stream(walk, query.most),
        })
    }
}

impl Snapshot {
    /// Reads what the agent said of a snapshot.
    pub fn read(object: &PoolSnapshot) -> Result<Self, Error> {
        let id = object.name_any();
        if object.spec.deletion_requested {
            let snapshot = id;
            return Err(Error::NotFound {
                snapshot,
                node: None,
            });
        }
        let not_ready = |why: &str| Error::NotReady {
            snapshot: id.clone(),
            why: why.to_owned(),
        };
        let unfinished = || not_ready("it is not cut yet");
        let status = object.status.as_ref().ok_or_else(unfinished)?;
        let image = status.image.as_ref().ok_or_else(unfinished)?;
        match condition::find(&status.conditions, ConditionType::Ready) {
            Some(ready) if ready.status != "True" => return Err(not_ready(&ready.message)),
            Some(_) => {}
            None => return Err(unfinished()),
        }
        Ok(Self {
            pool: object.spec.pool_name.clone(),
            image: image
                .uid
                .parse()
                .map_err(|error| not_ready(&Chain(&error).to_string()))?,
            source_image: object.spec.source_image.clone(),
            size: status.size.ok_or_else(unfinished)?,
            creation_time: status.creation_time.ok_or_else(unfinished)?,
            id,
        })
    }

    /// Whether another is a later snapshot of the same volume, or this one (MDD-07).
    fn precedes(&self, target: &Self) -> Result<(), Error> {
        let why = if self.source_image != target.source_image || self.pool != target.pool {
            "they are of different volumes".to_owned()
        } else if self.creation_time > target.creation_time {
            format!(
                "it was taken at {}, after that at {}: exchange them",
                self.creation_time, target.creation_time
            )
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
