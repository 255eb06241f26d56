//! Making an image: without a name among the images until it is whole.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd},
};

use cistern_crds::Provisioning;

use super::{Content, IDENTITY, Identity, Image, ImageRequest};
use crate::{
    allocation,
    cause::Cause,
    id::Uuid,
    mkfs,
    pool::Pool,
    superblock,
    system::{OFlags, System},
};

impl Pool {
    /// Makes an image that is not there.
    pub(super) fn make(&self, request: &ImageRequest) -> Result<(), Cause> {
        let (system, temporary) = (&*self.system, self.temporary.as_fd());
        let name = request.uid.as_ref();
        match system.unlink(temporary, name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let path = request.uid.as_str().as_ref();
        let file = system.open_beneath(temporary, path, flags)?;
        // Tells the sweep that somebody is at work, and a tool that outlives us goes on telling.
        if !system.try_lock(file.as_fd())? {
            return Err(io::Error::from(io::ErrorKind::ResourceBusy).into());
        }
        let complete = || self.complete(file.as_fd(), request);
        complete().inspect_err(|_| {
            // Its space and its name are free at once, and not only with the next sweep, which
            // does no less.
            let _ = system.truncate(file.as_fd(), 0);
            let _ = system.unlink(temporary, name);
        })
    }

    /// Makes an image of a new file, and gives it its name when it is whole.
    fn complete(&self, file: BorrowedFd<'_>, request: &ImageRequest) -> Result<(), Cause> {
        let (system, name) = (&*self.system, request.uid.as_ref());
        system.truncate(file, request.size.0)?;
        let content = fill(system, file, request)?;
        let identity = Identity {
            volume: request.volume.clone(),
            uid: request.uid.clone(),
            pool_uuid: self.filesystem_uuid(),
            size: request.size,
            content,
            provisioning: request.provisioning,
        };
        let identity = serde_json::to_vec(&identity).map_err(io::Error::other)?;
        system.set_attribute(file, IDENTITY, &identity)?;
        system.sync(file)?;
        let (temporary, images) = (self.temporary.as_fd(), self.images.as_fd());
        Ok(system.rename(temporary, name, images, name)?)
    }
}

/// Makes the filesystem, reads it back, and allocates the file if it is thick: after mkfs, which
/// punches holes.
fn fill(
    system: &dyn System,
    file: BorrowedFd<'_>,
    request: &ImageRequest,
) -> Result<Content, Cause> {
    let content = match request.filesystem {
        None => Content::Block,
        Some(filesystem) => {
            let uuid = Uuid::random()?;
            mkfs::volume(system, file, filesystem, uuid, &request.mkfs_options)?;
            let made = superblock::read(system, file)?;
            let is_right = made.is_some_and(|made| {
                (made.kind, made.uuid) == (filesystem, uuid) && made.size <= request.size
            });
            if !is_right {
                return Err(io::Error::other("mkfs made something else than it was told").into());
            }
            Content::Filesystem { filesystem, uuid }
        }
    };
    match request.provisioning {
        Provisioning::Thin => {}
        Provisioning::Thick => allocation::ensure(system, file, request.size)?,
    }
    Ok(content)
}

/// What an image and a request do not agree on.
pub(super) fn disagreement(
    image: &Image,
    request: &ImageRequest,
    pool_uuid: Uuid,
) -> Option<String> {
    let Some(identity) = &image.identity else {
        return Some("it carries no identity".to_owned());
    };
    let asked = (
        &request.volume,
        &request.uid,
        pool_uuid,
        request.size,
        request.filesystem,
        request.provisioning,
    );
    let found = (
        &identity.volume,
        &identity.uid,
        identity.pool_uuid,
        identity.size,
        identity.content.filesystem(),
        identity.provisioning,
    );
    if asked != found {
        return Some(format!("it is {found:?} and not {asked:?}"));
    }
    (image.size < request.size).then(|| format!("it has only {} bytes", image.size))
}
