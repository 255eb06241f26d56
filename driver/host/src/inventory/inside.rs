//! The device and the content of one pool of a host.

use std::{
    io,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use super::PoolInventory;
use crate::{
    copy::{self, IncomingCopy},
    fence::{self, ClosedImage},
    id::{Uid, Uuid},
    image::{self, Discarded, Image, trash},
    layout,
    mount_target::MountTarget,
    pool::marker,
    root::Root,
    stray::Stray,
    strays,
    system::{DeviceNumber, OFlags, System, if_there},
};

/// Time limit for listing the content of a pool.
const PATIENCE: Duration = Duration::from_secs(20);

/// The content of a mounted pool.
struct Inside {
    filesystem_uuid: Option<Uuid>,
    owner: Option<(Uid, String)>,
    images: Vec<Image>,
    closed: Vec<ClosedImage>,
    discarded: Vec<Discarded>,
    incoming: Vec<IncomingCopy>,
    temporary: Vec<PathBuf>,
    strays: Vec<Stray>,
}

impl Root {
    /// The pool whose home has this UID, and its device while it is mounted; None for a bare mount
    /// point.
    pub(super) fn look_at_pool(
        &self,
        home: &Uid,
        has_file: bool,
    ) -> io::Result<(Option<PoolInventory>, Option<DeviceNumber>)> {
        let mount_point = self.mount_point(home);
        let mounted = MountTarget::open(&*self.system, &mount_point)?.mounted()?;
        let mut found = PoolInventory {
            mount_point: mount_point.clone(),
            has_file,
            ..PoolInventory::of(home.clone())
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
        self.closed = inside.closed;
        self.discarded = inside.discarded;
        self.incoming = inside.incoming;
        self.temporary = inside.temporary;
        self.strays = inside.strays;
    }
}

fn look_inside(system: &dyn System, path: &Path) -> io::Result<Inside> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let directory = system.open(path, flags)?;
    let geometry = system.xfs_geometry(directory.as_fd())?;
    // A pool without a readable marker is known by its name only.
    let marker = marker::read(system, directory.as_fd(), path).ok().flatten();
    let mut inside = Inside {
        filesystem_uuid: geometry.map(|geometry| Uuid::from_bytes(geometry.uuid)),
        owner: marker.map(|marker| (marker.record.pool_uid, marker.record.pool_name)),
        images: Vec::new(),
        closed: Vec::new(),
        discarded: Vec::new(),
        incoming: Vec::new(),
        temporary: Vec::new(),
        strays: Vec::new(),
    };
    let open = |name: &str| if_there(system.open_beneath(directory.as_fd(), name.as_ref(), flags));
    if let Some(images) = open(layout::IMAGES)? {
        inside.images = image::list(system, images.as_fd())?;
    }
    if let Some(closed) = open(layout::CLOSED)? {
        inside.closed = fence::list(system, closed.as_fd())?;
    }
    if let Some(trash) = open(layout::TRASH)? {
        inside.discarded = trash::list(system, trash.as_fd())?;
    }
    if let Some(incoming) = open(layout::INCOMING)? {
        inside.incoming = copy::list(system, incoming.as_fd())?;
    }
    if let Some(temporary) = open(layout::TEMPORARY)? {
        let path = path.join(layout::TEMPORARY);
        let parse = |name: &str| name.parse::<Uid>().ok();
        for unfinished in image::open_named(system, temporary.as_fd(), parse)? {
            let (uid, _) = unfinished?;
            inside.temporary.push(path.join(uid.as_str()));
        }
    }
    let (images, discarded) = (&inside.images, &inside.discarded);
    inside.strays = strays::list(system, directory.as_fd(), path, images, discarded)?;
    Ok(inside)
}
