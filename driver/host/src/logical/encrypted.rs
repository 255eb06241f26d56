//! Completes an encrypted volume when its key arrives: gives it a header and its filesystem.
//!
//! ```text
//! Unformatted, made ─▶ formatting ─▶ header, filesystem ─▶ Complete, made
//! ```
//!
//! *Invariants:* only a volume whose tags say that it is [`EncryptionState::Unformatted`] gets a header, and only if nothing
//! was written where the header will be, or if an interrupted call of this has begun. So what is formatted was never
//! attached for a pod. The tags change in one step, after everything is synced.

use std::{io, os::fd::BorrowedFd};

use cistern_types::MkfsOptions;

use super::{State, VolumeGroup, tags, volume::LogicalVolume};
use crate::{
    attached::{Attached, wait_until_unmapped},
    base_device::{BaseDevice, LogicalDevice},
    cause::Cause,
    encryption::{
        EncryptionState, HEADER, HeaderConflict, Lifetime, Mapping, MappingOptions, Unlock, luks,
    },
    id::Uid,
    image::{Content, Error, encrypted::make_filesystem, failed},
    system::{OFlags, System},
};

/// How much of a device is read at a time.
const READ_AT_ONCE: usize = 1 << 20;

impl VolumeGroup {
    /// Completes an encrypted volume that was never staged. Does nothing for a complete one, also if it is in use. Fails
    /// if the volume is not encrypted, is in use or does not belong to the PoolVolume, or if it was written to.
    pub fn complete_encrypted(
        &self,
        uid: &Uid,
        volume: &str,
        unlock: Unlock<'_>,
    ) -> Result<(), Error> {
        let found = self.made(uid)?.ok_or_else(|| self.missing(uid))?;
        let image = found.clone().into_image(self.sector_size);
        image.verify_owner(volume, self.pool_uuid(), self)?;
        let conflict = |why| {
            let uid = uid.clone();
            Error::EncryptionConflict { uid, why }
        };
        let content = image.identity.as_ref().map(|identity| identity.content);
        match (image.encryption(), content) {
            (Some(EncryptionState::Complete), _) => Ok(()),
            (Some(EncryptionState::Unformatted), Some(content)) => {
                self.check()?;
                self.refuse_in_use(&found)?;
                if found.state != State::Formatting {
                    let is_blank = self.is_blank(&found);
                    if !is_blank.map_err(failed("read the device", uid))? {
                        return Err(conflict(HeaderConflict::NotBlank));
                    }
                }
                self.format(&found, content, unlock)
                    .map_err(failed("format the encrypted volume", uid))
            }
            _ => Err(conflict(HeaderConflict::NotEncrypted)),
        }
    }

    /// Whether the place of the header has zeros only.
    fn is_blank(&self, volume: &LogicalVolume) -> Result<bool, Cause> {
        let device = self.open_device(volume, OFlags::RDONLY)?;
        let mut at = 0;
        while at < HEADER.0 {
            let bytes = self.system.read(device.as_fd(), at, READ_AT_ONCE)?;
            if bytes.is_empty() || bytes.iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            at = at.saturating_add(bytes.len() as u64);
        }
        Ok(true)
    }

    fn format(
        &self,
        volume: &LogicalVolume,
        content: Content,
        unlock: Unlock<'_>,
    ) -> Result<(), Cause> {
        let system = &*self.system;
        self.retag(volume, &[State::Formatting.tag()], &[volume.state.tag()])?;
        let device = self.open_device(volume, OFlags::RDWR)?;
        // What an interrupted call has left.
        system.zero(device.as_fd(), &(0..HEADER.0))?;
        system.sync(device.as_fd())?;
        let number = device.number();
        write(system, device, &volume.uid, content, unlock)?;
        wait_until_unmapped(system, number)?;
        let state = |state| tags::of_encryption(state);
        self.retag(
            volume,
            &[state(EncryptionState::Complete)?, State::Made.tag()],
            &[
                state(EncryptionState::Unformatted)?,
                State::Formatting.tag(),
            ],
        )
    }
}

/// Writes a header to a device, and the filesystem of its volume behind it.
fn write(
    system: &dyn System,
    device: LogicalDevice,
    uid: &Uid,
    content: Content,
    unlock: Unlock<'_>,
) -> Result<(), Cause> {
    let base = BaseDevice::Logical(device);
    luks::format(system, base.path(), unlock.keys.current())?;
    let options = MappingOptions {
        discard: unlock.discard,
        lifetime: Lifetime::WhileUsed,
    };
    let mapping = Mapping::open(system, &base, uid, unlock.keys, options)?;
    let mapping = mapping.ok_or_else(|| io::Error::other("the new header has another key"))?;
    let mapped = Attached::mapped(base, mapping);
    fill(system, mapped.as_fd(), content, unlock.mkfs_options)
}

fn fill(
    system: &dyn System,
    mapped: BorrowedFd<'_>,
    content: Content,
    options: &MkfsOptions,
) -> Result<(), Cause> {
    make_filesystem(system, mapped, content, options)?;
    Ok(system.sync(mapped)?)
}
