//! Attaches an encrypted volume: its base device, and the mapping over it.

use std::{io, os::fd::BorrowedFd};

use crate::{
    attached::{Attached, wait_until_unmapped},
    base_device::BaseDevice,
    cause::Cause,
    encryption::{HeaderConflict, Lifetime, Mapping, MappingOptions, Unlock, header},
    engine::Engine,
    id::Uid,
    image::{Error, failed},
    root::Root,
    volume_device,
};

/// An encrypted volume with its devices.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) attached: Attached,
    /// Whether something used its mapping already: a mount, or a pod.
    pub(crate) was_in_use: bool,
}

impl dyn Engine + '_ {
    /// Attaches an encrypted volume that has a header. Opens a mapping that nothing uses again: an interrupted call may
    /// have left it. Fails if the volume has no header, if no key opens it, or if it is closing for a move.
    pub(crate) fn open_encrypted(
        &self,
        data: BorrowedFd<'_>,
        uid: &Uid,
        unlock: Unlock<'_>,
        lifetime: Lifetime,
    ) -> Result<Opened, Error> {
        let system = self.system();
        let has_header = header::exists(system, data).map_err(failed("read the header", uid))?;
        if !has_header {
            let (uid, why) = (uid.clone(), HeaderConflict::Missing);
            return Err(Error::EncryptionConflict { uid, why });
        }
        let base = match self.find_unused(data, uid)? {
            Found::InUse(attached) => {
                return Ok(Opened {
                    attached,
                    was_in_use: true,
                });
            }
            Found::Unused(base) => base,
        };
        let _lock = self.lock_to_attach(data, uid)?;
        let base = match base {
            Some(base) => self.verified(base, uid)?,
            None => self.attach(data, uid)?,
        };
        let options = MappingOptions {
            discard: unlock.discard,
            lifetime,
        };
        let mapping = Mapping::open(system, &base, uid, unlock.keys, options)
            .map_err(failed("open the encrypted file", uid))?;
        let mapping = mapping.ok_or_else(|| Error::WrongKey { uid: uid.clone() })?;
        Ok(Opened {
            attached: Attached::mapped(base, mapping),
            was_in_use: false,
        })
    }

    /// Removes the mapping of a volume if nothing uses it.
    fn find_unused(&self, data: BorrowedFd<'_>, uid: &Uid) -> Result<Found, Error> {
        let system = self.system();
        let Some(base) = self.base(data, uid)? else {
            return Ok(Found::Unused(None));
        };
        let find_mapping = || failed("find the mapping", uid);
        let attached = Attached::over(system, base, uid).map_err(find_mapping())?;
        let (base, mapping) = attached.into_parts();
        match mapping.map(|mapping| mapping.close(system, &base)) {
            None | Some(Ok(())) => Ok(Found::Unused(Some(base))),
            Some(Err(cause)) if cause.is_busy() => {
                let attached = Attached::open(system, base.number(), uid);
                let gone = || io::Error::from(io::ErrorKind::NotFound);
                let attached = attached.and_then(|attached| attached.ok_or_else(gone));
                attached.map(Found::InUse).map_err(find_mapping())
            }
            Some(Err(cause)) => Err(failed("find the mapping", uid)(cause)),
        }
    }
}

impl Root {
    /// Removes the mapping of a volume that is at no path, as far as this process sees: an interrupted stage has left
    /// it, with the key. Does nothing for a volume without a mapping. Fails if the mapping cannot be removed.
    pub fn detach_idle(&self, image: &Uid) -> Result<(), super::Error> {
        let system = &*self.system;
        if !self.mount_points_of(image)?.is_empty() {
            return Ok(());
        }
        let detach = || -> Result<(), Cause> {
            for device in volume_device::of(system, image)? {
                // One that nothing uses any more goes away in a moment.
                if wait_until_unmapped(system, device.number).is_ok() {
                    continue;
                }
                let attached = Attached::open(system, device.number, image)?;
                if let Some(attached) = attached.filter(Attached::is_mapped) {
                    attached.detach(system)?;
                }
            }
            Ok(())
        };
        Ok(detach().map_err(failed("detach the idle device", image))?)
    }
}

/// How an encrypted volume is attached.
enum Found {
    /// Something uses its mapping.
    InUse(Attached),
    /// It has no mapping; perhaps a base device.
    Unused(Option<BaseDevice>),
}
