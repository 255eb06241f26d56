//! The pools of this node as of the last reconcile.
//!
//! *Invariant:* an unusable pool takes no volumes and is not written to.

mod images;
mod open;

use std::{collections::BTreeMap, future, sync::Arc};

use cistern_crds::{Bytes, Explanation, NodePool, NodePoolStatus, PoolOwner, Reason};
use cistern_host::{
    Pool, PoolStatistics, Stray, Uid,
    pool::{Owner, PoolFile},
};
use parking_lot::Mutex;
use tokio::sync::Notify;

pub use self::{
    images::Images,
    open::{Before, expectation, probe, remove},
};

/// The pools by name of the StoragePool.
#[derive(Debug, Default)]
pub struct Pools {
    states: Mutex<BTreeMap<String, Arc<PoolState>>>,
    /// Notified when a pool becomes usable or unusable.
    changed: Notify,
}

/// One pool as of the last reconcile.
#[derive(Debug)]
pub struct PoolState {
    /// The spec at that time.
    pub spec: NodePool,
    /// What the reconcile found.
    pub found: PoolAvailability,
}

/// A desired pool, with the other pools of the node.
#[derive(Clone, Debug)]
pub struct DesiredPool {
    /// The pool.
    pub spec: NodePool,
    /// UIDs of the other pools of the node.
    pub others: Vec<Uid>,
    /// Last known identity of the pool's device, from the status.
    pub device_identity: Option<String>,
    /// The node.
    pub node: Owner,
}

impl DesiredPool {
    /// The desired pools of a node, with their last status.
    pub fn all(node: &Owner, specs: &[NodePool], known: &[NodePoolStatus]) -> Vec<Self> {
        let desired = |spec: &NodePool| {
            let others = specs.iter().filter(|other| other.uid != spec.uid);
            let known = known.iter().find(|status| status.uid == spec.uid);
            Self {
                spec: spec.clone(),
                others: others.filter_map(|other| other.uid.parse().ok()).collect(),
                node: node.clone(),
                device_identity: known.and_then(|status| status.device_identity.clone()),
            }
        };
        specs.iter().map(desired).collect()
    }
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
        /// The node that owns the pool, if it is another one.
        owner: Option<PoolOwner>,
    },
    /// The pool was to be removed and is removed.
    Gone,
}

/// A usable pool.
#[derive(Clone, Debug)]
pub struct Usable {
    /// The pool.
    pub pool: Arc<Pool>,
    /// Space statistics of its filesystem.
    pub statistics: PoolStatistics,
    /// Its backing file, if the source is an image.
    pub file: Option<PoolFile>,
    /// The images in it.
    pub images: Arc<Images>,
    /// Foreign files in the pool.
    pub strays: Vec<Stray>,
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
    /// The pool, if it is usable.
    pub fn usable(&self) -> Option<&Usable> {
        match &self.found {
            PoolAvailability::Usable(usable) => Some(usable),
            PoolAvailability::Unusable { .. } | PoolAvailability::Gone => None,
        }
    }

    /// The pool, if it is open, usable or not.
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

impl Pools {
    /// The pool of this name as of the last reconcile.
    pub fn get(&self, name: &str) -> Option<Arc<PoolState>> {
        self.states.lock().get(name).cloned()
    }

    /// Every pool as of the last reconcile.
    pub fn all(&self) -> Vec<Arc<PoolState>> {
        self.states.lock().values().cloned().collect()
    }

    /// Records the state of a pool. Returns whether it became usable or unusable.
    pub fn set(&self, pool_state: PoolState) -> bool {
        let usable = pool_state.usable().is_some();
        let before = self
            .states
            .lock()
            .insert(pool_state.spec.name.clone(), Arc::new(pool_state));
        let is_changed = before.is_none_or(|before| before.usable().is_some() != usable);
        if is_changed {
            self.changed.notify_waiters();
        }
        is_changed
    }

    /// Resolves when a usable pool becomes unusable; never for a pool that is unusable now.
    pub async fn lost(&self, name: &str) {
        let is_usable = || {
            self.get(name)
                .is_some_and(|pool_state| pool_state.usable().is_some())
        };
        if !is_usable() {
            return future::pending().await;
        }
        loop {
            // Registered before the check, so that no change between the two is missed.
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if !is_usable() {
                return;
            }
            changed.await;
        }
    }

    /// Closes a pool, so that it can be remounted.
    pub fn close(&self, name: &str) {
        if let Some(pool_state) = self.states.lock().get_mut(name) {
            let found =
                PoolAvailability::unusable(Reason::NotMounted, "the pool is being reopened");
            let spec = pool_state.spec.clone();
            *pool_state = Arc::new(PoolState { spec, found });
        }
    }

    /// Closes a pool, so that it can be unmounted.
    pub fn release(&self, name: &str) {
        self.states.lock().remove(name);
    }

    /// Forgets the pools that are no longer in the node's spec.
    pub fn retain(&self, names: &[&str]) {
        self.states
            .lock()
            .retain(|name, _| names.contains(&name.as_str()));
    }
}
