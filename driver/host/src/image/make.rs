//! Making an image: with a new filesystem, or as a clone of another image.

use std::{io, os::fd::BorrowedFd};

use cistern_types::{Bytes, FilesystemType};

use super::{
    Content, Error, Identity, IdentityConflict, Image, ImageRequest, Owner, Properties, failed,
    unfinished::Unfinished,
};
use crate::{
    allocation,
    cause::Cause,
    check::Checking,
    encryption::{EncryptionState, HEADER},
    id::Uuid,
    mkfs,
    pool::Pool,
    progress::Stoppable,
    superblock,
    system::System,
};

impl Pool {
    /// Makes an image that does not exist yet. Fails if the progress of its allocation stops it.
    pub(super) fn make(
        &self,
        request: &ImageRequest,
        checking: Checking<'_>,
        progress: Stoppable<'_>,
    ) -> Result<(), Error> {
        let mut image = Unfinished::begin(self, &request.uid, request.extent_size)?;
        let (content, encryption) = match &request.source {
            None if request.encryption.is_some() => self.make_unformatted(&image, request)?,
            None => (self.make_empty(&image, request)?, None),
            Some(source) => self.make_clone(&image, source, request, checking)?,
        };
        let identity = Identity {
            owner: Owner::Volume(request.volume.clone()),
            uid: request.uid.clone(),
            pool_uuid: self.filesystem_uuid(),
            size: request.size,
            content,
            provisioning: request.provisioning,
            source: request.source.as_ref().map(|source| source.uid.clone()),
            encryption,
        };
        if identity.is_allocated() {
            let size = request.size.saturating_add(identity.header());
            // After mkfs, which punches holes.
            let allocate = || allocation::ensure(&*self.system, image.as_fd(), size, progress);
            self.allocate_for(&request.uid, allocate)?;
        }
        image.identify(&identity).map_err(|source| {
            self.no_space_or("write the identity", &request.uid, source.into())
        })?;
        image.name().map_err(failed("give a name", &request.uid))?;
        image.keep();
        Ok(())
    }

    /// Makes the file of an encrypted volume, whose key is not there yet.
    fn make_unformatted(
        &self,
        image: &Unfinished<'_>,
        request: &ImageRequest,
    ) -> Result<(Content, Option<EncryptionState>), Error> {
        let size = request.size.saturating_add(HEADER);
        let made = self.system.truncate(image.as_fd(), size.0);
        made.map_err(|source| self.no_space_or("make the file", &request.uid, source.into()))?;
        let content = match request.filesystem {
            None => Content::Block,
            Some(filesystem) => Content::Filesystem {
                filesystem,
                uuid: Uuid::new_v4(),
            },
        };
        Ok((content, Some(EncryptionState::Unformatted)))
    }

    fn make_empty(&self, image: &Unfinished<'_>, request: &ImageRequest) -> Result<Content, Error> {
        let (system, file) = (&*self.system, image.as_fd());
        let make = || -> Result<Content, Cause> {
            system.truncate(file, request.size.0)?;
            let Some(filesystem) = request.filesystem else {
                return Ok(Content::Block);
            };
            let uuid = Uuid::new_v4();
            mkfs::volume(system, file, filesystem, uuid, &request.mkfs_options)?;
            verify_made(system, file, (filesystem, uuid), request.size)?;
            Ok(Content::Filesystem { filesystem, uuid })
        };
        make().map_err(|source| self.no_space_or("make the file", &request.uid, source))
    }
}

/// Verifies that mkfs has made the requested filesystem, of at most this size.
pub(crate) fn verify_made(
    system: &dyn System,
    device: BorrowedFd<'_>,
    requested: (FilesystemType, Uuid),
    size: Bytes,
) -> Result<(), Cause> {
    let made = superblock::read(system, device)?;
    if made.is_some_and(|made| (made.kind, made.uuid) == requested && made.size <= size) {
        return Ok(());
    }
    Err(io::Error::other("mkfs made another filesystem than requested").into())
}

/// Describes how an image differs from a request; none when it matches.
pub(crate) fn disagreement(
    image: &Image,
    request: &ImageRequest,
    pool_uuid: Uuid,
) -> Option<IdentityConflict> {
    let Some(identity) = &image.identity else {
        return Some(IdentityConflict::NoIdentity);
    };
    let (found, asked) = (Properties::of(identity), request.properties(pool_uuid));
    if found != asked {
        let (found, asked) = (Box::new(found), Box::new(asked));
        return Some(IdentityConflict::Differs { found, asked });
    }
    let size = image.size;
    (size < request.size).then_some(IdentityConflict::TooSmall { size })
}

impl ImageRequest {
    fn properties(&self, pool_uuid: Uuid) -> Properties {
        Properties {
            owner: Owner::Volume(self.volume.clone()),
            uid: self.uid.clone(),
            pool_uuid,
            size: self.size,
            filesystem: self.filesystem,
            provisioning: self.provisioning,
            is_encrypted: self.encryption.is_some(),
            source: self.source.as_ref().map(|source| source.uid.clone()),
        }
    }
}
