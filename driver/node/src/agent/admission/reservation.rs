//! The bytes of a pool that the ledger sets aside for an object.

use cistern_crds::{Bytes, HasImage as _, PoolReplica, PoolSnapshot, PoolVolume, Provisioning};

use crate::{
    agent::plan::{self, ObjectPhase, VolumeStep},
    image::ImageObject as _,
};

/// A reservation of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The kind of object that holds it.
    pub holder: Holder,
    /// The size of a volume, or the bytes that a snapshot holds.
    pub size: Bytes,
    /// Bytes of the image in front of the volume's data.
    pub header: Bytes,
    /// Whether the bytes are allocated when the volume is made.
    pub provisioning: Provisioning,
}

/// The kind of object that holds a reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A volume.
    Volume,
    /// A snapshot.
    Snapshot {
        /// Name of the image that it is taken from.
        source: String,
    },
}

impl Reservation {
    /// All bytes that it takes.
    pub fn bytes(&self) -> Bytes {
        self.size.saturating_add(self.header)
    }

    /// The reservation of a volume whose attributes change to those of its spec.
    pub fn for_change(volume: &PoolVolume) -> Self {
        let status = volume.status.as_ref();
        Self {
            holder: Holder::Volume,
            size: status
                .and_then(|status| status.reserved)
                .unwrap_or_default(),
            header: volume.header(),
            provisioning: volume.spec.attributes.provisioning,
        }
    }

    /// The reservation of a volume.
    pub fn for_volume(volume: &PoolVolume, size: Bytes) -> Self {
        Self {
            holder: Holder::Volume,
            size,
            header: volume.header(),
            provisioning: volume.admitted_attributes().provisioning,
        }
    }

    /// The reservation of a snapshot.
    pub fn for_snapshot(snapshot: &PoolSnapshot, size: Bytes) -> Self {
        let source = snapshot.spec.source_image.clone();
        Self {
            holder: Holder::Snapshot { source },
            size,
            header: Bytes::ZERO,
            provisioning: snapshot.spec.provisioning,
        }
    }

    /// The reservation of an image beside a volume's own. It counts as a volume.
    pub fn for_replica(replica: &PoolReplica, size: Bytes) -> Self {
        Self {
            holder: Holder::Volume,
            size,
            header: Bytes::ZERO,
            provisioning: replica.spec.provisioning,
        }
    }

    /// Whether a volume still waits for this reservation.
    pub fn is_awaited_by_volume(&self, volume: &PoolVolume) -> bool {
        match plan::next(volume) {
            VolumeStep::Admit | VolumeStep::AdmitGrowth => volume.spec.size <= self.size,
            VolumeStep::AdmitAttributes => Self::for_change(volume) == *self,
            VolumeStep::Rest
            | VolumeStep::Make
            | VolumeStep::Grow
            | VolumeStep::Keep
            | VolumeStep::Reclaim => false,
        }
    }

    /// Whether an image beside a volume's own still waits for this reservation: its first one, or more since its volume
    /// has grown.
    pub fn is_awaited_by_replica(&self, replica: &PoolReplica) -> bool {
        match plan::phase(replica) {
            ObjectPhase::Admit => true,
            ObjectPhase::Admitted => {
                replica.reserved() < Some(self.size) && replica.spec.size >= self.size
            }
            ObjectPhase::Rest | ObjectPhase::Reclaim => false,
        }
    }

    /// Whether a snapshot still waits for this reservation. The size of a snapshot is known only
    /// when it is taken, so it may need more than its first reservation.
    pub fn is_awaited_by_snapshot(&self, snapshot: &PoolSnapshot) -> bool {
        let held = snapshot.status.as_ref().and_then(|status| status.reserved);
        match plan::phase(snapshot) {
            ObjectPhase::Admit => true,
            ObjectPhase::Admitted => !snapshot.is_announced() && held < Some(self.size),
            ObjectPhase::Rest | ObjectPhase::Reclaim => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use cistern_crds::{
        ConditionType, Reason,
        condition::{self, ConditionUpdate},
    };

    use super::*;
    use crate::testing::{admitted_snapshot, at, ready_snapshot, replica, wanted_snapshot};

    #[test]
    fn a_reservation_is_kept_until_the_watch_shows_that_the_copy_has_it() {
        let reservation = |gib| Reservation::for_replica(&replica("pvc-1", 1), Bytes::gib(gib));
        let mut copy = replica("pvc-1", 1);
        copy.status = None;
        copy.spec.size = Bytes::gib(1);
        assert!(reservation(1).is_awaited_by_replica(&copy));
        copy.status.get_or_insert_default().reserved = Some(Bytes::gib(1));
        assert!(!reservation(1).is_awaited_by_replica(&copy));
        // The volume grows meanwhile.
        copy.spec.size = Bytes::gib(2);
        assert!(reservation(2).is_awaited_by_replica(&copy), "not shown yet");
        copy.status.get_or_insert_default().reserved = Some(Bytes::gib(2));
        assert!(!reservation(2).is_awaited_by_replica(&copy));
        copy.spec.deletion_requested = true;
        assert!(!reservation(3).is_awaited_by_replica(&copy));
    }

    #[test]
    fn a_reservation_is_kept_until_the_snapshot_has_it_or_is_refused() {
        let reservation = |mib| Reservation::for_snapshot(&wanted_snapshot(), Bytes::mib(mib));
        assert!(reservation(64).is_awaited_by_snapshot(&wanted_snapshot()));
        assert!(!reservation(64).is_awaited_by_snapshot(&admitted_snapshot()));
        // It needs more than was estimated.
        assert!(reservation(65).is_awaited_by_snapshot(&admitted_snapshot()));
        assert!(!reservation(65).is_awaited_by_snapshot(&ready_snapshot()));
        let mut deleted = admitted_snapshot();
        deleted.spec.deletion_requested = true;
        assert!(!reservation(65).is_awaited_by_snapshot(&deleted));
        let mut refused = wanted_snapshot();
        let status = refused.status.get_or_insert_default();
        let finding = ConditionUpdate::new(ConditionType::Admitted, false, Reason::NoSpace, "");
        condition::set(&mut status.conditions, &finding, None, at(0));
        assert!(!reservation(64).is_awaited_by_snapshot(&refused));
        assert_eq!(plan::phase(&refused), ObjectPhase::Rest);
    }
}
