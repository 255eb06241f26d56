//! The health of the volumes and pools of this node: the agent's last observations, and the state of a
//! volume at a path.
//!
//! *Invariant:* no call waits for a disk longer than the deadline of a volume's statistics.

use std::path::PathBuf;

use cistern_client::Chain;
use cistern_crds::{
    PoolVolume, Reason,
    health::{PoolProblem, VolumeProblem, VolumeSeverity},
    names,
};
use cistern_host::{Uid, VolumeStatistics, statistics};
use kube::ResourceExt as _;

use super::{Error, Mounter, finished};
use crate::{agent::desired::readable, blocking::on_host};

/// The paths of a volume on this node; None for a path that the caller did not give.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumePaths {
    /// Staging path.
    pub staging: Option<PathBuf>,
    /// Target path of a pod.
    pub published: Option<PathBuf>,
}

/// The statistics of a volume, if its filesystem answers, and its problems.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Examined {
    /// None if the filesystem does not answer or returns an error.
    pub statistics: Option<VolumeStatistics>,
    /// Known problems.
    pub problems: Vec<VolumeProblem>,
}

impl Mounter {
    /// The problems of each pool of this node, by name.
    pub fn pools_health(&self) -> Vec<(String, Vec<PoolProblem>)> {
        self.agent.health.all().into_iter().collect()
    }

    /// The problems of a volume of this node, whether or not it was ever published (NVH-05). Fails
    /// if the volume is not on this node, or if the API server or the host cannot be read.
    pub async fn volume_health(
        &self,
        volume: &str,
        paths: VolumePaths,
    ) -> Result<Vec<VolumeProblem>, Error> {
        let object = self.object(volume).await?;
        let mut problems = self
            .agent
            .observations
            .problems_of(volume)
            .unwrap_or_default();
        let reason = Reason::MountMissing;
        let is_known = problems.iter().any(|p| p.reason == reason.as_str());
        if !is_known && let Some(missing) = self.missing(&object, paths).await? {
            let message = format!(
                "it is not at {}: stop its pods on this node, so that it is staged and published again",
                missing.display()
            );
            problems.push(self.inaccessible(reason, message));
        }
        Ok(problems)
    }

    /// The statistics of a volume at a path where it is staged or published, and its problems. A
    /// filesystem that does not answer is a problem of the volume and no error of the call, because
    /// kubelet reports only the former to users (NGS-11).
    pub async fn examine(&self, volume: &str, path: PathBuf) -> Result<Examined, Error> {
        let asked = self.statistics(volume, path).await;
        let mut problems = self
            .agent
            .observations
            .problems_of(volume)
            .unwrap_or_default();
        let statistics = match asked {
            Ok(found) => Some(found),
            Err(Error::Statistics(
                error @ (statistics::Error::Hung { .. } | statistics::Error::Failed { .. }),
            )) => {
                tracing::warn!(
                    volume,
                    error = %Chain(&error),
                    "the filesystem of the volume does not return its statistics"
                );
                let message = Chain(&error).to_string();
                problems.push(self.inaccessible(Reason::OtherProblem, message));
                None
            }
            Err(error) => return Err(error),
        };
        Ok(Examined {
            statistics,
            problems,
        })
    }

    /// The custom resource of a volume of this node, from the watch or from the API server.
    async fn object(&self, id: &str) -> Result<PoolVolume, Error> {
        if !names::is_id(id) {
            return Err(not_found(id));
        }
        let watched = self.agent.desired.volume(id);
        if let Some(object) = watched.as_deref().and_then(readable) {
            return Ok(object.clone());
        }
        let fetched = self.fetch(id).await?;
        let here = fetched.filter(|object| object.spec.node_name == self.agent.node.name);
        here.ok_or_else(|| not_found(id))
    }

    /// The first of the paths at which the volume is missing.
    async fn missing(
        &self,
        object: &PoolVolume,
        paths: VolumePaths,
    ) -> Result<Option<PathBuf>, Error> {
        let image = object
            .status
            .as_ref()
            .and_then(|status| status.image.as_ref());
        let image = image.and_then(|image| image.uid.parse::<Uid>().ok());
        let Some(image) = image.filter(|_| paths != VolumePaths::default()) else {
            return Ok(None);
        };
        let root = self.agent.node.root.clone();
        let listed = on_host((), move || root.mount_points_of(&image));
        let mounted = finished(&object.name_any(), listed).await?;
        // The device of a raw block volume is in its staging path.
        let is_staged = |path: &PathBuf| mounted.iter().any(|at| at.starts_with(path));
        let staging = paths.staging.filter(|path| !is_staged(path));
        Ok(staging.or_else(|| paths.published.filter(|path| !mounted.contains(path))))
    }

    fn inaccessible(&self, reason: Reason, message: String) -> VolumeProblem {
        VolumeProblem {
            severity: VolumeSeverity::Inaccessible,
            reason: reason.to_string(),
            message,
            since: (self.agent.node.now)(),
        }
    }
}

fn not_found(volume: &str) -> Error {
    Error::NotFound {
        volume: volume.to_owned(),
    }
}
