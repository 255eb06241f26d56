//! The pools of this node as they were found at the last look.
//!
//! *Invariant:* a pool that cannot be used takes no volumes and is not written.

mod images;
mod open;

use std::{
    collections::BTreeMap,
    future,
    sync::{Arc, Mutex, PoisonError},
};

use cistern_crds::{Bytes, NodePool, NodePoolStatus, PoolOwner, Reason};
use cistern_host::{
    Pool, PoolStatistics, Stray, Uid,
    pool::{Owner, PoolFile},
};
use tokio::sync::Notify;

pub use self::{
    images::{Images, weight_of},
    open::{Before, expectation, look, remove},
};

/// What is known of the pools, by name of the StoragePool.
#[derive(Debug, Default)]
pub struct Pools {
    looks: Mutex<BTreeMap<String, Arc<PoolLook>>>,
    /// Some pool became usable or ceased to be.
    changed: Notify,
}

/// One pool at the last look.
#[derive(Debug)]
pub struct PoolLook {
    /// As it was to be.
    pub spec: NodePool,
    /// As it was.
    pub found: Found,
}

/// A pool as it is to be, beside the others.
#[derive(Clone, Debug)]
pub struct Wish {
    /// The pool.
    pub spec: NodePool,
    /// UIDs of the other pools that the node is to carry.
    pub others: Vec<Uid>,
    /// Identity of the device that the pool was on last, as its status says.
    pub device_identity: Option<String>,
    /// The node.
    pub node: Owner,
}

impl Wish {
    /// Every pool that a node is to carry, given what is known of them.
    pub fn all(node: &Owner, specs: &[NodePool], known: &[NodePoolStatus]) -> Vec<Self> {
        let wish = |spec: &NodePool| {
            let others = specs.iter().filter(|other| other.uid != spec.uid);
            let known = known.iter().find(|status| status.uid == spec.uid);
            Self {
                spec: spec.clone(),
                others: others.filter_map(|other| other.uid.parse().ok()).collect(),
                node: node.clone(),
                device_identity: known.and_then(|status| status.device_identity.clone()),
            }
        };
        specs.iter().map(wish).collect()
    }
}

/// What a look at a pool found.
#[derive(Clone, Debug)]
pub enum Found {
    /// It can be used.
    Usable(Usable),
    /// It cannot be used.
    Unusable {
        /// Why, for programs.
        reason: Reason,
        /// Why, for people.
        message: String,
        /// As far as it is open all the same: its disk is asked whether it is well again.
        open: Option<Usable>,
        /// The node that it belongs to, if that is another.
        owner: Option<PoolOwner>,
    },
    /// It was to go, and it is gone.
    Gone,
}

/// A pool that can be used.
#[derive(Clone, Debug)]
pub struct Usable {
    /// The pool.
    pub pool: Arc<Pool>,
    /// Its numbers.
    pub statistics: PoolStatistics,
    /// Its file, where its source is an image.
    pub file: Option<PoolFile>,
    /// The images in it.
    pub images: Arc<Images>,
    /// Files in it that are not Cistern's.
    pub strays: Vec<Stray>,
}

impl Usable {
    /// Bytes of the files in it that are not Cistern's. They take room that nobody was promised.
    pub fn stray_bytes(&self) -> Bytes {
        self.strays.iter().filter_map(|stray| stray.size).sum()
    }

    /// Something in it that is not Cistern's, and nobody knows what it takes.
    pub fn uncounted(&self) -> Option<&Stray> {
        self.strays.iter().find(|stray| stray.size.is_none())
    }
}

impl PoolLook {
    /// The pool, if it can be used.
    pub fn usable(&self) -> Option<&Usable> {
        match &self.found {
            Found::Usable(usable) => Some(usable),
            Found::Unusable { .. } | Found::Gone => None,
        }
    }

    /// The pool, if it is open, whether or not it can be used.
    pub fn open(&self) -> Option<&Usable> {
        match &self.found {
            Found::Usable(usable) => Some(usable),
            Found::Unusable { open, .. } => open.as_ref(),
            Found::Gone => None,
        }
    }
}

impl Found {
    /// A pool of which nothing is open.
    pub fn unusable(reason: Reason, message: impl Into<String>) -> Self {
        Self::Unusable {
            reason,
            message: message.into(),
            open: None,
            owner: None,
        }
    }
}

impl Pools {
    /// The pool of this name at the last look.
    pub fn get(&self, name: &str) -> Option<Arc<PoolLook>> {
        self.lock().get(name).cloned()
    }

    /// Every pool at the last look.
    pub fn all(&self) -> Vec<Arc<PoolLook>> {
        self.lock().values().cloned().collect()
    }

    /// Notes what a look found; says whether the pool became usable or ceased to be.
    pub fn set(&self, look: PoolLook) -> bool {
        let usable = look.usable().is_some();
        let before = self.lock().insert(look.spec.name.clone(), Arc::new(look));
        let is_changed = before.is_none_or(|before| before.usable().is_some() != usable);
        if is_changed {
            self.changed.notify_waiters();
        }
        is_changed
    }

    /// Resolves when a pool that can be used cannot be any more; never of one that cannot be now.
    pub async fn lost(&self, name: &str) {
        let is_usable = || self.get(name).is_some_and(|look| look.usable().is_some());
        if !is_usable() {
            return future::pending().await;
        }
        loop {
            // Before the look, so that no change between the two is missed.
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if !is_usable() {
                return;
            }
            changed.await;
        }
    }

    /// Lets go of a pool, so that it can be mounted anew.
    pub fn close(&self, name: &str) {
        if let Some(look) = self.lock().get_mut(name) {
            let found = Found::unusable(Reason::NotMounted, "it is being opened anew");
            let spec = look.spec.clone();
            *look = Arc::new(PoolLook { spec, found });
        }
    }

    /// Lets go of a pool, so that it can be unmounted.
    pub fn release(&self, name: &str) {
        self.lock().remove(name);
    }

    /// Forgets the pools that the node is not to carry any more.
    pub fn retain(&self, names: &[&str]) {
        self.lock().retain(|name, _| names.contains(&name.as_str()));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Arc<PoolLook>>> {
        self.looks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
