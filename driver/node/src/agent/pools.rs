//! The pools of this node as of the last reconcile, and the work in them.
//!
//! *Invariant:* an unusable pool takes no volumes and is not written to.

mod declaration;
mod images;
mod limiter;
mod open;
mod state;

use std::{collections::BTreeMap, future, sync::Arc};

use cistern_crds::{Explanation, Reason};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use self::limiter::PoolLimiter;
pub use self::{
    declaration::{DesiredPool, replaced},
    images::{ImageSizes, Images},
    limiter::Permit,
    open::{Before, expectation, probe, remove},
    state::{LeftOut, PoolAvailability, PoolState, Usable},
};
use crate::image;

/// The pools by name of the StoragePool.
#[derive(Debug, Default)]
pub struct Pools {
    states: Mutex<BTreeMap<String, Arc<PoolState>>>,
    /// Notified when a pool becomes usable or unusable, or its limits change.
    changed: Notify,
    limiter: PoolLimiter,
    /// Requests a reconcile of the pools.
    requested: Notify,
    /// The StorageNode that the last reconcile used; None before the first.
    reconciled: watch::Sender<Option<NodeVersion>>,
}

/// UID and generation of a StorageNode; both are unset without one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeVersion {
    /// UID of the StorageNode.
    pub uid: String,
    /// Generation of the StorageNode.
    pub generation: Option<i64>,
}

/// Why a pool cannot be used. The messages follow the name of a volume or snapshot in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The pool is unusable.
    #[error("its pool {pool} cannot be used: {why}")]
    Unusable {
        /// Name of the pool.
        pool: String,
        /// Why it is unusable.
        why: Explanation,
    },
    /// The node does not have the pool.
    #[error("this node does not carry its pool {pool}")]
    Unknown {
        /// Name of the pool.
        pool: String,
    },
}

impl Pools {
    /// The pool of this name as of the last reconcile.
    pub fn get(&self, name: &str) -> Option<Arc<PoolState>> {
        self.states.lock().get(name).cloned()
    }

    /// Returns the pool of this name. Fails with the reason if it is unusable, or if the node does
    /// not have it.
    pub fn usable(&self, name: &str) -> Result<(Arc<PoolState>, Usable), Unavailable> {
        let pool = name.to_owned();
        let Some(pool_state) = self.get(name) else {
            return Err(Unavailable::Unknown { pool });
        };
        match &pool_state.found {
            PoolAvailability::Usable(usable) => Ok((Arc::clone(&pool_state), usable.clone())),
            PoolAvailability::Unusable { why, .. } => {
                let why = why.clone();
                Err(Unavailable::Unusable { pool, why })
            }
            PoolAvailability::Gone => Err(Unavailable::Unknown { pool }),
        }
    }

    /// Every pool as of the last reconcile.
    pub fn all(&self) -> Vec<Arc<PoolState>> {
        self.states.lock().values().cloned().collect()
    }

    /// Records the state of a pool. Returns whether it became usable or unusable, or has other limits for its volumes' I/O.
    pub fn set(&self, pool_state: PoolState) -> bool {
        let usable = pool_state.usable().is_some();
        let volume_io = pool_state.spec.limits.volume_io;
        let before = self
            .states
            .lock()
            .insert(pool_state.spec.name.clone(), Arc::new(pool_state));
        let is_changed = before.is_none_or(|before| {
            before.usable().is_some() != usable || before.spec.limits.volume_io != volume_io
        });
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

    /// Closes a pool, so that it can be remounted. One that is unusable keeps its reason while that is tried again.
    pub fn close(&self, name: &str) {
        if let Some(pool_state) = self.states.lock().get_mut(name) {
            let spec = pool_state.spec.clone();
            let found = match &pool_state.found {
                PoolAvailability::Unusable { why, owner, .. } => PoolAvailability::Unusable {
                    why: why.clone(),
                    open: None,
                    owner: owner.clone(),
                },
                PoolAvailability::Usable(_) | PoolAvailability::Gone => {
                    PoolAvailability::unusable(Reason::NotMounted, "the pool is being reopened")
                }
            };
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

    /// Waits for a permit to make a volume of the pool of this name, which needs one of [`Self::permit`] as well.
    pub async fn permit_to_make(&self, name: &str) -> Option<Permit> {
        self.limiter.made(name).await
    }

    /// Waits for a permit for work of hours on an existing volume of the pool of this name, which needs one of
    /// [`Self::permit`] as well.
    pub async fn permit_to_allocate(&self, name: &str) -> Option<Permit> {
        self.limiter.allocation(name).await
    }

    /// Waits for a permit to work on a volume of the pool of this name.
    pub async fn permit(&self, name: &str) -> Option<Permit> {
        self.limiter.volume(name).await
    }

    /// A permit to work on the pool with this UID itself; None while earlier work has not returned.
    pub fn permit_alone(&self, uid: &str) -> Option<Permit> {
        self.limiter.pool(uid)
    }

    /// Requests a reconcile of the pools.
    pub fn request_reconcile(&self) {
        self.requested.notify_one();
    }

    /// Requests a reconcile of the pools after an error that points to a pool.
    pub fn suspect(&self, error: &image::Error) {
        if error.reason() == Reason::PoolNotReady {
            self.request_reconcile();
        }
    }

    /// Resolves when a reconcile is requested. One request that arrives while nothing waits is
    /// kept.
    pub async fn reconcile_requested(&self) {
        self.requested.notified().await;
    }

    /// Records the end of a reconcile, and the StorageNode that it used; None without one.
    pub fn set_reconciled(&self, version: Option<NodeVersion>) {
        self.reconciled.send_modify(|last| match version {
            Some(version) => *last = Some(version),
            // Callers that wait for the first reconcile proceed.
            None => _ = last.get_or_insert_default(),
        });
    }

    /// Resolves when the pools were reconciled for the first time.
    pub async fn reconciled(&self) {
        // The sender lives as long as `self`.
        let _ = self.reconciles().wait_for(Option::is_some).await;
    }

    /// The StorageNode that the last reconcile used; changes after each reconcile.
    pub fn reconciles(&self) -> watch::Receiver<Option<NodeVersion>> {
        self.reconciled.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use cistern_crds::{Bytes, IoLimits, PoolOwner};

    use super::*;
    use crate::testing::{POOL_UUID, image_source, node_pool};

    #[test]
    fn an_unusable_pool_keeps_its_reason_and_its_owner_while_it_is_opened_again() {
        let pools = Pools::default();
        let spec = node_pool("second", "uid-2", image_source(Bytes::gib(1)));
        let conflict = Explanation::new(Reason::BackingConflict, "it is pool first of node w1");
        let first = PoolOwner {
            node: "w1".to_owned(),
            machine_id: None,
            pool_uid: "uid-1".to_owned(),
            filesystem_uuid: POOL_UUID.to_owned(),
        };
        let found = PoolAvailability::Unusable {
            why: conflict.clone(),
            open: None,
            owner: Some(first.clone()),
        };
        pools.set(PoolState { spec, found });
        for _ in 0..2 {
            pools.close("second");
            let state = pools.get("second").unwrap();
            let PoolAvailability::Unusable { why, open, owner } = &state.found else {
                panic!("{state:?}");
            };
            assert_eq!((why, owner.as_ref()), (&conflict, Some(&first)));
            assert!(open.is_none());
        }
    }

    #[test]
    fn the_objects_of_a_pool_have_to_know_when_its_limits_of_io_change_or_are_removed() {
        let pools = Pools::default();
        let limited = IoLimits {
            read_iops: Some(100),
            ..IoLimits::NONE
        };
        for limits in [IoLimits::NONE, limited, IoLimits::NONE] {
            for is_changed in [true, false] {
                let mut spec = node_pool("fast", "uid-1", image_source(Bytes::gib(1)));
                spec.limits.volume_io = limits;
                let found = PoolAvailability::Gone;
                assert_eq!(pools.set(PoolState { spec, found }), is_changed, "{limits}");
            }
        }
    }
}
