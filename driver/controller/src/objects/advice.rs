//! Advice for users when an agent refuses to copy an image.

use cistern_crds::Reason;

/// The action that allows the node to copy an image of this pool.
pub fn advice(reason: Reason, pool: &str) -> String {
    match reason {
        Reason::NoSpace | Reason::TooLarge => format!(
            "delete snapshots or volumes of StoragePool {pool} on this node, or make the pool larger"
        ),
        Reason::Overcommitted => {
            format!("lower spec.overcommitPercent of StoragePool {pool} to 100")
        }
        Reason::SnapshotLimitReached => format!(
            "delete some, or raise spec.limits.snapshots (of a node) or spec.limits.snapshotsPerVolume of StoragePool {pool}"
        ),
        Reason::TooManyExtents => format!(
            "raise spec.limits.maximumExtents (or maximumStallMilliseconds) of StoragePool {pool} if the \
             volume's writers may wait that long, or copy the files to a new volume"
        ),
        Reason::TooLargeToCheck => {
            "make the copy as large as its source, so that it needs no check, and expand it later"
                .to_owned()
        }
        Reason::NotInVolumeGroup => {
            "use a pool of images (source image, or device with engine Image), or back up from the pod".to_owned()
        }
        Reason::FreezeFailed => {
            "try again when the volume is written less, or use a class with consistency \"crash\""
                .to_owned()
        }
        Reason::SourceMissing => "check its PoolVolume and its node".to_owned(),
        Reason::IdentityConflict => {
            "run `cistern-driver fsck` to find what has this identity in the pool".to_owned()
        }
        // The pool recovers without intervention, or another object shows the advice.
        _ => format!("try again when StoragePool {pool} is ready on this node"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gen_02_the_advice_names_the_limit_and_its_field() {
        for (reason, expected) in [
            (Reason::NoSpace, "StoragePool fast"),
            (Reason::SnapshotLimitReached, "limits.snapshotsPerVolume"),
            (Reason::SnapshotLimitReached, "StoragePool fast"),
            (Reason::TooManyExtents, "limits.maximumExtents"),
            (Reason::TooLargeToCheck, "as large as its source"),
            (Reason::NotInVolumeGroup, "back up from the pod"),
            (Reason::FreezeFailed, "crash"),
            (Reason::PoolNotReady, "ready"),
        ] {
            let advice = advice(reason, "fast");
            assert!(advice.contains(expected), "{advice}");
        }
    }
}
