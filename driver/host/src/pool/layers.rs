//! What speaks against a block device being a disk of its own: another device is made of it, or it is
//! made of something of ours. Such a device shows the filesystem of a pool, and is not the pool.
//!
//! *Invariant:* this only looks, and "could not tell" is an error.

use std::{io, os::fd::BorrowedFd, path::PathBuf};

use cistern_crds::FilesystemType;

use super::blank;
use crate::{
    cause::Cause,
    loopdev,
    root::Root,
    superblock::Superblock,
    system::{DeviceNumber, System},
};

/// Where an array of md with metadata 1.2 has its mark. mdadm leaves what stands before it, so that
/// the superblock of an earlier filesystem may be there still.
const MD_OFFSET: u64 = 4096;
const MD_MAGIC: [u8; 4] = 0xa92b_4efc_u32.to_le_bytes();
/// Blocks of a pool's filesystem. Less than one may be left over at the end of its device.
const BLOCK: u64 = 4096;

/// What speaks against a device, of which `found` is known; none when nothing does.
pub(super) fn objection(
    root: &Root,
    device: BorrowedFd<'_>,
    number: DeviceNumber,
    found: Option<&Superblock>,
) -> Result<Option<String>, Cause> {
    let system = &*root.system;
    let holders = system.holders(number)?;
    if !holders.is_empty() {
        return Ok(Some(format!("{} is made of it", holders.join(", "))));
    }
    if let Some(file) = own_file(root, number)? {
        return Ok(Some(format!(
            "it is a loop device over {}, which is a pool's",
            file.display()
        )));
    }
    match found {
        Some(found) if found.kind == FilesystemType::Xfs && found.complete => {
            member(system, device, found)
        }
        Some(_) | None => Ok(None),
    }
}

/// The file of a pool that a loop device is bound to: whoever has a volume decides what stands there.
fn own_file(root: &Root, number: DeviceNumber) -> io::Result<Option<PathBuf>> {
    let Some(number) = number.as_loop() else {
        return Ok(None);
    };
    let pools = root.pools_path();
    let is_ours = |file: &PathBuf| file.starts_with(&pools) || loopdev::image_of(file).is_some();
    Ok(root.system.backing_file(number)?.filter(is_ours))
}

/// The array or replica that a device with a filesystem is a part of, by its mark: the filesystem
/// shows there, too, and what is written to it alone makes the parts differ.
fn member(
    system: &dyn System,
    device: BorrowedFd<'_>,
    found: &Superblock,
) -> Result<Option<String>, Cause> {
    if system.read(device, MD_OFFSET, MD_MAGIC.len())? == MD_MAGIC {
        return Ok(Some("it holds linux_raid_member".to_owned()));
    }
    // The other marks stand behind the filesystem. Where that reaches to the end of the device, what
    // stands there is a volume's, and a volume may hold anything.
    let behind = system.device_size(device)?.saturating_sub(found.size.0);
    if behind < BLOCK {
        return Ok(None);
    }
    blank::signature(system, device, &["raid"])
}
