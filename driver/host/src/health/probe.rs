//! Writes one block of a pool, syncs it, and reads it back past the page cache.
//!
//! *Invariant:* the block is allocated once, so that it can be written in a full pool, too. Its content
//! changes each time, so that a stale block is detected.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
};

use super::PoolTrouble;
use crate::{
    id::Uuid,
    pool::{PROBE, Pool},
    system::{Block, OFlags, System},
};

/// Writes the pool's block and reads it back.
pub(super) fn probe(pool: &Pool) -> Result<(), PoolTrouble> {
    let system = &*pool.system;
    let path = pool.path().join(PROBE);
    let failed = |operation: &str| {
        let operation = format!("{operation} {}", path.display());
        move |error: io::Error| PoolTrouble::failed(operation, &error)
    };
    let Some(file) = open(pool).map_err(failed("open"))? else {
        return Ok(());
    };
    let block = block();
    system
        .write_block(file.as_fd(), 0, &block)
        .map_err(failed("write"))?;
    system.sync(file.as_fd()).map_err(failed("sync"))?;
    let read = system
        .read_block(file.as_fd(), 0)
        .map_err(failed("read back"))?;
    if *read == *block {
        return Ok(());
    }
    Err(PoolTrouble::NotReadBack { path })
}

/// The probe file, created if necessary; None if the pool has no room for it, which is no trouble of
/// the disk.
fn open(pool: &Pool) -> io::Result<Option<OwnedFd>> {
    let (system, directory) = (&*pool.system, pool.directory());
    let flags = OFlags::RDWR | OFlags::DIRECT;
    match system.open_beneath(directory, Path::new(PROBE), flags) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Ok(file) if system.stat(file.as_fd())?.size >= Block::SIZE as u64 => return Ok(Some(file)),
        // Its creation was interrupted.
        Ok(file) => return allocate(system, file),
        Err(error) => return Err(error),
    }
    match system.open_beneath(directory, Path::new(PROBE), flags | OFlags::CREATE) {
        Ok(file) => allocate(system, file),
        Err(error) if error.kind() == io::ErrorKind::StorageFull => Ok(None),
        Err(error) => Err(error),
    }
}

fn allocate(system: &dyn System, file: OwnedFd) -> io::Result<Option<OwnedFd>> {
    match system.allocate(file.as_fd(), &(0..Block::SIZE as u64)) {
        Ok(()) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::StorageFull => Ok(None),
        Err(error) => Err(error),
    }
}

/// A block with new content.
fn block() -> Box<Block> {
    let number = Uuid::new_v4();
    let mut block = Box::new(Block([0; Block::SIZE]));
    for (byte, value) in block.0.iter_mut().zip(number.as_bytes().iter().cycle()) {
        *byte = *value;
    }
    block
}
