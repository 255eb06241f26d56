//! Refuses a new target path of a volume that is closing.
//!
//! *Invariant:* a pool that fails or hangs does not prevent a publish, as for every other volume in it: an image
//! that is attached is not closed, so the mark only keeps pods from coming while others are asked to go. Only a mark
//! that is read and names no move prevents one.

use std::{io, os::fd::AsFd as _, path::PathBuf, sync::Arc, time::Duration};

use super::{mark, moving};
use crate::{
    id::Uid,
    image::{Error, failed},
    loopdev,
    root::Root,
    system::{DeviceNumber, OFlags, System},
};

/// How long the disk may take to answer.
const LIMIT: Duration = Duration::from_secs(5);

impl Root {
    /// Fails if the image that is attached as a device is marked as closing, or if its mark names no move.
    pub(crate) fn refuse_closing(&self, device: DeviceNumber, image: &Uid) -> Result<(), Error> {
        let system = Arc::clone(&self.system);
        let read = move || mark_behind(&*system, device);
        let asked = PathBuf::from(format!("mark of {image}"));
        match self.ask_within(&asked, LIMIT, read) {
            Some(Ok(Some(by))) => Err(moving(image, by)),
            Some(Ok(None)) => Ok(()),
            // It counts as marked.
            Some(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
                Err(failed("read the mark", image)(error))
            }
            Some(Err(error)) => {
                tracing::warn!(%image, %error, "cannot read whether the volume is closing");
                Ok(())
            }
            None => {
                tracing::warn!(%image, "the disk does not say whether the volume is closing");
                Ok(())
            }
        }
    }
}

/// The UID of the move in the mark of the file behind a loop device; none without a mark.
fn mark_behind(system: &dyn System, device: DeviceNumber) -> io::Result<Option<Uid>> {
    let Some(number) = device.as_loop() else {
        return Ok(None);
    };
    let Some(path) = system.backing_file(number)? else {
        return Ok(None);
    };
    let status = loopdev::status(system, number).map_err(io::Error::other)?;
    let file = system.open(&path, OFlags::RDONLY | OFlags::NONBLOCK)?;
    let id = system.stat(file.as_fd())?.id;
    if status.is_none_or(|status| status.file != id) {
        return Err(io::Error::other("its file has another name"));
    }
    mark::read(system, file.as_fd())
}
