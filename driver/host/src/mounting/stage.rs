//! Staging: mounts the filesystem of an image.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use super::{
    Difference, Error, NotStaged, Staged, device_of,
    difference::{conflict, of_filesystem, of_mount},
    failed, open, unlock_of,
};
use crate::{
    attached::Attached,
    base_device::BaseDevice,
    encryption::{HeaderConflict, Lifetime},
    engine::Engine,
    grow,
    image::{self, FilesystemConflict, Image},
    mount_target::MountTarget,
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

impl dyn Engine + '_ {
    /// Mounts the filesystem of an image at the staging path, and grows it if it is smaller than
    /// the image. If it cannot grow, or if a thick volume lacks blocks that its pool cannot
    /// allocate, it is mounted all the same: its data is complete. Fails if the pool cannot be
    /// used, if the image is not that of the volume, if its filesystem is damaged or needs a check
    /// that the request does not allow, if it is moving to another node, or if something else is mounted
    /// at the path. A volume that is staged already stays so while it is closing.
    pub fn stage(&self, request: &StageRequest<'_>) -> Result<Staged, Error> {
        self.check().map_err(image::Error::from)?;
        let place = open(self.system(), request.staging)?;
        let (attached, unbound) = self.attach_filesystem(request)?;
        if let Some(mount) = place
            .mounted()
            .map_err(failed("inspect", request.staging))?
        {
            is_staged(&mount, attached.number(), request)?;
            return Ok(self.grow_staged(&place, &attached, unbound, request));
        }
        self.refuse_closing(request.image)?;
        let allocated = self.reallocate_for_stage(request.image);
        let system = self.system();
        let parameters =
            request
                .options
                .parameters(request.filesystem, request.provisioning, request.read_only);
        let attributes = request.options.attributes(request.read_only);
        let kind = request.filesystem.as_str();
        let attach = |mount: OwnedFd| {
            let result = place.attach(mount.as_fd());
            result.map_err(failed("mount the volume at", request.staging))
        };
        system
            .mount_filesystem(kind, attached.path(), &parameters, attributes)
            .map_err(|error| not_mounted(request, error))
            .and_then(attach)?;
        verify_staged(&place, attached.number(), request)?;
        Ok(Staged {
            allocated,
            ..self.grow_staged(&place, &attached, unbound, request)
        })
    }

    /// Does the work before staging that can take hours: checks the filesystem in full, and grows
    /// it. Leaves no device attached. The inner error means that the filesystem did not grow. Does
    /// nothing when the image is in use already or needs neither.
    pub fn prepare(&self, request: &StageRequest<'_>) -> Result<Result<(), grow::Error>, Error> {
        self.check().map_err(image::Error::from)?;
        let Some((data, image)) = self.own_plain(request.image, request.volume)? else {
            return Ok(self.attach_encrypted(request)?.1);
        };
        if self
            .find_filesystem(data.as_fd(), &image, request)?
            .is_some()
        {
            return Ok(Ok(()));
        }
        let lock = self.lock_to_attach(data.as_fd(), request.image)?;
        drop(data);
        Ok(self.prepare_unused(lock.as_fd(), request)?)
    }

    /// Grows a filesystem that is mounted at the staging path and did not grow before that.
    fn grow_staged(
        &self,
        place: &MountTarget<'_>,
        attached: &Attached,
        unbound: Result<(), grow::Error>,
        request: &StageRequest<'_>,
    ) -> Staged {
        if request.read_only {
            return Staged::whole();
        }
        let (system, uid) = (self.system(), request.image);
        let keys = request.unlock.map(|unlock| unlock.keys);
        let grown = self.fit(attached, uid, keys).and_then(|size| {
            let (device, filesystem) = (attached.as_fd(), request.filesystem);
            grow::grow_mounted(system, place, device, uid, filesystem, size)
        });
        let not_grown = grown.err().map(|error| unbound.err().unwrap_or(error));
        Staged {
            not_grown,
            ..Staged::whole()
        }
    }

    /// Verifies that the image belongs to the volume and holds its filesystem, grows the
    /// filesystem, and attaches the image. The inner result says whether the growth succeeded.
    fn attach_filesystem(
        &self,
        request: &StageRequest<'_>,
    ) -> Result<(Attached, Result<(), grow::Error>), Error> {
        let uid = request.image;
        let Some((data, image)) = self.own_plain(uid, request.volume)? else {
            return self.attach_encrypted(request);
        };
        let used = self.find_filesystem(data.as_fd(), &image, request)?;
        if let Some(base) = used {
            let base = self.verified(base, uid)?;
            return Ok((Attached::plain(base), Ok(())));
        }
        let lock = self.lock_to_attach(data.as_fd(), uid)?;
        let unbound = self.prepare_unused(lock.as_fd(), request)?;
        let base = self.attach(data.as_fd(), uid)?;
        Ok((Attached::plain(base), unbound))
    }

    /// Does the same to an encrypted image, whose filesystem is seen only through its mapping.
    fn attach_encrypted(
        &self,
        request: &StageRequest<'_>,
    ) -> Result<(Attached, Result<(), grow::Error>), Error> {
        let uid = request.image;
        let unlock = unlock_of(request.unlock, uid)?;
        let (data, image) = self.own_complete(uid, request.volume, unlock)?;
        let opened = self.open_encrypted(data.as_fd(), uid, unlock, Lifetime::WhileUsed)?;
        let attached = opened.attached;
        self.verify_content(attached.as_fd(), &image, request)?;
        let unbound = if opened.was_in_use {
            Ok(())
        } else {
            self.prepare_unused(attached.as_fd(), request)?
        };
        Ok((attached, unbound))
    }

    /// Verifies that the data of a volume is its filesystem, and returns its base device if something uses it.
    fn find_filesystem(
        &self,
        data: BorrowedFd<'_>,
        image: &Image,
        request: &StageRequest<'_>,
    ) -> Result<Option<BaseDevice>, Error> {
        let (system, uid) = (self.system(), request.image);
        if request.unlock.is_some() {
            let (uid, why) = (uid.clone(), HeaderConflict::NotEncrypted);
            return Err(image::Error::EncryptionConflict { uid, why }.into());
        }
        self.verify_content(data, image, request)?;
        let Some(base) = self.base(data, uid)? else {
            return Ok(None);
        };
        let is_in_use = base.is_in_use(system);
        let is_in_use = is_in_use.map_err(image::failed("find what uses the device", uid))?;
        Ok(is_in_use.then_some(base))
    }

    /// Verifies that a file or device holds the filesystem of its volume.
    fn verify_content(
        &self,
        content: BorrowedFd<'_>,
        image: &Image,
        request: &StageRequest<'_>,
    ) -> Result<(), Error> {
        let (system, uid) = (self.system(), request.image);
        let superblock =
            superblock::read(system, content).map_err(image::failed("read the filesystem", uid))?;
        let why = match superblock {
            None => FilesystemConflict::Missing,
            Some(found)
                if (found.kind, found.uuid) != (request.filesystem, request.filesystem_uuid) =>
            {
                FilesystemConflict::of(&found)
            }
            Some(found) if found.size > image.size || request.size > image.size => {
                FilesystemConflict::ImageTooSmall { size: image.size }
            }
            Some(_) => return Ok(()),
        };
        let uid = uid.clone();
        Err(image::Error::FilesystemConflict { uid, why }.into())
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

/// Verifies the mount of a stage. If another mount has kept the superblock in use, the new
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
    let found = (!mount.is_whole(device))
        .then_some(Difference::OtherVolume)
        .or_else(|| of_filesystem(mount, request.filesystem, request.options))
        .or_else(|| of_mount(mount, request.options, request.read_only));
    conflict(mount, found)
}
