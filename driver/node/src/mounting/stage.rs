//! Stages a volume: mounts it at its staging path, or puts its device there; and unstages it.

use std::{path::PathBuf, sync::Arc};

use cistern_client::Chain;
use cistern_crds::{Explanation, FilesystemType};
use cistern_host::{
    BlockStageRequest, Checking, Content, Engine, Keys, MountOptions, Root, StageRequest, Staged,
    Unlock, Uuid,
};

use super::{Error, Mounter, Refusal, finished, is_meant};
use crate::{
    agent::{
        checks::CheckOutcome,
        io_limits::{self, IoEnforcement, LimitedVolume},
        observations::Growth,
    },
    blocking::on_host,
    usage::{Usage, Volume},
};

/// A request to stage a volume.
#[derive(Clone, Debug)]
pub struct Stage {
    /// The volume id: the name of its PoolVolume.
    pub volume: String,
    /// Staging path, where it is mounted once for the node: a directory that the caller made.
    pub staging: PathBuf,
    /// The requested usage.
    pub usage: Usage,
    /// Name of the image in the `volume_context` of its PersistentVolume, if any.
    pub image: Option<String>,
    /// The keys in its Secret; None if it has none.
    pub keys: Option<Arc<Keys>>,
}

impl Mounter {
    /// Stages a volume whose filesystem needs no check, or was checked before.
    pub(super) async fn stage_now(&self, request: Stage) -> Result<(), Error> {
        let guard = self.lock(&request.volume).await?;
        let volume = self.volume_for_pod(&request.volume).await?;
        is_meant(&volume, request.image.as_deref())?;
        if volume.awaits_adoption(&request.usage) {
            let id = request.volume;
            let not_adopted = Err(Error::NotAdopted { volume: id.clone() });
            return with_check(&id, not_adopted, self.agent.checks.take(&id)).map(drop);
        }
        if let Err(why) = volume.supports(&request.usage) {
            return Err(self.refused_or_different(&volume, request.staging, why));
        }
        let pool = self.pool_to_stage(&volume).await;
        let (id, root) = (request.volume.clone(), self.agent.node.root.clone());
        let checked = self.agent.checks.take(&id);
        let is_checked = checked.is_some();
        let (io, limits) = (
            self.agent.io.clone(),
            io_limits::of(&volume, &self.agent.pools),
        );
        let staged = on_host(guard, move || {
            let checking = if is_checked {
                Checking::Without
            } else {
                Checking::Later
            };
            let staged = stage(&root, pool, &volume, &request, checking);
            if staged.is_ok() {
                // After the growth of the filesystem, and before a pod can use the volume.
                io.apply(&root, &[limits]);
            }
            staged
        });
        let staged = finished(&id, staged).await;
        let staged = with_check(&id, staged, checked);
        match &staged {
            Ok(None) => {}
            Ok(Some((staged, not_grown))) => self.note(&id, staged, not_grown.as_deref()),
            Err(error) if error.needs_check() => {}
            // A condition of the volume reports the error.
            Err(error) => {
                if let Some(reason) = error.unfit() {
                    let message = Chain(error).to_string();
                    let why = Explanation { reason, message };
                    self.agent.observations.damaged(&id, why);
                }
                self.agent.enqueue(&id);
            }
        }
        if staged.is_ok() {
            self.agent.checks.forget(&id);
            self.agent.saw_mounted(&id);
        }
        staged.map(drop)
    }

    /// Records missing blocks and a failed growth of a staged volume.
    fn note(&self, volume: &str, staged: &Staged, not_grown: Option<&str>) {
        match &staged.allocated {
            Ok(true) => {}
            // The reconcile of the volume allocates the rest.
            Ok(false) => self.agent.enqueue(volume),
            Err(error) => {
                let why = Chain(error).to_string();
                tracing::warn!(
                    volume,
                    error = why,
                    "staged a thick volume that lacks blocks"
                );
                self.agent.observations.allocated(volume, Some(why));
            }
        }
        let growth = staged.not_grown.as_ref().map_or(Growth::Complete, |error| {
            let why = not_grown.map_or_else(|| Chain(error).to_string(), str::to_owned);
            tracing::warn!(
                volume,
                error = why,
                "staged the volume without growing its filesystem"
            );
            Growth::Incomplete(why)
        });
        self.agent.saw_filesystem(volume, growth);
    }

    /// Unmounts a volume from its staging path. Succeeds if it is not there (NUS-05, GAP-01). Fails
    /// if another operation holds the volume, or if the mount is in use.
    pub async fn unstage(&self, volume: &str, staging: PathBuf) -> Result<(), Error> {
        let guard = self.lock(volume).await?;
        let (root, io) = (self.agent.node.root.clone(), self.agent.io.clone());
        let limits = io_limits::known(volume, &self.agent.desired, &self.agent.pools);
        let done = unstage(volume, guard, root, io, limits, staging).await;
        // Its deletion may wait for this.
        self.agent.enqueue(volume);
        done
    }
}

/// Combines the result of staging with the outcome of the check before it. Adds the reason why the
/// filesystem has not grown. If staging needs the check again and the check has failed, returns the
/// error of the check, because another check would fail in the same way.
fn with_check(
    volume: &str,
    staged: Result<Option<Staged>, Error>,
    checked: Option<CheckOutcome>,
) -> Result<Option<(Staged, Option<String>)>, Error> {
    let volume = || volume.to_owned();
    match (staged, checked) {
        (Ok(staged), Some(CheckOutcome::NotGrown(why))) => {
            Ok(staged.map(|staged| (staged, Some(why))))
        }
        (Ok(staged), _) => Ok(staged.map(|staged| (staged, None))),
        (Err(error), Some(CheckOutcome::Unfit(why))) if error.needs_check() => {
            let (volume, why) = (volume(), Refusal::Unfit(why));
            Err(Error::Refused { volume, why })
        }
        (Err(error), Some(CheckOutcome::Failed(why))) if error.needs_check() => {
            let volume = volume();
            Err(Error::NotChecked { volume, why })
        }
        (Err(error), _) => Err(error),
    }
}

/// Unmounts a volume from its staging path, without the limits of its I/O, and then drops `guard`.
/// Fails with [`Error::Unfinished`] if that takes longer than kubelet waits; it continues then.
pub async fn unstage<G: Send + 'static>(
    volume: &str,
    guard: G,
    root: Root,
    io: IoEnforcement,
    limits: Option<LimitedVolume>,
    staging: PathBuf,
) -> Result<(), Error> {
    let name = volume.to_owned();
    let done = on_host(guard, move || {
        let volume = limits.or_else(|| io_limits::staged_at(&name, &root, &staging));
        io.unstage(&root, volume.as_slice(), &staging)?;
        // Also if nothing is at the path: a stage may have been interrupted before its mount.
        volume.map_or(Ok(()), |volume| root.detach_idle(&volume.image))
    });
    finished(volume, done).await
}

/// Stages a volume. A staged volume stays staged, even if its pool or image has become unusable,
/// because kubelet repeats the call for running pods. Returns what the volume lacks; None if that
/// was not checked, as for a read-only volume, which does not grow.
fn stage(
    root: &Root,
    pool: Result<Arc<dyn Engine>, Error>,
    volume: &Volume,
    request: &Stage,
    checking: Checking<'_>,
) -> Result<Option<Staged>, Error> {
    match volume.content {
        Content::Block => {
            if !root.is_block_staged(&volume.image, &request.staging)? {
                let staged = pool?.stage_block(&BlockStageRequest {
                    unlock: unlock(volume, request),
                    image: &volume.image,
                    volume: &volume.name,
                    size: volume.size,
                    staging: &request.staging,
                })?;
                return Ok(Some(staged));
            }
            Ok(None)
        }
        Content::Filesystem { filesystem, uuid } => {
            let options = request.usage.options(filesystem)?;
            let stage = stage_request(volume, request, (filesystem, uuid), &options, checking);
            let staged = pool.and_then(|pool| Ok(pool.stage(&stage)?));
            match staged {
                Err(_) if root.is_staged(&stage)? => Ok(None),
                staged => Ok(Some(staged?).filter(|_| !stage.read_only)),
            }
        }
    }
}

/// What opens a volume with the keys of a request; None without keys. The host refuses keys for a volume that is not
/// encrypted, so that a class that lacks its parameter is noticed.
fn unlock<'a>(volume: &'a Volume, request: &'a Stage) -> Option<Unlock<'a>> {
    request.keys.as_deref().map(|keys| Unlock {
        keys,
        discard: volume.encryption_discards,
        mkfs_options: &volume.mkfs_options,
        extent_size: volume.extent_size,
    })
}

pub(super) fn stage_request<'a>(
    volume: &'a Volume,
    request: &'a Stage,
    (filesystem, filesystem_uuid): (FilesystemType, Uuid),
    options: &'a MountOptions,
    checking: Checking<'a>,
) -> StageRequest<'a> {
    StageRequest {
        unlock: unlock(volume, request),
        image: &volume.image,
        volume: &volume.name,
        filesystem,
        filesystem_uuid,
        size: volume.size,
        provisioning: volume.provisioning,
        options,
        read_only: request.usage.is_read_only(),
        checking,
        staging: &request.staging,
    }
}
