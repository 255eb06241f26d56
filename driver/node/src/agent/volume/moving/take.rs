//! Takes the steps of a move, each on one image, whose lock is held meanwhile.

use std::sync::Arc;

use cistern_client::Chain;
use cistern_crds::{Explanation, PoolVolume, Reason};
use cistern_host::{InvalidUid, Pool, Uid};
use kube::runtime::controller::Action;

use super::{
    MoveStep,
    arrive::{first_step, promoted},
};
use crate::{
    agent::{
        plan::VolumeStep,
        pools::Usable,
        reconcile::{LOCKED, Reconciliation},
        volume::{left::reopen_closing, status::VolumeOutcome},
        work::Error,
    },
    blocking::on_host,
    image::{self, MOVES, name_of},
};

impl Reconciliation<'_, PoolVolume> {
    /// Takes a step of a move.
    pub(in crate::agent::volume) async fn take_move_step(
        &self,
        step: MoveStep,
    ) -> Result<Action, Error> {
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
                    "the volume moves to this node by the VolumeMove with UID {by}, and its copy here is not \
                     complete; no empty volume takes its place"
                );
                let why = Explanation::new(Reason::Moving, why);
                self.refuse_left(why).await
            }
        }
    }

    /// Removes the mark of the image, if it is closing: no status names the move. Otherwise it has failed, and when it is
    /// tried again is in the error.
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

    /// Does a step on an image of the volume, whose lock is held meanwhile. Otherwise it has failed, and when it is
    /// tried again is in the error.
    pub(super) async fn on_image<T: Send + 'static>(
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
