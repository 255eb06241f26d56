//! Problems of attached volumes: their loop devices, their mounts, and their filesystems, without access
//! to their pools.
//!
//! *Invariant:* the kernel's tables are read, which no disk blocks. A filesystem is queried only with a
//! deadline.

mod tables;

use std::{io, os::fd::AsFd as _, path::Path, sync::Arc, thread, time::Duration};

use self::tables::Attachments;
use super::{VolumeSubject, VolumeTrouble};
use crate::{
    mount_target::MountTarget,
    pool,
    root::Root,
    system::{OFlags, System},
};

impl Root {
    /// Returns the troubles of each of these volumes, in the order of `volumes`, as far as its loop
    /// device, mounts and filesystem show them. Accesses no pool. Returns by the deadline, even if
    /// a filesystem hangs.
    pub fn examine_attached(
        &self,
        volumes: &[VolumeSubject<'_>],
        deadline: Duration,
    ) -> Vec<Vec<VolumeTrouble>> {
        let system = &*self.system;
        let all = match Attachments::read(system) {
            Ok(all) => all,
            Err(error) => {
                let trouble = VolumeTrouble::failed("read what is attached", &error);
                return vec![vec![trouble]; volumes.len()];
            }
        };
        thread::scope(|scope| {
            // Queries that may hang run concurrently.
            let asked: Vec<_> = volumes
                .iter()
                .map(|volume| {
                    let mount = all.xfs_of(volume)?;
                    let ask = move || self.ask_xfs(&mount, deadline);
                    Some(thread::Builder::new().spawn_scoped(scope, ask))
                })
                .collect();
            let volumes = volumes.iter().zip(asked);
            volumes
                .map(|(volume, asked)| {
                    let mut troubles = all.examine(system, volume);
                    match asked {
                        None => {}
                        Some(Ok(thread)) => troubles.extend(thread.join().unwrap_or_default()),
                        Some(Err(error)) => {
                            troubles.push(VolumeTrouble::failed("start a thread", &error));
                        }
                    }
                    troubles
                })
                .collect()
        })
    }

    /// The damage that a mounted XFS reports about itself.
    fn ask_xfs(&self, mount_point: &Path, deadline: Duration) -> Vec<VolumeTrouble> {
        let (system, path) = (Arc::clone(&self.system), mount_point.to_owned());
        let ask = move || ask_xfs(&*system, &path);
        match self.ask_within(mount_point, deadline, ask) {
            Some(Ok(trouble)) => trouble.into_iter().collect(),
            Some(Err(error)) => {
                let operation = format!("ask the filesystem at {}", mount_point.display());
                vec![VolumeTrouble::failed(operation, &error)]
            }
            None => vec![VolumeTrouble::Hung {
                path: mount_point.to_owned(),
                after: deadline,
            }],
        }
    }
}

fn ask_xfs(system: &dyn System, mount_point: &Path) -> io::Result<Option<VolumeTrouble>> {
    let Some(seen) = MountTarget::open(system, mount_point)?.find()? else {
        return Ok(None);
    };
    if pool::has_shut_down(system, seen.as_fd()) {
        return Ok(Some(VolumeTrouble::FilesystemShutDown));
    }
    let directory = system.open(mount_point, OFlags::RDONLY | OFlags::DIRECTORY)?;
    let damage = system.xfs_damage(directory.as_fd())?;
    Ok(match damage {
        None | Some(0) => None,
        Some(count) => Some(VolumeTrouble::FilesystemErrors { count }),
    })
}
