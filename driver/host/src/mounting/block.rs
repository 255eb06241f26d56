//! Raw block volumes: the image itself, as a device node at the pod's target path.
//!
//! ```text
//! image ── loop device ── its node at <staging>/<image> ── the same node at the target path
//!          (stage)        (stage)                          (publish)
//! ```
//!
//! Unlike for a filesystem, no mount holds the loop device. So stage disables autoclear, and
//! unstage detaches the device. The empty file `<staging>/<image>`, made before the device is
//! bound, tells unstage which device to detach when stage was interrupted.
//!
//! *Invariants:* a node is at a staging or target path only while its device stays bound, so that
//! it never refers to another volume. A device is detached only when no target path has its node.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd},
    path::Path,
};

use cistern_types::Bytes;

use super::{
    Difference, Error, NotStaged, Staged, difference::conflict, failed, open_parent, unlock_of,
};
use crate::{
    attached::{Attached, lasting_holders},
    cause::Cause,
    device_nodes::{is_no_directory, is_staging, nodes_of},
    encryption::{HeaderConflict, Lifetime, Unlock},
    engine::Engine,
    grow,
    id::Uid,
    image::{self, Content, IdentityConflict, Image},
    mount_target::MountTarget,
    pool::Pool,
    root::Root,
    system::{DeviceNumber, FileKind, Mount, MountAttrFlags, OFlags, System},
    volume_device,
};

/// A request to stage a raw block volume.
#[derive(Clone, Debug)]
pub struct BlockStageRequest<'a> {
    /// Name of the image.
    pub image: &'a Uid,
    /// Name of the PoolVolume.
    pub volume: &'a str,
    /// Size of the volume. The image may be larger, if an expansion was interrupted, but not
    /// smaller.
    pub size: Bytes,
    /// What opens the volume if it is encrypted; none if it is not.
    pub unlock: Option<Unlock<'a>>,
    /// Staging path: an existing directory.
    pub staging: &'a Path,
}

/// A request to publish a staged raw block volume.
#[derive(Clone, Debug)]
pub struct BlockPublishRequest<'a> {
    /// Name of the image.
    pub image: &'a Uid,
    /// Whether the device is read-only. That applies to the whole device, so it is the same for all
    /// targets at a time.
    pub read_only: bool,
    /// Staging path of the volume.
    pub staging: &'a Path,
    /// Target path, which publish creates. Its parent directory exists.
    pub target: &'a Path,
}

impl dyn Engine + '_ {
    /// Attaches a volume as a device and mounts the device node in the staging directory. Stages
    /// a thick volume even if it lacks blocks that its pool cannot allocate: its data is complete.
    /// Fails if the pool cannot be used, if the image is not that of the volume or is moving to another node,
    /// or if a filesystem is mounted at the staging path.
    pub fn stage_block(&self, request: &BlockStageRequest<'_>) -> Result<Staged, Error> {
        self.check().map_err(image::Error::from)?;
        let (system, image, staging) = (self.system(), request.image, request.staging);
        if let Some(mount) = mounted_at(system, staging)? {
            return conflict(&mount, Some(Difference::Filesystem)).map(|()| Staged::whole());
        }
        if staged(system, image, staging)?.is_some() {
            return Ok(Staged::whole());
        }
        self.mount_node(request).inspect_err(|_| {
            if let Err(error) = remove_node(system, image, staging) {
                let path = staging.display();
                tracing::warn!(%path, %error, "cannot roll back the failed stage");
            }
        })
    }

    fn mount_node(&self, request: &BlockStageRequest<'_>) -> Result<Staged, Error> {
        let (system, uid) = (self.system(), request.image);
        let (data, image) = match request.unlock {
            None => self.own(uid, request.volume)?,
            Some(unlock) => self.own_complete(uid, request.volume, unlock)?,
        };
        let content = image.identity.as_ref().map(|identity| identity.content);
        if content != Some(Content::Block) || image.size < request.size {
            let size = image.size;
            let why = IdentityConflict::NotBlock { content, size };
            let uid = uid.clone();
            return Err(image::Error::IdentityConflict { uid, why }.into());
        }
        self.refuse_closing(uid)?;
        let allocated = self.reallocate_for_stage(uid);
        let place = node_place(system, uid, request.staging)?;
        let prepare = || {
            place.make_file()?;
            // Unmounts the node of a device that no longer belongs to this volume.
            place.clear()
        };
        prepare().map_err(failed("prepare", place.path()))?;
        let attached = self.attach_device(data.as_fd(), &image, request.unlock)?;
        self.fit(&attached, uid, request.unlock.map(|unlock| unlock.keys))
            .map_err(|error| match error {
                grow::Error::Image(error) => error.into(),
                error => failed("grow the device at", place.path())(io::Error::other(error)),
            })?;
        let mount_node = || -> io::Result<()> {
            attached.keep(system)?;
            let node = system.open(attached.path(), OFlags::PATH)?;
            let mount = system.clone_mount(node.as_fd())?;
            place.attach(mount.as_fd())
        };
        mount_node().map_err(failed("mount the device at", place.path()))?;
        Ok(Staged {
            allocated,
            not_grown: None,
        })
    }

    /// Attaches a volume as a device.
    fn attach_device(
        &self,
        data: BorrowedFd<'_>,
        image: &Image,
        unlock: Option<Unlock<'_>>,
    ) -> Result<Attached, image::Error> {
        let uid = &image.uid;
        match (image.encryption(), unlock) {
            (Some(_), unlock) => {
                let unlock = unlock_of(unlock, uid)?;
                let opened = self.open_encrypted(data, uid, unlock, Lifetime::UntilRemoved)?;
                Ok(opened.attached)
            }
            (None, Some(_)) => {
                let (uid, why) = (uid.clone(), HeaderConflict::NotEncrypted);
                Err(image::Error::EncryptionConflict { uid, why })
            }
            (None, None) => {
                // A snapshot in progress relies on the image not being attached.
                let _lock = self.lock_to_attach(data, uid)?;
                let base = match self.base(data, uid)? {
                    Some(base) => self.verified(base, uid)?,
                    None => self.attach(data, uid)?,
                };
                Ok(Attached::plain(base))
            }
        }
    }
}

impl Pool {
    /// Detaches the devices of an image that stayed without a node at any path: a stage
    /// and its staging directory may both be lost. A mapping that is mounted, or that a pod has open, stays until then.
    pub(crate) fn detach_idle(&self, file: BorrowedFd<'_>, uid: &Uid) -> Result<(), Cause> {
        let system = &*self.system;
        let id = system.stat(file)?.id;
        let Some(attached) = Attached::find(system, id, uid)? else {
            return Ok(());
        };
        if !attached.is_kept(system)? || !nodes_of(system, attached.number())?.is_empty() {
            return Ok(());
        }
        attached.detach(system)
    }
}

impl Root {
    /// Whether a raw block volume is staged at a path. Does not access its pool. Fails if the path
    /// cannot be inspected.
    pub fn is_block_staged(&self, image: &Uid, staging: &Path) -> Result<bool, Error> {
        Ok(staged(&*self.system, image, staging)?.is_some())
    }

    /// Mounts the node of a staged raw block volume at a target path. A repeated call leaves the
    /// mount as it is, even if the pool has failed. Fails if the volume is not staged or is closing for a
    /// move, if something else is mounted at the target path, or if another target path has the other
    /// write mode.
    pub fn publish_block(&self, request: &BlockPublishRequest<'_>) -> Result<(), Error> {
        let system = &*self.system;
        let target = open_parent(system, request.target)?;
        if let Some(mount) = target.mounted().map_err(failed("inspect", target.path()))? {
            let device = target.device().map_err(failed("inspect", target.path()))?;
            let is_it = match device {
                Some(device) => volume_device::belongs_to(system, device, request.image)
                    .map_err(failed("inspect", target.path()))?,
                None => false,
            };
            let is_same = is_read_only(&mount) == request.read_only;
            return conflict(
                &mount,
                match (is_it, is_same) {
                    (false, _) => Some(Difference::OtherVolume),
                    (true, false) => Some(Difference::Writability),
                    (true, true) => None,
                },
            );
        }
        let Some(device) = staged(system, request.image, request.staging)? else {
            return Err(Error::NotStaged {
                path: request.staging.to_owned(),
                why: NotStaged::NoDevice,
            });
        };
        self.refuse_closing(device, request.image)?;
        refuse_another_writability(system, device, request)?;
        let is_new = target.make_file().map_err(failed("make", request.target))?;
        self.bind_node(device, &target, request).map_err(|source| {
            if is_new {
                // Errors are ignored: it is empty and not mounted, and a repeated call accepts it.
                let _ = target.remove();
            }
            failed("publish the volume at", request.target)(source)
        })
    }

    fn bind_node(
        &self,
        device: DeviceNumber,
        target: &MountTarget<'_>,
        request: &BlockPublishRequest<'_>,
    ) -> io::Result<()> {
        let system = &*self.system;
        let attached = Attached::open(system, device, request.image)?;
        let attached = attached.ok_or(io::ErrorKind::NotFound)?;
        system.set_read_only(attached.as_fd(), request.read_only)?;
        let node = MountTarget::open(system, &request.staging.join(request.image.as_str()))?;
        let node = node.find()?.ok_or(io::ErrorKind::NotFound)?;
        let mount = system.clone_mount(node.as_fd())?;
        // Records how it was published. Only the device flag prevents writes.
        let mut attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        attributes.set(MountAttrFlags::MOUNT_ATTR_RDONLY, request.read_only);
        system.set_mount_attributes(mount.as_fd(), attributes)?;
        target.attach(mount.as_fd())
    }
}

/// Undoes `stage_block` for every volume at a staging path.
pub(super) fn unstage(system: &dyn System, staging: &Path) -> Result<(), Error> {
    let names = system
        .open(staging, OFlags::RDONLY | OFlags::DIRECTORY)
        .and_then(|directory| system.list(directory.as_fd()))
        .map_err(failed("inspect", staging))?;
    let images = names.iter().filter_map(|name| name.to_str()?.parse().ok());
    for image in images {
        if may_be_node(system, &image, staging)? {
            remove_node(system, &image, staging)?;
        }
    }
    Ok(())
}

/// Whether the file at the path of a node can be Cistern's: a device, or the empty file made for
/// one. No other file is touched.
fn may_be_node(system: &dyn System, image: &Uid, staging: &Path) -> Result<bool, Error> {
    let place = node_place(system, image, staging)?;
    let find = || -> io::Result<bool> {
        let Some(file) = place.find()? else {
            return Ok(false);
        };
        let stat = system.stat(file.as_fd())?;
        Ok(match stat.kind {
            FileKind::BlockDevice => true,
            FileKind::File => stat.size == 0,
            FileKind::Directory | FileKind::SymbolicLink | FileKind::Other => false,
        })
    };
    find().map_err(failed("inspect", place.path()))
}

/// Unmounts the node of an image's device at a staging path, and detaches the device.
fn remove_node(system: &dyn System, image: &Uid, staging: &Path) -> Result<(), Error> {
    let place = node_place(system, image, staging)?;
    let failed = |operation| failed::<io::Error>(operation, place.path());
    let bound = to_detach(system, image, staging, place.path())?;
    if let Some(device) = &bound {
        // The flag outlives the binding, and the kernel reuses the number.
        system
            .set_read_only(device.as_fd(), false)
            .map_err(failed("make writable again"))?;
    }
    place.clear().map_err(failed("unmount"))?;
    if let Some(device) = bound {
        device
            .detach(system)
            .map_err(super::failed("detach the device of", place.path()))?;
    }
    place.remove().map_err(failed("remove"))
}

/// Returns the device to detach when its node at a staging path is unmounted; none if there is none, or if it is staged
/// at another path as well. Fails when a pod or a device of the node uses it.
fn to_detach(
    system: &dyn System,
    image: &Uid,
    staging: &Path,
    node: &Path,
) -> Result<Option<Attached>, Error> {
    let failed = |operation| failed::<io::Error>(operation, node);
    let bound = match staged(system, image, staging)? {
        Some(number) => Attached::open(system, number, image),
        // The stage was interrupted.
        None => kept_for(system, image),
    };
    let Some(device) = bound.map_err(failed("find the device of"))? else {
        return Ok(None);
    };
    let mut others =
        nodes_of(system, device.number()).map_err(failed("find other nodes of the device at"))?;
    others.retain(|other| other.mount_point != node);
    if others.iter().any(|other| is_staging(other, image)) {
        return Ok(None);
    }
    if let Some(other) = others.into_iter().next() {
        let path = other.mount_point;
        return Err(Error::StillPublished { path });
    }
    let holders = lasting_holders(system, device.number())
        .map_err(failed("find what holds the device of"))?;
    if !holders.is_empty() {
        let path = staging.to_owned();
        return Err(Error::Held { path, holders });
    }
    Ok(Some(device))
}

/// Fails when a target has another write mode: a device is read-only for all pods or for none.
fn refuse_another_writability(
    system: &dyn System,
    device: DeviceNumber,
    request: &BlockPublishRequest<'_>,
) -> Result<(), Error> {
    let nodes = nodes_of(system, device)
        .map_err(failed("find other nodes of the device at", request.target))?;
    let mut others = nodes
        .into_iter()
        .filter(|node| !is_staging(node, request.image));
    match others.find(|node| is_read_only(node) != request.read_only) {
        None => Ok(()),
        Some(other) => Err(Error::Writability {
            path: other.mount_point,
        }),
    }
}

/// Returns the number that identifies the volume whose node is at a staging path; none when the
/// volume is not staged there.
fn staged(system: &dyn System, image: &Uid, staging: &Path) -> Result<Option<DeviceNumber>, Error> {
    let find = || -> io::Result<Option<DeviceNumber>> {
        let place = match MountTarget::open(system, &staging.join(image.as_str())) {
            Ok(place) => place,
            Err(error) if is_no_directory(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        if place.mounted()?.is_none() {
            return Ok(None);
        }
        match place.device()? {
            Some(device) if volume_device::belongs_to(system, device, image)? => Ok(Some(device)),
            Some(_) | None => Ok(None),
        }
    };
    find().map_err(failed("inspect", staging))
}

/// Returns the mount at a staging path itself.
fn mounted_at(system: &dyn System, staging: &Path) -> Result<Option<Mount>, Error> {
    let place = open_parent(system, staging)?;
    place.mounted().map_err(failed("inspect", staging))
}

/// Opens the path of the node of an image's device. Its name is that of the image, so it contains
/// no text of a user.
fn node_place<'a>(
    system: &'a dyn System,
    image: &Uid,
    staging: &Path,
) -> Result<MountTarget<'a>, Error> {
    open_parent(system, &staging.join(image.as_str()))
}

/// Finds the devices of an image that stay without a user, by the name of the image: the pool may
/// be gone.
fn kept_for(system: &dyn System, image: &Uid) -> io::Result<Option<Attached>> {
    for device in volume_device::of(system, image)? {
        if let Some(attached) = Attached::open(system, device.number, image)?
            && attached.is_kept(system)?
            && volume_device::belongs_to(system, device.number, image)?
        {
            return Ok(Some(attached));
        }
    }
    Ok(None)
}

fn is_read_only(mount: &Mount) -> bool {
    mount.has("ro")
}
