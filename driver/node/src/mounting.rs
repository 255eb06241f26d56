//! Mounts volumes for pods on this node: stage, publish, unpublish, unstage, expand, statistics.
//!
//! *Invariants:* each change holds the volume's lock until the work on the host has ended. Unpublish
//! and unstage need neither the API server nor the pool. No operation can make a filesystem, but the first stage of an
//! encrypted volume: the host makes it in a new file then.

mod checked;
mod error;
pub mod expand;
pub mod health;
mod publish;
mod stage;

use std::{path::PathBuf, sync::Arc, time::Duration};

use cistern_client::Chain;
use cistern_crds::{PoolVolume, names};
use cistern_host::{Engine, VolumeStatistics};
use tokio::time::timeout;

pub use self::{
    error::{Error, Refusal},
    publish::Publish,
    stage::{Stage, unstage},
};
use crate::{
    agent::{Agent, desired::readable},
    blocking::{self, on_host},
    locks::VolumeGuard,
    usage::{Unusable, Volume},
};

/// How long a call waits for another operation on its volume. This is longer than taking a
/// snapshot, which kubelet does not know of, and shorter than kubelet's timeout of 2 min.
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

impl Mounter {
    /// Mounts the volumes of an agent.
    pub fn new(agent: Arc<Agent>) -> Self {
        Self { agent }
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

    /// Takes the lock of a volume. Waits while the agent reconciles the volume. Fails with
    /// [`Error::Busy`] if the lock is not released within [`LOCK_PATIENCE`]: then another call
    /// holds it (CON-09).
    async fn lock(&self, volume: &str) -> Result<VolumeGuard, Error> {
        let locked = self.agent.locks.lock_within(volume, LOCK_PATIENCE).await;
        locked.ok_or_else(|| Error::Busy {
            volume: volume.to_owned(),
        })
    }

    /// The pool of a volume, if it can be used and the volume was verified in it.
    async fn pool(&self, volume: &Volume) -> Result<Arc<dyn Engine>, Error> {
        if timeout(PATIENCE, self.agent.pools.reconciled())
            .await
            .is_err()
        {
            return Err(Error::Starting);
        }
        let refused = |why| Error::Refused {
            volume: volume.name.clone(),
            why,
        };
        let found = self.agent.pools.usable(&volume.pool);
        let (_, usable) = found.map_err(|unavailable| refused(unavailable.into()))?;
        let verified = volume.is_verified(usable.pool.takeovers());
        verified.map_err(|why| refused(why.into()))?;
        Ok(usable.pool)
    }

    /// The pool of a volume that is to be staged, as [`Self::pool`]. Fails while a move of the volume is declared.
    async fn pool_to_stage(&self, volume: &Volume) -> Result<Arc<dyn Engine>, Error> {
        volume.is_staying().map_err(|why| Error::Refused {
            volume: volume.name.clone(),
            why: why.into(),
        })?;
        self.pool(volume).await
    }

    /// Reads a volume that a pod is to use. Reads it from the API server if the node has a replica of it: it may be on
    /// another node by now, without having been closed here.
    async fn volume_for_pod(&self, id: &str) -> Result<Volume, Error> {
        if self.agent.desired.replicas_of(id).is_empty() {
            self.volume_as_watched(id).await
        } else {
            self.volume_now(id).await
        }
    }

    /// Reads a volume that is at a path of this node.
    async fn volume(&self, id: &str) -> Result<Volume, Error> {
        self.volume_as_watched(id).await.map_err(at_a_path)
    }

    /// Reads a volume from the watch. Reads it from the API server if it is newer than the watch, or if
    /// its deletion is requested or the agent has written to it since: the watch may not show yet that
    /// the deletion is committed.
    async fn volume_as_watched(&self, id: &str) -> Result<Volume, Error> {
        let desired = &self.agent.desired;
        if let Ok(Some(object)) = desired.own_writes().read(|| desired.volume(id))
            && let Some(object) = readable(&object).filter(|it| !it.spec.deletion_requested)
            && let Ok(volume) = Volume::read(object)
        {
            return Ok(volume);
        }
        self.volume_now(id).await
    }

    /// Reads a volume from the API server.
    async fn volume_now(&self, id: &str) -> Result<Volume, Error> {
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
        let fetched = self.fetch(id).await?;
        let object = fetched.ok_or_else(not_found)?;
        let node = &object.spec.node_name;
        if *node != self.agent.node.name {
            return Err(refused(Refusal::OtherNode(node.clone())));
        }
        Volume::read(&object).map_err(|why| refused(why.into()))
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
    fn refused_or_different(&self, volume: &Volume, path: PathBuf, why: Unusable) -> Error {
        let name = volume.name.clone();
        let refused = |volume, why: Unusable| Error::Refused {
            volume,
            why: why.into(),
        };
        match self.agent.node.root.mount_points_of(&volume.image) {
            // The device of a raw block volume is in its staging path.
            Ok(mounted) if mounted.iter().any(|at| at.starts_with(&path)) => Error::Different {
                volume: name,
                path,
                why,
            },
            Ok(_) => refused(name, why),
            Err(error) => {
                tracing::warn!(volume = name, error = %Chain(&error), "cannot determine where the volume is mounted");
                refused(name, why)
            }
        }
    }
}

/// The error of a call for a volume at a path. One of another node is at no path here (NGS-04, NEV-14).
fn at_a_path(error: Error) -> Error {
    match error {
        Error::Refused {
            volume,
            why: Refusal::OtherNode(_),
        } => Error::NotFound { volume },
        other => other,
    }
}

/// Fails unless the volume is the one that its PersistentVolume was made for.
fn is_meant(volume: &Volume, image: Option<&str>) -> Result<(), Error> {
    volume.is_meant(image).map_err(|why| Error::Contradicted {
        volume: volume.name.clone(),
        why,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ngs_04_nev_14_a_volume_of_another_node_is_at_no_path_here() {
        let refused = |why| Error::Refused {
            volume: "pvc-1".to_owned(),
            why,
        };
        let elsewhere = at_a_path(refused(Refusal::OtherNode("n2".to_owned())));
        assert!(matches!(elsewhere, Error::NotFound { .. }), "{elsewhere}");
        let not_ready = at_a_path(refused(Unusable::NotReady.into()));
        assert!(matches!(not_ready, Error::Refused { .. }), "{not_ready}");
    }
}
