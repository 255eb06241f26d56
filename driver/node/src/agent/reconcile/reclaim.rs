//! Removes the image of an object whose spec requests it.
//!
//! *Invariant:* an image that is in use stays, and nothing begins to use an image that is being removed.

use std::sync::Arc;

use cistern_client::Chain;
use cistern_crds::{Explanation, Reason};
use kube::runtime::controller::Action;

use super::{LOCKED, ReconciledImage, Reconciliation};
use crate::{
    agent::{outcome::ImageOutcome, pools::Usable, work::Error},
    blocking::on_host,
    image,
};

impl<K: ReconciledImage> Reconciliation<'_, K> {
    /// Destroys the image of an object whose spec requests it, unless the image is in use.
    ///
    /// The request is not binding until [`ImageOutcome::DeletionCommitted`] is written, guarded by the
    /// resource version of the object that requests it. The agent holds the lock throughout, so
    /// that no use of the image begins between the check and the removal.
    pub(in crate::agent) async fn reclaim(&self) -> Result<Action, Error> {
        let usable = match self.pool() {
            Ok((_, usable)) => usable,
            Err(why) => {
                let reason = Reason::ReclaimFailed;
                let why = Explanation { reason, ..why };
                return self.end(ImageOutcome::NotReclaimed(why)).await;
            }
        };
        let permit = self.permit().await;
        let Some(guard) = self.agent.locks.try_lock(&self.object.volume()) else {
            return Ok(Action::requeue(LOCKED));
        };
        let held = (permit, guard);
        if self.object.deletion_committed() {
            return self.destroy(usable, held).await;
        }
        let (pool, object) = (Arc::clone(&usable.pool), self.object.clone());
        let check = on_host((), move || (image::check_removable(&*pool, &object), held));
        let (checked, held) = check.await.map_err(|source| self.broken(source))?;
        if let Err(error) = checked {
            return self.end(self.not_reclaimed(&error)).await;
        }
        match self.write(&ImageOutcome::DeletionCommitted).await? {
            Some(committed) => {
                let reconciliation = Reconciliation::of(self.agent, &committed);
                reconciliation.destroy(usable, held).await
            }
            None => Ok(Action::await_change()),
        }
    }

    /// Removes the image of an object whose deletion is committed.
    async fn destroy(&self, usable: Usable, held: impl Send + 'static) -> Result<Action, Error> {
        let object = self.object.clone();
        let work = on_host(held, move || {
            let uid = image::destroy(&*usable.pool, &object)?;
            usable.images.removed(uid.as_str());
            Ok::<_, image::Error>(())
        });
        let outcome = match work.await.map_err(|source| self.broken(source))? {
            Ok(()) => {
                let (kind, name, pool) = (K::NOUN, &self.name, self.object.pool_name());
                tracing::info!(kind, name, pool, "destroyed the data as requested");
                ImageOutcome::Reclaimed
            }
            Err(error) => self.not_reclaimed(&error),
        };
        self.end(outcome).await
    }

    /// The outcome of a failed removal.
    fn not_reclaimed(&self, error: &image::Error) -> ImageOutcome<K::Own> {
        self.agent.pools.suspect(error);
        let reason = match error.reason() {
            Reason::InUse => Reason::InUse,
            _ => Reason::ReclaimFailed,
        };
        let message = Chain(error).to_string();
        ImageOutcome::NotReclaimed(Explanation::new(reason, message))
    }
}
