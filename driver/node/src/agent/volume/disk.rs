//! Changes the image of a volume. All functions block.
//!
//! *Invariants:* an image is made only under the UID of the PoolVolume. The volume's lock is held, but while its space is
//! allocated or written with zeros.

use std::{io, time::Duration};

use chrono::{DateTime, Utc};
use cistern_crds::{Bytes, ContentSource, ExtentLimits, HasImage as _, PoolVolume};
use cistern_host::{
    Checking, Engine, ImageRequest, InvalidUid, Pool, SourceImage, Stoppable, Uid, image,
};
use kube::ResourceExt as _;

use crate::{
    agent::plan::VolumeStep,
    image::{Error, Image, find, is_adopted, is_the_same, mkfs_options_of, name_of},
    locks::VolumeGuard,
};

/// How long a prepared growth waits for another operation on the volume.
const LOCK_PATIENCE: Duration = Duration::from_mins(10);

/// A step on the image of a volume, and what it needs.
pub(super) struct ImageStep<'a> {
    /// The pool.
    pub(super) pool: &'a dyn Engine,
    /// The volume.
    pub(super) volume: &'a PoolVolume,
    /// Makes the image, grows it, or checks the existing one.
    pub(super) step: VolumeStep,
    /// The pool's limit for clones.
    pub(super) extent_limits: ExtentLimits,
    /// Whether the filesystem of a clone is checked now.
    pub(super) checking: Checking<'a>,
    /// Progress of an allocation, or of writing zeros; stops both.
    pub(super) progress: Stoppable<'a>,
    /// Sets the limits of the volume's I/O.
    pub(super) set_limits: &'a dyn Fn(),
    /// The time.
    pub(super) now: DateTime<Utc>,
}

/// The image of a volume after a step.
#[derive(Debug)]
pub(super) struct PreparedImage {
    /// The image.
    pub(super) image: Image,
    /// Whether it has the admitted provisioning; false if that was stopped, or waits until the volume is reported.
    pub(super) provisioned: Result<bool, image::Error>,
}

impl ImageStep<'_> {
    /// Takes the step. Fails if the image does not match the volume, or if a step on the disk fails.
    pub(super) fn take(&self, guard: VolumeGuard) -> Result<PreparedImage, Error> {
        let (found, provisioned) = match self.step {
            VolumeStep::Make if !is_adopted(self.volume) => (self.make(guard)?, Ok(true)),
            VolumeStep::Grow => (self.grow(guard)?, Ok(true)),
            VolumeStep::Rest
            | VolumeStep::Admit
            | VolumeStep::Make
            | VolumeStep::AdmitGrowth
            | VolumeStep::AdmitAttributes
            | VolumeStep::Keep
            | VolumeStep::Reclaim => self.keep(guard)?,
        };
        let mut image = Image::read(&found, self.pool.takeovers(), self.now)?;
        is_the_same(self.volume, &image)?;
        if let Some(pool) = self.pool.images() {
            image.extents = Some(pool.extent_count(&found.uid)?);
        }
        Ok(PreparedImage { image, provisioned })
    }

    fn make(&self, guard: VolumeGuard) -> Result<image::Image, Error> {
        let volume = self.volume;
        let source = volume.spec.content_source.as_ref();
        let source = source.map(|it| source_of(it, self.extent_limits));
        let request = ImageRequest {
            encryption: volume.spec.encryption,
            volume: volume.name_any(),
            uid: name_of(volume)?,
            size: self.reserved(),
            filesystem: volume.spec.filesystem,
            mkfs_options: mkfs_options_of(volume)?,
            extent_size: volume.spec.extent_size,
            provisioning: volume.admitted_attributes().provisioning,
            source: source.transpose()?,
        };
        let made = self.pool.create(&request, self.checking, self.progress);
        let made = made.map_err(|error| not_made(self.pool, &request.uid, error))?;
        (self.set_limits)();
        drop(guard);
        Ok(made)
    }

    fn grow(&self, guard: VolumeGuard) -> Result<image::Image, Error> {
        let (uid, size) = (self.find()?.uid, self.reserved());
        let prepare = || self.pool.prepare_growth(&uid, size, self.progress);
        let locked = guard.unlocked(LOCK_PATIENCE, prepare);
        let (guard, growth) = locked.ok_or_else(|| image::Error::Failed {
            operation: "lock the volume",
            uid: uid.clone(),
            source: io::Error::from(io::ErrorKind::TimedOut).into(),
        })?;
        let grown = self.pool.finish_growth(&uid, size, growth?)?;
        (self.set_limits)();
        drop(guard);
        Ok(grown)
    }

    fn keep(
        &self,
        guard: VolumeGuard,
    ) -> Result<(image::Image, Result<bool, image::Error>), Error> {
        let image = self.find()?;
        let provisioning = self.volume.admitted_attributes().provisioning;
        let provisioned = self.pool.provision(&image.uid, provisioning);
        (self.set_limits)();
        drop(guard);
        let provisioned = provisioned.and_then(|()| self.reallocate(&image.uid));
        Ok((image, provisioned))
    }

    /// Allocates what the image lacks. Returns whether it lacks nothing then. A volume of a new epoch is reported
    /// first: until then, no pod gets it.
    fn reallocate(&self, uid: &Uid) -> Result<bool, image::Error> {
        if self.volume.current_status().is_none() {
            return Ok(false);
        }
        match self.pool.reallocate(uid, self.progress) {
            // It is whole, and does not change before it has moved.
            Err(image::Error::Moving { .. }) => Ok(true),
            done => done,
        }
    }

    /// The image of the volume, which is written to only if it is the volume's.
    fn find(&self) -> Result<image::Image, Error> {
        let image = find(self.pool, self.volume)?;
        is_the_same(
            self.volume,
            &Image::read(&image, self.pool.takeovers(), self.now)?,
        )?;
        Ok(image)
    }

    fn reserved(&self) -> Bytes {
        self.volume.reserved().unwrap_or(self.volume.spec.size)
    }
}

/// The error of a call that was to make an image. If the pool is full, the copy that it was to be made of is removed.
/// An image that exists nevertheless stays, and keeps its reservation: it may hold data.
fn not_made(pool: &dyn Engine, uid: &Uid, error: image::Error) -> Error {
    let is_full = matches!(error, image::Error::NoSpace { .. });
    let is_removed = |pool: &Pool| pool.remove_incoming(uid).is_ok();
    if is_full && matches!(pool.volume(uid), Ok(None)) && pool.images().is_none_or(is_removed) {
        return Error::NotMade(error);
    }
    error.into()
}

fn source_of(
    source: &ContentSource,
    extent_limits: ExtentLimits,
) -> Result<SourceImage, InvalidUid> {
    Ok(SourceImage {
        uid: source.image.parse()?,
        extent_limits,
    })
}
