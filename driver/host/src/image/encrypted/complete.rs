//! Completes an encrypted image when its key arrives: gives a new one a header and its filesystem, and a clone a
//! filesystem of its own (`own.rs`).
//!
//! ```text
//! image (Unformatted, Cloned) ─▶ unfinished file: header, filesystem, identity (Complete)
//!       ▲                                               │
//!       └──────────────── one rename ◀──────────────────┘
//! ```
//!
//! *Invariants:* only an image whose identity is [`EncryptionState::Unformatted`], and that was never written to, gets
//! a header. What is formatted is a new file without a name among the images. So the image has nothing, or a header and
//! a whole filesystem, at every moment, and a crash formats nothing twice.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use cistern_types::Provisioning;

use super::{make_filesystem, own::Renewal};
use crate::{
    allocation,
    attached::{Attached, wait_until_detached},
    base_device::BaseDevice,
    cause::Cause,
    encryption::{
        EncryptionState, HeaderConflict, Lifetime, Mapping, MappingOptions, Unlock, luks,
    },
    id::Uid,
    image::{
        Content, Error, Identity, Image, describe, failed, read::written_bytes,
        unfinished::Unfinished,
    },
    loopdev,
    pool::Pool,
    progress,
};

impl Pool {
    /// Completes an encrypted image that is not complete. Does nothing for a complete one, also if it is in use. Fails if
    /// the image is in use or closing for a move, if it does not belong to the volume, if no key opens the clone, or if
    /// the pool lacks the space.
    pub(crate) fn complete_encrypted(
        &self,
        uid: &Uid,
        volume: &str,
        unlock: Unlock<'_>,
    ) -> Result<(), Error> {
        self.check()?;
        let image = self.image(uid)?.ok_or_else(|| self.missing(uid))?;
        self.verify_owner(&image, volume)?;
        if image
            .encryption()
            .is_some_and(EncryptionState::is_incomplete)
        {
            self.complete(uid, unlock)?;
        }
        Ok(())
    }

    fn complete(&self, uid: &Uid, unlock: Unlock<'_>) -> Result<(), Error> {
        let file = self.open_image(uid)?.ok_or_else(|| self.missing(uid))?;
        let locked = self.unused(file, uid)?;
        let Some((image, identity)) = self.incomplete(&locked, uid)? else {
            return Ok(());
        };
        self.refuse_marked(locked.as_fd(), uid)?;
        let made = Unfinished::begin(self, uid, unlock.extent_size)?;
        match (identity.encryption, identity.content) {
            (Some(EncryptionState::Unformatted), content) => {
                self.format(&locked, &image, made.as_fd(), content, unlock)?;
            }
            (
                Some(EncryptionState::Cloned { uuid: from }),
                Content::Filesystem { filesystem, uuid },
            ) => {
                let renewal = Renewal {
                    filesystem,
                    from,
                    to: uuid,
                };
                self.renew_encrypted(&locked, &image, made.as_fd(), renewal, unlock)?;
            }
            (Some(EncryptionState::Cloned { .. } | EncryptionState::Complete) | None, _) => {
                return Ok(());
            }
        }
        self.replace_by_complete(made, &image, identity)
    }

    /// The image and its identity, if it is not complete.
    fn incomplete(&self, locked: &OwnedFd, uid: &Uid) -> Result<Option<(Image, Identity)>, Error> {
        let is_named = self.is_named(self.images.as_fd(), locked.as_fd(), uid);
        if !is_named.map_err(failed("stat the file", uid))? {
            return Err(self.missing(uid));
        }
        let image = describe(&*self.system, locked.as_fd(), uid);
        let image = image.map_err(failed("read the identity", uid))?;
        let is_incomplete =
            |found: &Identity| found.encryption.is_some_and(EncryptionState::is_incomplete);
        let identity = image.identity.clone().filter(is_incomplete);
        Ok(identity.map(|identity| (image, identity)))
    }

    /// Writes a header to a new file, and makes the filesystem of its volume behind it.
    fn format(
        &self,
        locked: &OwnedFd,
        image: &Image,
        made: BorrowedFd<'_>,
        content: Content,
        unlock: Unlock<'_>,
    ) -> Result<(), Error> {
        let (system, uid, size) = (&*self.system, &image.uid, image.file_size().0);
        let written = written_bytes(system, locked.as_fd(), size);
        if written.map_err(failed("read the extents", uid))? > 0 {
            let (uid, why) = (uid.clone(), HeaderConflict::NotBlank);
            return Err(Error::EncryptionConflict { uid, why });
        }
        let format = || -> Result<(), Cause> {
            system.truncate(made, size)?;
            let bound = loopdev::bind(system, made)?;
            luks::format(system, &bound.path, unlock.keys.current())?;
            drop(bound);
            let mapped = self.map_unfinished(made, uid, unlock)?;
            let mapped =
                mapped.ok_or_else(|| io::Error::other("the new header has another key"))?;
            make_filesystem(system, mapped.as_fd(), content, unlock.mkfs_options)?;
            system.sync(mapped.as_fd())?;
            drop(mapped);
            wait_until_detached(system, made, uid)
        };
        format().map_err(|source| self.no_space_or("format the encrypted file", uid, source))
    }

    /// Attaches an unfinished file that has a header; none if no key opens it.
    pub(super) fn map_unfinished(
        &self,
        made: BorrowedFd<'_>,
        uid: &Uid,
        unlock: Unlock<'_>,
    ) -> Result<Option<Attached>, Cause> {
        let system = &*self.system;
        wait_until_detached(system, made, uid)?;
        let base = BaseDevice::Loop(loopdev::bind(system, made)?);
        let options = MappingOptions {
            discard: unlock.discard,
            lifetime: Lifetime::WhileUsed,
        };
        let mapping = Mapping::open(system, &base, uid, unlock.keys, options)?;
        Ok(mapping.map(|mapping| Attached::mapped(base, mapping)))
    }

    /// Gives a complete file the name of the image.
    fn replace_by_complete(
        &self,
        made: Unfinished<'_>,
        image: &Image,
        identity: Identity,
    ) -> Result<(), Error> {
        let (system, uid) = (&*self.system, &image.uid);
        if identity.provisioning == Provisioning::Thick {
            // After mkfs, which punches holes.
            let (file, size) = (made.as_fd(), image.file_size());
            self.allocate_for(uid, || {
                allocation::ensure(system, file, size, progress::UNSTOPPED)
            })?;
        }
        let identity = Identity {
            encryption: Some(EncryptionState::Complete),
            ..identity
        };
        made.identify(&identity)
            .map_err(|source| self.no_space_or("write the identity", uid, source.into()))?;
        made.replace()
            .and_then(|()| system.sync(self.images.as_fd()))
            .map_err(failed("replace the incomplete image", uid))
    }
}
