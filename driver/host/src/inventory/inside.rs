//! One pool of a host: on which device it lies, and what is in it.

use std::{
    io,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use super::{PoolInventory, if_there};
use crate::{
    id::{Uid, Uuid},
    image::{self, Discarded, Image, trash},
    place::Place,
    pool::{self, marker},
    root::Root,
    stray::{self, Stray},
    system::{DeviceNumber, OFlags, System},
};

/// How long a pool may take to show what is in it.
const PATIENCE: Duration = Duration::from_secs(20);

/// What is in a pool that is mounted.
struct Inside {
    filesystem_uuid: Option<Uuid>,
    owner: Option<(Uid, String)>,
    images: Vec<Image>,
    discarded: Vec<Discarded>,
    temporary: Vec<PathBuf>,
    strays: Vec<Stray>,
}

impl Root {
    /// What is known of the pool that has its home under this UID, and its device while it is
    /// mounted; nothing where there is only a bare mount point.
    pub(super) fn look_at_pool(
        &self,
        home: &Uid,
        has_file: bool,
    ) -> io::Result<(Option<PoolInventory>, Option<DeviceNumber>)> {
        let mount_point = self.mount_point(home);
        let mounted = Place::open(&*self.system, &mount_point)?.mounted()?;
        let mut found = PoolInventory {
            uid: home.clone(),
            name: None,
            mount_point: mount_point.clone(),
            filesystem_uuid: None,
            silent: None,
            has_file,
            images: Vec::new(),
            discarded: Vec::new(),
            temporary: Vec::new(),
            strays: Vec::new(),
        };
        let Some(mount) = mounted else {
            return Ok((has_file.then_some(found), None));
        };
        let (system, path) = (Arc::clone(&self.system), mount_point.clone());
        let look = move || look_inside(&*system, &path);
        match self.ask_within(&mount_point, PATIENCE, look) {
            None => found.silent = Some(format!("it did not answer within {PATIENCE:?}")),
            Some(Err(error)) => found.silent = Some(error.to_string()),
            Some(Ok(inside)) => found.fill(inside),
        }
        Ok((Some(found), Some(mount.device)))
    }
}

impl PoolInventory {
    fn fill(&mut self, inside: Inside) {
        self.filesystem_uuid = inside.filesystem_uuid;
        if let Some((uid, name)) = inside.owner {
            self.uid = uid;
            self.name = Some(name);
        }
        self.images = inside.images;
        self.discarded = inside.discarded;
        self.temporary = inside.temporary;
        self.strays = inside.strays;
    }
}

fn look_inside(system: &dyn System, path: &Path) -> io::Result<Inside> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let directory = system.open(path, flags)?;
    let geometry = system.xfs_geometry(directory.as_fd())?;
    // What has no marker that can be read is known by its name alone.
    let marker = marker::read(system, directory.as_fd(), path).ok().flatten();
    let mut inside = Inside {
        filesystem_uuid: geometry.map(|geometry| Uuid::from_bytes(geometry.uuid)),
        owner: marker.map(|marker| (marker.pool_uid, marker.pool_name)),
        images: Vec::new(),
        discarded: Vec::new(),
        temporary: Vec::new(),
        strays: Vec::new(),
    };
    let open = |name: &str| if_there(system.open_beneath(directory.as_fd(), name.as_ref(), flags));
    if let Some(images) = open(pool::IMAGES)? {
        inside.images = image::list(system, images.as_fd())?;
    }
    if let Some(trash) = open(trash::TRASH)? {
        inside.discarded = trash::list(system, trash.as_fd())?;
    }
    if let Some(temporary) = open(pool::TEMPORARY)? {
        let path = path.join(pool::TEMPORARY);
        let names = system.list(temporary.as_fd())?.into_iter();
        inside.temporary = names.map(|name| path.join(name)).collect();
    }
    let (images, discarded) = (&inside.images, &inside.discarded);
    inside.strays = stray::list(system, directory.as_fd(), path, images, discarded)?;
    Ok(inside)
}
