//! Binds a file to a free loop device.
//!
//! *Invariant:* no two threads of this process try the same device. The kernel returns the same
//! device as free until it is bound, and locks it while it is being bound, which takes as long as
//! the disk of the file takes to respond: a disk that hangs would block the volumes of every other
//! pool.

use std::{
    collections::BTreeSet,
    io,
    os::fd::{AsFd as _, BorrowedFd},
};

use parking_lot::Mutex;

use super::{Error, Loop, failed, open};
use crate::system::{OFlags, System};

/// How often to request another free device when another process binds it first.
pub(super) const ATTEMPTS: u32 = 64;

/// The devices that threads of this process are binding.
static RESERVED: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// A free device that only this thread may bind, while this value lives.
struct ReservedDevice(u32);

impl ReservedDevice {
    /// Reserves the device that `free` returns. `free` must not return one of the given devices:
    /// those of other threads and those that are `busy`.
    fn make(
        busy: &BTreeSet<u32>,
        free: impl FnOnce(&BTreeSet<u32>) -> io::Result<u32>,
    ) -> io::Result<Self> {
        let mut reserved = RESERVED.lock();
        let number = free(&(&*reserved | busy))?;
        reserved.insert(number);
        Ok(Self(number))
    }
}

impl Drop for ReservedDevice {
    fn drop(&mut self) {
        let mut reserved = RESERVED.lock();
        reserved.remove(&self.0);
    }
}

/// Binds a file to a free device and makes the device writable.
pub(super) fn bind(system: &dyn System, file: BorrowedFd<'_>) -> Result<Loop, Error> {
    let mut busy = BTreeSet::new();
    for _ in 0..ATTEMPTS {
        let reserved = ReservedDevice::make(&busy, |except| system.free_loop(except))
            .map_err(failed("get a free loop device"))?;
        let Some(free) = open(system, reserved.0, OFlags::RDWR)? else {
            continue;
        };
        match system.bind_loop(free.device.as_fd(), file) {
            Ok(()) => {
                // A former user of the device may have made it read-only.
                system
                    .set_read_only(free.device.as_fd(), false)
                    .map_err(failed(format!("make {free} writable")))?;
                return Ok(free);
            }
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                busy.insert(free.number);
            }
            Err(error) => return Err(failed(format!("bind {free}"))(error)),
        }
    }
    Err(Error::Exhausted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(numbers: &[u32]) -> BTreeSet<u32> {
        numbers.iter().copied().collect()
    }

    #[test]
    fn a_device_that_one_thread_binds_is_not_offered_to_other_threads() {
        let reserve = |busy: &[u32], expected: &[u32], number| {
            let free = |except: &BTreeSet<u32>| {
                assert_eq!(except, &set(expected));
                Ok(number)
            };
            ReservedDevice::make(&set(busy), free).unwrap()
        };
        let first = reserve(&[], &[], 1000);
        let second = reserve(&[1001], &[1000, 1001], 1002);
        drop(first);
        let _third = reserve(&[], &[1002], 1000);
        drop(second);
        let refused = ReservedDevice::make(&set(&[]), |except| {
            assert_eq!(except, &set(&[1000]));
            Err(io::ErrorKind::NotFound.into())
        });
        assert_eq!(
            refused.map(|_| ()).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }
}
