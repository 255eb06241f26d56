//! How the volumes and pools of this node are: what the agent found at its last looks, and what a path
//! says of a volume at once.
//!
//! *Invariant:* whoever asks waits for no disk, but for the deadline of a volume's numbers.

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
use crate::agent::{blocking::on_host, desired::readable};

/// Where a volume is, or should be, on this node; none where the caller does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// Where it is mounted once for the node.
    pub staging: Option<PathBuf>,
    /// Where a pod finds it.
    pub published: Option<PathBuf>,
}

/// The numbers of a volume, if its filesystem tells them, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Examined {
    /// None where the filesystem does not answer, or answers with an error.
    pub statistics: Option<VolumeStatistics>,
    /// Empty where nothing is known to be wrong.
    pub problems: Vec<VolumeProblem>,
}

impl Mounter {
    /// What is wrong with each pool of this node, by name.
    pub fn pools_health(&self) -> Vec<(String, Vec<PoolProblem>)> {
        self.agent.health.pools().into_iter().collect()
    }

    /// What is wrong with a volume of this node, whether or not it was ever given to a pod (NVH-05).
    pub async fn volume_health(
        &self,
        volume: &str,
        places: Places,
    ) -> Result<Vec<VolumeProblem>, Error> {
        let object = self.object(volume).await?;
        let mut problems = self.agent.health.of_volume(volume);
        let reason = Reason::MountMissing;
        let is_known = problems.iter().any(|p| p.reason == reason.as_str());
        if !is_known && let Some(missing) = self.missing(&object, places).await? {
            let message = format!(
                "it is not at {}: stop its pods on this node, so that it is staged and published anew",
                missing.display()
            );
            problems.push(self.inaccessible(reason, message));
        }
        Ok(problems)
    }

    /// The space of a volume at a path where it is staged or published, and what is wrong with it. That
    /// its filesystem does not answer is trouble of the volume and no error of the call: kubelet tells
    /// people of the first only (NGS-11).
    pub async fn examine(&self, volume: &str, path: PathBuf) -> Result<Examined, Error> {
        let asked = self.statistics(volume, path).await;
        let mut problems = self.agent.health.of_volume(volume);
        let statistics = match asked {
            Ok(found) => Some(found),
            Err(Error::Statistics(
                error @ (statistics::Error::Hung { .. } | statistics::Error::Failed { .. }),
            )) => {
                tracing::warn!(volume, error = %Chain(&error), "the volume does not tell its numbers");
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
        let here = fetched.filter(|object| object.spec.node_name == self.agent.node_name);
        here.ok_or_else(|| not_found(id))
    }

    /// The first place where a volume should be and is not.
    async fn missing(&self, object: &PoolVolume, places: Places) -> Result<Option<PathBuf>, Error> {
        let image = object
            .status
            .as_ref()
            .and_then(|status| status.image.as_ref());
        let image = image.and_then(|image| image.uid.parse::<Uid>().ok());
        let Some(image) = image.filter(|_| places != Places::default()) else {
            return Ok(None);
        };
        let root = self.agent.root.clone();
        let looked = on_host((), move || root.mount_points_of(&image));
        let mounted = finished(&object.name_any(), looked).await?;
        // The device of a raw block volume is in its staging path.
        let is_staged = |path: &PathBuf| mounted.iter().any(|at| at.starts_with(path));
        let staging = places.staging.filter(|path| !is_staged(path));
        Ok(staging.or_else(|| places.published.filter(|path| !mounted.contains(path))))
    }

    fn inaccessible(&self, reason: Reason, message: String) -> VolumeProblem {
        VolumeProblem {
            severity: VolumeSeverity::Inaccessible,
            reason: reason.to_string(),
            message,
            since: (self.agent.now)(),
        }
    }
}

fn not_found(volume: &str) -> Error {
    Error::NotFound {
        volume: volume.to_owned(),
    }
}
