//! Stages a volume whose filesystem must be checked in full, grown, or adopted before it is mounted.
//!
//! ```text
//! stage ─▶ needs a check ─▶ waits for its turn, runs as long as it takes ─▶ outcome
//!   ▲                                                                        │
//!   └────────── the same call if the check is short, else kubelet's next ◀───┘
//! ```
//!
//! *Invariant:* a check continues after the call that started it, and mounts nothing, because the pod
//! may be gone by then.

use std::{sync::Arc, time::Duration};

use cistern_client::Chain;
use cistern_crds::{AccessType, Explanation, FilesystemType};
use cistern_host::{AdoptionRequest, Checking, Content, Engine, grow, image, mounting as host};
use tokio::time::timeout;

use super::{Error, LOCK_PATIENCE, Mounter, Stage, stage::stage_request};
use crate::{
    agent::checks::{self, CheckOutcome, CheckTurn, Ticket},
    blocking::{on_host, to_its_end},
    locks::VolumeGuard,
    usage::Volume,
};

/// How long a call waits for a check. Most checks are shorter.
const PATIENCE: Duration = Duration::from_secs(30);

impl Mounter {
    /// Mounts a volume at its staging path, or puts its device there. Fails while the volume's
    /// filesystem is being checked, and if the volume cannot be staged.
    pub async fn stage(&self, request: Stage) -> Result<(), Error> {
        self.is_not_checked(&request.volume)?;
        let staged = self.stage_now(request.clone()).await;
        if !staged.as_ref().is_err_and(Error::needs_check) {
            return staged;
        }
        let volume = request.volume.clone();
        if let Some(ticket) = self.agent.checks.begin(&volume) {
            let check = self.clone().check(ticket, request.clone());
            // If it panicked, staging fails with the same need for a check.
            let _ = timeout(PATIENCE, to_its_end(check)).await;
        }
        self.is_not_checked(&volume)?;
        self.stage_now(request).await
    }

    /// Fails with the progress while a volume's filesystem is being checked.
    fn is_not_checked(&self, volume: &str) -> Result<(), Error> {
        match self.agent.checks.progress(volume) {
            checks::CheckProgress::None => Ok(()),
            progress => Err(Error::Checking {
                volume: volume.to_owned(),
                why: checks::finding(progress).message,
            }),
        }
    }

    /// Waits for its turn, and checks the filesystem of a volume.
    async fn check(self, ticket: Ticket, request: Stage) {
        let agent = Arc::clone(&self.agent);
        agent.enqueue(&request.volume);
        let ticket = Arc::new(ticket);
        let outcome = match self.check_in_turn(&ticket, &request).await {
            Ok(Ok(())) => CheckOutcome::Fit,
            Ok(Err(error)) => CheckOutcome::NotGrown(Chain(&error).to_string()),
            Err(error) => {
                let message = Chain(&error).to_string();
                tracing::warn!(
                    volume = request.volume,
                    error = message,
                    "the filesystem check failed"
                );
                match error.unfit() {
                    Some(reason) => CheckOutcome::Unfit(Explanation::new(reason, message)),
                    None => CheckOutcome::Failed(message),
                }
            }
        };
        // A raw block volume whose content is not adopted stays usable as it is.
        if let CheckOutcome::Unfit(why) = &outcome
            && !self.is_raw_block(&request.volume)
        {
            agent.observations.damaged(&request.volume, why.clone());
        }
        if let Some(ticket) = Arc::into_inner(ticket) {
            ticket.end(outcome);
        }
        agent.enqueue(&request.volume);
    }

    async fn check_in_turn(
        &self,
        ticket: &Arc<Ticket>,
        request: &Stage,
    ) -> Result<Result<(), grow::Error>, Error> {
        let agent = Arc::clone(&self.agent);
        let turn = agent
            .checks
            .queue
            .turn(&self.namespace(&request.volume))
            .await;
        let guard = self.agent.locks.lock_within(&request.volume, LOCK_PATIENCE);
        let guard = guard.await.ok_or_else(|| Error::Busy {
            volume: request.volume.clone(),
        })?;
        // Reads the volume again, because the wait may have taken hours.
        let volume = self.volume_for_pod(&request.volume).await?;
        let pool = self.pool_to_stage(&volume).await?;
        ticket.run((agent.node.now)());
        agent.enqueue(&request.volume);
        if volume.awaits_adoption(&request.usage) {
            let filesystem = request.usage.filesystem;
            let adopted = self.adopt((turn, guard), pool, volume, filesystem, Arc::clone(ticket));
            return adopted.await.map(Ok);
        }
        let Content::Filesystem { filesystem, uuid } = volume.content else {
            return Ok(Ok(()));
        };
        let (id, ticket, request) = (request.volume.clone(), Arc::clone(ticket), request.clone());
        let checked = on_host((turn, guard), move || {
            let options = request.usage.options(filesystem)?;
            let progress = |percent| {
                if ticket.reached(percent) {
                    agent.enqueue(&request.volume);
                }
            };
            let checking = Checking::Now(&progress);
            let what = (filesystem, uuid);
            let stage = stage_request(&volume, &request, what, &options, checking);
            Ok(pool.prepare(&stage)?)
        });
        checked
            .await
            .map_err(|source| Error::Broken { volume: id, source })?
    }

    /// Adopts the filesystem in a raw block volume. The reconcile of the volume reports it then.
    async fn adopt(
        &self,
        held: (CheckTurn, VolumeGuard),
        pool: Arc<dyn Engine>,
        volume: Volume,
        filesystem: Option<FilesystemType>,
        ticket: Arc<Ticket>,
    ) -> Result<(), Error> {
        let (agent, id) = (Arc::clone(&self.agent), volume.name.clone());
        let spec = agent.pools.usable(&volume.pool).map(|(state, _)| state);
        let extent_limits = match spec {
            Ok(state) => state.spec.limits.extents(),
            Err(unavailable) => {
                let (volume, why) = (id, unavailable.into());
                return Err(Error::Refused { volume, why });
            }
        };
        let adopted = on_host(held, move || {
            let progress = |percent| {
                if ticket.reached(percent) {
                    agent.enqueue(&volume.name);
                }
            };
            let request = AdoptionRequest {
                image: &volume.image,
                volume: &volume.name,
                filesystem,
                extent_size: volume.extent_size,
                extent_limits,
            };
            let pool = pool.images_for("the adoption of filesystems")?;
            let adopted = pool.adopt_filesystem(&request, &progress)?;
            let content = adopted.identity.map(|identity| identity.content);
            tracing::info!(
                volume = volume.name,
                ?content,
                "adopted the filesystem of a raw block volume"
            );
            Ok::<_, image::Error>(())
        });
        let adopted = adopted
            .await
            .map_err(|source| Error::Broken { volume: id, source })?;
        Ok(adopted.map_err(host::Error::from)?)
    }

    /// Whether a volume is a raw block device to pods now.
    fn is_raw_block(&self, volume: &str) -> bool {
        let object = self.agent.desired.volume(volume);
        let volume = object.as_deref().and_then(crate::agent::desired::readable);
        volume.is_some_and(|volume| volume.access_type() == AccessType::Block)
    }

    /// The namespace of a volume's claim; empty if it is unknown.
    fn namespace(&self, volume: &str) -> String {
        let object = self.agent.desired.volume(volume);
        let volume = object.as_deref().and_then(crate::agent::desired::readable);
        let claim = volume.and_then(|volume| volume.spec.claim.as_ref());
        claim
            .map(|claim| claim.namespace.clone())
            .unwrap_or_default()
    }
}
