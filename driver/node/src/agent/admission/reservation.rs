//! The bytes of a pool that the ledger sets aside for an object.

use cistern_crds::{Bytes, PoolSnapshot, PoolVolume, Provisioning};

/// A reservation of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The kind of object that holds it.
    pub holder: Holder,
    /// The size of a volume, or the bytes that a snapshot holds.
    pub size: Bytes,
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
    /// The reservation of a volume whose attributes change to those of its spec.
    pub fn for_change(volume: &PoolVolume) -> Self {
        let status = volume.status.as_ref();
        Self {
            holder: Holder::Volume,
            size: status
                .and_then(|status| status.reserved)
                .unwrap_or_default(),
            provisioning: volume.spec.attributes.provisioning,
        }
    }

    /// The reservation of a volume.
    pub fn for_volume(volume: &PoolVolume, size: Bytes) -> Self {
        Self {
            holder: Holder::Volume,
            size,
            provisioning: volume.admitted_attributes().provisioning,
        }
    }

    /// The reservation of a snapshot.
    pub fn for_snapshot(snapshot: &PoolSnapshot, size: Bytes) -> Self {
        let source = snapshot.spec.source_image.clone();
        Self {
            holder: Holder::Snapshot { source },
            size,
            provisioning: snapshot.spec.provisioning,
        }
    }
}
