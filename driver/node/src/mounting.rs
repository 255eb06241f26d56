//! Mounts volumes for pods on this node: stage, publish, unpublish, unstage, expand, statistics.
//!
//! *Invariants:* each change holds the volume's lock until the work on the host has ended. Unpublish
//! and unstage need neither the API server nor the pool. No operation can make a filesystem.

mod checked;
pub mod expand;
pub mod health;

use std::{path::PathBuf, sync::Arc, time::Duration};

use cistern_client::Chain;
use cistern_crds::{Explanation, FilesystemType, PoolVolume, Reason, names};
use cistern_host::{
    BlockPublishRequest, BlockStageRequest, Checking, Content, MountOptions, Pool, PublishRequest,
    Root, StageRequest, Staged, Uuid, VolumeStatistics, image, mounting as host, options,
    statistics,
};
use tokio::time::timeout;

use crate::{
    agent::{Agent, desired::readable, io_limits, observations::Growth},
    blocking::{self, on_host},
    locks::VolumeGuard,
    usage::{Unusable, Usage, Volume},
};

/// How long a call waits for another operation on its volume: longer than taking a snapshot, of which
/// the caller does not know, and shorter than kubelet's timeout of 2 min.
const LOCK_PATIENCE: Duration = Duration::from_mins(1);
/// How long a call waits for the first reconcile of the pools after a start, and for the API server.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a call waits for work on a volume, which continues after that. Together with the wait for
/// the lock it is shorter than kubelet's timeout.
const WORK_PATIENCE: Duration = Duration::from_secs(50);
/// How long a volume's filesystem may take to return its statistics.
const STATISTICS_DEADLINE: Duration = Duration::from_secs(10);

/// Mounts and unmounts the volumes of this node for the Node service.
#[derive(Clone, Debug)]
pub struct Mounter {
    agent: Arc<Agent>,
}

/// A request to stage a volume.
#[derive(Clone, Debug)]
pub struct Stage {
    /// The volume id.
    pub volume: String,
    /// Staging path, where it is mounted once for the node: a directory that the caller made.
    pub staging: PathBuf,
    /// The requested usage.
    pub usage: Usage,
    /// Name of the image in the `volume_context` of its PersistentVolume, if any.
    pub image: Option<String>,
}

/// A request to publish a volume.
#[derive(Clone, Debug)]
pub struct Publish {
    /// The volume id.
    pub volume: String,
    /// Its staging path.
    pub staging: PathBuf,
    /// Target path for a pod: made by this call, in a directory that the caller made.
    pub target: PathBuf,
    /// The requested usage.
    pub usage: Usage,
    /// Whether the pod may only read.
    pub read_only: bool,
    /// Name of the image in the `volume_context` of its PersistentVolume, if any.
    pub image: Option<String>,
}

/// Why a volume was not mounted or not unmounted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another operation on the volume is running.
    #[error("another operation on volume {volume} is running")]
    Busy {
        /// The volume.
        volume: String,
    },
    /// The work continues because it takes long or the disk does not answer.
    #[error(
        "the work on volume {volume} has not ended after {after:?} and continues; if the disk of its pool does not answer, the conditions of the PoolVolume say so"
    )]
    Unfinished {
        /// The volume.
        volume: String,
        /// How long the call waited.
        after: Duration,
    },
    /// The check of its filesystem waits or runs.
    #[error("volume {volume} cannot be staged yet: {why}")]
    Checking {
        /// The volume.
        volume: String,
        /// Progress of the check.
        why: String,
    },
    /// The check of its filesystem failed.
    #[error("the filesystem of volume {volume} could not be checked: {why}")]
    NotChecked {
        /// The volume.
        volume: String,
        /// The error of the check.
        why: String,
    },
    /// There is no such volume on this node.
    #[error("there is no volume {volume} on this node")]
    NotFound {
        /// The requested id.
        volume: String,
    },
    /// The agent has not reconciled its pools yet.
    #[error("the node plugin has just started and has not reconciled its pools yet")]
    Starting,
    /// The watch does not show the volume, and the API server cannot be read.
    #[error("cannot read PoolVolume {volume}")]
    Api {
        /// The volume.
        volume: String,
        /// The error of the API server or of the connection, or a timeout.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The state of the volume or its pool rules out the operation, or the volume the usage.
    #[error("volume {volume} cannot be used like this: {why}")]
    Refused {
        /// The volume.
        volume: String,
        /// The reason.
        why: String,
    },
    /// The `volume_context` is that of another volume (NSV-17, NPV-20).
    #[error("volume_context contradicts volume {volume}: {why}")]
    Contradicted {
        /// The volume.
        volume: String,
        /// What differs.
        why: String,
    },
    /// The volume is at the path already, with other parameters.
    #[error("volume {volume} is at {path} already, but {why}")]
    Different {
        /// The volume.
        volume: String,
        /// The staging or target path.
        path: PathBuf,
        /// What differs.
        why: String,
    },
    /// A mount option is not allowed.
    #[error(transparent)]
    Options(#[from] options::Unsupported),
    /// The work on the host failed.
    #[error(transparent)]
    Host(#[from] host::Error),
    /// The statistics of a volume cannot be read.
    #[error(transparent)]
    Statistics(#[from] statistics::Error),
    /// The work on the host panicked.
    #[error("the work on volume {volume} broke off")]
    Broken {
        /// The volume.
        volume: String,
        /// The panic.
        #[source]
        source: blocking::Broken,
    },
}

impl Mounter {
    /// Mounts the volumes of an agent.
    pub fn new(agent: Arc<Agent>) -> Self {
        Self { agent }
    }

    /// Stages a volume whose filesystem needs no check, or was checked before.
    async fn stage_now(&self, request: Stage) -> Result<(), Error> {
        let guard = self.lock(&request.volume).await?;
        let volume = self.volume(&request.volume).await?;
        is_meant(&volume, request.image.as_deref())?;
        if let Err(why) = volume.supports(&request.usage) {
            return Err(self.refused_or_different(&volume, request.staging, &why));
        }
        let pool = self.pool(&volume).await;
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
        let staged = checked::with(&id, staged, checked);
        match &staged {
            Ok(None) => {}
            Ok(Some((staged, not_grown))) => self.note(&id, staged, not_grown.as_deref()),
            Err(error) if checked::is_needed(error) => {}
            // A condition of the volume reports the error.
            Err(error) => {
                if let Some(reason) = unfit(error) {
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
        if let Some(error) = &staged.not_reallocated {
            let why = Chain(error).to_string();
            tracing::warn!(
                volume,
                error = why,
                "staged a thick volume that lacks blocks"
            );
            self.agent.observations.allocated(volume, Some(why));
        }
        let growth = staged.not_grown.as_ref().map_or(Growth::Complete, |error| {
            let why = not_grown.map_or_else(|| Chain(error).to_string(), str::to_owned);
            tracing::warn!(volume, error = why, "staged at its old size");
            Growth::Incomplete(why)
        });
        self.agent.saw_filesystem(volume, growth);
    }

    /// Publishes a staged volume at its target path, without use of its pool.
    pub async fn publish(&self, request: Publish) -> Result<(), Error> {
        let guard = self.lock(&request.volume).await?;
        let volume = self.volume(&request.volume).await?;
        is_meant(&volume, request.image.as_deref())?;
        if let Err(why) = volume.supports(&request.usage) {
            return Err(self.refused_or_different(&volume, request.target, &why));
        }
        let (id, root) = (request.volume.clone(), self.agent.node.root.clone());
        let published = on_host(guard, move || publish(&root, &volume, &request));
        finished(&id, published).await
    }

    /// Unpublishes a volume from a target path. Succeeds if it is not there (NUP-05, GAP-01).
    pub async fn unpublish(&self, volume: &str, target: PathBuf) -> Result<(), Error> {
        let guard = self.lock(volume).await?;
        let root = self.agent.node.root.clone();
        let done = on_host(guard, move || root.unpublish(&target).map_err(Error::from));
        finished(volume, done).await
    }

    /// Unmounts a volume from its staging path. Succeeds if it is not there (NUS-05, GAP-01).
    pub async fn unstage(&self, volume: &str, staging: PathBuf) -> Result<(), Error> {
        let guard = self.lock(volume).await?;
        let (root, io) = (self.agent.node.root.clone(), self.agent.io.clone());
        let limits = io_limits::known(&self.agent, volume);
        let done = on_host(guard, move || {
            // What is not written yet is written at the speed of the disk.
            io.lift(&root, limits.as_slice());
            let unstaged = root.unstage(&staging).map_err(Error::from);
            if unstaged.is_err() {
                io.apply(&root, limits.as_slice());
            }
            unstaged
        });
        let done = finished(volume, done).await;
        // Its deletion may wait for this.
        self.agent.enqueue(volume);
        done
    }

    /// The space of a volume at a path where it is staged or published.
    async fn statistics(&self, volume: &str, path: PathBuf) -> Result<VolumeStatistics, Error> {
        let found = self.volume(volume).await?;
        if !path.is_absolute() {
            return Err(Error::NotFound {
                volume: volume.to_owned(),
            });
        }
        let (root, image) = (self.agent.node.root.clone(), found.image);
        let asked = on_host((), move || {
            root.statistics_of(&image, &path, STATISTICS_DEADLINE)
        });
        finished(volume, asked).await
    }

    /// Takes the lock of a volume. Waits for a reconcile of the agent; only another call takes longer
    /// (CON-09).
    async fn lock(&self, volume: &str) -> Result<VolumeGuard, Error> {
        let locked = self.agent.locks.lock_within(volume, LOCK_PATIENCE).await;
        locked.ok_or_else(|| Error::Busy {
            volume: volume.to_owned(),
        })
    }

    /// The pool of a volume, if it can be used.
    async fn pool(&self, volume: &Volume) -> Result<Arc<Pool>, Error> {
        if timeout(PATIENCE, self.agent.pools.reconciled())
            .await
            .is_err()
        {
            return Err(Error::Starting);
        }
        match self.agent.pools.usable(&volume.pool) {
            Ok((_, usable)) => Ok(usable.pool),
            Err(unavailable) => Err(Error::Refused {
                volume: volume.name.clone(),
                why: unavailable.to_string(),
            }),
        }
    }

    /// Reads a volume from the watch. Reads it from the API server if it is newer than the watch, or if
    /// its deletion is requested or the agent has written to it since: the watch may not show yet that
    /// the deletion is committed.
    async fn volume(&self, id: &str) -> Result<Volume, Error> {
        let not_found = || Error::NotFound {
            volume: id.to_owned(),
        };
        let refused = |why| Error::Refused {
            volume: id.to_owned(),
            why,
        };
        if !names::is_id(id) {
            return Err(not_found());
        }
        let desired = &self.agent.desired;
        if let Ok(Some(object)) = desired.own_writes().read(|| desired.volume(id))
            && let Some(object) = readable(&object).filter(|it| !it.spec.deletion_requested)
            && let Ok(volume) = Volume::read(object)
        {
            return Ok(volume);
        }
        let fetched = self.fetch(id).await?;
        let object = fetched.ok_or_else(not_found)?;
        let node = &object.spec.node_name;
        if *node != self.agent.node.name {
            return Err(refused(format!("it is on node {node}")));
        }
        Volume::read(&object).map_err(|why| refused(why.to_string()))
    }

    /// Reads a volume's custom resource from the API server.
    async fn fetch(&self, id: &str) -> Result<Option<PoolVolume>, Error> {
        let silent = |source: Box<dyn std::error::Error + Send + Sync>| Error::Api {
            volume: id.to_owned(),
            source,
        };
        timeout(PATIENCE, self.agent.fetch(id))
            .await
            .map_err(|elapsed| silent(elapsed.into()))?
            .map_err(|error| silent(error.into()))
    }

    /// The error for an unsupported usage, which depends on whether the volume is at the path already
    /// (NSV-06 and NSV-08, NPV-07 and NPV-09).
    fn refused_or_different(&self, volume: &Volume, path: PathBuf, why: &Unusable) -> Error {
        let why = why.to_string();
        let name = volume.name.clone();
        match self.agent.node.root.mount_points_of(&volume.image) {
            // The device of a raw block volume is in its staging path.
            Ok(mounted) if mounted.iter().any(|at| at.starts_with(&path)) => Error::Different {
                volume: name,
                path,
                why,
            },
            Ok(_) => Error::Refused { volume: name, why },
            Err(error) => {
                tracing::warn!(volume = name, error = %Chain(&error), "cannot determine where the volume is mounted");
                Error::Refused { volume: name, why }
            }
        }
    }
}

/// Whether the volume is the one that its PersistentVolume was made for.
fn is_meant(volume: &Volume, image: Option<&str>) -> Result<(), Error> {
    volume.is_meant(image).map_err(|why| Error::Contradicted {
        volume: volume.name.clone(),
        why: why.to_string(),
    })
}

/// Converts the result of work on the host.
async fn finished<T>(
    volume: &str,
    work: impl Future<Output = Result<Result<T, impl Into<Error>>, blocking::Broken>>,
) -> Result<T, Error> {
    match timeout(WORK_PATIENCE, work).await {
        Ok(Ok(result)) => result.map_err(Into::into),
        Ok(Err(source)) => Err(Error::Broken {
            volume: volume.to_owned(),
            source,
        }),
        Err(_) => Err(Error::Unfinished {
            volume: volume.to_owned(),
            after: WORK_PATIENCE,
        }),
    }
}

/// Stages a volume. A staged volume stays staged, also when its pool or image has become unusable,
/// because kubelet repeats the call for running pods. Returns what the volume lacks; None if that was
/// not checked, as for a read-only volume, which does not grow.
fn stage(
    root: &Root,
    pool: Result<Arc<Pool>, Error>,
    volume: &Volume,
    request: &Stage,
    checking: Checking<'_>,
) -> Result<Option<Staged>, Error> {
    match volume.content {
        Content::Block => {
            if !root.is_block_staged(&volume.image, &request.staging)? {
                let staged = pool?.stage_block(&BlockStageRequest {
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

fn stage_request<'a>(
    volume: &'a Volume,
    request: &'a Stage,
    (filesystem, filesystem_uuid): (FilesystemType, Uuid),
    options: &'a MountOptions,
    checking: Checking<'a>,
) -> StageRequest<'a> {
    StageRequest {
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

/// The reason why an administrator must repair a filesystem before it is staged, if that is so.
fn unfit(error: &Error) -> Option<Reason> {
    match error {
        Error::Host(host::Error::Image(image::Error::Damaged { .. })) => {
            Some(Reason::FilesystemDamaged)
        }
        Error::Host(host::Error::Image(image::Error::TooLargeToCheck { .. })) => {
            Some(Reason::TooLargeToCheck)
        }
        _ => None,
    }
}

/// Publishes a volume, unless it is published elsewhere and its access mode allows one pod at a time
/// (NPV-26 to NPV-29). The mode of an earlier publication is not stored, so each call is checked by its
/// own mode.
fn publish(root: &Root, volume: &Volume, request: &Publish) -> Result<(), Error> {
    let mounted = root.mount_points_of(&volume.image)?;
    // A repeated call is decided by the mount at its own target.
    let is_free = request.usage.access_mode.is_shared() || mounted.contains(&request.target);
    let mut others = mounted
        .iter()
        .filter(|path| !path.starts_with(&request.staging));
    if let Some(other) = others.next().filter(|_| !is_free) {
        return Err(Error::Refused {
            volume: volume.name.clone(),
            why: format!(
                "it is published at {}, and one pod uses it at a time in access mode {:?}",
                other.display(),
                request.usage.access_mode
            ),
        });
    }
    let read_only = request.read_only || request.usage.is_read_only();
    match volume.content {
        Content::Block => root.publish_block(&BlockPublishRequest {
            image: &volume.image,
            read_only,
            staging: &request.staging,
            target: &request.target,
        })?,
        Content::Filesystem { filesystem, .. } => root.publish(&PublishRequest {
            image: &volume.image,
            filesystem,
            options: &request.usage.options(filesystem)?,
            read_only,
            staging: &request.staging,
            target: &request.target,
        })?,
    }
    Ok(())
}
