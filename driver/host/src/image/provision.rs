//! Thin and thick images: changes a thin one to thick and back, and allocates a thick one in full.

use std::{
    cell::Cell,
    os::fd::{AsFd as _, OwnedFd},
    time::{Duration, Instant},
};

use cistern_types::{Bytes, Provisioning};

use super::{Error, Identity, Image, describe, failed};
use crate::{
    allocation::{self, Missing},
    id::Uid,
    pool::Pool,
    progress::{self, Stoppable},
};

/// How long the file of an image is allocated before the image is looked up again: it may be gone or closing by then.
const SLICE: Duration = Duration::from_secs(1);

impl Pool {
    /// Makes the image of a volume thin or thick. Does not free the blocks of one that becomes thin: the next discard inside
    /// the volume does. Does not allocate one that becomes thick: [`Self::reallocate`] does.
    ///
    /// Fails if the image is missing, and with [`Error::Moving`] if it would change and is closing for a move.
    pub fn provision(&self, uid: &Uid, provisioning: Provisioning) -> Result<(), Error> {
        self.check()?;
        let (_, image) = self.described(uid)?;
        if let Some(mut identity) = image.identity.clone()
            && identity.owner.volume().is_some()
            && identity.provisioning != provisioning
        {
            identity.provisioning = provisioning;
            let held = self.hold(uid)?;
            identity
                .replace(&*self.system, held.as_fd())
                .map_err(failed("write the identity", uid))?;
        }
        Ok(())
    }

    /// Allocates the holes in a thick volume: it has become thick, or a trim inside the volume, or the initialization
    /// of its filesystem, has punched them. Does nothing for thin volumes and snapshots, and for an encrypted volume
    /// that was never staged. Fails if the image is missing or closing for a move, and with [`Error::NoSpace`] if the pool
    /// lacks the blocks.
    ///
    /// Ends early if the progress stops it, and returns whether no hole is left. An image of very many holes takes
    /// hours, and can be used meanwhile. One that is removed meanwhile keeps its space until the slice has ended.
    pub fn reallocate(&self, uid: &Uid, progress: Stoppable<'_>) -> Result<bool, Error> {
        let (mut done, is_stopped) = (0, Cell::new(false));
        loop {
            let (file, image) = self.described(uid)?;
            let (file, size) = (file.as_fd(), image.file_size().0);
            let identity = image.identity.as_ref();
            let identity = identity.filter(|it| it.owner.volume().is_some());
            let is_allocated = identity.is_some_and(Identity::is_allocated);
            if !is_allocated || done >= size {
                return Ok(true);
            }
            if is_stopped.get() {
                return Ok(false);
            }
            self.refuse_marked(file, uid)?;
            let end = Instant::now() + SLICE;
            let slice = |percent: u8| {
                let goes_on = progress(percent);
                is_stopped.set(goes_on.is_break());
                goes_on?;
                progress::until(end)
            };
            done = self.allocate_for(uid, || {
                allocation::fill(&*self.system, file, &(done..size), &slice)
            })?;
        }
    }

    /// Returns the bytes that the pool lacks now to allocate an image in full; zero if it has
    /// enough. Fails if the image is missing, or the pool cannot be used.
    pub fn shortfall(&self, uid: &Uid) -> Result<Bytes, Error> {
        self.check()?;
        let (file, image) = self.described(uid)?;
        let missing = Missing::of(&*self.system, file.as_fd(), image.file_size())
            .map_err(failed("count the holes", uid))?;
        let mut available = self.statistics()?.available;
        if missing.size() > available && self.free_preallocations() {
            available = self.statistics()?.available;
        }
        Ok(missing.size().saturating_sub(available))
    }

    /// Opens an image, and describes it as it is then. Fails if it is missing.
    pub(crate) fn described(&self, uid: &Uid) -> Result<(OwnedFd, Image), Error> {
        let file = self.open_image(uid)?.ok_or_else(|| self.missing(uid))?;
        let image = describe(&*self.system, file.as_fd(), uid);
        let image = image.map_err(failed("read the identity", uid))?;
        Ok((file, image))
    }
}
