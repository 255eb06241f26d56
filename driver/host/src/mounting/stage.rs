//! Staging: an image becomes a mounted filesystem.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
};

use super::{
    Error, StageRequest, Staged, conflict, device_of, difference, failed, has_attributes,
    is_volume, open,
};
use crate::{
    grow, image,
    loopdev::{self, Loop},
    mountinfo::Mount,
    place::Place,
    pool::Pool,
    root::Root,
    superblock,
    system::{self, DeviceNumber},
};

impl Root {
    /// Whether a volume is staged at a path; an error when it is in another way. Told without its
    /// pool: a pod that runs keeps its volume whatever becomes of the pool.
    pub fn is_staged(&self, request: &StageRequest<'_>) -> Result<bool, Error> {
        let system = &*self.system;
        let look = || {
            let mount = match Place::open(system, request.staging) {
                Ok(place) => place.mounted()?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            };
            let Some(mount) = mount else { return Ok(None) };
            Ok(device_of(system, &mount, request.image)?.map(|device| (mount, device)))
        };
        match look().map_err(failed("look at", request.staging))? {
            Some((mount, device)) => is_staged(&mount, device, request).map(|()| true),
            None => Ok(false),
        }
    }
}

impl Pool {
    /// Mounts the filesystem of an image at the staging path. One that is smaller than the image
    /// grows on the way; where it cannot, or where a thick volume lacks blocks that its pool does not
    /// have, it is mounted as it is: its data is there.
    pub fn stage(&self, request: &StageRequest<'_>) -> Result<Staged, Error> {
        self.check().map_err(image::Error::from)?;
        let place = open(&*self.system, request.staging)?;
        let (bound, unbound) = self.attach_image(request)?;
        if let Some(mount) = place
            .mounted()
            .map_err(failed("look at", request.staging))?
        {
            is_staged(&mount, bound.device(), request)?;
            return Ok(self.grow_staged(&place, &bound, unbound, request));
        }
        let not_refilled = self.refill(request.image).err();
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
            not_refilled,
            ..self.grow_staged(&place, &bound, unbound, request)
        })
    }

    /// Does what can take hours before a volume can be staged, and binds nothing: checks its filesystem
    /// in full, and grows it. The inner error is that it did not grow. One that is bound already, or
    /// needs nothing of it, is fine.
    pub fn prepare(&self, request: &StageRequest<'_>) -> Result<Result<(), grow::Error>, Error> {
        self.check().map_err(image::Error::from)?;
        let (file, bound) = self.find_filesystem(request)?;
        if bound.is_some() {
            return Ok(Ok(()));
        }
        drop(file);
        let lock = self.lock_alone(request.image)?;
        Ok(self.prepare_unbound(lock.as_fd(), request)?)
    }

    /// Grows a filesystem that is mounted at the staging path and has not grown before it was.
    fn grow_staged(
        &self,
        place: &Place<'_>,
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
            not_refilled: None,
        }
    }

    /// Verifies that the image is the volume's and holds its filesystem, and binds it to a loop
    /// device; before that, lets the filesystem grow, and says whether that succeeded.
    fn attach_image(
        &self,
        request: &StageRequest<'_>,
    ) -> Result<(Loop, Result<(), grow::Error>), Error> {
        let (system, uid) = (&*self.system, request.image);
        let (file, bound) = self.find_filesystem(request)?;
        let (bound, unbound) = if let Some(bound) = bound {
            (loopdev::verify(system, bound), Ok(()))
        } else {
            let lock = self.lock_alone(uid)?;
            let unbound = self.prepare_unbound(lock.as_fd(), request)?;
            (loopdev::bind(system, file.as_fd()), unbound)
        };
        let bound = bound.map_err(image::failed("bind the file", uid))?;
        Ok((bound, unbound))
    }

    /// The image, if it is the volume's and holds its filesystem, and the loop device that it is bound
    /// to.
    fn find_filesystem(
        &self,
        request: &StageRequest<'_>,
    ) -> Result<(OwnedFd, Option<Loop>), Error> {
        let (system, uid) = (&*self.system, request.image);
        let (file, image) = self.own_image(uid, request.volume)?;
        let superblock = superblock::read(system, file.as_fd())
            .map_err(image::failed("read the filesystem", uid))?;
        let why = match superblock {
            None => Some("there is none".to_owned()),
            Some(found)
                if (found.kind, found.uuid) != (request.filesystem, request.filesystem_uuid) =>
            {
                Some(format!("it holds {} {}", found.kind, found.uuid))
            }
            Some(found) if found.size > image.size || request.size > image.size => {
                Some(format!("the image has only {} bytes", image.size))
            }
            Some(_) => None,
        };
        if let Some(why) = why {
            let uid = uid.clone();
            return Err(image::Error::FilesystemConflict { uid, why }.into());
        }
        let id = system
            .stat(file.as_fd())
            .map_err(image::failed("look at the file", uid))?
            .id;
        let bound = loopdev::find(system, id, uid.as_ref())
            .map_err(image::failed("find the loop device", uid))?;
        Ok((file, bound))
    }
}

/// Why the kernel did not mount a filesystem.
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

/// Verifies what [`Pool::stage`] has mounted. A superblock that another mount held alive keeps its
/// options, whatever the new mount asks for: then nothing is left mounted here.
fn verify_staged(
    place: &Place<'_>,
    device: DeviceNumber,
    request: &StageRequest<'_>,
) -> Result<(), Error> {
    let mounted = place.mounted().map_err(failed("look at", place.path()));
    let verified = mounted.and_then(|mount| match mount {
        Some(mount) => is_staged(&mount, device, request),
        None => Err(Error::NotStaged {
            path: place.path().to_owned(),
            why: "the mount is not seen here".to_owned(),
        }),
    });
    if verified.is_err()
        && let Err(error) = place.clear()
    {
        tracing::warn!(path = %place.path().display(), %error, "a mount that is not right stays");
    }
    verified
}

fn is_staged(mount: &Mount, device: DeviceNumber, request: &StageRequest<'_>) -> Result<(), Error> {
    let difference = is_volume(mount, device)
        .or_else(|| {
            difference(
                mount,
                request.filesystem,
                request.provisioning,
                request.options,
            )
        })
        .or_else(|| has_attributes(mount, request.options, request.read_only));
    conflict(mount, difference)
}
