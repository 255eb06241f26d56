//! Lists what exists on this host, for `fsck`. It changes nothing and opens no pool. A pool that hangs
//! delays the list by some seconds, and the other pools are listed in full.

mod inside;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::fd::{AsFd as _, BorrowedFd},
    path::PathBuf,
};

use crate::{
    copy::IncomingCopy,
    device_nodes,
    fence::ClosedImage,
    id::{Uid, Uuid},
    image::{Discarded, Image},
    loopdev, pool,
    root::Root,
    stray::Stray,
    system::{BoundLoop, DeviceNumber, FileId, Mount, OFlags, System, if_there},
};

/// The pools, loop devices and mounts of Cistern on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// The pools that are mounted or have a file on this host.
    pub pools: Vec<PoolInventory>,
    /// Loop devices over files of its pools, and over the files that pools lie in.
    pub loops: Vec<BoundLoop>,
    /// Mounts of its pools and volumes that are visible to this process.
    pub mounts: Vec<Mount>,
    /// Bind mounts of the nodes of its devices that are visible to this process: raw block volumes, staged
    /// and published.
    pub nodes: Vec<NodeInventory>,
    /// Foreign files in the folder of the pools.
    pub strays: Vec<PathBuf>,
}

/// The node of the device of a volume at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInventory {
    /// Number of the loop device or the logical volume.
    pub device: DeviceNumber,
    /// The bind mount of its node.
    pub mount: Mount,
}

/// A logical volume that is active.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogicalInventory {
    /// Number of its device.
    pub device: DeviceNumber,
    /// Name of the volume's image.
    pub image: Uid,
    /// Whether its data is decrypted: a mapping is over the device.
    pub is_mapped: bool,
}

/// Number of loop devices of this folder, by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoopCount {
    /// Mounted, or with a bind-mounted node, as visible to this process.
    pub in_use: u64,
    /// Bound to a file of the folder and unused.
    pub leaked: u64,
}

/// One pool on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolInventory {
    /// UID of the StoragePool: from the marker, or from the name of its file while it is not mounted.
    pub uid: Uid,
    /// Name of the StoragePool, from the marker.
    pub name: Option<String>,
    /// Its mount point, or the path of its volume group.
    pub mount_point: PathBuf,
    /// UUID of its filesystem, or of its volume group as a pool; None if it is not mounted or does not answer.
    pub filesystem_uuid: Option<Uuid>,
    /// Why the content of the mounted pool is unknown; None if it is known.
    pub silent: Option<String>,
    /// Whether it has a file on this host.
    pub has_file: bool,
    /// Images in the pool, without those that are closed or in the trash.
    pub images: Vec<Image>,
    /// The active logical volumes of a volume group.
    pub logical: Vec<LogicalInventory>,
    /// Images that are closed for a move.
    pub closed: Vec<ClosedImage>,
    /// Images in the trash.
    pub discarded: Vec<Discarded>,
    /// Copies that other nodes send or have sent, and points of volumes.
    pub incoming: Vec<IncomingCopy>,
    /// Images whose creation is in progress or was interrupted.
    pub temporary: Vec<PathBuf>,
    /// Files that are not Cistern's.
    pub strays: Vec<Stray>,
}

impl PoolInventory {
    /// A pool of which nothing else is known.
    pub(crate) fn of(uid: Uid) -> Self {
        Self {
            uid,
            name: None,
            mount_point: PathBuf::new(),
            filesystem_uuid: None,
            silent: None,
            has_file: false,
            images: Vec::new(),
            logical: Vec::new(),
            closed: Vec::new(),
            discarded: Vec::new(),
            incoming: Vec::new(),
            temporary: Vec::new(),
            strays: Vec::new(),
        }
    }

    /// Whether it is mounted, even if it does not answer.
    pub fn is_mounted(&self) -> bool {
        self.filesystem_uuid.is_some() || self.silent.is_some()
    }
}

impl Root {
    /// Counts the loop devices over files of this folder, and over those of pools in allowed directories, by
    /// their paths. It reads only the kernel's
    /// tables, so a disk that hangs does not block it. Fails if a table cannot be read.
    pub fn count_loops(&self) -> io::Result<LoopCount> {
        let (system, pools) = (&*self.system, self.pools_path());
        let mut used = BTreeSet::new();
        for mount in system.mounts()? {
            used.extend(mount.device.as_loop());
            used.extend(
                device_nodes::named_device(system, &mount)?.and_then(DeviceNumber::as_loop),
            );
        }
        let is_used = |bound: &BoundLoop| used.contains(&bound.number);
        let bound = system.bound_loops()?.into_iter();
        let is_ours = |bound: &BoundLoop| {
            let mut allowed = self.allowed.iter();
            bound.backing_file.starts_with(&pools)
                || loopdev::is_pool(&bound.backing_file)
                    && allowed.any(|directory| bound.backing_file.starts_with(directory))
        };
        let ours = bound.filter(is_ours);
        let (used, leaked): (Vec<_>, Vec<_>) = ours.partition(is_used);
        Ok(LoopCount {
            in_use: used.len() as u64,
            leaked: leaked.len() as u64,
        })
    }

    /// Lists everything of Cistern on this host that is visible to this process, with what is in these volume groups:
    /// each is given by the UID of the pool, and by its name if that is known. Fails if the folder of the pools or the
    /// kernel's tables cannot be read.
    pub fn inventory(&self, groups: &[(Uid, Option<String>)]) -> io::Result<Inventory> {
        let system = &*self.system;
        let pools = self.open_pools()?;
        let mut all = Inventory::default();
        let named = self.named_pools(pools.as_fd(), &mut all.strays)?;
        let mut own = Own {
            pools_path: self.pools_path(),
            ..Own::default()
        };
        for (uid, has_file) in named {
            let name = pool::file::name(&uid);
            if let Some(file) =
                if_there(system.open_beneath(pools.as_fd(), name.as_ref(), OFlags::PATH))?
            {
                own.pool_files.insert(system.stat(file.as_fd())?.id);
            }
            let (mut found, device) = self.look_at_pool(&uid, has_file)?;
            // The file of a mounted pool may be in a directory that its StoragePool names.
            if let Some(file) = device.and_then(|device| file_under(system, device, &uid)) {
                own.pool_files.insert(file);
                if let Some(pool) = &mut found {
                    pool.has_file = true;
                }
            }
            own.pool_devices.extend(device);
            let silent = found.iter().filter(|pool| pool.silent.is_some());
            own.silent
                .extend(silent.map(|pool| pool.mount_point.clone()));
            all.pools.extend(found);
        }
        self.add_groups(groups, &mut all.pools);
        all.loops = loops_over(system, &own)?;
        self.add_mounts(&mut all)?;
        Ok(all)
    }

    /// Adds what is in these volume groups. Several pools may name the same one.
    fn add_groups(&self, groups: &[(Uid, Option<String>)], all: &mut Vec<PoolInventory>) {
        for (uid, name) in groups {
            let found = self.group_inventory(uid, name.as_deref());
            let is_new = |found: &PoolInventory| {
                let mut known = all.iter();
                known.all(|it| (&it.uid, &it.mount_point) != (&found.uid, &found.mount_point))
            };
            let found = found.filter(is_new);
            all.extend(found);
        }
    }

    /// The pools that have an entry in the folder of the pools, each with whether it has a file there. Adds the other
    /// entries to the strays.
    fn named_pools(
        &self,
        pools: BorrowedFd<'_>,
        strays: &mut Vec<PathBuf>,
    ) -> io::Result<BTreeMap<Uid, bool>> {
        let mut named: BTreeMap<Uid, bool> = BTreeMap::new();
        for name in self.system.list(pools)? {
            let text = name.to_str().unwrap_or_default();
            let uid = text.strip_suffix(".img").unwrap_or(text);
            match uid.parse::<Uid>() {
                Ok(uid) => {
                    let is_file = uid.as_str() != text;
                    *named.entry(uid).or_default() |= is_file;
                }
                Err(_) => strays.push(self.pools_path().join(&name)),
            }
        }
        Ok(named)
    }

    /// Adds the mounts of the pools and of the devices that were found.
    fn add_mounts(&self, all: &mut Inventory) -> io::Result<()> {
        let system = &*self.system;
        let logical = all.pools.iter().flat_map(|pool| &pool.logical);
        let loops = all.loops.iter();
        let loops = loops.map(|bound| DeviceNumber::of_loop(bound.number));
        let devices: BTreeSet<_> = loops.chain(logical.map(|it| it.device)).collect();
        let mounts = system.mounts()?;
        let is_wanted = |device| devices.contains(&device);
        let nodes = device_nodes::nodes_among(system, &mounts, is_wanted)?.into_iter();
        let nodes = nodes.map(|(device, mount)| NodeInventory { device, mount });
        all.nodes = nodes.collect();
        let ours = |mount: &Mount| {
            let mut pools = all.pools.iter();
            devices.contains(&mount.device)
                || pools.any(|pool| pool.mount_point == mount.mount_point)
        };
        all.mounts = mounts.into_iter().filter(ours).collect();
        Ok(())
    }
}

/// Identifies the loop devices of this root; others on the machine may belong to another root.
#[derive(Default)]
struct Own {
    /// The folder of the pools.
    pools_path: PathBuf,
    /// The files of image pools.
    pool_files: BTreeSet<FileId>,
    /// The devices that the pools are mounted from.
    pool_devices: BTreeSet<DeviceNumber>,
    /// Mount points of the pools whose content is unknown.
    silent: Vec<PathBuf>,
}

impl Own {
    fn has(&self, bound: &BoundLoop, file: FileId) -> bool {
        let is_image = self.pool_devices.contains(&file.device) && is_in_images(bound);
        // A removed file of a pool is identified by its path alone. The path does not identify an
        // existing file: nodes that are containers on one machine have their pools under the same
        // path, and the kernel shows every loop device to all of them.
        let is_removed =
            loopdev::is_deleted(bound) && bound.backing_file.starts_with(&self.pools_path);
        is_image || self.pool_files.contains(&file) || is_removed
    }

    fn is_in_silent(&self, bound: &BoundLoop) -> bool {
        let mut silent = self.silent.iter();
        silent.any(|mount_point| bound.backing_file.starts_with(mount_point))
    }
}

/// The file of a pool that a loop device is bound to. None for another device, or if the disk under the file
/// does not answer.
fn file_under(system: &dyn System, device: DeviceNumber, home: &Uid) -> Option<FileId> {
    let number = device.as_loop()?;
    let backing_file = system.backing_file(number).ok()??;
    let name = pool::file::name(home);
    if !loopdev::is_named(&backing_file, name.as_ref()) {
        return None;
    }
    Some(loopdev::status(system, number).ok()??.file)
}

/// The loop devices over files of this root.
fn loops_over(system: &dyn System, own: &Own) -> io::Result<Vec<BoundLoop>> {
    let mut all = Vec::new();
    // Filters by name first: an open device stays bound while another process detaches it.
    let named = system.bound_loops()?.into_iter();
    for bound in named.filter(|bound| is_in_images(bound) || is_pool_file(bound)) {
        let is_ours = match loopdev::status(system, bound.number) {
            Ok(None) => false,
            Ok(Some(status)) => own.has(&bound, status.file),
            // The file is in a pool that has shut down, so only its name is known.
            Err(error) if error.is_of_file() => own.is_in_silent(&bound),
            Err(error) => return Err(io::Error::other(error)),
        };
        if is_ours {
            all.push(bound);
        }
    }
    Ok(all)
}

/// Whether the file behind a loop device has the name of a pool's file.
fn is_pool_file(bound: &BoundLoop) -> bool {
    loopdev::pool_of(&bound.backing_file).is_some()
}

/// Whether the file behind a loop device has the name of an image, open or closed.
fn is_in_images(bound: &BoundLoop) -> bool {
    loopdev::any_image_of(&bound.backing_file).is_some()
}
