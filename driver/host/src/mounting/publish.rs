//! Publishing: bind-mounts a staged filesystem at a target path.
//!
//! *Invariant:* the pool is not accessed. Stage has verified the volume, and a running pod keeps
//! its volume even when the pool fails.

use std::{io, os::fd::AsFd as _};

use super::{
    Error, PublishRequest, conflict, device_of, difference, failed, has_attributes, open,
    open_parent,
};
use crate::{
    mount_target::MountTarget,
    root::Root,
    system::{Mount, System},
};

impl Root {
    /// Mounts a staged volume at a target path, which it creates if needed.
    pub fn publish(&self, request: &PublishRequest<'_>) -> Result<(), Error> {
        let system = &*self.system;
        let target = open_parent(system, request.target)?;
        let failed = |operation| failed::<io::Error>(operation, request.target);
        if let Some(mount) = target.mounted().map_err(failed("inspect"))? {
            return is_published(system, &mount, request);
        }
        let staging = open(system, request.staging)?;
        is_staged(system, &staging, request)?;
        let is_new = target.make_directory(0o750).map_err(failed("make"))?;
        let bind = || -> io::Result<()> {
            let staged = staging.find()?.ok_or(io::ErrorKind::NotFound)?;
            let mount = system.clone_mount(staged.as_fd())?;
            let attributes = request.options.attributes(request.read_only);
            system.set_mount_attributes(mount.as_fd(), attributes)?;
            target.attach(mount.as_fd())
        };
        bind().map_err(|source| {
            if is_new {
                // Errors are ignored: it is empty and not mounted, and a repeated call accepts it.
                let _ = target.remove();
            }
            failed("publish the volume at")(source)
        })
    }
}

/// Verifies that the volume is mounted at the staging path, with the options that all its mounts
/// share.
fn is_staged(
    system: &dyn System,
    staging: &MountTarget<'_>,
    request: &PublishRequest<'_>,
) -> Result<(), Error> {
    let not_staged = |why: &str| Error::NotStaged {
        path: request.staging.to_owned(),
        why: why.to_owned(),
    };
    let failed = || failed("inspect", request.staging);
    let mount = staging.mounted().map_err(failed())?;
    let mount = mount.ok_or_else(|| not_staged("nothing is mounted there"))?;
    if device_of(system, &mount, request.image)
        .map_err(failed())?
        .is_none()
    {
        return Err(not_staged("something else is mounted there"));
    }
    // Another target may use another capability (GAP-02).
    options_differ(&mount, request).map_or(Ok(()), |why| Err(not_staged(why)))
}

fn is_published(
    system: &dyn System,
    mount: &Mount,
    request: &PublishRequest<'_>,
) -> Result<(), Error> {
    let device =
        device_of(system, mount, request.image).map_err(failed("inspect", request.target))?;
    let difference = if device.is_none() {
        Some("it is not this volume")
    } else {
        options_differ(mount, request)
            .or_else(|| has_attributes(mount, request.options, request.read_only))
    };
    conflict(mount, difference)
}

fn options_differ(mount: &Mount, request: &PublishRequest<'_>) -> Option<&'static str> {
    difference(mount, request.filesystem, request.options)
}
