//! Converts the kernel's description of an extent.
//!
//! *Invariant:* an extent has a known location only if no flag of the kernel contradicts it.

use super::{Extent, Placement};
use crate::ioctl;

/// Flags that mean that the bytes at the location of an extent are not the bytes of the file. The
/// flags for shared, merged and last extents do not.
const LOCATION_UNKNOWN: u32 = ioctl::EXTENT_UNKNOWN
    | ioctl::EXTENT_DELALLOC
    | ioctl::EXTENT_ENCODED
    | ioctl::EXTENT_DATA_ENCRYPTED
    | ioctl::EXTENT_NOT_ALIGNED
    | ioctl::EXTENT_DATA_INLINE
    | ioctl::EXTENT_DATA_TAIL;

impl From<ioctl::Extent> for Extent {
    fn from(found: ioctl::Extent) -> Self {
        let has_end = found.physical.checked_add(found.length).is_some();
        let placement = match found.flags {
            flags if flags & LOCATION_UNKNOWN != 0 || !has_end => Placement::Unknown,
            flags if flags & ioctl::EXTENT_UNWRITTEN != 0 => Placement::Unwritten,
            _ => Placement::At(found.physical),
        };
        Self {
            logical: found.logical..found.logical.saturating_add(found.length),
            placement,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(flags: u32) -> Placement {
        Extent::from(ioctl::Extent::new(4096..8192, 65536, flags)).placement
    }

    /// Tests every flag of linux/fiemap.h, alone and in pairs.
    #[test]
    fn an_extent_has_a_known_location_unless_a_flag_contradicts_it() {
        let harmless = [0x1, 0x1000, 0x2000];
        let against = [0x2, 0x4, 0x8, 0x80, 0x100, 0x200, 0x400];
        let unwritten = 0x800;
        assert_eq!(placement(0), Placement::At(65536));
        assert_eq!(placement(unwritten), Placement::Unwritten);
        for one in harmless {
            assert_eq!(placement(one), Placement::At(65536), "{one:#x}");
            assert_eq!(placement(one | unwritten), Placement::Unwritten, "{one:#x}");
            for other in against {
                assert_eq!(placement(one | other), Placement::Unknown, "{other:#x}");
            }
        }
        for one in against {
            assert_eq!(placement(one), Placement::Unknown, "{one:#x}");
            assert_eq!(placement(one | unwritten), Placement::Unknown, "{one:#x}");
        }
    }

    #[test]
    fn an_extent_whose_end_overflows_has_an_unknown_location() {
        let found = Extent::from(ioctl::Extent::new(4096..8192, u64::MAX, 0));
        assert_eq!(found.placement, Placement::Unknown);
        assert_eq!(found.logical, 4096..8192);
    }
}
