//! Closes the image of a volume on the node that it leaves.

use std::time::Duration;

use cistern_crds::{FenceState, FenceStatus, PoolVolume};
use cistern_host::{Pool, Root, Uid, image::Error as HostError};
use kube::runtime::controller::Action;

use crate::{
    agent::{
        reconcile::Reconciliation,
        volume::status::{Own, VolumeOutcome},
        work::Error,
    },
    image::{self, name_of},
};

/// When to try again to close an image that is attached. Unstaging triggers it, too.
const ATTACHED: Duration = Duration::from_secs(2);

impl Reconciliation<'_, PoolVolume> {
    /// Closes the image to the next state, and reports it.
    pub(super) async fn close(&self, by: String, to: String) -> Result<Action, Error> {
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
