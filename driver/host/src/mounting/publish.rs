//! Publishing: a staged filesystem appears at a target path as well.
//!
//! *Invariant:* the pool is not asked. What is staged was verified then, and a pod that runs keeps
//! its volume whatever becomes of the pool.

use std::{io, os::fd::AsFd as _};

use super::{
    Error, PublishRequest, conflict, device_of, difference, failed, has_attributes, open,
    open_parent,
};
use crate::{mountinfo::Mount, place::Place, root::Root, system::System};

impl Root {
    /// Mounts a staged volume at a target path, which is made if need be.
    pub fn publish(&self, request: &PublishRequest<'_>) -> Result<(), Error> {
        let system = &*self.system;
        let target = open_parent(system, request.target)?;
        let failed = |operation| failed::<io::Error>(operation, request.target);
        if let Some(mount) = target.mounted().map_err(failed("look at"))? {
            return is_published(system, &mount, request);
        }
        let staging = open(system, request.staging)?;
        is_staged(system, &staging, request)?;
        let is_new = target.make_directory(0o750).map_err(failed("make"))?;
        let bind = || -> io::Result<()> {
            let staged = staging.look()?.ok_or(io::ErrorKind::NotFound)?;
            let mount = system.clone_mount(staged.as_fd())?;
            let attributes = request.options.attributes(request.read_only);
            system.set_mount_attributes(mount.as_fd(), attributes)?;
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
}

/// Verifies that the volume is mounted at the staging path, with what all of its mounts share.
fn is_staged(
    system: &dyn System,
    staging: &Place<'_>,
    request: &PublishRequest<'_>,
) -> Result<(), Error> {
    let not_staged = |why: &str| Error::NotStaged {
        path: request.staging.to_owned(),
        why: why.to_owned(),
    };
    let failed = || failed("look at", request.staging);
    let mount = staging.mounted().map_err(failed())?;
    let mount = mount.ok_or_else(|| not_staged("nothing is mounted there"))?;
    if device_of(system, &mount, request.image)
        .map_err(failed())?
        .is_none()
    {
        return Err(not_staged("something else is mounted there"));
    }
    // Another capability at another target (GAP-02).
    options_differ(&mount, request).map_or(Ok(()), |why| Err(not_staged(why)))
}

fn is_published(
    system: &dyn System,
    mount: &Mount,
    request: &PublishRequest<'_>,
) -> Result<(), Error> {
    let device =
        device_of(system, mount, request.image).map_err(failed("look at", request.target))?;
    let difference = if device.is_none() {
        Some("it is not this volume")
    } else {
        options_differ(mount, request)
            .or_else(|| has_attributes(mount, request.options, request.read_only))
    };
    conflict(mount, difference)
}

fn options_differ(mount: &Mount, request: &PublishRequest<'_>) -> Option<&'static str> {
    let (filesystem, provisioning) = (request.filesystem, request.provisioning);
    difference(mount, filesystem, provisioning, request.options)
}
