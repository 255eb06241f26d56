//! The steps of removing an object and its image. Pure.
//!
//! ```text
//!          Ask                  Await                 Delete             Release
//! spec ─▶ deletionRequested ─▶ agent reclaims ─▶ deletionTimestamp ─▶ finalizer off ─▶ gone
//!                   ▲          (only if admitted)
//!                   └ in use ─┘
//! ```
//!
//! A volume in use is not removed: the controller withdraws the deletion request. It can do so until the
//! agent writes `status.deletionCommitted`, which it does before it changes the image.
//!
//! *Invariant:* the next step follows from the object alone, so that any later call resumes. The object
//! is deleted only when no bytes are reserved for it and none will be: the agent does not admit an
//! object whose deletion is requested.

use kube::{Resource, ResourceExt as _};

use crate::{has_image::HasImage, names::FINALIZER};

/// The next step of removing an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalStep {
    /// Set `spec.deletionRequested`. From then on the object is not admitted.
    Ask,
    /// Wait for the agent: bytes are still reserved for the object.
    Await,
    /// Delete the object.
    Delete,
    /// Remove Cistern's finalizer.
    Release,
    /// Only foreign finalizers hold the object. Nothing is left to do.
    Held,
}

/// The next step for an object with an image: a volume, snapshot or replica. It may have the image as long as bytes are
/// reserved for it.
pub fn next<K: HasImage>(object: &K) -> RemovalStep {
    let is_admitted = object.reserved().is_some();
    step(object, object.deletion_requested(), is_admitted)
}

/// The next step, from whether the deletion is requested and whether data is left.
pub fn step<K: Resource>(object: &K, is_asked: bool, is_left: bool) -> RemovalStep {
    if !is_asked {
        RemovalStep::Ask
    } else if is_left {
        RemovalStep::Await
    } else if object.meta().deletion_timestamp.is_none() {
        RemovalStep::Delete
    } else if object.finalizers().iter().any(|name| name == FINALIZER) {
        RemovalStep::Release
    } else {
        RemovalStep::Held
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

    use super::*;
    use crate::{Bytes, PoolVolume, PoolVolumeStatus, testing::volume_spec};

    fn volume(reserved: Option<Bytes>) -> PoolVolume {
        let mut volume = PoolVolume::desired("pvc-1", volume_spec("pvc-1", "node-1", "fast"));
        volume.status = Some(PoolVolumeStatus {
            reserved,
            ..PoolVolumeStatus::default()
        });
        volume
    }

    #[test]
    fn dv_08_the_next_step_follows_from_the_object_alone() {
        let mut volume = volume(Some(Bytes::gib(1)));
        assert_eq!(next(&volume), RemovalStep::Ask);
        volume.spec.deletion_requested = true;
        assert_eq!(next(&volume), RemovalStep::Await);
        volume.status = Some(PoolVolumeStatus::default());
        assert_eq!(next(&volume), RemovalStep::Delete);
        volume.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        assert_eq!(next(&volume), RemovalStep::Release);
        volume.metadata.finalizers = Some(vec!["somebody/else".to_owned()]);
        assert_eq!(next(&volume), RemovalStep::Held);
    }

    #[test]
    fn a_manual_deletion_skips_neither_the_deletion_request_nor_the_agent() {
        let mut volume = volume(Some(Bytes::gib(1)));
        volume.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        assert_eq!(next(&volume), RemovalStep::Ask);
        volume.spec.deletion_requested = true;
        assert_eq!(next(&volume), RemovalStep::Await);
    }
}
