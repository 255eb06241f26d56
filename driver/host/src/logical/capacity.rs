//! How much a volume group has room for.

use std::io;

use cistern_types::Bytes;

use super::{
    Error, VolumeGroup,
    report::{GroupRow, number},
};
use crate::pool::PoolStatistics;

/// Room for metadata that is left to changes of what exists. A volume takes some hundred bytes, and LVM writes all of its
/// metadata anew with each change.
const METADATA_KEPT: Bytes = Bytes(64 << 10);

impl VolumeGroup {
    /// Reads the sizes of the group, in whole extents. Logical volumes that are not Cistern's are no part of what can be
    /// reserved. Nothing is available once the metadata has no room for another volume. Fails if the group cannot be used.
    pub fn statistics(&self) -> Result<PoolStatistics, Error> {
        let row = self.row()?;
        let volumes = self.logical_volumes()?;
        let (size, free, metadata) = self
            .sizes(&row)
            .map_err(|error| self.failed("read the sizes")(error.into()))?;
        let sizes = volumes.iter().map(|volume| volume.size);
        let ours = sizes.fold(Bytes::ZERO, Bytes::saturating_add);
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

    /// The size of the group, what of it is free, and the room for metadata.
    fn sizes(&self, row: &GroupRow) -> io::Result<(Bytes, Bytes, Bytes)> {
        let extents = |field: &str| {
            let extents: u64 = number(field)?;
            Ok::<_, io::Error>(Bytes(extents.saturating_mul(self.extent_size.0)))
        };
        let metadata = Bytes(number(&row.mda_free)?);
        Ok((
            extents(&row.extent_count)?,
            extents(&row.free_count)?,
            metadata,
        ))
    }

    /// How many extents a size takes.
    pub(super) fn extents(&self, size: Bytes) -> u64 {
        size.0.div_ceil(self.extent_size.0.max(1))
    }
}
