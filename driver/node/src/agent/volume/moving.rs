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
//! *Invariant:* each state is on the disk before the status reports it, because the operator acts on the status.

use std::{sync::Arc, time::Duration};

use cistern_client::Chain;
use cistern_crds::{
    Explanation, FenceState, FenceStatus, HasImage as _, PoolReplica, PoolVolume, PoolVolumeStatus,
    volume::ImageStatus,
};
use cistern_host::{Fence, Pool, Root, Uid, copy::PromotedVolume, image::Error as HostError};
use kube::{ResourceExt as _, runtime::controller::Action};

use super::status::{Own, VolumeOutcome};
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
    image::{self, Image, MOVES, name_of},
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
    },
    /// Make the copy of its last snapshot the image: the node that had the volume is lost.
    Promote {
        /// UID of the VolumeMove.
        by: String,
    },
}

/// The next step of a move, if the volume moves. What is being made or grown is finished before.
pub(super) fn next<'a>(
    volume: &PoolVolume,
    mut replicas: impl Iterator<Item = &'a PoolReplica>,
) -> Option<MoveStep> {
    let status = volume.status.as_ref()?;
    let is_reported = status.epoch == volume.spec.epoch;
    if let Some(target) = &volume.spec.target {
        let is_made = !matches!(plan::next(volume), VolumeStep::Make | VolumeStep::Grow);
        return (is_reported && is_made).then(|| MoveStep::Close {
            by: target.move_uid.clone(),
            to: target.node_name.clone(),
        });
    }
    if is_reported {
        return None;
    }
    let name = volume.name_any();
    let promoted = volume.spec.promoted_move_uid.as_ref();
    if let Some(copy) = replicas.find(|it| it.is_copy_for(&name, volume.spec.epoch)) {
        let by = copy.spec.move_uid.clone();
        if copy.is_complete() {
            return Some(MoveStep::Open { by });
        }
        // Nothing but this says that there is no other copy: the watch may not show yet that this one is complete.
        if promoted == Some(&by) {
            return Some(MoveStep::Promote { by });
        }
    }
    Some(match &status.fence {
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
                match self.on_image(step).await? {
                    Ok(((), _)) => Box::pin(self.prepare_here(VolumeStep::Keep)).await,
                    Err(action) => Ok(action),
                }
            }
            MoveStep::Unmark => match self.unmark().await? {
                Ok(()) => Box::pin(self.take(plan::next(self.object))).await,
                Err(action) => Ok(action),
            },
            MoveStep::Open { by } => {
                let name = self.name.clone();
                let step = move |pool: &Pool, uid: &Uid| {
                    pool.open_copy(uid, &name, &by.parse()?)?;
                    Ok(pool.filesystem_uuid().to_string())
                };
                self.arrive(step).await
            }
            MoveStep::Promote { by } => {
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
                self.arrive(step).await
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
        let step = |pool: &Pool, uid: &Uid| Ok(reopen_closing(pool, uid)?);
        Ok(self.on_image(step).await?.map(|((), _)| ()))
    }

    /// Finds the image of a predecessor with the same name. Opens it again if it is closing, or closed for a move that this object
    /// declares, and that closes it again, or that is given up. Fails if it is closed for another move, which may have taken the data
    /// to another node.
    pub(super) async fn find_left_image(
        &self,
        usable: &Usable,
    ) -> Result<Result<Option<Image>, image::Error>, Error> {
        if usable.pool.images().is_none() {
            return self.find_own_image(usable).await;
        }
        // Before the search, which finds open images only.
        let spec = &self.object.spec;
        let declared = spec.target.as_ref().map(|target| &target.move_uid);
        let uncommitted = declared.into_iter().chain(&spec.cancelled_move_uid);
        let uncommitted: Vec<String> = uncommitted.cloned().collect();
        let (name, pool) = (self.name.clone(), Arc::clone(&usable.pool));
        let permit = self.permit().await;
        let work = on_host(permit, move || {
            let uncommitted: Result<Vec<Uid>, _> =
                uncommitted.iter().map(|uid| uid.parse()).collect();
            reopen_left(pool.images_for(MOVES)?, &name, &uncommitted?)
        });
        if let Err(error) = work.await.map_err(|source| self.broken(source))? {
            return Ok(Err(error));
        }
        let found = self.find_own_image(usable).await?;
        let Ok(Some(image)) = &found else {
            return Ok(found);
        };
        let (uid, pool) = (image.image.uid.clone(), Arc::clone(&usable.pool));
        let permit = self.permit().await;
        let work = on_host(permit, move || {
            Ok::<_, image::Error>(reopen_closing(pool.images_for(MOVES)?, &uid.parse()?)?)
        });
        let unmarked = work.await.map_err(|source| self.broken(source))?;
        Ok(unmarked.and(found))
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
        match self.on_image(step).await? {
            Ok((true, _)) => {
                let volume = &self.name;
                tracing::info!(volume, ?state, to, "the volume is being closed for a move");
                let fence = FenceStatus { state, move_uid };
                let fenced = VolumeOutcome::Own(Own::Fenced { fence, to });
                self.end(fenced).await
            }
            Ok((false, _)) => Ok(Action::requeue(ATTACHED)),
            Err(action) => Ok(action),
        }
    }

    /// Takes the step that makes a copy the volume's image, and reports the volume as that of its epoch. The step returns
    /// the UUID of the pool.
    async fn arrive(
        &self,
        step: impl FnOnce(&Pool, &Uid) -> Result<String, image::Error> + Send + 'static,
    ) -> Result<Action, Error> {
        match self.on_image(step).await? {
            Ok((pool_uuid, uid)) => {
                tracing::info!(volume = self.name, "the volume has moved to this node");
                let mut arrived = self.object.clone();
                arrived.status = self
                    .object
                    .status
                    .as_ref()
                    .map(|status| arrived_status(status, &uid, pool_uuid));
                let arrived = Reconciliation::of(self.agent, &arrived);
                Box::pin(arrived.prepare_here(VolumeStep::Keep)).await
            }
            Err(action) => Ok(action),
        }
    }

    /// Does a step on the image of the volume, whose lock is held meanwhile. Otherwise it has failed, and when it is
    /// tried again is in the error.
    async fn on_image<T: Send + 'static>(
        &self,
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
        let (volume, pool) = (self.object.clone(), Arc::clone(&usable.pool));
        let work = on_host((permit, guard), move || {
            let uid = name_of(&volume)?;
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

/// Removes the mark of an image that is closing. A closed image is left as it is.
fn reopen_closing(pool: &Pool, uid: &Uid) -> Result<(), HostError> {
    match pool.fence(uid) {
        Ok(Fence::Closing { by }) => pool.reopen(uid, &by),
        // The next step reports what is missing.
        Ok(Fence::Open | Fence::Closed { .. }) | Err(HostError::Missing { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Opens the images again that a volume of this name has left closed for one of these moves. Fails if one is closed for another
/// move.
fn reopen_left(pool: &Pool, name: &str, uncommitted: &[Uid]) -> Result<(), image::Error> {
    for left in pool.closed()? {
        let (uid, identity) = (left.image.uid, left.image.identity);
        let owner = identity.map(|identity| identity.owner);
        if owner.is_none_or(|owner| owner.volume() != Some(name)) {
            continue;
        }
        // Without a readable mark, this fails and names it.
        match pool.fence(&uid)? {
            Fence::Closed { by } if uncommitted.contains(&by) => pool.reopen(&uid, &by)?,
            Fence::Closed { by } => return Err(HostError::Moving { uid, by }.into()),
            Fence::Open | Fence::Closing { .. } => continue,
        }
        tracing::warn!(volume = name, image = %uid, "opened an image again that the volume had left closed");
    }
    Ok(())
}

/// What a standby copy becomes.
fn promoted(volume: &PoolVolume, uid: &Uid) -> Result<PromotedVolume, image::Error> {
    let source = volume.spec.content_source.as_ref();
    let source = source.map(|source| source.image.parse()).transpose()?;
    Ok(PromotedVolume {
        uid: uid.clone(),
        name: volume.name_any(),
        size: volume.reserved().unwrap_or(volume.spec.size),
        provisioning: volume.spec.attributes.provisioning,
        source,
    })
}

/// The status of a volume that has arrived: what described its image on the other node is gone.
fn arrived_status(status: &PoolVolumeStatus, uid: &Uid, pool_uuid: String) -> PoolVolumeStatus {
    let sector_size = status.image.as_ref().map(|image| image.sector_size);
    PoolVolumeStatus {
        image: sector_size.map(|sector_size| ImageStatus {
            uid: uid.to_string(),
            pool_uuid,
            sector_size,
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
    use cistern_crds::{Bytes, MoveTarget};

    use super::*;
    use crate::testing::{ready_volume, replica};

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
        let promote = MoveStep::Promote { by: by.clone() };
        assert_eq!(step(&volume, &[copy.clone()]), Some(promote));
        assert_eq!(step(&volume, &[]), unmark);
        // The copy of the closed volume has what was written since.
        copy.status.get_or_insert_default().complete = true;
        assert_eq!(step(&volume, &[copy]), Some(MoveStep::Open { by }));
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
