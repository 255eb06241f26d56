//! Promises that are being written down: the gap between an admission and its echo in the watch.
//!
//! The ledger is derived from the watched custom resources, and those lag behind our own writes.
//! What is admitted is therefore remembered here from before the write until the watch shows it,
//! so that two volumes are never given the same bytes (R12).

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use cistern_crds::PoolVolume;

use super::ledger::{Ledger, Promise, Refusal};

/// What is promised and perhaps not yet seen, by UID of the PoolVolume.
#[derive(Debug, Default)]
pub struct Promises {
    pending: Mutex<HashMap<String, Pending>>,
}

#[derive(Clone, Debug)]
struct Pending {
    pool: String,
    promise: Promise,
}

/// Whether a volume that already lies on the disk is counted, or a new one is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It must fit.
    New,
    /// Its bytes are taken whatever the ledger says.
    Adopted,
}

impl Promises {
    /// Promises a volume its bytes, if they are there.
    ///
    /// `ledger` is made of what the watch shows and what is pending, while nobody else can be
    /// promised anything. A volume that has a promise already keeps it.
    pub fn make(
        &self,
        uid: &str,
        pool: &str,
        promise: Promise,
        claim: Claim,
        ledger: impl FnOnce(&PendingOfPool) -> Ledger,
    ) -> Result<(), Refusal> {
        let mut pending = self.lock();
        if pending.contains_key(uid) {
            return Ok(());
        }
        match claim {
            Claim::New => ledger(&of_pool(&pending, pool)).check(promise)?,
            Claim::Adopted => {}
        }
        let pool = pool.to_owned();
        pending.insert(uid.to_owned(), Pending { pool, promise });
        Ok(())
    }

    /// Takes a promise back: its write was refused, so nobody knows of it.
    pub fn withdraw(&self, uid: &str) {
        self.lock().remove(uid);
    }

    /// Forgets what the watch shows by itself, or what went away.
    ///
    /// `find` gives the object that the watch knows under a UID.
    pub fn settle<'a>(&self, find: impl Fn(&str) -> Option<&'a PoolVolume>) {
        self.lock().retain(|uid, _| {
            find(uid).is_some_and(|volume| {
                let status = volume.status.as_ref();
                status.is_none_or(|status| status.reserved.is_none())
            })
        });
    }

    /// What is pending for a pool.
    pub fn of_pool(&self, pool: &str) -> PendingOfPool {
        of_pool(&self.lock(), pool)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Pending>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Pending promises of one pool, by UID of the PoolVolume.
pub type PendingOfPool = HashMap<String, Promise>;

fn of_pool(pending: &HashMap<String, Pending>, pool: &str) -> PendingOfPool {
    pending
        .iter()
        .filter(|(_, entry)| entry.pool == pool)
        .map(|(uid, entry)| (uid.clone(), entry.promise))
        .collect()
}
