//! Thaws filesystems that a killed process left frozen.
//!
//! *Invariants:* a filesystem that hangs delays no other, and costs one thread, however often it is tried. What this process
//! has frozen is not thawed here.

use std::{
    collections::BTreeMap,
    io,
    os::fd::AsFd as _,
    sync::mpsc::Receiver,
    time::{Duration, Instant},
};

use super::attachment::open_mounted;
use crate::{
    id::Uid,
    image::{Error, failed},
    pool,
    root::Root,
    system::DeviceNumber,
    volume_device,
};

impl Root {
    /// Thaws the filesystem of each chosen image that has a mount visible to this process. Returns whether it was frozen, or
    /// why it may still be: it cannot be thawed, or does not answer within the limit. One that does not answer is
    /// thawed once it does. Fails if the devices of the volumes cannot be listed.
    ///
    /// Call this when a process starts, before anything is unmounted: a filesystem that is frozen and no longer mounted
    /// cannot be thawed.
    pub fn thaw_left_frozen(
        &self,
        limit: Duration,
        is_chosen: impl Fn(&Uid) -> bool,
    ) -> Result<BTreeMap<Uid, Result<bool, Error>>, Error> {
        let until = Instant::now() + limit;
        let listed = volume_device::list(&*self.system);
        let mut volumes = BTreeMap::<Uid, Vec<DeviceNumber>>::new();
        for device in listed.map_err(pool::failed("list the devices of volumes"))? {
            // Cistern freezes no logical volume. Another program has frozen this one, and thaws it.
            if device.path.is_some() && is_chosen(&device.image) {
                let devices = volumes.entry(device.image).or_default();
                devices.push(device.number);
            }
        }
        let begun = volumes.into_iter().map(|(image, devices)| {
            let answer = self.begin_to_thaw(&image, devices);
            (image, answer)
        });
        // Every one is begun before the first answer is waited for.
        let begun: Vec<_> = begun.collect();
        let answers = begun.into_iter().map(|(image, answer)| {
            let left = until.saturating_duration_since(Instant::now());
            let answer = answer.and_then(|answer| answer.recv_timeout(left).ok());
            let answer = answer.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()));
            let answer = answer.map_err(failed("thaw the filesystem", &image));
            (image, answer)
        });
        Ok(answers.collect())
    }

    /// Begins to thaw the filesystem of a volume. None while an earlier attempt, or the sync before a freeze, has not ended.
    fn begin_to_thaw(
        &self,
        image: &Uid,
        devices: Vec<DeviceNumber>,
    ) -> Option<Receiver<io::Result<bool>>> {
        let (root, uid) = (self.clone(), image.clone());
        let thaw = move || -> io::Result<bool> {
            // All are tried, and the first error counts.
            let tried: Vec<_> = devices
                .iter()
                .map(|device| root.thaw(*device, &uid))
                .collect();
            let thawed: Vec<bool> = tried.into_iter().collect::<io::Result<_>>()?;
            Ok(thawed.contains(&true))
        };
        self.begin_to_ask(image.as_str().as_ref(), Duration::ZERO, thaw)
    }

    /// Thaws the filesystem of a device, and returns whether it was frozen. Fails if this process is freezing it.
    fn thaw(&self, device: DeviceNumber, image: &Uid) -> io::Result<bool> {
        let Some(inside) = open_mounted(&*self.system, device)? else {
            return Ok(false);
        };
        if self.freezes.has(image) {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let was_frozen = self.system.thaw(inside.as_fd())?;
        if was_frozen {
            tracing::warn!(%image, "thawed a filesystem that an earlier process left frozen");
        }
        Ok(was_frozen)
    }
}
