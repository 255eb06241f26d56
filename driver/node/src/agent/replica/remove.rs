//! Removes the image of a replica whose spec requests it.
//!
//! *Invariants:* no image is removed before the volume's node has reported the volume in its present epoch, but a copy
//! on another node if the volume is to be deleted. An open image is closed and removed only if the API server says that
//! the volume is on another node, in a later epoch. Without a PoolVolume, nothing says so: its object may have been
//! deleted to be created again. The image stays then, as an orphan.

use cistern_client::Chain;
use cistern_crds::{Explanation, PoolReplica, PoolVolume, Reason, ReplicaPurpose};
use cistern_host::{Fence, InvalidUid, Pool, Uid, image};
use kube::runtime::controller::Action;
use tokio::time::timeout;

use super::status::{Own, ReplicaOutcome};
use crate::{
    agent::{
        pools::Usable,
        reconcile::{LOCKED, Reconciliation},
        work::Error,
    },
    blocking::on_host,
    image::MOVES,
};

/// How long a read from the API server may take.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);

/// Why the image of a replica stays.
#[derive(Debug, thiserror::Error)]
pub(super) enum Stays {
    #[error("the custom resource has an invalid UID")]
    Uid(#[from] InvalidUid),
    #[error(transparent)]
    Image(#[from] image::Error),
}

impl Reconciliation<'_, PoolReplica> {
    /// Removes the image, unless the volume needs it.
    pub(super) async fn remove(&self) -> Result<Action, Error> {
        let kept = |message: String| {
            ReplicaOutcome::NotReclaimed(Explanation::new(Reason::ReclaimFailed, message))
        };
        // The watch may be older than a commit or an undo.
        let name = &self.object.spec.volume_name;
        let volume = match self.volume().await {
            Ok(volume) => volume,
            Err(why) => return self.end(kept(why)).await,
        };
        if let Some(why) = needed_by(self.object, volume.as_ref()) {
            let why = Explanation::new(Reason::InUse, why);
            return self.end(ReplicaOutcome::NotReclaimed(why)).await;
        }
        let place = Place::of(self.object, volume.as_ref());
        let usable = match self.pool() {
            Ok((_, usable)) => usable,
            Err(why) => return self.end(kept(why.message)).await,
        };
        let permit = self.permit().await;
        let Some(guard) = self.agent.locks.try_lock(name) else {
            return Ok(Action::requeue(LOCKED));
        };
        let replica = self.object.clone();
        let removing = on_host((permit, guard), move || remove(&usable, &replica, place));
        let replica = &self.name;
        match removing.await.map_err(|source| self.broken(source))? {
            Ok(Removal::Done) => {
                let purpose = self.object.spec.purpose;
                tracing::info!(replica, ?purpose, "removed the image as requested");
                self.end(ReplicaOutcome::Reclaimed).await
            }
            Ok(Removal::Left) => {
                let why = left(self.object);
                tracing::warn!(replica, why, "the image stays");
                self.end(ReplicaOutcome::Own(Own::Left(why))).await
            }
            Err(error) => self.end(kept(Chain(&error).to_string())).await,
        }
    }
}

impl Reconciliation<'_, PoolReplica> {
    /// The volume as the API server has it. The error is for users.
    pub(super) async fn volume(&self) -> Result<Option<PoolVolume>, String> {
        let name = &self.object.spec.volume_name;
        let fetched = timeout(PATIENCE, self.agent.fetch(name)).await;
        let silent = || format!("cannot read PoolVolume {name}: the API server does not answer");
        let failed =
            |error: kube::Error| format!("cannot read PoolVolume {name}: {}", Chain(&error));
        fetched.map_err(|_| silent())?.map_err(failed)
    }
}

/// Why a volume, as the API server has it, needs the image of a replica; None if it does not.
fn needed_by(replica: &PoolReplica, volume: Option<&PoolVolume>) -> Option<String> {
    let volume = volume?;
    let spec = &volume.spec;
    let name = &replica.spec.volume_name;
    let is_reported = volume.current_status().is_some();
    let is_here = spec.node_name == replica.spec.node_name;
    let is_moving = spec
        .target
        .as_ref()
        .is_some_and(|target| target.move_uid == replica.spec.move_uid);
    if is_moving {
        return Some(format!("volume {name} still moves"));
    }
    let is_retained = replica.spec.purpose == ReplicaPurpose::Retained;
    // The data is not needed any more, and the volume's node may never report the volume.
    if spec.deletion_requested && !is_retained && !is_here {
        return None;
    }
    // The copy is opened first, or the image that was closed. Until then, either may be the only one, also after an undo.
    let is_former = is_retained && !is_here;
    let needs = !is_reported || is_former && spec.epoch <= replica.spec.epoch;
    needs.then(|| {
        let node = &spec.node_name;
        format!("volume {name} is not ready on node {node} yet")
    })
}

/// Closes an image, if it is open: that of a volume that was promoted elsewhere while this node was lost. Nothing can use it
/// after that. Fails while pods use it. Succeeds if there is no image.
pub(super) fn close(pool: &Pool, image: &Uid, by: &Uid) -> Result<(), image::Error> {
    if pool.image(image)?.is_some() {
        pool.begin_closing(image, by)?;
        pool.close(image, by)?;
    }
    Ok(())
}

/// Whether a volume, as the API server has it, was on this node in the epoch of the replica and is on another one now.
pub(super) fn has_left(replica: &PoolReplica, volume: &PoolVolume) -> bool {
    let (kept, spec) = (&replica.spec, &volume.spec);
    spec.node_name != kept.node_name && spec.epoch > kept.epoch
}

/// Where the volume of a replica is, as the API server has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// On this node: its own image has the same name as that of the replica, and is neither closed nor a copy.
    Here,
    /// It has left this node.
    Elsewhere,
    /// There is no PoolVolume, or one that was created again.
    Unknown,
}

impl Place {
    fn of(replica: &PoolReplica, volume: Option<&PoolVolume>) -> Self {
        match volume {
            Some(volume) if volume.spec.node_name == replica.spec.node_name => Self::Here,
            Some(volume) if has_left(replica, volume) => Self::Elsewhere,
            Some(_) | None => Self::Unknown,
        }
    }
}

/// What became of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Removal {
    /// It is gone, or the volume's own.
    Done,
    /// It stays, and belongs to no object.
    Left,
}

/// Removes the image of a replica, and records that in the images of the pool.
fn remove(usable: &Usable, replica: &PoolReplica, place: Place) -> Result<Removal, Stays> {
    let (pool, images) = (usable.pool.images_for(MOVES)?, &usable.images);
    let image: Uid = replica.spec.image.parse()?;
    let by: Uid = replica.spec.move_uid.parse()?;
    match (replica.spec.purpose, place) {
        (ReplicaPurpose::Incoming, _) => {
            pool.remove_copy(&image, &by)?;
            // An open image of the same name is the volume's own, or an orphan.
            images.removed_moving(image.as_str());
        }
        (ReplicaPurpose::Retained, Place::Here) => {}
        (ReplicaPurpose::Retained, Place::Elsewhere) => {
            close(pool, &image, &by)?;
            pool.remove_closed(&image, &by)?;
            images.removed(image.as_str());
        }
        (ReplicaPurpose::Retained, Place::Unknown) => {
            if pool.image(&image)?.is_some() {
                leave(pool, &image, &by)?;
                return Ok(Removal::Left);
            }
            pool.remove_closed(&image, &by)?;
            images.removed(image.as_str());
        }
    }
    Ok(Removal::Done)
}

/// Leaves an open image, without the mark of this move, to a PoolVolume that is created again.
fn leave(pool: &Pool, image: &Uid, by: &Uid) -> Result<(), image::Error> {
    if pool.fence(image)? == (Fence::Closing { by: by.clone() }) {
        pool.reopen(image, by)?;
    }
    Ok(())
}

/// Why the image of a replica stays although its removal was requested.
fn left(replica: &PoolReplica) -> String {
    let (name, image) = (&replica.spec.volume_name, &replica.spec.image);
    format!(
        "image {image} was not removed and is an orphan of the pool: PoolVolume {name} does not exist, and nothing says \
         that its data is on another node. To use the data, create PoolVolume {name} again; if nobody needs it, \
         remove the orphan"
    )
}

#[cfg(test)]
mod tests {
    use cistern_crds::{
        Bytes, ConditionType, MoveTarget, PoolReplicaSpec, Provisioning, condition,
    };

    use super::*;
    use crate::{
        agent::replica::status,
        testing::{at, ready_volume},
    };

    /// A replica of `ready_volume`, which is on node-1 and moves to node-2 from epoch 0.
    fn replica(purpose: ReplicaPurpose) -> PoolReplica {
        let (node, epoch) = match purpose {
            ReplicaPurpose::Retained => ("node-1", 0),
            ReplicaPurpose::Incoming => ("node-2", 1),
        };
        PoolReplica::desired(PoolReplicaSpec {
            volume_name: "pvc-1".to_owned(),
            image: "uid-1".to_owned(),
            node_name: node.to_owned(),
            pool_name: "fast".to_owned(),
            epoch,
            purpose,
            move_uid: "move-1".to_owned(),
            size: Bytes::gib(1),
            provisioning: Provisioning::Thin,
            extent_size: None,
            deletion_requested: true,
        })
    }

    fn volume(node: &str, epoch: u32, reported: u32, is_moving: bool) -> PoolVolume {
        let mut volume = ready_volume();
        volume.spec.node_name = node.to_owned();
        volume.spec.epoch = epoch;
        volume.spec.target = is_moving.then(|| MoveTarget {
            node_name: "node-2".to_owned(),
            move_uid: "move-1".to_owned(),
        });
        volume.status.as_mut().unwrap().epoch = reported;
        volume
    }

    #[test]
    fn an_image_stays_as_long_as_the_volume_needs_it() {
        use ReplicaPurpose::{Incoming, Retained};

        let needs = |purpose, volume: PoolVolume| needed_by(&replica(purpose), Some(&volume));
        let moving = volume("node-1", 0, 0, true);
        assert_eq!(
            needs(Retained, moving.clone()).unwrap(),
            "volume pvc-1 still moves"
        );
        assert!(needs(Incoming, moving).is_some());
        // Committed, and not opened yet.
        let committed = volume("node-2", 1, 0, false);
        assert_eq!(
            needs(Retained, committed.clone()).unwrap(),
            "volume pvc-1 is not ready on node node-2 yet"
        );
        assert!(needs(Incoming, committed.clone()).is_some());
        let mut deleted = committed;
        deleted.spec.deletion_requested = true;
        assert!(needs(Retained, deleted.clone()).is_some());
        assert!(needs(Incoming, deleted).is_some(), "its own");
        let moved = volume("node-2", 1, 1, false);
        assert_eq!(needs(Retained, moved.clone()), None);
        assert_eq!(needs(Incoming, moved), None);
        // Undone, and not opened again yet.
        let undone = volume("node-1", 1, 0, false);
        assert!(needs(Retained, undone.clone()).is_some());
        assert_eq!(
            needs(Incoming, undone.clone()).unwrap(),
            "volume pvc-1 is not ready on node node-1 yet"
        );
        let mut deleted = undone;
        deleted.spec.deletion_requested = true;
        assert!(needs(Retained, deleted.clone()).is_some());
        assert_eq!(needs(Incoming, deleted), None);
        let reopened = volume("node-1", 1, 1, false);
        assert_eq!(needs(Retained, reopened.clone()), None);
        assert_eq!(needs(Incoming, reopened), None);
        // Never declared, and not cancelled: the volume is where it was.
        assert_eq!(needs(Retained, volume("node-1", 0, 0, false)), None);
        assert_eq!(needed_by(&replica(Retained), None), None);
    }

    #[test]
    fn an_open_image_is_removed_only_if_the_volume_is_on_another_node_in_a_later_epoch() {
        let kept = replica(ReplicaPurpose::Retained);
        let place = |volume: Option<&PoolVolume>| Place::of(&kept, volume);
        assert_eq!(place(None), Place::Unknown, "the object is gone");
        let created_again = volume("node-2", 0, 0, false);
        assert_eq!(place(Some(&created_again)), Place::Unknown);
        assert_eq!(place(Some(&volume("node-1", 1, 1, false))), Place::Here);
        let moved = volume("node-2", 1, 1, false);
        assert_eq!(place(Some(&moved)), Place::Elsewhere);
    }

    #[test]
    fn an_image_that_stays_is_an_orphan_and_its_bytes_are_not_reserved_twice() {
        let mut kept = replica(ReplicaPurpose::Retained);
        kept.status.get_or_insert_default().reserved = Some(Bytes::gib(1));
        let outcome = ReplicaOutcome::Own(Own::Left(left(&kept)));
        let after = status::after(&kept, &outcome, at(0));
        assert_eq!(after.reserved, None);
        let reclaimed = condition::holding(&after.conditions, ConditionType::Reclaimed).unwrap();
        for part in ["image uid-1 was not removed", "PoolVolume pvc-1", "orphan"] {
            assert!(reclaimed.message.contains(part), "{}", reclaimed.message);
        }
    }
}
