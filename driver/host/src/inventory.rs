//! What is really on this host, for `fsck`: it only looks, and opens no pool. A pool that hangs
//! holds up the look for some seconds, and hides nothing of the others.

mod inside;

use std::{collections::BTreeSet, io, os::fd::AsFd as _, path::PathBuf};

use crate::{
    id::{Uid, Uuid},
    image::{Discarded, Image},
    loopdev::{self, DELETED},
    mountinfo::Mount,
    mounting::block,
    pool,
    root::Root,
    stray::Stray,
    system::{BoundLoop, DeviceNumber, FileId, OFlags, System},
};

/// Everything of Cistern on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// Its pools.
    pub pools: Vec<PoolInventory>,
    /// Loop devices over files of its pools, and over the files that pools lie in.
    pub loops: Vec<BoundLoop>,
    /// Mounts of its pools and volumes that are seen here.
    pub mounts: Vec<Mount>,
    /// Where nodes of its loop devices are bound, seen here: raw block volumes, staged and published.
    pub nodes: Vec<NodeInventory>,
    /// Files where only pools should be.
    pub strays: Vec<PathBuf>,
}

/// The node of a loop device at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInventory {
    /// Number of the loop device.
    pub number: u32,
    /// How and where its node is bound.
    pub mount: Mount,
}

/// How many loop devices of this folder there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoopCount {
    /// Mounted, or with a node that is bound somewhere, as this process sees it.
    pub in_use: u64,
    /// Bound to a file of the folder and used by nobody.
    pub leaked: u64,
}

/// One pool on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolInventory {
    /// UID of the StoragePool: as the pool says itself, or as its file is named while it is not
    /// mounted.
    pub uid: Uid,
    /// Name of the StoragePool, as the pool says itself.
    pub name: Option<String>,
    /// Where it is mounted, or would be.
    pub mount_point: PathBuf,
    /// UUID of its filesystem; none when it is not mounted, or does not answer.
    pub filesystem_uuid: Option<Uuid>,
    /// Why nothing is known of what is in it, where it is mounted and nobody can tell.
    pub silent: Option<String>,
    /// Whether it has a file of its own here.
    pub has_file: bool,
    /// Its images.
    pub images: Vec<Image>,
    /// Its images in the trash.
    pub discarded: Vec<Discarded>,
    /// Images whose making was cut short, or is under way.
    pub temporary: Vec<PathBuf>,
    /// Files that are not Cistern's.
    pub strays: Vec<Stray>,
}

impl PoolInventory {
    /// Whether it is mounted, whether or not it answers.
    pub fn is_mounted(&self) -> bool {
        self.filesystem_uuid.is_some() || self.silent.is_some()
    }
}

impl Root {
    /// Counts the loop devices over files of this folder, by their names: only the kernel's tables
    /// are asked, so that a disk that hangs holds up nobody who counts.
    pub fn count_loops(&self) -> io::Result<LoopCount> {
        let (system, pools) = (&*self.system, self.pools_path());
        let mounts = system.mounts()?;
        let is_used = |bound: &BoundLoop| {
            let device = DeviceNumber::of_loop(bound.number);
            mounts.iter().any(|mount| {
                mount.device == device || block::named_number(mount) == Some(bound.number)
            })
        };
        let bound = system.bound_loops()?.into_iter();
        let ours = bound.filter(|bound| bound.backing_file.starts_with(&pools));
        let (used, leaked): (Vec<_>, Vec<_>) = ours.partition(is_used);
        Ok(LoopCount {
            in_use: used.len() as u64,
            leaked: leaked.len() as u64,
        })
    }

    /// Looks at everything of Cistern on this host, as far as this process sees it.
    pub fn inventory(&self) -> io::Result<Inventory> {
        let system = &*self.system;
        let pools = self.open_pools()?;
        let mut all = Inventory::default();
        let mut uids = BTreeSet::new();
        let mut files = BTreeSet::new();
        for name in system.list(pools.as_fd())? {
            let text = name.to_str().unwrap_or_default();
            let uid = text.strip_suffix(".img").unwrap_or(text);
            match uid.parse::<Uid>() {
                Ok(uid) => {
                    if uid.as_str() != text {
                        files.insert(uid.clone());
                    }
                    uids.insert(uid);
                }
                Err(_) => all.strays.push(self.pools_path().join(&name)),
            }
        }
        let mut own = Own {
            pools_path: self.pools_path(),
            ..Own::default()
        };
        for uid in uids {
            let has_file = files.contains(&uid);
            let name = pool::file::name(&uid);
            if let Some(file) =
                if_there(system.open_beneath(pools.as_fd(), name.as_ref(), OFlags::PATH))?
            {
                own.pool_files.insert(system.stat(file.as_fd())?.id);
            }
            let (found, device) = self.look_at_pool(&uid, has_file)?;
            own.pool_devices.extend(device);
            let silent = found.iter().filter(|pool| pool.silent.is_some());
            own.silent
                .extend(silent.map(|pool| pool.mount_point.clone()));
            all.pools.extend(found);
        }
        all.loops = loops_over(system, &own)?;
        let ours = |mount: &Mount| {
            let is_loop = |bound: &BoundLoop| mount.device == DeviceNumber::of_loop(bound.number);
            let mut pools = all.pools.iter();
            all.loops.iter().any(is_loop) || pools.any(|pool| pool.mount_point == mount.mount_point)
        };
        all.mounts = system.mounts()?.into_iter().filter(ours).collect();
        for BoundLoop { number, .. } in &all.loops {
            let nodes = block::nodes_of(system, *number)?.into_iter();
            all.nodes.extend(nodes.map(|mount| NodeInventory {
                number: *number,
                mount,
            }));
        }
        Ok(all)
    }
}

/// By what a loop device of this root is known: others on the machine may belong to another.
#[derive(Default)]
struct Own {
    /// Where the pools are.
    pools_path: PathBuf,
    /// The files that pools lie in.
    pool_files: BTreeSet<FileId>,
    /// What the pools are mounted from.
    pool_devices: BTreeSet<DeviceNumber>,
    /// Where those are mounted that say nothing of what is in them.
    silent: Vec<PathBuf>,
}

impl Own {
    fn has(&self, bound: &BoundLoop, file: FileId) -> bool {
        let is_image = self.pool_devices.contains(&file.device) && is_in_images(bound);
        // The file of a pool that was removed is known by its name alone. One that is there is not:
        // nodes that are containers on one machine have their pools under the same path, and the
        // kernel shows every loop device to all of them.
        let is_removed =
            loopdev::is_deleted(bound) && bound.backing_file.starts_with(&self.pools_path);
        is_image || self.pool_files.contains(&file) || is_removed
    }

    fn is_in_silent(&self, bound: &BoundLoop) -> bool {
        let mut silent = self.silent.iter();
        silent.any(|mount_point| bound.backing_file.starts_with(mount_point))
    }
}

/// The loop devices over files of this root.
fn loops_over(system: &dyn System, own: &Own) -> io::Result<Vec<BoundLoop>> {
    let mut all = Vec::new();
    // By name first: a device that somebody else lets go of stays bound while it is open here.
    let named = system.bound_loops()?.into_iter();
    for bound in named.filter(|bound| is_in_images(bound) || is_pool_file(bound)) {
        let is_ours = match loopdev::status(system, bound.number) {
            Ok(None) => false,
            Ok(Some(status)) => own.has(&bound, status.file),
            // The file lies in a pool that has shut itself down: its name is all there is.
            Err(error) if error.is_of_file() => own.is_in_silent(&bound),
            Err(error) => return Err(io::Error::other(error)),
        };
        if is_ours {
            all.push(bound);
        }
    }
    Ok(all)
}

/// Whether the file behind a loop device is named as one that a pool lies in.
fn is_pool_file(bound: &BoundLoop) -> bool {
    let path = bound.backing_file.to_string_lossy();
    let path = path.strip_suffix(DELETED).unwrap_or(&path);
    path.strip_suffix(".img").is_some()
}

/// Whether the file behind a loop device is named as an image is.
fn is_in_images(bound: &BoundLoop) -> bool {
    loopdev::image_of(&bound.backing_file).is_some()
}

fn if_there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
