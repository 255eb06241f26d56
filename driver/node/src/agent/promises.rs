//! Promises that are being written down: the gap between an admission and its echo in the watch.
//!
//! The ledger is derived from the watched custom resources, and those lag behind our own writes.
//! What is admitted is therefore remembered here from before the write until the watch shows it,
//! so that the same bytes are never given twice (R12).

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use cistern_crds::Bytes;

use super::ledger::{Ledger, Promise, Refusal};

/// What is promised and perhaps not yet seen, by UID of the custom resource.
#[derive(Debug, Default)]
pub struct Promises {
    pending: Mutex<HashMap<String, Pending>>,
}

#[derive(Clone, Debug)]
struct Pending {
    pool: String,
    promise: Promise,
}

/// What a promise is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// A new volume or snapshot: it must fit.
    New,
    /// One that lies on the disk: its bytes are taken whatever the ledger says.
    Adopted,
    /// One that becomes larger, or a snapshot that keeps more than was thought.
    Growth {
        /// What is promised to it so far.
        held: Bytes,
    },
}

impl Promises {
    /// Promises bytes, if they are there.
    ///
    /// `ledger` is made of what the watch shows and what is pending, while nobody else can be
    /// promised anything. Whoever has this promise already keeps it.
    pub fn make(
        &self,
        uid: &str,
        pool: &str,
        promise: Promise,
        claim: Claim,
        ledger: impl FnOnce(&PendingOfPool) -> Ledger,
    ) -> Result<(), Refusal> {
        let mut pending = self.lock();
        if pending.get(uid).is_some_and(|made| made.promise == promise) {
            return Ok(());
        }
        let mut others = of_pool(&pending, pool);
        others.remove(uid);
        match claim {
            Claim::New => ledger(&others).check(&promise)?,
            Claim::Growth { held } => ledger(&others).check_growth(held, &promise)?,
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

    /// Forgets what the watch shows by itself, what is not asked for any more, and what went away.
    ///
    /// `is_asked` says whether the object of a UID still waits for a promise.
    pub fn settle(&self, is_asked: impl Fn(&str, &Promise) -> bool) {
        // A write that is still on its way was made from an object that asks for it, and fails
        // when that has changed.
        self.lock()
            .retain(|uid, pending| is_asked(uid, &pending.promise));
    }

    /// What is pending for a pool.
    pub fn of_pool(&self, pool: &str) -> PendingOfPool {
        of_pool(&self.lock(), pool)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Pending>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Pending promises of one pool, by UID of the custom resource.
pub type PendingOfPool = HashMap<String, Promise>;

fn of_pool(pending: &HashMap<String, Pending>, pool: &str) -> PendingOfPool {
    pending
        .iter()
        .filter(|(_, entry)| entry.pool == pool)
        .map(|(uid, entry)| (uid.clone(), entry.promise.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use cistern_crds::{Provisioning, Reason};

    use super::*;
    use crate::{
        agent::{
            ledger::{Holder, Terms},
            volume::plan,
        },
        testing::{admitted_volume, ready_volume, wanted_volume},
    };

    const TERMS: Terms = Terms {
        usable: Bytes::gib(10),
        overcommit_percent: 100,
        volume_limit: 10,
        snapshot_limit: 10,
        snapshots_per_volume: 10,
    };

    const PROMISE: Promise = Promise {
        holder: Holder::Volume,
        size: Bytes::gib(6),
        provisioning: Provisioning::Thick,
    };

    fn make(promises: &Promises, uid: &str, claim: Claim) -> Result<(), Refusal> {
        let ledger =
            |pending: &PendingOfPool| Ledger::new(TERMS, pending.values().cloned(), Bytes::ZERO);
        promises.make(uid, "fast", PROMISE, claim, ledger)
    }

    #[test]
    fn r12_of_many_who_ask_at_once_only_those_get_a_promise_for_whom_there_is_room() {
        let promises = Promises::default();
        let kept = std::thread::scope(|scope| {
            let asking: Vec<_> = (0..8)
                .map(|number| {
                    let promises = &promises;
                    scope.spawn(move || make(promises, &format!("uid-{number}"), Claim::New))
                })
                .collect();
            let answers = asking.into_iter().map(|thread| thread.join().unwrap());
            answers.flatten().count()
        });
        assert_eq!(kept, 1);
    }

    #[test]
    fn a_promise_is_kept_when_asked_for_again_and_free_when_withdrawn() {
        let promises = Promises::default();
        assert_eq!(make(&promises, "uid-1", Claim::New), Ok(()));
        assert_eq!(make(&promises, "uid-1", Claim::New), Ok(()));
        let refusal = make(&promises, "uid-2", Claim::New).unwrap_err();
        assert_eq!(refusal.reason(), Reason::NoSpace);
        promises.withdraw("uid-1");
        assert_eq!(make(&promises, "uid-2", Claim::New), Ok(()));
    }

    #[test]
    fn what_lies_on_the_disk_already_is_counted_even_where_there_is_no_room() {
        let promises = Promises::default();
        assert_eq!(make(&promises, "uid-1", Claim::New), Ok(()));
        assert_eq!(make(&promises, "uid-2", Claim::Adopted), Ok(()));
        assert_eq!(promises.of_pool("fast").len(), 2);
        assert!(promises.of_pool("slow").is_empty());
    }

    #[test]
    fn a_promise_is_forgotten_once_the_watch_shows_it_and_not_before() {
        let promises = Promises::default();
        make(&promises, "uid-1", Claim::New).unwrap();
        let not_yet = wanted_volume();
        promises.settle(|_, promise| plan::is_asked(&not_yet, promise));
        assert_eq!(promises.of_pool("fast").len(), 1);
        let shown = admitted_volume();
        promises.settle(|_, promise| plan::is_asked(&shown, promise));
        assert!(promises.of_pool("fast").is_empty());
    }

    #[test]
    fn a_growth_that_is_taken_back_or_changed_is_forgotten_and_one_that_is_shown_too() {
        let growth = |gib| Promise {
            holder: Holder::Volume,
            size: Bytes::gib(gib),
            provisioning: Provisioning::Thin,
        };
        let promises = Promises::default();
        let ask = |gib| {
            let held = Bytes::gib(1);
            let ledger = |pending: &PendingOfPool| {
                assert!(
                    pending.is_empty(),
                    "its own growth does not stand in its way"
                );
                Ledger::new(TERMS, [growth(1)], Bytes::ZERO)
            };
            promises.make("uid-1", "fast", growth(gib), Claim::Growth { held }, ledger)
        };
        let sees = |gib| {
            let mut volume = ready_volume();
            volume.spec.size = Bytes::gib(gib);
            promises.settle(|_, promise| plan::is_asked(&volume, promise));
        };
        let pending = || promises.of_pool("fast").values().next().map(|p| p.size);
        ask(6).unwrap();
        sees(6);
        assert_eq!(pending(), Some(Bytes::gib(6)));
        ask(8).unwrap();
        assert_eq!(pending(), Some(Bytes::gib(8)));
        assert_eq!(ask(11).unwrap_err().reason(), Reason::TooLarge);
        assert_eq!(pending(), Some(Bytes::gib(8)));
        sees(1);
        assert_eq!(pending(), None, "it was taken back");
        ask(8).unwrap();
        sees(9);
        assert_eq!(pending(), None, "another one is asked for");
        ask(8).unwrap();
        let mut shown = ready_volume();
        shown.spec.size = Bytes::gib(8);
        shown.status.as_mut().unwrap().reserved = Some(Bytes::gib(8));
        promises.settle(|_, promise| plan::is_asked(&shown, promise));
        assert_eq!(pending(), None, "it is shown");
    }

    #[test]
    fn the_promise_to_a_volume_that_went_away_is_forgotten() {
        let promises = Promises::default();
        make(&promises, "uid-1", Claim::New).unwrap();
        promises.settle(|_, _| false);
        assert!(promises.of_pool("fast").is_empty());
    }
}
