//! Publishing: bind-mounts a staged filesystem at a target path.
//!
//! *Invariant:* nothing depends on the pool. Stage has verified the volume, and a running pod keeps
//! its volume even when the pool fails. Only a new target asks whether the volume is closing for a move.

use std::{io, os::fd::AsFd as _};

use super::{
    Difference, Error, NotStaged, PublishRequest, device_of,
    difference::{conflict, of_filesystem, of_mount},
    failed, open, open_parent,
};
use crate::{
    mount_target::MountTarget,
    root::Root,
    system::{DeviceNumber, Mount, System},
};

impl Root {
    /// Mounts a staged volume at a target path, which it creates if needed. Fails if the volume is
    /// not staged with these options, if it is closing for a move, or if something else is mounted at the target path.
    pub fn publish(&self, request: &PublishRequest<'_>) -> Result<(), Error> {
        let system = &*self.system;
        let target = open_parent(system, request.target)?;
        let failed = |operation| failed::<io::Error>(operation, request.target);
        if let Some(mount) = target.mounted().map_err(failed("inspect"))? {
            return is_published(system, &mount, request);
        }
        let staging = open(system, request.staging)?;
        let device = is_staged(system, &staging, request)?;
        self.refuse_closing(device, request.image)?;
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
/// share, and returns its device.
fn is_staged(
    system: &dyn System,
    staging: &MountTarget<'_>,
    request: &PublishRequest<'_>,
) -> Result<DeviceNumber, Error> {
    let not_staged = |why: NotStaged| Error::NotStaged {
        path: request.staging.to_owned(),
        why,
    };
    let failed = || failed("inspect", request.staging);
    let mount = staging.mounted().map_err(failed())?;
    let mount = mount.ok_or_else(|| not_staged(NotStaged::Nothing))?;
    let device = device_of(system, &mount, request.image).map_err(failed())?;
    let device = device.ok_or_else(|| not_staged(NotStaged::Other))?;
    // Another target may use another capability (GAP-02).
    options_differ(&mount, request).map_or(Ok(device), |found| Err(not_staged(found.into())))
}

fn is_published(
    system: &dyn System,
    mount: &Mount,
    request: &PublishRequest<'_>,
) -> Result<(), Error> {
    let device =
        device_of(system, mount, request.image).map_err(failed("inspect", request.target))?;
    let found = if device.is_none() {
        Some(Difference::OtherVolume)
    } else {
        options_differ(mount, request)
            .or_else(|| of_mount(mount, request.options, request.read_only))
    };
    conflict(mount, found)
}

fn options_differ(mount: &Mount, request: &PublishRequest<'_>) -> Option<Difference> {
    of_filesystem(mount, request.filesystem, request.options)
}
