//! Mappings: the decrypted data of a volume, as a block device.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use super::{Key, Keys, luks};
use crate::{
    base_device::BaseDevice,
    cause::Cause,
    id::Uid,
    loopdev::is_gone,
    system::{MAPPING, OFlags, System},
};

/// A mapping over the base device of a volume, which stays while this value lives.
#[derive(Debug)]
pub(crate) struct Mapping {
    name: String,
    path: PathBuf,
    device: OwnedFd,
}

/// How long a mapping stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lifetime {
    /// Until its last user closes it: a mount keeps it.
    WhileUsed,
    /// Until it is removed: nothing keeps the device of a raw block volume.
    UntilRemoved,
}

/// Options of a new mapping.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MappingOptions {
    pub(crate) discard: bool,
    pub(crate) lifetime: Lifetime,
}

impl Mapping {
    /// Returns the path of its device node.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the device, open for reading.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    /// Grows the mapping to the size of its device; false if no key is one of the device. Changes none of them: the key
    /// before the current one opens the device until the volume is staged again.
    pub(crate) fn resize(&self, system: &dyn System, keys: &Keys) -> Result<bool, Cause> {
        with_any(keys, |key| luks::resize(system, &self.name, key))
    }

    /// Removes the mapping when its last user closes it.
    pub(crate) fn close_when_unused(
        &self,
        system: &dyn System,
        base: &BaseDevice,
    ) -> Result<(), Cause> {
        luks::close_when_unused(system, &self.name, base.as_fd())
    }

    /// Removes the mapping. Fails with `ResourceBusy` while another process or a mount uses it.
    pub(crate) fn close(self, system: &dyn System, base: &BaseDevice) -> Result<(), Cause> {
        let Self { name, device, .. } = self;
        drop(device);
        luks::close(system, &name, base.as_fd())
    }

    /// Returns the mapping of a volume over its base device; none when there is none.
    pub(crate) fn find(
        system: &dyn System,
        base: &BaseDevice,
        image: &Uid,
    ) -> io::Result<Option<Self>> {
        let Some(number) = system.mapping_over(base.number())? else {
            return Ok(None);
        };
        // A node of Cistern's own, whose name is that of the device: libdevmapper removes its node when the mapping is
        // to be removed, which is while it is used.
        let path = system.device_path(&number.node_name(), number)?;
        match system.open(&path, OFlags::RDONLY) {
            Ok(device) => Ok(Some(Self {
                name: name(image),
                path,
                device,
            })),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Maps the data of an image that has a header; none if no key is one of the image. The key before the current one
    /// opens it no longer.
    pub(crate) fn open(
        system: &dyn System,
        base: &BaseDevice,
        image: &Uid,
        keys: &Keys,
        options: MappingOptions,
    ) -> Result<Option<Self>, Cause> {
        let name = name(image);
        let open = |key: &Key| -> Result<Option<Self>, Cause> {
            let open = || luks::open(system, base.path(), &name, key, options.discard);
            let is_open = match open() {
                Err(cause) if cause.is_busy() => {
                    // An interrupted call has left one over a file that it did not complete.
                    luks::close(system, &name, base.as_fd())?;
                    open()?
                }
                result => result?,
            };
            if !is_open {
                return Ok(None);
            }
            let mapping = Self::find(system, base, image)?;
            let mapping =
                mapping.ok_or_else(|| io::Error::other("the mapping has been removed"))?;
            // At once: if this process ends, a mapping that stays keeps the key.
            if options.lifetime == Lifetime::WhileUsed {
                mapping.close_when_unused(system, base)?;
            }
            Ok(Some(mapping))
        };
        rotate(system, base, keys, open)
    }
}

/// The name of the mapping of an image.
fn name(image: &Uid) -> String {
    format!("{MAPPING}{image}")
}

/// Uses the current key, and the one before it if that is not one of the device; false if neither is.
fn with_any(keys: &Keys, use_key: impl Fn(&Key) -> Result<bool, Cause>) -> Result<bool, Cause> {
    if use_key(keys.current())? {
        return Ok(true);
    }
    keys.previous().map_or(Ok(false), use_key)
}

/// Opens a device with the current key, which takes the place of the one before it if need be. That one is removed only
/// when the current one has opened the device. None if neither opens it.
fn rotate<T>(
    system: &dyn System,
    base: &BaseDevice,
    keys: &Keys,
    open: impl Fn(&Key) -> Result<Option<T>, Cause>,
) -> Result<Option<T>, Cause> {
    let Some(previous) = keys.previous() else {
        return open(keys.current());
    };
    let mut opened = open(keys.current())?;
    if opened.is_none() && luks::add_key(system, base.path(), previous, keys.current())? {
        opened = open(keys.current())?;
    }
    if opened.is_some() {
        luks::remove_key(system, base.path(), previous)?;
    }
    Ok(opened)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn a_device_that_has_the_previous_key_until_its_next_stage_accepts_both_keys() {
        let key = |length| Key::new(vec![b'k'; length]).unwrap();
        let with = |keys: &Keys, of_device: &[usize]| {
            let tried = RefCell::new(Vec::new());
            let is_used = with_any(keys, |key| {
                tried.borrow_mut().push(key.length());
                Ok(of_device.contains(&key.length()))
            });
            (is_used.unwrap(), tried.into_inner())
        };
        let one = Keys::new(key(32), None);
        assert_eq!(with(&one, &[32]), (true, vec![32]));
        assert_eq!(with(&one, &[33]), (false, vec![32]));
        let two = Keys::new(key(32), Some(key(33)));
        assert_eq!(with(&two, &[32]), (true, vec![32]));
        assert_eq!(with(&two, &[33]), (true, vec![32, 33]));
        assert_eq!(with(&two, &[34]), (false, vec![32, 33]));
    }
}
