//! How much a volume group has room for.

use std::io;

use cistern_types::Bytes;

use super::{
    Error, VolumeGroup,
    report::{GroupDisk, GroupRow, VolumeRow, number},
    volume::LogicalVolume,
};
use crate::{cause::Cause, pool::PoolStatistics};

/// How often a group is read again that has changed meanwhile.
const ATTEMPTS: u32 = 10;
/// Room for metadata that is left to changes of what exists. A volume takes some hundred bytes, and LVM writes all of its
/// metadata anew with each change.
const METADATA_KEPT: Bytes = Bytes(64 << 10);

impl VolumeGroup {
    /// Reads the sizes of the group, in whole extents. Logical volumes that are not Cistern's are no part of what can be
    /// reserved, nor are disks on which LVM shall allocate nothing. Nothing more can be reserved once the metadata has
    /// no room for another volume. Fails if the group cannot be used.
    pub fn statistics(&self) -> Result<PoolStatistics, Error> {
        let (row, disks, volumes) = self.snapshot()?;
        let sizes = || -> Result<_, Cause> {
            let extents = |count: u64| Bytes(count.saturating_mul(self.extent_size.0));
            let size = extents(number(&row.extent_count)?);
            let available = if has_room_for_metadata(&row)? {
                extents(self.usable(&disks)?)
            } else {
                Bytes::ZERO
            };
            Ok((size, available))
        };
        let (size, available) = sizes().map_err(self.failed("read the sizes"))?;
        let sizes = volumes.iter().map(|volume| volume.size);
        let ours = sizes.fold(Bytes::ZERO, Bytes::saturating_add);
        Ok(PoolStatistics {
            size,
            empty: ours.saturating_add(available),
            available,
        })
    }

    /// Reads the group, its disks and its volumes, all between the same two changes of it, unless it changes all the time.
    fn snapshot(&self) -> Result<(GroupRow, Vec<GroupDisk>, Vec<LogicalVolume>), Error> {
        let mut others = 0..ATTEMPTS;
        loop {
            let (row, disks) = self.read()?;
            let read = || -> Result<_, Cause> {
                let rows: Vec<VolumeRow> = self.by_own(|lvm| lvm.report(&self.name))?;
                let is_same = rows.iter().all(|volume| volume.change == row.change);
                Ok((is_same, LogicalVolume::all_of(&rows)?))
            };
            let (is_same, volumes) = read().map_err(self.failed("list the volumes"))?;
            if is_same || others.next().is_none() {
                return Ok((row, disks, volumes));
            }
        }
    }

    /// How many extents a size takes: as many on each disk of a stripe.
    pub(super) fn extents(&self, size: Bytes) -> u64 {
        let stripes = u64::from(self.stripes);
        size.0
            .div_ceil(self.unit().0.max(1))
            .saturating_mul(stripes)
    }

    /// How many of the free extents volumes can take: those of a stripe are on different disks.
    fn usable(&self, disks: &[GroupDisk]) -> io::Result<u64> {
        let free: io::Result<Vec<u64>> = disks.iter().map(GroupDisk::free).collect();
        Ok(striped(&free?, self.stripes.max(1) as usize))
    }
}

/// Whether there is room for the metadata of another volume.
pub(super) fn has_room_for_metadata(row: &GroupRow) -> io::Result<bool> {
    Ok(Bytes(number(&row.mda_free)?) >= METADATA_KEPT)
}

/// How many extents fit in stripes over so many disks with these free extents, if LVM allocates all of them at once: it
/// takes the disks with the most free extents, as long as it finds enough of them.
fn striped(free: &[u64], stripes: usize) -> u64 {
    let mut free = free.to_vec();
    let mut sum = 0_u64;
    loop {
        free.sort_unstable_by(|one, other| other.cmp(one));
        let Some(taken) = free.get_mut(..stripes) else {
            return sum;
        };
        let height = taken.last().copied().unwrap_or(0);
        if height == 0 {
            return sum;
        }
        for disk in taken {
            *disk = disk.saturating_sub(height);
            sum = sum.saturating_add(height);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_fits_in_stripes_over_different_disks_is_usable() {
        for (free, stripes, expected) in [
            (&[][..], 2, 0),
            (&[10], 2, 0),
            (&[10, 10], 2, 20),
            (&[10, 4], 2, 8),
            (&[10, 4, 4], 2, 16),
            (&[10, 4, 4], 3, 12),
            (&[100, 1, 1], 2, 4),
            (&[5, 5, 5], 2, 10),
            (&[0, 0], 2, 0),
            (&[], 1, 0),
            (&[10, 0, 4], 1, 14),
        ] {
            assert_eq!(striped(free, stripes), expected, "{free:?} by {stripes}");
        }
    }
}
