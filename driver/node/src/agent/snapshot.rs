//! Snapshots: from the wish in a PoolSnapshot to an image of its own, and back; alone, or with the
//! others of a group.
//!
//! ```text
//! promise what was written to the source ─▶ cut ─▶ promise what was really allocated ─▶ status
//! ```
//!
//! *Invariant:* what was announced is never cut anew: from then on a missing image is missing. And a
//! refused snapshot has nothing on the disk and nothing in the ledger.

pub mod group;
pub mod status;
pub mod take;

use std::sync::Arc;

use chrono::{DateTime, Utc};
use cistern_client::Chain;
use cistern_crds::{PoolSnapshot, volume::FilesystemStatus};
use cistern_host::{Cut, Owner};
use kube::{ResourceExt as _, runtime::controller::Action};

use self::{
    status::{Outcome, Own},
    take::{Origin, Taken},
};
use super::{
    Agent,
    blocking::on_host,
    desired::readable,
    image::{self, Difference, Image},
    ledger::Promise,
    outcome::{Stage, stage},
    pass::{Kept, LOCKED, NoPool, Pass},
    work::{Error, Kind, Work},
};

impl Kind for PoolSnapshot {
    const NOUN: &'static str = "snapshot";
    const CLAIM: &'static str = "VolumeSnapshot or VolumeGroupSnapshot";

    fn pool(&self) -> Option<&str> {
        Some(&self.spec.pool_name)
    }

    fn work(agent: &Agent) -> &Work<Self> {
        &agent.snapshots
    }

    async fn pass(agent: &Agent, snapshot: &Self) -> Result<Action, Error> {
        let (pass, stage) = (Pass::over(agent, snapshot), stage(snapshot));
        let pool = &snapshot.spec.pool_name;
        tracing::debug!(snapshot = pass.name, pool, ?stage, "reconciling");
        if let Some(group) = &snapshot.spec.group_name {
            // It waits for its snapshots.
            agent.groups.touch(group);
        }
        match stage {
            Stage::Rest if snapshot.spec.deletion_requested => Ok(Action::await_change()),
            Stage::Rest => pass.end(Outcome::Rested).await,
            Stage::Reclaim => pass.reclaim().await,
            Stage::Admitted if snapshot.is_announced() => pass.keep().await,
            Stage::Admit | Stage::Admitted if snapshot.spec.group_name.is_some() => {
                Ok(Action::await_change())
            }
            Stage::Admit | Stage::Admitted => {
                let origin = Origin::New(snapshot.spec.consistency);
                let taken = take::take(agent, vec![snapshot.clone()], origin).await?;
                Ok(match taken {
                    Taken::Ready(_) | Taken::Refused(_) | Taken::Overtaken => {
                        Action::await_change()
                    }
                    Taken::Busy => Action::requeue(LOCKED),
                    Taken::NotYet(why) => pass.come_back(&why.into_outcome()),
                })
            }
        }
    }

    fn gone(_: &Agent, _: &str) {}
}

impl Kept for PoolSnapshot {
    type Own = Own;

    fn after(&self, outcome: &Outcome, now: DateTime<Utc>) -> Self {
        Self {
            status: Some(status::after(self, outcome, now)),
            ..self.clone()
        }
    }

    fn has_status_of(&self, other: &Self) -> bool {
        self.status == other.status
    }

    fn is_announced(&self) -> bool {
        let status = self.status.as_ref();
        status.is_some_and(|status| status.size.is_some())
    }

    fn volume(&self) -> String {
        self.spec.source_volume.clone()
    }

    fn is_named(&self, owner: &Owner) -> bool {
        owner.snapshot().map(|cut| &cut.name) == self.metadata.name.as_ref()
    }

    fn is_served_by(&self, image: &Image) -> Result<(), Difference> {
        serves(self, image)
    }

    fn filesystem(&self) -> Option<&FilesystemStatus> {
        self.status.as_ref()?.filesystem.as_ref()
    }
}

/// Whether a snapshot still waits for a promise that was made to it: what it keeps is known only
/// when it is cut, so that it may need more than it was promised first.
pub(super) fn is_asked(snapshot: &PoolSnapshot, promise: &Promise) -> bool {
    let held = snapshot.status.as_ref().and_then(|status| status.reserved);
    match stage(snapshot) {
        Stage::Admit => true,
        Stage::Admitted => !snapshot.is_announced() && held < Some(promise.size),
        Stage::Rest | Stage::Reclaim => false,
    }
}

/// Whether the image is what the spec asks for: name, volume, source, access type and filesystem
/// agree; and what was said of its size and moment.
fn serves(snapshot: &PoolSnapshot, image: &Image) -> Result<(), Difference> {
    let spec = &snapshot.spec;
    let Owner::Snapshot(cut) = &image.owner else {
        let wanted = format!("snapshot {}", snapshot.name_any());
        return Err(image.differs("owner", image.owner.to_string(), wanted));
    };
    let status = snapshot.status.clone().unwrap_or_default();
    let said = |cut: &Cut| status.creation_time.unwrap_or(cut.time);
    for (what, found, wanted) in [
        ("snapshot", cut.name.clone(), snapshot.name_any()),
        ("volume", cut.volume.clone(), spec.source_volume.clone()),
        ("source", cut.source.to_string(), spec.source_image.clone()),
        ("moment", cut.time.to_rfc3339(), said(cut).to_rfc3339()),
    ] {
        if found != wanted {
            return Err(image.differs(what, found, wanted));
        }
    }
    let size = status.size.unwrap_or(image.size);
    if image.size != size {
        return Err(image.differs("size", image.size.to_string(), size.to_string()));
    }
    image.holds(spec.access_type, spec.filesystem)
}

/// When the filesystem of a snapshot was made: its volume knows, as long as there is one.
fn formatted(agent: &Agent, snapshot: &PoolSnapshot) -> DateTime<Utc> {
    let volume = agent.desired.volume(&snapshot.spec.source_volume);
    let volume = volume.as_deref().and_then(readable);
    let filesystem = volume.and_then(|volume| volume.status.as_ref()?.filesystem.as_ref());
    filesystem.map_or_else(agent.now, |filesystem| filesystem.format_time)
}

impl Pass<'_, PoolSnapshot> {
    /// Looks whether a snapshot that was announced is as it was.
    async fn keep(&self) -> Result<Action, Error> {
        let pool = match self.pool() {
            Ok((_, usable)) => Arc::clone(&usable.pool),
            Err(NoPool { reason, message }) => {
                return self.end(Outcome::NotReady { reason, message }).await;
            }
        };
        let (snapshot, formatted) = (self.object.clone(), formatted(self.agent, self.object));
        let place = self.agent.lanes.volume(&self.object.spec.pool_name).await;
        let work = on_host(place, move || look(&pool, &snapshot, formatted));
        let outcome = match work.await.map_err(|source| self.broken(source))? {
            Ok(image) => Outcome::Ready(image),
            Err(error) => {
                self.agent.suspect_pool(&error);
                let (reason, message) = (error.reason(), Chain(&error).to_string());
                Outcome::NotReady { reason, message }
            }
        };
        self.end(outcome).await
    }
}

/// The image of a snapshot, if it is there and is the snapshot's. Blocks.
fn look(
    pool: &cistern_host::Pool,
    snapshot: &PoolSnapshot,
    formatted: DateTime<Utc>,
) -> Result<Image, image::Error> {
    let image = Image::read(&image::find(pool, snapshot)?, formatted)?;
    image::is_the_same(snapshot, &image)?;
    Ok(image)
}

#[cfg(test)]
mod tests {
    use cistern_crds::{Bytes, ConditionType, Reason, condition, condition::Finding};

    use super::*;
    use crate::testing::{
        admitted_snapshot, at, image_of_snapshot, image_of_volume, ready_snapshot, wanted_snapshot,
    };

    #[test]
    fn every_part_of_a_snapshots_identity_must_agree() {
        let check = |change: fn(&mut Image)| {
            let mut image = image_of_snapshot();
            change(&mut image);
            let same = image::is_the_same(&ready_snapshot(), &image);
            same.map_err(|difference| difference.reason())
        };
        let cut = |change: fn(&mut Cut)| {
            let mut image = image_of_snapshot();
            let Owner::Snapshot(cut) = &mut image.owner else {
                panic!("{image:?}");
            };
            change(cut);
            let same = image::is_the_same(&ready_snapshot(), &image);
            same.map_err(|difference| difference.reason())
        };
        let conflict = Err(Reason::IdentityConflict);
        assert_eq!(check(|_| {}), Ok(()));
        assert_eq!(cut(|cut| cut.name = "snapshot-2".into()), conflict);
        assert_eq!(cut(|cut| cut.volume = "pvc-2".into()), conflict);
        assert_eq!(cut(|cut| cut.source = "uid-2".parse().unwrap()), conflict);
        assert_eq!(cut(|cut| cut.time = at(301)), conflict);
        assert_eq!(check(|image| image.size = Bytes::gib(2)), conflict);
        assert_eq!(check(|image| image.filesystem = None), conflict);
        let other_pool = check(|image| image.image.pool_uuid = "other".into());
        assert_eq!(other_pool, conflict);
        let other_filesystem = check(|image| {
            let filesystem = image.filesystem.as_mut().unwrap();
            filesystem.uuid = "33333333-3333-4333-8333-333333333333".into();
        });
        assert_eq!(other_filesystem, Err(Reason::FilesystemConflict));
    }

    #[test]
    fn r08_a_volumes_image_is_no_snapshot_and_a_snapshots_no_volume() {
        let mut snapshot = wanted_snapshot();
        snapshot.metadata.name = Some("pvc-1".into());
        let of_volume = image_of_volume();
        assert!(!snapshot.is_named(&of_volume.owner));
        assert!(snapshot.is_served_by(&of_volume).is_err());
        let mut volume = crate::testing::wanted_volume();
        volume.metadata.name = Some("snapshot-1".into());
        let of_snapshot = image_of_snapshot();
        assert!(!volume.is_named(&of_snapshot.owner));
        assert!(volume.is_served_by(&of_snapshot).is_err());
    }

    #[test]
    fn a_promise_stands_until_the_snapshot_has_it_or_is_refused() {
        let promise = |mib| Promise::to_snapshot(&wanted_snapshot(), Bytes::mib(mib));
        assert!(is_asked(&wanted_snapshot(), &promise(64)));
        assert!(!is_asked(&admitted_snapshot(), &promise(64)));
        // It turned out to keep more.
        assert!(is_asked(&admitted_snapshot(), &promise(65)));
        assert!(!is_asked(&ready_snapshot(), &promise(65)));
        let mut wished = admitted_snapshot();
        wished.spec.deletion_requested = true;
        assert!(!is_asked(&wished, &promise(65)));
        let mut refused = wanted_snapshot();
        let status = refused.status.get_or_insert_default();
        let finding = Finding::new(ConditionType::Admitted, false, Reason::NoSpace, "");
        condition::set(&mut status.conditions, &finding, None, at(0));
        assert!(!is_asked(&refused, &promise(64)));
        assert_eq!(stage(&refused), Stage::Rest);
    }

    #[test]
    fn r05_a_second_look_at_the_same_has_nothing_to_say() {
        let ready = Outcome::Ready(image_of_snapshot());
        let snapshot = admitted_snapshot().after(&ready, at(0));
        let status = snapshot.status.clone().unwrap();
        assert_eq!(status.creation_time, Some(at(300)));
        assert_eq!(status.reserved, Some(Bytes::mib(64)));
        assert!(snapshot.after(&ready, at(60)).has_status_of(&snapshot));
        assert!(
            snapshot
                .after(&Outcome::Rested, at(120))
                .has_status_of(&snapshot)
        );
        let kinds: Vec<_> = status.conditions.iter().map(|c| c.type_.as_str()).collect();
        assert_eq!(kinds, ["Ready", "Admitted", "Reclaimed", "DeletionHeld"]);
    }

    #[test]
    fn a_refusal_after_the_cut_leaves_nothing_reserved() {
        let refused = Outcome::Refused {
            reason: Reason::NoSpace,
            message: "full".into(),
        };
        let snapshot = admitted_snapshot().after(&refused, at(0));
        assert_eq!(snapshot.status.as_ref().unwrap().reserved, None);
        assert_eq!(stage(&snapshot), Stage::Rest);
    }
}
