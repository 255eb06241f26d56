//! Making the image of a volume larger.

use std::os::fd::{AsFd as _, BorrowedFd};

use cistern_crds::{Bytes, Provisioning};

use super::{Error, Image, describe, failed};
use crate::{allocation, id::Uid, pool::Pool};

impl Pool {
    /// Makes an image at least this large, and safely so; a thick one is allocated. One that is large
    /// enough already stays as it is. Where the space is lacking ([`Error::NoSpace`]) it is as it was
    /// before.
    ///
    /// Whoever has the volume open sees nothing of it yet: see [`Pool::expand`].
    pub fn grow_image(&self, uid: &Uid, size: Bytes) -> Result<Image, Error> {
        self.check()?;
        let system = &*self.system;
        let file = self.open_image(uid)?.ok_or_else(|| self.missing(uid))?;
        let before =
            describe(system, file.as_fd(), uid).map_err(failed("read the identity", uid))?;
        if let Some(cut) = before.identity.as_ref().and_then(|it| it.owner.snapshot()) {
            let uid = uid.clone();
            let why = format!("it is snapshot {}, which never grows", cut.name);
            return Err(Error::IdentityConflict { uid, why });
        }
        if before.size < size {
            self.extend(file.as_fd(), &before, size)?;
        }
        // Also of an image that an earlier call made larger: it may have failed just here.
        system
            .sync(file.as_fd())
            .map_err(failed("keep the size", uid))?;
        self.image(uid)?.ok_or_else(|| self.missing(uid))
    }

    fn extend(&self, file: BorrowedFd<'_>, before: &Image, size: Bytes) -> Result<(), Error> {
        let (system, uid) = (&*self.system, &before.uid);
        let provisioning = before
            .identity
            .as_ref()
            .map_or(Provisioning::Thin, |identity| identity.provisioning);
        let extended = match provisioning {
            Provisioning::Thin => system.truncate(file, size.0),
            // It grows with what is allocated beyond its end.
            Provisioning::Thick => allocation::ensure(system, file, size),
        };
        let Err(source) = extended else {
            return Ok(());
        };
        let error = self.no_space_or("make the file larger", uid, source.into());
        if matches!(error, Error::NoSpace { .. }) {
            system
                .truncate(file, before.size.0)
                .map_err(failed("give back what was allocated", uid))?;
        }
        Err(error)
    }
}
