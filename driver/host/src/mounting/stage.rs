//! Staging: mounts the filesystem of an image.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
};

use super::{
    Difference, Error, NotStaged, Staged, device_of,
    difference::{conflict, is_volume, of_filesystem, of_mount},
    failed, open,
};
use crate::{
    grow,
    image::{self, FilesystemConflict},
    loopdev::{self, Loop},
    mount_target::MountTarget,
    pool::Pool,
    root::Root,
    stage_request::StageRequest,
    superblock,
    system::{self, DeviceNumber, Mount},
};

impl Root {
    /// Whether a volume is staged at a path; fails when it is staged with other options. Does not
    /// access its pool: a running pod keeps its volume even when the pool fails.
    pub fn is_staged(&self, request: &StageRequest<'_>) -> Result<bool, Error> {
        let system = &*self.system;
        let find = || {
            let mount = match MountTarget::open(system, request.staging) {
                Ok(place) => place.mounted()?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            };
            let Some(mount) = mount else { return Ok(None) };
            Ok(device_of(system, &mount, request.image)?.map(|device| (mount, device)))
        };
        match find().map_err(failed("inspect", request.staging))? {
            Some((mount, device)) => is_staged(&mount, device, request).map(|()| true),
            None => Ok(false),
        }
    }
}

impl Pool {
    /// Mounts the filesystem of an image at the staging path, and grows it if it is smaller than
    /// the image. If it cannot grow, or if a thick volume lacks blocks that its pool cannot
    /// allocate, it is mounted all the same: its data is complete. Fails if the pool cannot be
    /// used, if the image is not that of the volume, if its filesystem is damaged or needs a check
    /// that the request does not allow, if it is moving to another node, or if something else is mounted
    /// at the path. A volume that is staged already stays so while it is closing.
    pub fn stage(&self, request: &StageRequest<'_>) -> Result<Staged, Error> {
        self.check().map_err(image::Error::from)?;
        let place = open(&*self.system, request.staging)?;
        let (bound, unbound) = self.attach_image(request)?;
        if let Some(mount) = place
            .mounted()
            .map_err(failed("inspect", request.staging))?
        {
            is_staged(&mount, bound.device(), request)?;
            return Ok(self.grow_staged(&place, &bound, unbound, request));
        }
        self.refuse_closing(request.image)?;
        let not_reallocated = self.reallocate(request.image).err();
        let system = &*self.system;
        let parameters =
            request
                .options
                .parameters(request.filesystem, request.provisioning, request.read_only);
        let attributes = request.options.attributes(request.read_only);
        let kind = request.filesystem.as_str();
        let attach = |mount: OwnedFd| {
            let attached = place.attach(mount.as_fd());
            attached.map_err(failed("mount the volume at", request.staging))
        };
        system
            .mount_filesystem(kind, &bound.path, &parameters, attributes)
            .map_err(|error| not_mounted(request, error))
            .and_then(attach)?;
        verify_staged(&place, bound.device(), request)?;
        Ok(Staged {
            not_reallocated,
            ..self.grow_staged(&place, &bound, unbound, request)
        })
    }

    /// Does the work before staging that can take hours: checks the filesystem in full, and grows
    /// it. Binds no loop device. The inner error means that the filesystem did not grow. Does
    /// nothing when the image is bound already or needs neither.
    pub fn prepare(&self, request: &StageRequest<'_>) -> Result<Result<(), grow::Error>, Error> {
        self.check().map_err(image::Error::from)?;
        let (file, bound) = self.find_filesystem(request)?;
        if bound.is_some() {
            return Ok(Ok(()));
        }
        let lock = self.lock_to_attach(file.as_fd(), request.image)?;
        drop(file);
        Ok(self.prepare_unbound(lock.as_fd(), request)?)
    }

    /// Grows a filesystem that is mounted at the staging path and did not grow before that.
    fn grow_staged(
        &self,
        place: &MountTarget<'_>,
        bound: &Loop,
        unbound: Result<(), grow::Error>,
        request: &StageRequest<'_>,
    ) -> Staged {
        if request.read_only {
            return Staged::default();
        }
        let (system, uid) = (&*self.system, request.image);
        let grown = self.fit(bound, uid).and_then(|size| {
            grow::grow_mounted(system, place, bound, uid, request.filesystem, size)
        });
        let not_grown = grown.err().map(|error| unbound.err().unwrap_or(error));
        Staged {
            not_grown,
            not_reallocated: None,
        }
    }

    /// Verifies that the image belongs to the volume and holds its filesystem, grows the
    /// filesystem, and binds the image to a loop device. The inner result says whether the growth
    /// succeeded.
    fn attach_image(
        &self,
        request: &StageRequest<'_>,
    ) -> Result<(Loop, Result<(), grow::Error>), Error> {
        let (system, uid) = (&*self.system, request.image);
        let (file, bound) = self.find_filesystem(request)?;
        let (bound, unbound) = if let Some(bound) = bound {
            (loopdev::verify(system, bound), Ok(()))
        } else {
            let lock = self.lock_to_attach(file.as_fd(), uid)?;
            let unbound = self.prepare_unbound(lock.as_fd(), request)?;
            (loopdev::bind(system, file.as_fd()), unbound)
        };
        let bound = bound.map_err(image::failed("bind the file", uid))?;
        Ok((bound, unbound))
    }

    /// Opens the image, if it belongs to the volume and holds its filesystem, and the loop device
    /// that it is bound to.
    fn find_filesystem(
        &self,
        request: &StageRequest<'_>,
    ) -> Result<(OwnedFd, Option<Loop>), Error> {
        let (system, uid) = (&*self.system, request.image);
        let (file, image) = self.own_image(uid, request.volume)?;
        let superblock = superblock::read(system, file.as_fd())
            .map_err(image::failed("read the filesystem", uid))?;
        let why = match superblock {
            None => Some(FilesystemConflict::Missing),
            Some(found)
                if (found.kind, found.uuid) != (request.filesystem, request.filesystem_uuid) =>
            {
                Some(FilesystemConflict::of(&found))
            }
            Some(found) if found.size > image.size || request.size > image.size => {
                Some(FilesystemConflict::ImageTooSmall { size: image.size })
            }
            Some(_) => None,
        };
        if let Some(why) = why {
            let uid = uid.clone();
            return Err(image::Error::FilesystemConflict { uid, why }.into());
        }
        let id = system
            .stat(file.as_fd())
            .map_err(image::failed("stat the file", uid))?
            .id;
        let bound = loopdev::find(system, id, uid.as_ref())
            .map_err(image::failed("find the loop device", uid))?;
        Ok((file, bound))
    }
}

/// Maps a mount error of the kernel: damage, or any other failure.
fn not_mounted(request: &StageRequest<'_>, error: io::Error) -> Error {
    if !system::is_damage(&error) {
        return failed("mount the volume at", request.staging)(error);
    }
    let damaged = image::Error::Damaged {
        uid: request.image.clone(),
        filesystem: request.filesystem,
        report: error.to_string(),
    };
    damaged.into()
}

/// Verifies the mount of [`Pool::stage`]. If another mount has kept the superblock in use, the new
/// mount has the superblock's old options instead of the requested ones. The new mount is removed
/// in that case.
fn verify_staged(
    place: &MountTarget<'_>,
    device: DeviceNumber,
    request: &StageRequest<'_>,
) -> Result<(), Error> {
    let mounted = place.mounted().map_err(failed("inspect", place.path()));
    let verified = mounted.and_then(|mount| match mount {
        Some(mount) => is_staged(&mount, device, request),
        None => Err(Error::NotStaged {
            path: place.path().to_owned(),
            why: NotStaged::Unseen,
        }),
    });
    if verified.is_err()
        && let Err(error) = place.clear()
    {
        tracing::warn!(path = %place.path().display(), %error, "cannot unmount a volume that is mounted with other options");
    }
    verified
}

fn is_staged(mount: &Mount, device: DeviceNumber, request: &StageRequest<'_>) -> Result<(), Error> {
    let found = (!is_volume(mount, device))
        .then_some(Difference::OtherVolume)
        .or_else(|| of_filesystem(mount, request.filesystem, request.options))
        .or_else(|| of_mount(mount, request.options, request.read_only));
    conflict(mount, found)
}
