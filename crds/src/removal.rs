//! How an object goes, and the image that it stands for. Pure.
//!
//! ```text
//!          Ask                  Await                 Delete             Release
//! spec ─▶ deletionRequested ─▶ agent reclaims ─▶ deletionTimestamp ─▶ finalizer off ─▶ gone
//!                   ▲          (only if admitted)
//!                   └ in use ─┘
//! ```
//!
//! A volume that is in use is not removed: its controller takes the desired deletion back. That is
//! possible until the agent commits itself by `status.deletionCommitted`, which it writes before it
//! touches the image.
//!
//! *Invariant:* the next step follows from the object alone, so that whoever comes next resumes. The
//! object goes only when no bytes are reserved for it and none will be: the agent admits nothing
//! whose deletion is asked for.

use kube::{Resource, ResourceExt as _};

use crate::{names::FINALIZER, stored::Stored};

/// What is to be done next to remove an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write the wish. From then on nothing is admitted.
    Ask,
    /// Something of it is left: of a volume or snapshot the bytes that the agent has reserved.
    Await,
    /// Delete the object.
    Delete,
    /// Take our finalizer off.
    Release,
    /// Only finalizers of others hold the object; there is nothing of ours in it.
    Held,
}

/// The next step for a volume or snapshot: the ledger of its node may hold bytes for it, and so there
/// may be an image.
pub fn next<K: Stored>(object: &K) -> Step {
    let is_admitted = object.reserved().is_some();
    step(object, object.deletion_requested(), is_admitted)
}

/// The next step, by whether the wish is written and whether something is left of the object.
pub fn step<K: Resource>(object: &K, is_asked: bool, is_left: bool) -> Step {
    if !is_asked {
        Step::Ask
    } else if is_left {
        Step::Await
    } else if object.meta().deletion_timestamp.is_none() {
        Step::Delete
    } else if object.finalizers().iter().any(|name| name == FINALIZER) {
        Step::Release
    } else {
        Step::Held
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
    use serde_json::json;

    use super::*;
    use crate::{Bytes, PoolVolume, PoolVolumeStatus};

    fn volume(reserved: Option<Bytes>) -> PoolVolume {
        let spec = json!({
            "requestedName": "pvc-1", "nodeName": "node-1", "poolName": "fast", "size": "1Gi",
            "accessType": "Block", "accessModes": ["SingleNodeWriter"], "provisioning": "Thin",
        });
        let mut volume = PoolVolume::wish("pvc-1", serde_json::from_value(spec).unwrap());
        volume.status = Some(PoolVolumeStatus {
            reserved,
            ..PoolVolumeStatus::default()
        });
        volume
    }

    #[test]
    fn dv_08_the_next_step_follows_from_the_object_alone() {
        let mut volume = volume(Some(Bytes::gib(1)));
        assert_eq!(next(&volume), Step::Ask);
        volume.spec.deletion_requested = true;
        assert_eq!(next(&volume), Step::Await);
        volume.status = Some(PoolVolumeStatus::default());
        assert_eq!(next(&volume), Step::Delete);
        volume.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        assert_eq!(next(&volume), Step::Release);
        volume.metadata.finalizers = Some(vec!["somebody/else".to_owned()]);
        assert_eq!(next(&volume), Step::Held);
    }

    #[test]
    fn a_deletion_by_hand_does_not_skip_the_wish_or_the_agent() {
        let mut volume = volume(Some(Bytes::gib(1)));
        volume.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        assert_eq!(next(&volume), Step::Ask);
        volume.spec.deletion_requested = true;
        assert_eq!(next(&volume), Step::Await);
    }
}
