//! What an earlier object of a volume has left on this node: its image, open or closed for a move, or a copy of it.
//!
//! *Invariants:* an image that is closed for the move that the object declares is never open before that has ended: the
//! copy of it may be complete. No image is made or adopted beside a copy of the volume.

use std::time::Duration;

use cistern_crds::{Explanation, PoolVolume, Reason};
use cistern_host::{Engine, Fence, Pool, Uid, image::Error as HostError};
use kube::{ResourceExt as _, runtime::controller::Action};

use super::status::VolumeOutcome;
use crate::{
    agent::{pools::Usable, reconcile::Reconciliation, work::Error},
    image::{self, Image, MOVES},
};

/// When to look again whether the move has ended for which a volume is refused. That may be no change of the object.
const REFUSED: Duration = Duration::from_secs(10);

impl Reconciliation<'_, PoolVolume> {
    /// Finds the image of a predecessor with the same name. Opens it again if it is closing, or closed for a move that
    /// is given up. One that is closed for the move that this object declares is closing then. Fails if it is closed
    /// for another move, which may have taken the data to another node, or if the pool has a copy of the volume.
    pub(super) async fn find_left_image(
        &self,
        usable: &Usable,
    ) -> Result<Result<Option<Image>, image::Error>, Error> {
        if usable.pool.images().is_none() {
            return self.find_own_image(usable).await;
        }
        let (object, now) = (self.object.clone(), (self.agent.node.now)());
        let search = move |pool: &dyn Engine| {
            let (images, name) = (pool.images_for(MOVES)?, object.name_any());
            images.refuse_copies_of(&name)?;
            let uid = |uid: &String| uid.parse::<Uid>();
            let target = object.spec.target.as_ref();
            let declared = target.map(|it| uid(&it.move_uid)).transpose()?;
            let cancelled = object.spec.cancelled_move_uid.as_ref();
            let cancelled = cancelled.map(uid).transpose()?;
            // Before the search, which finds open images only.
            take_up_left(images, &name, (declared.as_ref(), cancelled.as_ref()))?;
            let found = image::find_adoptable(pool, &object, now)?;
            if let Some(image) = &found {
                reopen_closing(images, &image.image.uid.parse()?, declared.as_ref())?;
            }
            Ok(found)
        };
        self.search(usable, search).await
    }

    /// Refuses the volume because of what an earlier object of its name has left.
    pub(super) async fn refuse_left(&self, mut why: Explanation) -> Result<Action, Error> {
        why.reason = reason_of(why.reason);
        let is_moving = why.reason == Reason::Moving;
        let refused = self.refuse(VolumeOutcome::Refused(why)).await?;
        Ok(if is_moving {
            Action::requeue(REFUSED)
        } else {
            refused
        })
    }
}

/// The reason to refuse a volume because of what is left. An image in use is sent, and a copy in use is received, by a
/// move: the refusal ends with that.
fn reason_of(reason: Reason) -> Reason {
    if reason == Reason::InUse {
        Reason::Moving
    } else {
        reason
    }
}

/// Removes the mark of an image that is closing, unless it is for the declared move. A closed image is left as it is.
pub(super) fn reopen_closing(
    pool: &Pool,
    uid: &Uid,
    declared: Option<&Uid>,
) -> Result<(), HostError> {
    match pool.fence(uid) {
        Ok(Fence::Closing { by }) if declared != Some(&by) => pool.reopen(uid, &by),
        // The next step reports what is missing.
        Ok(Fence::Open | Fence::Closing { .. } | Fence::Closed { .. })
        | Err(HostError::Missing { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Takes up the images that a volume of this name has left closed: one for the declared move is closing then, and one
/// for a move that is given up is open. Fails if one is closed for another move.
fn take_up_left(
    pool: &Pool,
    name: &str,
    (declared, cancelled): (Option<&Uid>, Option<&Uid>),
) -> Result<(), image::Error> {
    for left in pool.closed()? {
        let (uid, identity) = (left.image.uid, left.image.identity);
        let owner = identity.map(|identity| identity.owner);
        if owner.is_none_or(|owner| owner.volume() != Some(name)) {
            continue;
        }
        // Without a readable mark, this fails and names it.
        match pool.fence(&uid)? {
            Fence::Closed { by } if declared == Some(&by) => pool.return_to_closing(&uid, &by)?,
            Fence::Closed { by } if cancelled == Some(&by) => pool.reopen(&uid, &by)?,
            Fence::Closed { by } => return Err(HostError::Moving { uid, by }.into()),
            Fence::Open | Fence::Closing { .. } => continue,
        }
        tracing::warn!(volume = name, image = %uid, "took up an image that the volume had left closed");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_that_is_still_sent_refuses_its_volume_only_until_the_move_has_ended() {
        assert_eq!(reason_of(Reason::InUse), Reason::Moving);
        let permanent = Reason::IdentityConflict;
        assert_eq!(reason_of(permanent), permanent);
    }
}
