//! Publishing: a staged filesystem appears at a target path as well.

use std::{io, os::fd::AsFd as _};

use super::{
    Error, PublishRequest, conflict, difference, failed, has_attributes, is_volume, open,
    open_parent,
};
use crate::{image, loopdev, mountinfo::Mount, place::Place, pool::Pool, system::DeviceNumber};

impl Pool {
    /// Mounts a staged volume at a target path, which is made if need be.
    pub fn publish(&self, request: &PublishRequest<'_>) -> Result<(), Error> {
        let staging = open(self, request.staging)?;
        let device = self.staged_device(&staging, request)?;
        let target = open_parent(self, request.target)?;
        let failed = |operation| failed::<io::Error>(operation, request.target);
        if let Some(mount) = target.mounted().map_err(failed("look at"))? {
            return is_published(&mount, device, request);
        }
        let is_new = target.make_directory(0o750).map_err(failed("make"))?;
        let bind = || -> io::Result<()> {
            let staged = staging.look()?.ok_or(io::ErrorKind::NotFound)?;
            let mount = self.system.clone_mount(staged.as_fd())?;
            let attributes = request.options.attributes(request.read_only);
            self.system
                .set_mount_attributes(mount.as_fd(), attributes)?;
            target.attach(mount.as_fd())
        };
        bind().map_err(|source| {
            if is_new {
                // It is empty and not mounted; a repeated call copes with it just as well.
                let _ = target.remove();
            }
            failed("publish the volume at")(source)
        })
    }

    /// The device of the volume that is mounted at the staging path, verified to be this one.
    fn staged_device(
        &self,
        staging: &Place<'_>,
        request: &PublishRequest<'_>,
    ) -> Result<DeviceNumber, Error> {
        let uid = request.image;
        let not_staged = |why: &str| Error::NotStaged {
            path: request.staging.to_owned(),
            why: why.to_owned(),
        };
        let mount = staging
            .mounted()
            .map_err(failed("look at", request.staging))?
            .ok_or_else(|| not_staged("nothing is mounted there"))?;
        let file = self.open_image(uid)?.ok_or_else(|| self.missing(uid))?;
        let id = self
            .system
            .stat(file.as_fd())
            .map_err(image::failed("look at the file", uid))?
            .id;
        let bound = loopdev::find(&*self.system, id, uid.as_ref())
            .map_err(image::failed("find the loop device", uid))?;
        if bound.map(|bound| bound.device()) != Some(mount.device) {
            return Err(not_staged("something else is mounted there"));
        }
        if difference(
            &mount,
            request.filesystem,
            request.provisioning,
            request.options,
        )
        .is_some()
        {
            return Err(Error::Conflict {
                path: request.staging.to_owned(),
                why: "with other filesystem options than are asked for".to_owned(),
            });
        }
        Ok(mount.device)
    }
}

fn is_published(
    mount: &Mount,
    device: DeviceNumber,
    request: &PublishRequest<'_>,
) -> Result<(), Error> {
    let difference = is_volume(mount, device)
        .or_else(|| has_attributes(mount, request.options, request.read_only));
    conflict(mount, difference)
}
