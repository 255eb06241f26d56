//! The ledger of one pool on this node: its reservations, and whether one more volume or snapshot
//! fits.
//!
//! It is computed from the custom resources each time, so it cannot drift.
//!
//! A requested growth counts from its admission on. A refused growth does not count.
//!
//! A snapshot reserves the bytes that its image had allocated when it was taken: its source may
//! overwrite all of them, and then both images need their own blocks.
//!
//! *Invariants:* all reservations together stay within `usable × overcommit`, and no volume is larger
//! than `usable` (R12). An overcommitted pool holds thin volumes only. A pool that holds a thick
//! volume, or a snapshot of one, is not overcommitted, whatever its spec says.

use std::collections::HashMap;

use cistern_crds::{Bytes, Provisioning, pool::usable_of};

use super::{Holder, Refusal, Reservation};

/// The limits of a pool's reservations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Space for volumes and snapshots: the free space of the empty pool less `reservedPercent`.
    pub usable: Bytes,
    /// Limit of all reservations, as a percentage of `usable`; at least 100.
    pub overcommit_percent: u32,
    /// Highest number of volumes.
    pub volume_limit: u32,
    /// Highest number of snapshots.
    pub snapshot_limit: u32,
    /// Highest number of snapshots of one volume.
    pub snapshots_per_volume: u32,
    /// What volumes the pool holds.
    pub supported: Supported,
}

/// What volumes a pool holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Supported {
    /// Images, which can be thin.
    Images,
    /// Thick logical volumes. Each takes a whole number of extents.
    LogicalVolumes {
        /// Size of an extent.
        extent: Bytes,
    },
}

impl Supported {
    /// What a volume of this size takes.
    pub fn taken(self, size: Bytes) -> Bytes {
        match self {
            Self::Images => size,
            Self::LogicalVolumes { extent } => size.round_up_to(extent),
        }
    }
}

impl Limits {
    /// The limits of a pool that had `empty` bytes free when it was made or grown.
    pub fn new(empty: Bytes, supported: Supported, pool: &cistern_crds::NodePool) -> Self {
        let reserved_percent = match supported {
            Supported::Images => pool.reserved_percent,
            // Nothing is written beside the volumes.
            Supported::LogicalVolumes { .. } => 0,
        };
        Self {
            usable: usable_of(empty, reserved_percent),
            overcommit_percent: pool.overcommit_percent,
            volume_limit: pool.limits.volumes,
            snapshot_limit: pool.limits.snapshots,
            snapshots_per_volume: pool.limits.snapshots_per_volume,
            supported,
        }
    }

    /// What a volume of this size takes.
    fn taken(&self, size: Bytes) -> Bytes {
        self.supported.taken(size)
    }
}

/// The reservations of one pool on this node, as sums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    limits: Limits,
    reserved: Bytes,
    /// Whether a thick volume, or a snapshot of one, has a reservation.
    holds_thick: bool,
    reserved_for_snapshots: Bytes,
    volumes: u32,
    snapshots: u32,
    /// Number of snapshots by the image that they are taken from.
    snapshots_of: HashMap<String, u32>,
}

impl Ledger {
    /// Sums up the reservations and the bytes of images that no custom resource claims.
    pub fn new(
        limits: Limits,
        reservations: impl IntoIterator<Item = Reservation>,
        unclaimed: Bytes,
    ) -> Self {
        let empty = Self {
            limits,
            reserved: unclaimed,
            holds_thick: false,
            reserved_for_snapshots: Bytes::ZERO,
            volumes: 0,
            snapshots: 0,
            snapshots_of: HashMap::new(),
        };
        reservations.into_iter().fold(empty, Self::with)
    }

    /// Adds a reservation without a check.
    #[must_use]
    pub fn with(mut self, reservation: Reservation) -> Self {
        let size = self.limits.taken(reservation.bytes());
        self.reserved = self.reserved.saturating_add(size);
        self.holds_thick |= reservation.provisioning == Provisioning::Thick;
        match reservation.holder {
            Holder::Volume => self.volumes = self.volumes.saturating_add(1),
            Holder::Snapshot { source } => {
                self.reserved_for_snapshots = self.reserved_for_snapshots.saturating_add(size);
                self.snapshots = self.snapshots.saturating_add(1);
                let of_volume = self.snapshots_of.entry(source).or_default();
                *of_volume = of_volume.saturating_add(1);
            }
        }
        self
    }

    /// Space for volumes and snapshots, without overcommitment.
    pub fn usable(&self) -> Bytes {
        self.limits.usable
    }

    /// All reserved bytes, including those of unclaimed images.
    pub fn reserved(&self) -> Bytes {
        self.reserved
    }

    /// Bytes reserved for snapshots: part of [`Self::reserved`].
    pub fn reserved_for_snapshots(&self) -> Bytes {
        self.reserved_for_snapshots
    }

    /// Number of volumes with a reservation.
    pub fn volumes(&self) -> u32 {
        self.volumes
    }

    /// Number of snapshots with a reservation.
    pub fn snapshots(&self) -> u32 {
        self.snapshots
    }

    /// Room for more volumes with this provisioning, in total.
    pub fn room(&self, provisioning: Provisioning) -> Bytes {
        if self.volumes >= self.limits.volume_limit {
            return Bytes::ZERO;
        }
        self.free(provisioning)
    }

    /// Limit of all reservations, as a percentage of [`Self::usable`].
    fn percent(&self) -> u32 {
        if self.holds_thick {
            100
        } else {
            self.limits.overcommit_percent
        }
    }

    /// Why the pool holds no volumes with this provisioning: the blocks of thick ones must exist, and a volume group has no
    /// thin ones.
    fn excluded(&self, provisioning: Provisioning) -> Option<Refusal> {
        let percent = self.percent();
        match (provisioning, self.limits.supported) {
            (Provisioning::Thick, _) if percent > 100 => Some(Refusal::Overcommitted { percent }),
            (Provisioning::Thin, Supported::LogicalVolumes { .. }) => Some(Refusal::ThickOnly),
            (Provisioning::Thick | Provisioning::Thin, _) => None,
        }
    }

    /// Unreserved bytes, for volumes and snapshots.
    fn free(&self, provisioning: Provisioning) -> Bytes {
        if self.excluded(provisioning).is_some() {
            return Bytes::ZERO;
        }
        let ceiling = self.limits.usable.percent(self.percent());
        ceiling.saturating_sub(self.reserved)
    }

    /// Checks that one more volume or snapshot fits. Fails with the reason if it does not.
    pub fn check(&self, reservation: &Reservation) -> Result<(), Refusal> {
        let (size, header, limits) = (reservation.size, reservation.header, &self.limits);
        if let Some(refusal) = self.excluded(reservation.provisioning) {
            return Err(refusal);
        }
        match &reservation.holder {
            Holder::Volume => {
                let usable = limits.usable.saturating_sub(header);
                let limit = limits.volume_limit;
                if size > usable {
                    return Err(Refusal::TooLarge { size, usable });
                }
                if self.volumes >= limit {
                    return Err(Refusal::VolumeLimitReached { limit });
                }
            }
            Holder::Snapshot { source } => {
                let limit = limits.snapshot_limit;
                if self.snapshots >= limit {
                    return Err(Refusal::SnapshotLimitReached { limit });
                }
                let limit = limits.snapshots_per_volume;
                if self.snapshots_of.get(source).copied().unwrap_or(0) >= limit {
                    return Err(Refusal::SnapshotsOfVolumeReached { limit });
                }
            }
        }
        let room = self.free(reservation.provisioning).saturating_sub(header);
        if limits.taken(size) > room {
            return Err(Refusal::NoSpace { size, room });
        }
        Ok(())
    }

    /// Checks that a volume of this ledger can have this provisioning. Its bytes are reserved
    /// already. Fails with the reason if it cannot.
    pub fn check_provisioning(&self, provisioning: Provisioning) -> Result<(), Refusal> {
        if let Some(refusal) = self.excluded(provisioning) {
            return Err(refusal);
        }
        match self.reserved.saturating_sub(self.limits.usable) {
            size if provisioning == Provisioning::Thick && size > Bytes::ZERO => {
                Err(Refusal::Lacking { size })
            }
            _ => Ok(()),
        }
    }

    /// Checks that an object of this ledger that has `held` bytes reserved can have more. Fails
    /// with the reason if it cannot.
    pub fn check_growth(&self, held: Bytes, wanted: &Reservation) -> Result<(), Refusal> {
        let size = wanted.size;
        let usable = self.limits.usable.saturating_sub(wanted.header);
        let reach = held.saturating_add(self.free(wanted.provisioning));
        let largest = match wanted.holder {
            Holder::Volume => usable.min(reach).round_down_to_mib().max(held),
            Holder::Snapshot { .. } if size > reach => {
                return Err(Refusal::NoSpace { size, room: reach });
            }
            Holder::Snapshot { .. } => return Ok(()),
        };
        if self.limits.taken(size) > self.limits.taken(largest) {
            return Err(Refusal::Growth {
                size,
                largest,
                usable,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
