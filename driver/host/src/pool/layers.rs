//! Detects block devices that are only a layer: another device is built on top of them, or they are
//! built on a file of Cistern. Such a device shows the filesystem of a pool, and is not the pool.
//!
//! *Invariant:* nothing is written. An inspection that fails is an error, and never means that a
//! device is no layer.

use std::{
    io,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
};

use cistern_types::FilesystemType;

use super::{Unusable, blank};
use crate::{
    cause::Cause,
    loopdev,
    root::Root,
    superblock::Superblock,
    system::{DeviceNumber, System},
};

/// Offset of the signature of an md array with metadata 1.2. mdadm does not clear the space before it,
/// so the superblock of an earlier filesystem may still be there.
const MD_OFFSET: u64 = 4096;
const MD_MAGIC: [u8; 4] = 0xa92b_4efc_u32.to_le_bytes();
/// Block size of a pool's filesystem in bytes. A shorter rest may be unused at the end of its device.
const BLOCK: u64 = 4096;

/// The reason why a device with the superblock `found` is only a layer; None if it is not.
pub(super) fn objection(
    root: &Root,
    device: BorrowedFd<'_>,
    number: DeviceNumber,
    found: Option<&Superblock>,
) -> Result<Option<Unusable>, Cause> {
    let system = &*root.system;
    let holders = system.holders(number)?;
    if !holders.is_empty() {
        let holders = holders.into_iter().map(|holder| holder.name).collect();
        return Ok(Some(Unusable::Layer { holders }));
    }
    if let Some(file) = own_file(root, number)? {
        return Ok(Some(Unusable::OwnFile { file }));
    }
    match found {
        Some(found) if found.kind == FilesystemType::Xfs && found.complete => {
            member(system, device, found)
        }
        Some(_) | None => Ok(None),
    }
}

/// The file of Cistern that a loop device is bound to: one in a pool, whose content a user of a volume
/// controls, or one that a pool is in.
pub(crate) fn own_file(root: &Root, number: DeviceNumber) -> io::Result<Option<PathBuf>> {
    let Some(number) = number.as_loop() else {
        return Ok(None);
    };
    let file = root.system.backing_file(number)?;
    Ok(file.filter(|file| is_own_file(root, file)))
}

/// Whether a file is one of Cistern: in a pool, or one that a pool is in.
pub(crate) fn is_own_file(root: &Root, file: &Path) -> bool {
    file.starts_with(root.pools_path())
        || loopdev::any_image_of(file).is_some()
        || loopdev::is_pool(file)
}

/// The array or replica that a device is a part of, by its signature. The filesystem is visible on the
/// part, too, and a write to one part alone makes the parts differ.
fn member(
    system: &dyn System,
    device: BorrowedFd<'_>,
    found: &Superblock,
) -> Result<Option<Unusable>, Cause> {
    if system.read(device, MD_OFFSET, MD_MAGIC.len())? == MD_MAGIC {
        let format = "linux_raid_member".to_owned();
        return Ok(Some(Unusable::Holds { format }));
    }
    // The other signatures are behind the filesystem. If the filesystem covers the whole device,
    // the end of the device holds data of volumes, which can contain any signature.
    let behind = system.device_size(device)?.saturating_sub(found.size.0);
    if behind < BLOCK {
        return Ok(None);
    }
    blank::signature(system, device, &["raid"])
}
