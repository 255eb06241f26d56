//! Maps the troubles that the host sees to problems of volumes. Pure.
//!
//! *Invariant:* a message names the problem, the object, and the remedy.

use cistern_crds::{Explanation, PoolSeverity, Reason, VolumeSeverity, health::PoolProblem};
use cistern_host::health::VolumeTrouble;

use crate::agent::{
    problems::{Observation, Seen},
    tracker::{Certainty, Visibility},
};

/// Problems of a volume.
pub fn of_volume(volume: &str, node: &str, troubles: &[VolumeTrouble]) -> Seen<VolumeSeverity> {
    let seen = troubles.iter().map(|trouble| {
        let (severity, reason, certainty, advice) = meaning(trouble);
        Observation {
            severity,
            reason,
            message: format!("volume {volume} on node {node}: {trouble}; {advice}"),
            certainty,
        }
    });
    let is_hung = |trouble: &VolumeTrouble| matches!(trouble, VolumeTrouble::Hung { .. });
    let visibility = if troubles.iter().any(is_hung) {
        Visibility::Partial
    } else {
        Visibility::Full
    };
    (seen.collect(), visibility)
}

fn meaning(trouble: &VolumeTrouble) -> (VolumeSeverity, Reason, Certainty, &'static str) {
    use Certainty::{Certain, MayPass};
    use VolumeSeverity::{DataLoss, Degraded, Inaccessible};

    let restart = "delete the pods that use it, so that it is staged again";
    match trouble {
        VolumeTrouble::ImageMissing { .. } => (
            DataLoss,
            Reason::ImageMissing,
            Certain,
            "bring the image back, or restore the volume's data from a backup",
        ),
        VolumeTrouble::ImageDeleted { .. } => (
            DataLoss,
            Reason::ImageDeleted,
            Certain,
            "copy the data out of the pod that uses it before that ends",
        ),
        VolumeTrouble::ImageTooSmall { .. } => (
            DataLoss,
            Reason::ImageTooSmall,
            Certain,
            "stop its pods and restore the volume's data from a backup",
        ),
        VolumeTrouble::IdentityConflict { .. } => (
            Inaccessible,
            Reason::IdentityConflict,
            Certain,
            "find out who put it there; cistern-driver fsck on the node reports more",
        ),
        VolumeTrouble::DeviceMissing { .. } => {
            (Inaccessible, Reason::DeviceMissing, MayPass, restart)
        }
        VolumeTrouble::DeviceReadOnly { .. } => {
            (Degraded, Reason::DeviceReadOnly, MayPass, restart)
        }
        VolumeTrouble::MountMissing { .. } => (Degraded, Reason::MountMissing, MayPass, restart),
        VolumeTrouble::MountReadOnly { .. } => (
            Degraded,
            Reason::MountReadOnly,
            MayPass,
            "the kernel log of the node says why; then delete the pods that use it, so that it is \
             checked and staged again",
        ),
        VolumeTrouble::FilesystemErrors { .. } => (
            Degraded,
            Reason::FilesystemErrors,
            Certain,
            "back its data up, then delete the pods that use it, so that it is checked and staged again",
        ),
        VolumeTrouble::FilesystemShutDown => {
            (Inaccessible, Reason::FilesystemShutDown, Certain, restart)
        }
        VolumeTrouble::Hung { .. } => (
            Inaccessible,
            Reason::ProbeTimedOut,
            MayPass,
            "check the disk of its pool",
        ),
        VolumeTrouble::Failed { .. } => (
            Degraded,
            Reason::OtherProblem,
            MayPass,
            "check the kernel log of the node",
        ),
    }
}

/// The problem of a volume whose pool has these problems.
pub fn of_pool_of(volume: &str, problems: &[PoolProblem]) -> Option<Observation<VolumeSeverity>> {
    let is_unreachable = |it: &&PoolProblem| it.severity == PoolSeverity::Unreachable;
    let problem = problems.iter().find(is_unreachable)?;
    Some(Observation::certain(
        VolumeSeverity::Inaccessible,
        Reason::PoolNotReady,
        format!("volume {volume}: {}", problem.message),
    ))
}

/// The problem of a volume whose filesystem is not mounted until an administrator repairs it.
pub fn of_damage(volume: &str, why: &Explanation) -> Observation<VolumeSeverity> {
    Observation::certain(
        VolumeSeverity::Inaccessible,
        why.reason,
        format!("volume {volume}: {why}"),
    )
}

/// The problem of a thick volume that lacks blocks.
pub fn of_allocation(volume: &str, pool: &str, why: &str) -> Observation<VolumeSeverity> {
    Observation::certain(
        VolumeSeverity::Degraded,
        Reason::BlocksMissing,
        format!(
            "volume {volume} is thick and lacks blocks, so that writes to it can fail: {why}; delete \
             volumes or snapshots of pool {pool} on this node, or make the pool larger, and the \
             blocks are allocated again"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_loses_data_with_its_image_and_cannot_be_used_without_its_pool() {
        let image = "uid-1".parse().unwrap();
        let (seen, visibility) =
            of_volume("pvc-1", "node-1", &[VolumeTrouble::ImageMissing { image }]);
        let missing = seen.first().unwrap();
        assert_eq!(missing.severity, VolumeSeverity::DataLoss);
        let begin = "volume pvc-1 on node node-1: image uid-1 is not in its pool; bring ";
        assert!(missing.message.starts_with(begin), "{missing:?}");
        assert_eq!(visibility, Visibility::Full);

        let problem = |severity| PoolProblem {
            severity,
            reason: Reason::ProbeFailed.to_string(),
            message: "pool fast is broken".to_owned(),
            since: chrono::DateTime::default(),
        };
        let degraded = [problem(PoolSeverity::Degraded)];
        assert_eq!(of_pool_of("pvc-1", &degraded), None);
        let unreachable = of_pool_of("pvc-1", &[problem(PoolSeverity::Unreachable)]).unwrap();
        assert_eq!(unreachable.severity, VolumeSeverity::Inaccessible);
        assert_eq!(unreachable.message, "volume pvc-1: pool fast is broken");
    }
}
