//! Makes the point of a volume the volume itself: the node of the volume is lost, and the volume is here from now on, as of
//! the snapshot that the point is a copy of.
//!
//! The point gets the identity of the volume, and one rename moves it among the images. Nothing is copied. It stays the same
//! volume, with the same filesystem and the same UUID.
//!
//! *Invariants:* the point is whole at every moment, under its old or its new name. What was being copied over it is removed
//! before the rename, because the pool never has a copy of a volume and the volume at the same time. A point never replaces
//! an image.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
};

use cistern_types::{Bytes, Provisioning};

use super::incoming::State;
use crate::{
    id::Uid,
    image::{Error, IDENTITY, Identity, Image, Owner, failed},
    layout::{INCOMING, point_of},
    pool::Pool,
};

/// The volume that a point becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromotedVolume {
    /// Name of its image.
    pub uid: Uid,
    /// Name of its PoolVolume.
    pub name: String,
    /// Its size. The point is smaller if the volume has grown since.
    pub size: Bytes,
    /// Whether it is allocated in full.
    pub provisioning: Provisioning,
    /// The image that it was cloned from; none for a volume that was empty.
    pub source: Option<Uid>,
}

impl Pool {
    /// Makes the point of a volume its image, or returns the image of an earlier call. Fails if there is neither, if
    /// the point is of another volume or for another move, if a copy of the volume is being received, if the pool has
    /// another image of this name, from before the move, or if it lacks the blocks of a thick volume.
    pub fn promote_point(&self, volume: &PromotedVolume, by: &Uid) -> Result<Image, Error> {
        self.check()?;
        let uid = &volume.uid;
        self.refuse_closed(uid)?;
        if let Some(image) = self.image(uid)? {
            self.verify_owner(&image, &volume.name)?;
            self.refuse_unless_made_by(uid, by)?;
        } else {
            self.make_image(volume, by)?;
        }
        // Also for an image that an earlier call named: it may have failed after that.
        self.settle_copy(uid)
            .map_err(failed("sync the name of the point", uid))?;
        self.image(uid)?.ok_or_else(|| self.missing(uid))
    }

    /// Makes the point of a volume its image.
    fn make_image(&self, volume: &PromotedVolume, by: &Uid) -> Result<(), Error> {
        let uid = &volume.uid;
        let (file, state) = self.point_of(uid, by)?;
        self.remove_copy_if(uid, |moved_by| moved_by == Some(by))?;
        if self.open_incoming(uid)?.is_some() {
            return Err(super::open::beside_copy(uid));
        }
        let found = self.system.stat(file.as_fd());
        let size = volume.size.saturating_add(state.original.identity.header());
        if found.map_err(failed("stat the point", uid))?.size < size.0 {
            let grown = self.system.truncate(file.as_fd(), size.0);
            grown.map_err(|source| self.no_space_or("grow the point", uid, source.into()))?;
        }
        self.identify(&file, volume, &state)?;
        self.complete_copy(file.as_fd(), uid)?;
        self.mark_arrived(file.as_fd(), uid, by)?;
        self.name_point(&file, uid)
            .map_err(failed("give the point the name", uid))
    }

    /// Opens the point of a volume for a move.
    fn point_of(&self, uid: &Uid, by: &Uid) -> Result<(OwnedFd, State), Error> {
        let found = self.open_point(uid)?;
        let ours = found.and_then(|point| Some((point.file, point.state?)));
        ours.filter(|(_, state)| state.moved_by() == Some(by))
            .ok_or_else(|| self.missing(uid))
    }

    /// Gives a point the identity of its volume, unless an earlier call did.
    fn identify(
        &self,
        file: &OwnedFd,
        volume: &PromotedVolume,
        state: &State,
    ) -> Result<(), Error> {
        let (system, file, uid) = (&*self.system, file.as_fd(), &volume.uid);
        let of = &state.original.identity;
        let record = of.owner.snapshot();
        if record.is_none_or(|record| record.volume != volume.name) {
            return Err(super::open::received(uid));
        }
        let identity = Identity {
            owner: Owner::Volume(volume.name.clone()),
            uid: uid.clone(),
            pool_uuid: self.filesystem_uuid(),
            size: state.original.size.saturating_sub(of.header()),
            content: of.content,
            provisioning: volume.provisioning,
            source: volume.source.clone(),
            encryption: of.encryption,
        };
        let write = || match system.attribute(file, IDENTITY)? {
            // A call before this one may have been for another provisioning.
            Some(_) => identity.replace(system, file),
            None => identity.write(system, file),
        };
        write().map_err(failed("write the identity of the point", uid))
    }

    /// Moves a point among the images.
    fn name_point(&self, point: &OwnedFd, uid: &Uid) -> io::Result<()> {
        let system = &*self.system;
        system.sync(point.as_fd())?;
        let (incoming, images) = (self.open_folder(INCOMING)?, self.images.as_fd());
        let name = point_of(uid);
        system.rename(incoming.as_fd(), name.as_ref(), images, uid.as_ref())
    }
}
