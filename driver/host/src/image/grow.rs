//! Growing the image of a volume.

use std::os::fd::{AsFd as _, BorrowedFd};

use cistern_types::Bytes;

use super::{Error, Identity, IdentityConflict, Image, failed};
use crate::{id::Uid, pool::Pool};

impl Pool {
    /// Grows an image to at least this size and syncs it; allocates the new part of a thick one. Does not change
    /// one that is large enough. Restores the old size when the pool lacks the space
    /// ([`Error::NoSpace`]). Fails if the image is missing or is that of a snapshot, or if it would
    /// have to grow and is closing for a move.
    ///
    /// A pod that uses the volume sees the new size only after the volume is expanded.
    pub fn grow_image(&self, uid: &Uid, size: Bytes) -> Result<Image, Error> {
        self.check()?;
        let system = &*self.system;
        let before = self.image(uid)?.ok_or_else(|| self.missing(uid))?;
        if let Some(snapshot) = before.identity.as_ref().and_then(|it| it.owner.snapshot()) {
            let uid = uid.clone();
            let snapshot = snapshot.name.clone();
            let why = IdentityConflict::NeverGrows { snapshot };
            return Err(Error::IdentityConflict { uid, why });
        }
        if before.size < size {
            let held = self.hold(uid)?;
            self.extend(held.as_fd(), &before, size)?;
        }
        let file = self.open_image(uid)?.ok_or_else(|| self.missing(uid))?;
        // Also for an image that an earlier call grew: it may have failed at this sync.
        system
            .sync(file.as_fd())
            .map_err(failed("sync the size", uid))?;
        self.image(uid)?.ok_or_else(|| self.missing(uid))
    }

    fn extend(&self, file: BorrowedFd<'_>, before: &Image, size: Bytes) -> Result<(), Error> {
        let (system, uid) = (&*self.system, &before.uid);
        let size = size.saturating_add(before.header());
        let is_allocated = before.identity.as_ref().is_some_and(Identity::is_allocated);
        let extended = if is_allocated {
            // Allocating beyond the end of the file grows it.
            let new = before.file_size().0..size.0;
            self.with_space(|| system.allocate(file, &new))
        } else {
            system.truncate(file, size.0)
        };
        let Err(source) = extended else {
            return Ok(());
        };
        let error = self.no_space_or("make the file larger", uid, source.into());
        if matches!(error, Error::NoSpace { .. }) {
            system
                .truncate(file, before.file_size().0)
                .map_err(failed("free the partial allocation", uid))?;
        }
        Err(error)
    }
}
