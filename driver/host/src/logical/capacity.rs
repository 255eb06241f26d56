//! How much a volume group has room for.

use cistern_types::Bytes;

use super::{
    Error, VolumeGroup,
    report::{GroupRow, number},
};
use crate::{cause::Cause, pool::PoolStatistics};

/// Room for metadata that is left to changes of what exists. A volume takes some hundred bytes, and LVM writes all of its
/// metadata anew with each change.
const METADATA_KEPT: Bytes = Bytes(64 << 10);

impl VolumeGroup {
    /// Reads the sizes of the group, in whole extents. Logical volumes that are not Cistern's are no part of what can be
    /// reserved. Nothing is available once the metadata has no room for another volume. Fails if the group cannot be used.
    pub fn statistics(&self) -> Result<PoolStatistics, Error> {
        let row = self.row()?;
        let volumes = self.logical_volumes()?;
        let read = || self.read(&row).map_err(Cause::from);
        let (size, free) = read().map_err(self.failed("read the sizes"))?;
        let sizes = volumes.iter().map(|volume| volume.size);
        let ours = sizes.fold(Bytes::ZERO, Bytes::saturating_add);
        let metadata: Bytes = number(&row.mda_free)
            .map(Bytes)
            .map_err(|error| self.failed("read the sizes")(error.into()))?;
        let available = if metadata < METADATA_KEPT {
            Bytes::ZERO
        } else {
            free
        };
        Ok(PoolStatistics {
            size,
            empty: ours.saturating_add(free),
            available,
        })
    }

    /// The size of the group, and what of it is free.
    fn read(&self, row: &GroupRow) -> std::io::Result<(Bytes, Bytes)> {
        let extents = |field: &str| {
            let extents: u64 = number(field)?;
            Ok::<_, std::io::Error>(Bytes(extents.saturating_mul(self.extent_size.0)))
        };
        Ok((extents(&row.extent_count)?, extents(&row.free_count)?))
    }

    /// How many extents a size takes.
    pub(super) fn extents(&self, size: Bytes) -> u64 {
        size.0.div_ceil(self.extent_size.0.max(1))
    }
}
