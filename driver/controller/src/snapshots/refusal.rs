//! What to do when an agent will not copy an image.

use cistern_crds::Reason;

/// What lets the node copy an image of this pool after all.
pub fn advice(reason: Option<Reason>, pool: &str) -> String {
    match reason {
        Some(Reason::NoSpace | Reason::TooLarge) => format!(
            "delete snapshots or volumes of StoragePool {pool} on this node, or make the pool larger"
        ),
        Some(Reason::Overcommitted) => {
            format!("lower spec.overcommitPercent of StoragePool {pool} to 100")
        }
        Some(Reason::SnapshotLimitReached) => format!(
            "delete some, or raise spec.limits.snapshots (of a node) or spec.limits.snapshotsPerVolume of StoragePool {pool}"
        ),
        Some(Reason::TooManyExtents) => format!(
            "raise spec.limits.maximumExtents of StoragePool {pool} if the volume's writers may wait that long, or copy the files to a new volume"
        ),
        Some(Reason::TooLargeToCheck) => {
            "make the copy as large as its source, so that it needs no check, and expand it later"
                .to_owned()
        }
        Some(Reason::NotHeldStill) => {
            "try again when the volume is written less, or use a class with consistency \"crash\""
                .to_owned()
        }
        Some(Reason::SourceMissing) => "look at its PoolVolume and its node".to_owned(),
        Some(Reason::IdentityConflict) => {
            "look at what lies in the pool under this identity with `cistern-driver fsck`"
                .to_owned()
        }
        // It mends itself, or another object says how.
        Some(_) | None => format!("try again when StoragePool {pool} is ready on this node"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gen_02_who_meets_a_limit_is_told_which_and_where_it_stands() {
        for (reason, expected) in [
            (Reason::NoSpace, "StoragePool fast"),
            (Reason::SnapshotLimitReached, "limits.snapshotsPerVolume"),
            (Reason::SnapshotLimitReached, "StoragePool fast"),
            (Reason::TooManyExtents, "limits.maximumExtents"),
            (Reason::TooLargeToCheck, "as large as its source"),
            (Reason::NotHeldStill, "crash"),
            (Reason::PoolNotReady, "ready"),
        ] {
            let advice = advice(Some(reason), "fast");
            assert!(advice.contains(expected), "{advice}");
        }
    }
}
