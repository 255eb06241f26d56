//! What becomes of a volume that moves: its image is closed on the node that it leaves, and its copy is opened on the
//! node that it moves to. If the move is undone, the image is opened again.
//!
//! ```text
//! target declared ─▶ closing ─▶ (status) ─▶ closed, once nothing has it attached ─▶ (status)
//! the spec names this node, which has the complete copy ─▶ the copy becomes the image
//! the same, but the spec names the move whose standby copy was promoted ─▶ the copy of the last snapshot becomes the image
//! the target is gone, and the spec still names this node ─▶ the image is opened again, also if no status has reported that it is closing
//! ```
//!
//! An object that was created again has no status of this node. Where its copy is, the copy becomes the image, which the volume then
//! adopts (`left.rs`).
//!
//! *Invariant:* each state is on the disk before the status reports it, because the operator acts on the status.

use std::{sync::Arc, time::Duration};

use cistern_client::Chain;
use cistern_crds::{
    Explanation, FenceState, FenceStatus, HasImage as _, PoolReplica, PoolVolume, PoolVolumeStatus,
    Reason, volume::ImageStatus,
};
use cistern_host::{
    InvalidUid, Pool, Root, Uid, copy::PromotedVolume, image::Error as HostError,
    system::SECTOR_SIZE,
};
use kube::{ResourceExt as _, runtime::controller::Action};

use super::{
    left::reopen_closing,
    status::{Own, VolumeOutcome},
};
use crate::{
    agent::{
        Agent,
        desired::readable,
        plan::{self, VolumeStep},
        pools::Usable,
        reconcile::{LOCKED, Reconciliation},
        work::Error,
    },
    blocking::on_host,
    image::{self, MOVES, name_of},
};

/// When to try again to close an image that is attached. Unstaging triggers it, too.
const ATTACHED: Duration = Duration::from_secs(2);

/// What a move demands of a volume on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MoveStep {
    /// Close its image to the next state.
    Close {
        /// UID of the VolumeMove.
        by: String,
        /// Name of the node that it moves to.
        to: String,
    },
    /// Open its image again: the move was undone.
    Reopen {
        /// UID of the VolumeMove.
        by: String,
    },
    /// Remove the mark of its image, if it has one: the status has not reported a move, but the write may have failed.
    Unmark,
    /// Make its copy the image: the volume has moved here.
    Open {
        /// UID of the VolumeMove.
        by: String,
        /// Name of the image.
        image: String,
    },
    /// Make the copy of its last snapshot the image: the node that had the volume is lost.
    Promote {
        /// UID of the VolumeMove.
        by: String,
        /// Name of the image.
        image: String,
    },
    /// Make nothing: the volume was created again here, and its copy is not complete.
    Refuse {
        /// UID of the VolumeMove.
        by: String,
    },
}

/// The next step of a move, if the volume moves. What is being made or grown is finished before.
pub(super) fn next<'a>(
    volume: &PoolVolume,
    mut replicas: impl Iterator<Item = &'a PoolReplica>,
) -> Option<MoveStep> {
    // One that is not admitted has no image, or was created again.
    let is_admitted = volume.reserved().is_some();
    let is_reported = is_admitted && volume.current_status().is_some();
    if let Some(target) = &volume.spec.target {
        let is_made = !matches!(plan::next(volume), VolumeStep::Make | VolumeStep::Grow);
        return (is_reported && is_made).then(|| MoveStep::Close {
            by: target.move_uid.clone(),
            to: target.node_name.clone(),
        });
    }
    let is_going = volume.spec.deletion_requested || volume.metadata.deletion_timestamp.is_some();
    if is_reported || !is_admitted && is_going {
        return None;
    }
    let name = volume.name_any();
    if let Some(copy) = replicas.find(|it| it.is_copy_for(&name, volume.spec.epoch)) {
        let (by, image) = (copy.spec.move_uid.clone(), copy.spec.image.clone());
        if copy.is_complete() {
            return Some(MoveStep::Open { by, image });
        }
        // Nothing but this says that there is no other copy: the watch may not show yet that this one is complete.
        if volume.spec.promoted_move_uid.as_ref() == Some(&by) {
            return Some(MoveStep::Promote { by, image });
        }
        if !is_admitted {
            return Some(MoveStep::Refuse { by });
        }
    }
    let fence = volume.status.as_ref().and_then(|it| it.fence.as_ref());
    is_admitted.then(|| match fence {
        Some(fence) => MoveStep::Reopen {
            by: fence.move_uid.clone(),
        },
        None => MoveStep::Unmark,
    })
}

/// The next step of a move, by the replicas of this node.
pub(super) fn next_on(agent: &Agent, volume: &PoolVolume) -> Option<MoveStep> {
    let replicas = agent.desired.replicas();
    next(volume, replicas.iter().filter_map(|it| readable(it)))
}

impl Reconciliation<'_, PoolVolume> {
    /// Takes a step of a move.
    pub(super) async fn take_move_step(&self, step: MoveStep) -> Result<Action, Error> {
        match step {
            MoveStep::Close { by, to } => self.close(by, to).await,
            MoveStep::Reopen { by } => {
                let step = move |pool: &Pool, uid: &Uid| {
                    pool.reopen(uid, &by.parse()?)?;
                    Ok(())
                };
                match self.on_image(name_of(self.object), step).await? {
                    Ok(((), _)) => Box::pin(self.prepare_here(VolumeStep::Keep)).await,
                    Err(action) => Ok(action),
                }
            }
            MoveStep::Unmark => match self.unmark().await? {
                Ok(()) => Box::pin(self.take(first_step(self.object))).await,
                Err(action) => Ok(action),
            },
            MoveStep::Open { by, image } => {
                let name = self.name.clone();
                let step = move |pool: &Pool, uid: &Uid| {
                    pool.open_copy(uid, &name, &by.parse()?)?;
                    Ok(pool.filesystem_uuid().to_string())
                };
                self.arrive(image.parse(), step).await
            }
            MoveStep::Promote { by, image } => {
                let volume = self.object.clone();
                let step = move |pool: &Pool, uid: &Uid| {
                    let promoted = promoted(&volume, uid)?;
                    pool.promote_point(&promoted, &by.parse()?)?;
                    Ok(pool.filesystem_uuid().to_string())
                };
                tracing::warn!(
                    volume = self.name,
                    "promoting the standby copy of the volume"
                );
                self.arrive(image.parse(), step).await
            }
            MoveStep::Refuse { by } => {
                let why = format!(
                    "the volume moves to this node by the VolumeMove with UID {by}, and its copy here is not complete; no empty \
                     volume takes its place"
                );
                let why = Explanation::new(Reason::Moving, why);
                self.refuse_left(why).await
            }
        }
    }

    /// Removes the mark of the image, if it is closing: no status names the move. Otherwise it has failed, and when it is tried
    /// again is in the error.
    async fn unmark(&self) -> Result<Result<(), Action>, Error> {
        // The next step says why the pool cannot be used. Logical volumes do not move.
        let has_images = |usable: &Usable| usable.pool.images().is_some();
        if !self.pool().is_ok_and(|(_, usable)| has_images(&usable)) {
            return Ok(Ok(()));
        }
        let step = |pool: &Pool, uid: &Uid| Ok(reopen_closing(pool, uid, None)?);
        let unmarked = self.on_image(name_of(self.object), step).await?;
        Ok(unmarked.map(|((), _)| ()))
    }

    /// Closes the image to the next state, and reports it.
    async fn close(&self, by: String, to: String) -> Result<Action, Error> {
        let reported = self.object.status.as_ref().and_then(|it| it.fence.as_ref());
        let reported = reported.filter(|fence| fence.move_uid == by);
        let state = match reported.map(|fence| fence.state) {
            None => FenceState::Closing,
            Some(FenceState::Closing) => FenceState::Closed,
            Some(FenceState::Closed) => return self.end(VolumeOutcome::Rested).await,
        };
        let (move_uid, root) = (by.clone(), self.agent.node.root.clone());
        let step = move |pool: &Pool, uid: &Uid| {
            let by = by.parse()?;
            match state {
                FenceState::Closing => Ok(pool.begin_closing(uid, &by).map(|()| true)?),
                FenceState::Closed => close_unused(&root, pool, uid, &by),
            }
        };
        match self.on_image(name_of(self.object), step).await? {
            Ok((true, _)) => {
                let volume = &self.name;
                let done = match state {
                    FenceState::Closing => "began to close the volume for a move",
                    FenceState::Closed => "closed the volume for a move",
                };
                tracing::info!(volume, to, "{done}");
                let fence = FenceStatus { state, move_uid };
                let fenced = VolumeOutcome::Own(Own::Fenced { fence, to });
                self.end(fenced).await
            }
            Ok((false, _)) => Ok(Action::requeue(ATTACHED)),
            Err(action) => Ok(action),
        }
    }

    /// Takes the step that makes a copy the volume's image, and reports the volume as that of its epoch. A volume that is not
    /// admitted adopts the image then. The step returns the UUID of the pool.
    async fn arrive(
        &self,
        image: Result<Uid, InvalidUid>,
        step: impl FnOnce(&Pool, &Uid) -> Result<String, image::Error> + Send + 'static,
    ) -> Result<Action, Error> {
        let (pool_uuid, uid) = match self.on_image(image, step).await? {
            Ok(done) => done,
            Err(action) => return Ok(action),
        };
        tracing::info!(volume = self.name, "the volume has moved to this node");
        let status = self.object.status.as_ref();
        let Some(status) = status.filter(|status| status.reserved.is_some()) else {
            return Box::pin(self.admit()).await;
        };
        let mut arrived = self.object.clone();
        arrived.status = Some(arrived_status(status, &uid, pool_uuid));
        let arrived = Reconciliation::of(self.agent, &arrived);
        Box::pin(arrived.prepare_here(VolumeStep::Keep)).await
    }

    /// Does a step on an image of the volume, whose lock is held meanwhile. Otherwise it has failed, and when it is
    /// tried again is in the error.
    async fn on_image<T: Send + 'static>(
        &self,
        image: Result<Uid, InvalidUid>,
        step: impl FnOnce(&Pool, &Uid) -> Result<T, image::Error> + Send + 'static,
    ) -> Result<Result<(T, Uid), Action>, Error> {
        let usable = match self.pool() {
            Ok((_, usable)) => usable,
            Err(why) => return Ok(Err(self.end(VolumeOutcome::NotReady(why)).await?)),
        };
        let permit = self.permit().await;
        let Some(guard) = self.agent.locks.try_lock(&self.name) else {
            return Ok(Err(Action::requeue(LOCKED)));
        };
        let pool = Arc::clone(&usable.pool);
        let work = on_host((permit, guard), move || {
            let uid = image?;
            let pool = pool.images_for(MOVES)?;
            step(pool, &uid).map(|done| (done, uid))
        });
        match work.await.map_err(|source| self.broken(source))? {
            Ok(done) => Ok(Ok(done)),
            Err(error) => {
                self.agent.pools.suspect(&error);
                let why = Explanation::new(error.reason(), Chain(&error).to_string());
                Ok(Err(self.end(VolumeOutcome::NotReady(why)).await?))
            }
        }
    }
}

/// Closes an image for a move; false if it is attached.
fn close_unused(root: &Root, pool: &Pool, uid: &Uid, by: &Uid) -> Result<bool, image::Error> {
    // The close waits for a device that may be about to be detached, and kubelet could not unmount the volume meanwhile.
    if root.mount_points_of(uid).is_ok_and(|it| !it.is_empty()) {
        return Ok(false);
    }
    match pool.close(uid, by) {
        Err(HostError::InUse { .. }) => Ok(false),
        closed => Ok(closed.map(|()| true)?),
    }
}

/// The next step of a volume of a new epoch. An image that exists is reported before it grows or changes: until then, no pod gets it.
fn first_step(volume: &PoolVolume) -> VolumeStep {
    match plan::next(volume) {
        VolumeStep::AdmitGrowth | VolumeStep::Grow | VolumeStep::AdmitAttributes => {
            VolumeStep::Keep
        }
        step @ (VolumeStep::Rest
        | VolumeStep::Admit
        | VolumeStep::Make
        | VolumeStep::Keep
        | VolumeStep::Reclaim) => step,
    }
}

/// What a standby copy becomes.
fn promoted(volume: &PoolVolume, uid: &Uid) -> Result<PromotedVolume, image::Error> {
    let source = volume.spec.content_source.as_ref();
    let source = source.map(|source| source.image.parse()).transpose()?;
    Ok(PromotedVolume {
        uid: uid.clone(),
        name: volume.name_any(),
        size: volume.reserved().unwrap_or(volume.spec.size),
        provisioning: volume.admitted_attributes().provisioning,
        source,
    })
}

/// The status of a volume that has arrived: what described its image on the other node is gone.
fn arrived_status(status: &PoolVolumeStatus, uid: &Uid, pool_uuid: String) -> PoolVolumeStatus {
    PoolVolumeStatus {
        image: Some(ImageStatus {
            uid: uid.to_string(),
            pool_uuid,
            // Only images move.
            sector_size: SECTOR_SIZE,
        }),
        fence: None,
        allocated: None,
        extents: None,
        problems: Vec::new(),
        ..status.clone()
    }
}

#[cfg(test)]
mod tests {
    use cistern_crds::{Bytes, MoveTarget, Provisioning};

    use super::*;
    use crate::testing::{admitted_volume, ready_volume, replica, wanted_volume};

    fn moving() -> PoolVolume {
        let mut volume = ready_volume();
        volume.spec.target = Some(MoveTarget {
            node_name: "node-2".to_owned(),
            move_uid: "move-1".to_owned(),
        });
        volume
    }

    fn step(volume: &PoolVolume, replicas: &[PoolReplica]) -> Option<MoveStep> {
        next(volume, replicas.iter())
    }

    #[test]
    fn a_volume_is_closed_for_its_target_after_what_is_being_grown() {
        assert_eq!(step(&ready_volume(), &[]), None);
        let close = MoveStep::Close {
            by: "move-1".to_owned(),
            to: "node-2".to_owned(),
        };
        assert_eq!(step(&moving(), &[]), Some(close));
        let mut growing = moving();
        growing.status.as_mut().unwrap().reserved = Some(Bytes::gib(2));
        assert_eq!(step(&growing, &[]), None);
        let mut unreported = moving();
        unreported.spec.epoch = 1;
        assert_eq!(step(&unreported, &[]), None);
    }

    #[test]
    fn a_volume_that_is_not_admitted_yet_is_not_closed() {
        let created_again = PoolVolume {
            status: None,
            ..moving()
        };
        assert_eq!(step(&created_again, &[]), None);
        let mut refused = moving();
        refused.status.as_mut().unwrap().reserved = None;
        assert_eq!(step(&refused, &[]), None);
    }

    #[test]
    fn a_volume_that_was_created_again_takes_up_its_copy_and_is_not_made_beside_it() {
        let mut volume = wanted_volume();
        (volume.spec.epoch, volume.metadata.uid) = (1, Some("uid-2".to_owned()));
        assert_eq!(step(&volume, &[]), None, "it is made");
        let mut copy = replica("pvc-1", 1);
        let (by, image) = ("move-1".to_owned(), "uid-1".to_owned());
        let refuse = MoveStep::Refuse { by: by.clone() };
        assert_eq!(step(&volume, &[copy.clone()]), Some(refuse));
        volume.spec.promoted_move_uid = Some(by.clone());
        let promote = MoveStep::Promote {
            by: by.clone(),
            image: image.clone(),
        };
        assert_eq!(step(&volume, &[copy.clone()]), Some(promote.clone()));
        // Also if the node that is lost, or this one, has refused it before.
        volume.status = Some(PoolVolumeStatus::default());
        assert_eq!(step(&volume, &[copy.clone()]), Some(promote));
        copy.status.get_or_insert_default().complete = true;
        let open = MoveStep::Open { by, image };
        assert_eq!(step(&volume, &[copy.clone()]), Some(open));
        let mut earlier = copy.clone();
        earlier.spec.epoch = 2;
        assert_eq!(step(&volume, &[earlier]), None, "of another epoch");
        volume.spec.deletion_requested = true;
        assert_eq!(step(&volume, &[copy]), None);
    }

    #[test]
    fn a_closed_volume_is_opened_where_its_spec_names_it() {
        let mut undone = ready_volume();
        undone.spec.epoch = 1;
        undone.status.as_mut().unwrap().fence = Some(FenceStatus {
            state: FenceState::Closed,
            move_uid: "move-1".to_owned(),
        });
        let by = "move-1".to_owned();
        assert_eq!(
            step(&undone, &[]),
            Some(MoveStep::Reopen { by: by.clone() })
        );
        let mut copy = replica("pvc-1", 1);
        let reopen = Some(MoveStep::Reopen { by });
        assert_eq!(step(&undone, &[copy.clone()]), reopen, "not complete");
        copy.status.get_or_insert_default().complete = true;
        let open = MoveStep::Open {
            by: "move-1".to_owned(),
            image: "uid-1".to_owned(),
        };
        assert_eq!(step(&undone, &[copy.clone()]), Some(open));
        copy.spec.epoch = 2;
        assert_eq!(step(&undone, &[copy]), reopen, "of another epoch");
    }

    #[test]
    fn a_volume_of_a_new_epoch_loses_a_mark_that_no_status_has_reported() {
        // The move was undone before the status said that the image is closing, or the disk is in another machine.
        let mut undone = ready_volume();
        undone.spec.epoch = 1;
        assert_eq!(undone.status.as_ref().unwrap().fence, None);
        assert_eq!(step(&undone, &[]), Some(MoveStep::Unmark));
        undone.spec.deletion_requested = true;
        assert_eq!(step(&undone, &[]), Some(MoveStep::Unmark));
        undone.status.as_mut().unwrap().epoch = 1;
        assert_eq!(step(&undone, &[]), None, "reported");
    }

    #[test]
    fn an_image_of_a_new_epoch_is_reported_before_it_grows_or_changes() {
        let mut volume = ready_volume();
        volume.spec.epoch = 1;
        volume.spec.attributes.provisioning = Provisioning::Thick;
        assert_eq!(plan::next(&volume), VolumeStep::AdmitAttributes);
        assert_eq!(first_step(&volume), VolumeStep::Keep);
        volume.spec.size = Bytes::gib(2);
        assert_eq!(plan::next(&volume), VolumeStep::AdmitGrowth);
        assert_eq!(first_step(&volume), VolumeStep::Keep);
        volume.status.as_mut().unwrap().reserved = Some(Bytes::gib(2));
        assert_eq!(plan::next(&volume), VolumeStep::Grow);
        assert_eq!(first_step(&volume), VolumeStep::Keep);
        volume.spec.deletion_requested = true;
        assert_eq!(first_step(&volume), VolumeStep::Reclaim);
        assert_eq!(first_step(&admitted_volume()), VolumeStep::Make);
    }

    #[test]
    fn a_promoted_volume_has_the_provisioning_that_was_admitted() {
        let mut volume = ready_volume();
        volume.spec.attributes.provisioning = Provisioning::Thick;
        let uid: Uid = "uid-1".parse().unwrap();
        let promoted = promoted(&volume, &uid).unwrap();
        assert_eq!(promoted.provisioning, Provisioning::Thin);
    }

    #[test]
    fn a_copy_is_promoted_only_if_the_spec_names_its_move_and_no_later_copy_is_complete() {
        let mut volume = ready_volume();
        volume.spec.epoch = 1;
        let mut copy = replica("pvc-1", 1);
        let unmark = Some(MoveStep::Unmark);
        assert_eq!(step(&volume, &[copy.clone()]), unmark);
        volume.spec.promoted_move_uid = Some("move-0".to_owned());
        assert_eq!(step(&volume, &[copy.clone()]), unmark, "of an earlier move");
        let by = "move-1".to_owned();
        volume.spec.promoted_move_uid = Some(by.clone());
        let image = "uid-1".to_owned();
        let promote = MoveStep::Promote {
            by: by.clone(),
            image: image.clone(),
        };
        assert_eq!(step(&volume, &[copy.clone()]), Some(promote));
        assert_eq!(step(&volume, &[]), unmark);
        // The copy of the closed volume has what was written since.
        copy.status.get_or_insert_default().complete = true;
        let open = MoveStep::Open { by, image };
        assert_eq!(step(&volume, &[copy]), Some(open));
    }

    #[test]
    fn what_described_the_image_on_the_other_node_is_gone_when_the_volume_arrives() {
        let mut before = ready_volume().status.unwrap();
        before.extents = Some(7);
        let uid: Uid = "uid-1".parse().unwrap();
        let after = arrived_status(&before, &uid, "pool-2".to_owned());
        assert_eq!(after.image.as_ref().unwrap().pool_uuid, "pool-2");
        assert_eq!((after.size, after.reserved), (before.size, before.reserved));
        assert_eq!(after.filesystem, before.filesystem);
        assert_eq!((after.extents, after.allocated), (None, None));
    }
}
