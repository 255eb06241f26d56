//! Attaches an encrypted image: its loop device, and the mapping over it.

use std::{io, os::fd::BorrowedFd};

use crate::{
    attached::Attached,
    cause::Cause,
    encryption::{HeaderConflict, Lifetime, Mapping, MappingOptions, Unlock, header},
    id::Uid,
    image::{Error, failed},
    loopdev::{self, Loop},
    pool::Pool,
};

/// An encrypted image with its devices.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) attached: Attached,
    /// Whether something used its mapping already: a mount, or a pod.
    pub(crate) was_in_use: bool,
}

impl Pool {
    /// Attaches an encrypted image that has a header. Opens a mapping that nothing uses again: an interrupted call may
    /// have left it. Fails if the image has no header, if no key opens it, or if it is closing for a move.
    pub(crate) fn open_encrypted(
        &self,
        file: BorrowedFd<'_>,
        uid: &Uid,
        unlock: Unlock<'_>,
        lifetime: Lifetime,
    ) -> Result<Opened, Error> {
        let system = &*self.system;
        let has_header = header::exists(system, file).map_err(failed("read the header", uid))?;
        if !has_header {
            let (uid, why) = (uid.clone(), HeaderConflict::Missing);
            return Err(Error::EncryptionConflict { uid, why });
        }
        let bound = match self
            .find_unused(file, uid)
            .map_err(failed("find the mapping", uid))?
        {
            Found::InUse(attached) => {
                return Ok(Opened {
                    attached,
                    was_in_use: true,
                });
            }
            Found::Unused(bound) => bound,
        };
        let _lock = self.lock_to_attach(file, uid)?;
        let bound = match bound {
            Some(bound) => loopdev::verify(system, bound),
            None => loopdev::bind(system, file),
        };
        let bound = bound.map_err(failed("bind the file", uid))?;
        let options = MappingOptions {
            discard: unlock.discard,
            lifetime,
        };
        let mapping = Mapping::open(system, &bound, uid, unlock.keys, options)
            .map_err(failed("open the encrypted file", uid))?;
        let mapping = mapping.ok_or_else(|| Error::WrongKey { uid: uid.clone() })?;
        Ok(Opened {
            attached: Attached::mapped(bound, mapping),
            was_in_use: false,
        })
    }

    /// Removes the mapping of an image if nothing uses it.
    fn find_unused(&self, file: BorrowedFd<'_>, uid: &Uid) -> Result<Found, Cause> {
        let system = &*self.system;
        let id = system.stat(file)?.id;
        let Some(attached) = Attached::find(system, id, uid)? else {
            return Ok(Found::Unused(None));
        };
        let (bound, mapping) = attached.into_parts();
        match mapping.map(|mapping| mapping.close(system, &bound)) {
            None | Some(Ok(())) => Ok(Found::Unused(Some(bound))),
            Some(Err(cause)) if cause.is_busy() => {
                let attached = Attached::open(system, bound.device(), uid)?;
                let gone = || io::Error::from(io::ErrorKind::NotFound);
                Ok(Found::InUse(attached.ok_or_else(gone)?))
            }
            Some(Err(cause)) => Err(cause),
        }
    }
}

/// How an image is attached.
enum Found {
    /// Something uses its mapping.
    InUse(Attached),
    /// It has no mapping; perhaps a loop device.
    Unused(Option<Loop>),
}
