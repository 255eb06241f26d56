//! One pool as of the last reconcile.

use std::sync::Arc;

use cistern_crds::{Bytes, Explanation, NodePool, PoolOwner, Reason};
use cistern_host::{Engine, PoolStatistics, Stray, pool::PoolFile};

use super::images::Images;

/// One pool as of the last reconcile.
#[derive(Debug)]
pub struct PoolState {
    /// The spec at that time.
    pub spec: NodePool,
    /// What the reconcile found.
    pub found: PoolAvailability,
}

/// Whether a pool is usable.
#[derive(Clone, Debug)]
pub enum PoolAvailability {
    /// The pool is usable.
    Usable(Usable),
    /// The pool is unusable.
    Unusable {
        /// Reason and message for users.
        why: Explanation,
        /// The pool if it is open nevertheless: probes of its disk detect its recovery.
        open: Option<Usable>,
        /// The other node that owns the pool; None if no other does.
        owner: Option<PoolOwner>,
    },
    /// The pool was to be removed and is removed.
    Gone,
}

/// A usable pool.
#[derive(Clone, Debug)]
pub struct Usable {
    /// The open pool.
    pub pool: Arc<dyn Engine>,
    /// Space statistics of its filesystem.
    pub statistics: PoolStatistics,
    /// Its backing file, if the source is an image.
    pub file: Option<PoolFile>,
    /// Why listed disks are not in its volume group; None if all are.
    pub left_out: Option<LeftOut>,
    /// The images in it.
    pub images: Arc<Images>,
    /// Foreign files in the pool.
    pub strays: Vec<Stray>,
}

/// Why disks that a pool lists are not in its volume group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeftOut {
    /// These cannot be added, each for its reason.
    Disks(String),
    /// Disks cannot be added for this reason, if any are left out.
    Unknown(String),
}

impl Usable {
    /// Bytes of the foreign files. They take room without a reservation.
    pub fn stray_bytes(&self) -> Bytes {
        self.strays.iter().filter_map(|stray| stray.size).sum()
    }

    /// A foreign entry of unknown size.
    pub fn uncounted(&self) -> Option<&Stray> {
        self.strays.iter().find(|stray| stray.size.is_none())
    }
}

impl PoolState {
    /// The pool; None if it is not usable.
    pub fn usable(&self) -> Option<&Usable> {
        match &self.found {
            PoolAvailability::Usable(usable) => Some(usable),
            PoolAvailability::Unusable { .. } | PoolAvailability::Gone => None,
        }
    }

    /// The pool, usable or not; None if it is not open.
    pub fn open(&self) -> Option<&Usable> {
        match &self.found {
            PoolAvailability::Usable(usable) => Some(usable),
            PoolAvailability::Unusable { open, .. } => open.as_ref(),
            PoolAvailability::Gone => None,
        }
    }
}

impl PoolAvailability {
    /// An unusable pool that is not open.
    pub fn unusable(reason: Reason, message: impl Into<String>) -> Self {
        Self::Unusable {
            why: Explanation::new(reason, message),
            open: None,
            owner: None,
        }
    }
}
