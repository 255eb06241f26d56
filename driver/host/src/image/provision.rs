//! Thin and thick images: allocates an image in full, and changes a thin one to thick and back.

use std::os::fd::{AsFd as _, OwnedFd};

use cistern_types::{Bytes, Provisioning};

use super::{Error, Image, describe, failed};
use crate::{
    allocation::{self, Missing},
    id::Uid,
    pool::Pool,
    progress::{self, Progress},
};

impl Pool {
    /// Makes the image of a volume thin or thick, and allocates the holes of a thick one. Does not
    /// free the blocks of one that becomes thin: the next discard inside the volume does.
    ///
    /// The identity records the change before blocks are allocated, so a call that was interrupted
    /// is completed by a repeated call, or by [`Pool::reallocate`]. Fails with [`Error::NoSpace`]
    /// when the pool lacks the blocks, and with [`Error::Moving`] while the image is closing for a move, except
    /// for a thin one that stays thin. Reports the progress, because an image of very many holes takes
    /// minutes.
    pub fn provision(
        &self,
        uid: &Uid,
        provisioning: Provisioning,
        progress: Progress<'_>,
    ) -> Result<(), Error> {
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
        self.fill(uid, progress)
    }

    /// Allocates the holes in a thick volume again: a trim inside the volume, or the initialization
    /// of its filesystem, punches holes. Does nothing for thin volumes and snapshots, and for an encrypted volume
    /// that was never staged. Fails if the
    /// image is missing or closing for a move, and with [`Error::NoSpace`] if the pool lacks the blocks.
    pub fn reallocate(&self, uid: &Uid) -> Result<(), Error> {
        self.fill(uid, progress::UNSEEN)
    }

    fn fill(&self, uid: &Uid, progress: Progress<'_>) -> Result<(), Error> {
        let (file, image) = self.described(uid)?;
        let is_allocated = image
            .identity
            .as_ref()
            .is_some_and(|identity| identity.is_allocated() && identity.owner.volume().is_some());
        if !is_allocated {
            return Ok(());
        }
        self.refuse_marked(file.as_fd(), uid)?;
        allocation::ensure(&*self.system, file.as_fd(), image.file_size(), progress)
            .map_err(|source| self.no_space_or("allocate the space", uid, source.into()))
    }

    /// Returns the bytes that the pool lacks now to allocate an image in full; zero if it has
    /// enough. Fails if the image is missing, or the pool cannot be used.
    pub fn shortfall(&self, uid: &Uid) -> Result<Bytes, Error> {
        self.check()?;
        let (file, image) = self.described(uid)?;
        let missing = Missing::of(&*self.system, file.as_fd(), image.file_size())
            .map_err(failed("count the holes", uid))?;
        let available = self.statistics()?.available;
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
