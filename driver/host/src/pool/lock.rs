//! The lock of the pools of a host.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    time::Duration,
};

use super::{Error, failed};
use crate::{patience::until_within, root::Root};

/// How long a pool waits for another one.
const DEADLINE: Duration = Duration::from_secs(10);

/// Waits until no other pool takes disks or space of the host. None does while the returned lock is held. It is that of the
/// folder of the pools wherever a pool is, because two directories may be on one filesystem, and two pools may list one
/// disk. Fails after ten seconds.
pub(crate) fn lock(root: &Root) -> Result<OwnedFd, Error> {
    let folder = root.pools_path();
    let failed = |error: io::Error| failed(format!("lock {}", folder.display()))(error);
    let pools = root.open_pools().map_err(failed)?;
    let is_answer = |locked: &io::Result<bool>| !matches!(locked, Ok(false));
    let locked = until_within(DEADLINE, || root.system.try_lock(pools.as_fd()), is_answer);
    if locked.map_err(failed)? {
        return Ok(pools);
    }
    Err(failed(io::Error::new(
        io::ErrorKind::ResourceBusy,
        "another pool is being created or enlarged; this is retried",
    )))
}
