//! Raw block volumes: the image itself, as a device, where a pod is to find it.
//!
//! ```text
//! image ── loop device ── its node at <staging>/<image> ── the same node at the target path
//!          (stage)        (stage)                          (publish)
//! ```
//!
//! No mount holds the loop device, as it does for a filesystem. So it is kept until unstage; and the
//! empty file `<staging>/<image>`, which is made before the device is bound, tells unstage whose
//! device to let go of, wherever stage was cut short.
//!
//! *Invariants:* a node stands at a staging or target path only while its device is kept, so that it
//! never comes to stand for another volume; a device is let go of only when no target has its node.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd},
    path::Path,
};

use cistern_crds::Bytes;

use super::{Error, Staged, conflict, failed, open_parent};
use crate::{
    id::Uid,
    image::{self, Content},
    loopdev::{self, Loop},
    mountinfo::Mount,
    place::Place,
    pool::Pool,
    root::Root,
    system::{DeviceNumber, FileKind, MountAttrFlags, OFlags, System},
};

/// A raw block volume that is to be staged.
#[derive(Clone, Debug)]
pub struct BlockStageRequest<'a> {
    /// Name of the image.
    pub image: &'a Uid,
    /// Name of the PoolVolume.
    pub volume: &'a str,
    /// Size of the volume: the image may be larger, if its growth was cut short, but not smaller.
    pub size: Bytes,
    /// An existing directory.
    pub staging: &'a Path,
}

/// A staged raw block volume that is to be published.
#[derive(Clone, Debug)]
pub struct BlockPublishRequest<'a> {
    /// Name of the image.
    pub image: &'a Uid,
    /// Whether nothing may be written. A device is read-only as a whole, so this is the same for
    /// all targets at a time.
    pub read_only: bool,
    /// Where it is staged.
    pub staging: &'a Path,
    /// Where it is to appear: made here. Its parent directory exists.
    pub target: &'a Path,
}

impl Pool {
    /// Binds an image to a loop device and puts the device's node into the staging directory, also
    /// where a thick volume lacks blocks that its pool does not have: its data is there.
    pub fn stage_block(&self, request: &BlockStageRequest<'_>) -> Result<Staged, Error> {
        self.check().map_err(image::Error::from)?;
        let (system, image, staging) = (&*self.system, request.image, request.staging);
        if let Some(mount) = mounted_at(system, staging)? {
            return conflict(&mount, Some("with a filesystem")).map(|()| Staged::default());
        }
        if staged(system, image, staging)?.is_some() {
            return Ok(Staged::default());
        }
        self.put_node(request).inspect_err(|_| {
            if let Err(error) = take_node(system, image, staging) {
                let path = staging.display();
                tracing::warn!(%path, %error, "what failed to be staged is not taken back");
            }
        })
    }

    fn put_node(&self, request: &BlockStageRequest<'_>) -> Result<Staged, Error> {
        let (system, uid) = (&*self.system, request.image);
        let (file, image) = self.own_image(uid, request.volume)?;
        let content = image.identity.as_ref().map(|identity| identity.content);
        if content != Some(Content::Block) || image.size < request.size {
            let why = format!("it is {content:?} and has {} bytes", image.size);
            let uid = uid.clone();
            return Err(image::Error::IdentityConflict { uid, why }.into());
        }
        let not_refilled = self.refill(uid).err();
        let place = node_place(system, uid, request.staging)?;
        let prepare = || {
            place.make_file()?;
            // The node of a device that is not this volume's any more.
            place.clear()
        };
        prepare().map_err(failed("prepare", place.path()))?;
        // Whoever cuts a snapshot of it counts on nobody's attaching it meanwhile.
        let lock = self.lock_alone(uid)?;
        let bound = loopdev::attach(system, file.as_fd(), uid.as_ref())
            .map_err(image::failed("bind the file", uid))?;
        drop(lock);
        let put = || -> io::Result<()> {
            bound.keep(system)?;
            bound.fit(system, image.size.0)?;
            let node = system.open(&bound.path, OFlags::PATH)?;
            let mount = system.clone_mount(node.as_fd())?;
            place.attach(mount.as_fd())
        };
        put().map_err(failed("put the device at", place.path()))?;
        Ok(Staged {
            not_refilled,
            not_grown: None,
        })
    }

    /// Lets go of an image's loop device that was kept for a pod and that nobody has any more: a
    /// stage and the folder that it was for may both be forgotten.
    pub(crate) fn let_go_of_idle(&self, file: BorrowedFd<'_>, uid: &Uid) -> io::Result<()> {
        let system = &*self.system;
        let id = system.stat(file)?.id;
        let bound = loopdev::find(system, id, uid.as_ref()).map_err(io::Error::other)?;
        match bound {
            Some(bound)
                if system.is_kept(bound.number)? && nodes_of(system, bound.number)?.is_empty() =>
            {
                bound.let_go(system)
            }
            Some(_) | None => Ok(()),
        }
    }
}

impl Root {
    /// Whether a raw block volume is staged at a path: told without its pool.
    pub fn is_block_staged(&self, image: &Uid, staging: &Path) -> Result<bool, Error> {
        Ok(staged(&*self.system, image, staging)?.is_some())
    }

    /// Puts the node of a staged raw block volume at a target path. One that is there stays, whatever
    /// has become of the pool.
    pub fn publish_block(&self, request: &BlockPublishRequest<'_>) -> Result<(), Error> {
        let system = &*self.system;
        let target = open_parent(system, request.target)?;
        if let Some(mount) = target.mounted().map_err(failed("look at", target.path()))? {
            let device = target.device().map_err(failed("look at", target.path()))?;
            let is_it = match device.and_then(DeviceNumber::as_loop) {
                Some(number) => loopdev::has_image(system, number, request.image)
                    .map_err(failed("look at", target.path()))?,
                None => false,
            };
            let is_same = is_read_only(&mount) == request.read_only;
            return conflict(
                &mount,
                match (is_it, is_same) {
                    (false, _) => Some("it is not this volume"),
                    (true, false) => Some("not as writable as asked for"),
                    (true, true) => None,
                },
            );
        }
        let Some(number) = staged(system, request.image, request.staging)? else {
            return Err(Error::NotStaged {
                path: request.staging.to_owned(),
                why: "its device is not there".to_owned(),
            });
        };
        refuse_another_writability(system, number, request)?;
        let is_new = target.make_file().map_err(failed("make", request.target))?;
        self.bind_node(number, &target, request).map_err(|source| {
            if is_new {
                // It is empty and not mounted; a repeated call copes with it just as well.
                let _ = target.remove();
            }
            failed("publish the volume at", request.target)(source)
        })
    }

    fn bind_node(
        &self,
        number: u32,
        target: &Place<'_>,
        request: &BlockPublishRequest<'_>,
    ) -> io::Result<()> {
        let system = &*self.system;
        let device = loopdev::open_bound(system, number)?.ok_or(io::ErrorKind::NotFound)?;
        system.set_read_only(device.as_fd(), request.read_only)?;
        let node = Place::open(system, &request.staging.join(request.image.as_str()))?;
        let node = node.look()?.ok_or(io::ErrorKind::NotFound)?;
        let mount = system.clone_mount(node.as_fd())?;
        // Says how it was published, and does not keep anybody from writing: the device does.
        let mut attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        attributes.set(MountAttrFlags::MOUNT_ATTR_RDONLY, request.read_only);
        system.set_mount_attributes(mount.as_fd(), attributes)?;
        target.attach(mount.as_fd())
    }
}

/// Takes back what [`Pool::stage_block`] made of every volume at a staging path.
pub(super) fn unstage(system: &dyn System, staging: &Path) -> Result<(), Error> {
    let names = system
        .open(staging, OFlags::RDONLY | OFlags::DIRECTORY)
        .and_then(|directory| system.list(directory.as_fd()))
        .map_err(failed("look at", staging))?;
    let images = names.iter().filter_map(|name| name.to_str()?.parse().ok());
    for image in images {
        if may_be_node(system, &image, staging)? {
            take_node(system, &image, staging)?;
        }
    }
    Ok(())
}

/// Whether what stands at a node's place can be ours: a device, or the empty file that was made for
/// one. Anything else is left alone.
fn may_be_node(system: &dyn System, image: &Uid, staging: &Path) -> Result<bool, Error> {
    let place = node_place(system, image, staging)?;
    let look = || -> io::Result<bool> {
        let Some(file) = place.look()? else {
            return Ok(false);
        };
        let stat = system.stat(file.as_fd())?;
        Ok(match stat.kind {
            FileKind::BlockDevice => true,
            FileKind::File => stat.size == 0,
            FileKind::Directory | FileKind::SymbolicLink | FileKind::Other => false,
        })
    };
    look().map_err(failed("look at", place.path()))
}

/// Takes the node of an image's device off a staging path, and lets go of the device.
fn take_node(system: &dyn System, image: &Uid, staging: &Path) -> Result<(), Error> {
    let place = node_place(system, image, staging)?;
    let failed = |operation| failed::<io::Error>(operation, place.path());
    let bound = match staged(system, image, staging)? {
        Some(number) => loopdev::open_bound(system, number),
        // It was cut short.
        None => kept_for(system, image),
    };
    let mut bound = bound.map_err(failed("find the device of"))?;
    if let Some(device) = &bound {
        let mut others = nodes_of(system, device.number).map_err(failed("look for others than"))?;
        others.retain(|node| node.mount_point != place.path());
        if others.iter().any(|node| is_staging(node, image)) {
            // It is staged elsewhere as well.
            bound = None;
        } else if let Some(other) = others.into_iter().next() {
            let path = other.mount_point;
            return Err(Error::StillPublished { path });
        }
    }
    if let Some(device) = &bound {
        // It outlives the binding, and the number will be another's.
        system
            .set_read_only(device.as_fd(), false)
            .map_err(failed("make writable again"))?;
    }
    place.clear().map_err(failed("unmount"))?;
    if let Some(device) = bound {
        device.let_go(system).map_err(failed("let go of"))?;
    }
    place.remove().map_err(failed("remove"))
}

/// A device is read-only for all who have it or for none.
fn refuse_another_writability(
    system: &dyn System,
    number: u32,
    request: &BlockPublishRequest<'_>,
) -> Result<(), Error> {
    let nodes = nodes_of(system, number).map_err(failed("look for others than", request.target))?;
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

/// The number of the loop device whose node stands at a staging path; none when the volume is not
/// staged there.
fn staged(system: &dyn System, image: &Uid, staging: &Path) -> Result<Option<u32>, Error> {
    let look = || -> io::Result<Option<u32>> {
        let place = match Place::open(system, &staging.join(image.as_str())) {
            Ok(place) => place,
            Err(error) if is_no_directory(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        if place.mounted()?.is_none() {
            return Ok(None);
        }
        match place.device()?.and_then(DeviceNumber::as_loop) {
            Some(number) if loopdev::has_image(system, number, image)? => Ok(Some(number)),
            Some(_) | None => Ok(None),
        }
    };
    look().map_err(failed("look at", staging))
}

/// The mount at a staging path itself.
fn mounted_at(system: &dyn System, staging: &Path) -> Result<Option<Mount>, Error> {
    let place = open_parent(system, staging)?;
    place.mounted().map_err(failed("look at", staging))
}

/// Where the node of an image's device is, or is to be. Its name is the image's: no text of a user
/// is in it.
fn node_place<'a>(system: &'a dyn System, image: &Uid, staging: &Path) -> Result<Place<'a>, Error> {
    open_parent(system, &staging.join(image.as_str()))
}

/// The loop device that is kept for an image, known by the image's name alone: the pool may be gone.
fn kept_for(system: &dyn System, image: &Uid) -> io::Result<Option<Loop>> {
    for bound in system.bound_loops()? {
        if loopdev::image_of(&bound.backing_file).as_ref() != Some(image) {
            continue;
        }
        if let Some(device) = loopdev::open_bound(system, bound.number)?
            && system.is_kept(device.number)?
            && loopdev::has_image(system, bound.number, image)?
        {
            return Ok(Some(device));
        }
    }
    Ok(None)
}

/// Where nodes of a loop device are bound, as far as this process sees: at staging and target paths,
/// and where kubelet binds a target once more for its pod.
pub(crate) fn nodes_of(system: &dyn System, number: u32) -> io::Result<Vec<Mount>> {
    let mut mounts = system.mounts()?;
    mounts.retain(|mount| named_number(mount) == Some(number));
    let nodes = nodes_among(system, &mounts)?.into_iter();
    Ok(nodes.map(|(_, mount)| mount).collect())
}

/// The mounts that are nodes of loop devices, each with the number of its device.
pub(crate) fn nodes_among(system: &dyn System, mounts: &[Mount]) -> io::Result<Vec<(u32, Mount)>> {
    let mut all = Vec::new();
    for mount in mounts {
        // By name first: the filesystem of another mount may hang.
        let Some(number) = named_number(mount) else {
            continue;
        };
        // Through its directory: the path of a node at a staging path may be longer than the kernel
        // takes as one.
        let node = Place::open(system, &mount.mount_point);
        match node.and_then(|node| node.device()) {
            Ok(device) if device == Some(DeviceNumber::of_loop(number)) => {
                all.push((number, mount.clone()));
            }
            Ok(_) => {}
            Err(error) if is_no_directory(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// The number of the loop device whose node a mount is, to judge by its name.
pub(crate) fn named_number(mount: &Mount) -> Option<u32> {
    loopdev::number_of_node(&node_name(&mount.root)?)
}

/// The name of the file that is mounted, also if that name is gone.
fn node_name(root: &Path) -> Option<String> {
    let text = root.to_str()?;
    let text = text.strip_suffix("//deleted").unwrap_or(text);
    let (_, name) = text.rsplit_once('/')?;
    (!name.is_empty()).then(|| name.to_owned())
}

/// Whether the node of an image's device stands at a staging path, and not at a target.
pub(crate) fn is_staging(node: &Mount, image: &Uid) -> bool {
    node.mount_point.file_name() == Some(image.as_ref())
}

fn is_read_only(mount: &Mount) -> bool {
    mount.has("ro")
}

fn is_no_directory(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_recognised_by_its_name_also_when_that_is_gone() {
        let name = |root: &str| node_name(Path::new(root));
        assert_eq!(name("/loop5").as_deref(), Some("loop5"));
        assert_eq!(name("/var/lib/cistern/dev/7-5").as_deref(), Some("7-5"));
        assert_eq!(name("/7-5//deleted").as_deref(), Some("7-5"));
        assert_eq!(name("/"), None);
    }
}
