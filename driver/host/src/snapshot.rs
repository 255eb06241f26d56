//! Snapshots: the content of a volume's image at one point in time, kept in its own image; and
//! groups of snapshots of the same point in time.
//!
//! ```text
//! prepare     lock sources, count extents, make empty files, sync filesystems
//!    ┌─ freeze      all filesystems, in parallel
//!    │  time        read the clock
//!    │  reflink     one FICLONE per member
//!    └─ thaw        all filesystems
//! commit      identities, fsync; then names, and a sync of each directory
//! ```
//!
//! A group is of one point in time for these reasons. FICLONE and the direct writes of a loop
//! device exclude each other by the lock of the image's inode: a clone falls between two writes,
//! and has every write that was acknowledged before. That is enough for one image. In a group, the
//! images with a mounted filesystem do not change between the last freeze and the first thaw, and
//! all clones are made in between. Images that are not attached cannot become attached, because
//! they are locked. At most one other member exists, a raw block volume, whose writers cannot be
//! stopped. So each clone shows its image at the time at which that member was cloned.
//!
//! *Invariants:* a snapshot gets its name only when it is whole and on the disk. A group is
//! returned complete or not at all. So is each part of a group whose volumes are on several nodes
//! ([`Root::take_part`]); a [`Barrier`] keeps the parts in step. No filesystem stays frozen for longer than
//! [`FREEZE_LIMIT`]. A clone is discarded when its filesystem was thawed before it was made. The image of a snapshot is
//! never written to.

mod attachment;
mod barrier;
mod freeze;
mod not_frozen;
mod prepared;
mod thaw;

use std::{
    os::fd::{AsFd as _, OwnedFd},
    sync::Arc,
    time::Duration,
};

use chrono::{DateTime, Utc};
use cistern_types::{Consistency, ExtentLimits};

use self::{attachment::Attachment, barrier::Alone, freeze::Freeze, prepared::Prepared};
pub use self::{
    barrier::{Barrier, Stopped},
    freeze::FREEZE_LIMIT,
    not_frozen::NotFrozen,
};
use crate::{
    id::Uid,
    image::{self, IdentityConflict, Image, Owner, SnapshotRecord, failed},
    pool::Pool,
    root::Root,
};

/// How long a filesystem may take to sync before it is frozen: enough for some gigabytes on a slow
/// disk.
const SYNC_LIMIT: Duration = Duration::from_mins(2);

/// A request to take a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotRequest {
    /// Name of the PoolSnapshot.
    pub snapshot: String,
    /// UID of the PoolSnapshot; names the image.
    pub uid: Uid,
    /// Name of the source PoolVolume.
    pub volume: String,
    /// Image of the source volume.
    pub source: Uid,
    /// Limits of what is cloned: more would block the source's writers for too long.
    pub extent_limits: ExtentLimits,
}

/// One member of a group of snapshots.
#[derive(Clone, Debug)]
pub struct Member<'a> {
    /// The pool of both images.
    pub pool: &'a Pool,
    /// The snapshot to take.
    pub request: SnapshotRequest,
}

/// Why no snapshot was taken. Nothing of any member remains.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An image or its pool cannot be used.
    #[error(transparent)]
    Image(#[from] image::Error),
    /// A filesystem that must not change during the snapshot could not be frozen.
    #[error("image {uid} could not be frozen: {why}")]
    FreezeFailed {
        /// Name of the volume's image.
        uid: Uid,
        /// The cause, and what to do.
        why: NotFrozen,
    },
    /// Cloning the members of a group, one after the other, would block their writers for longer than their pools allow.
    #[error(
        "the {members} volumes of the group have {extents} extents, and cloning them would block their writers for {} \
         ms, more than {} ms: take fewer volumes at a time, copy the data of one to a new volume, where it takes fewer \
         extents, or raise the pool's limit",
        stall.as_millis(),
        limit.as_millis()
    )]
    StallTooLong {
        /// Number of the members.
        members: usize,
        /// Their number of extents.
        extents: u64,
        /// How long their writers would be blocked.
        stall: Duration,
        /// Longest time for which cloning may block writers.
        limit: Duration,
    },
    /// Another part of the group ended the attempt.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

impl Root {
    /// Takes snapshots of one or several volumes at one point in time: all of them, or none. They
    /// are on the disk when it returns, in the order of the members. Fails if an image or its pool
    /// cannot be used, or if a filesystem cannot be frozen.
    ///
    /// A repeated call returns the existing snapshots with their time. When only some exist, they
    /// were never published: the call removes them and takes all again. Do not call this for a
    /// snapshot that was published.
    pub fn take_snapshots(
        &self,
        members: &[Member<'_>],
        consistency: Consistency,
        clock: fn() -> DateTime<Utc>,
    ) -> Result<Vec<Image>, Error> {
        for member in members {
            member.pool.check().map_err(image::Error::from)?;
        }
        let found = taken_earlier(members)?;
        let is_whole = found.len() == members.len() && found.windows(2).all(have_same_time);
        if !is_whole {
            for (member, _) in found {
                member.pool.remove_image(&member.request.uid)?;
            }
            let is_group = members.len() > 1;
            self.take_all(members, (consistency, is_group), &mut Alone { clock })?;
        }
        images_of(members)
    }

    /// Takes the part of a group that is on this node, in step with its other parts. Fails like
    /// [`Self::take_snapshots`], and if another part does not go on. When it returns the part is on the disk, and the
    /// group is taken once every part is.
    ///
    /// Snapshots of an earlier attempt are removed. Do not call this for a group that was taken.
    pub fn take_part(
        &self,
        members: &[Member<'_>],
        consistency: Consistency,
        barrier: &mut dyn Barrier,
    ) -> Result<Vec<Image>, Error> {
        for member in members {
            member.pool.check().map_err(image::Error::from)?;
        }
        for (member, _) in taken_earlier(members)? {
            member.pool.remove_image(&member.request.uid)?;
        }
        self.take_all(members, (consistency, true), barrier)?;
        images_of(members)
    }

    /// Takes all snapshots, none of which exists.
    fn take_all(
        &self,
        members: &[Member<'_>],
        how: (Consistency, bool),
        barrier: &mut dyn Barrier,
    ) -> Result<(), Error> {
        // Locks the sources in a fixed order, so that groups with common members do not deadlock.
        let mut ordered: Vec<_> = members.iter().collect();
        ordered.sort_by_key(|member| &member.request.source);
        let prepared = ordered.into_iter().map(Prepared::new);
        let prepared = prepared.collect::<Result<Vec<_>, _>>()?;
        let time = self.reflink(&prepared, how, barrier)?;
        commit(prepared, time)
    }

    /// Clones every member at one point in time, and returns that time.
    fn reflink(
        &self,
        members: &[Prepared<'_>],
        (consistency, is_group): (Consistency, bool),
        barrier: &mut dyn Barrier,
    ) -> Result<DateTime<Utc>, Error> {
        let must_freeze = match consistency {
            Consistency::Crash => is_group,
            Consistency::Filesystem => true,
        };
        let mut unfrozen = 0;
        let mounted = if must_freeze {
            let attached = members.iter().map(|member| {
                let found = attachment::find(&*self.system, &member.source)?;
                Ok((&member.source.image.uid, found))
            });
            let attached = attached.collect::<Result<Vec<_>, Error>>()?;
            unfrozen = refuse_unfrozen(&attached, consistency)?;
            let mounted = attached.into_iter().filter_map(|(uid, found)| match found {
                Attachment::Mounted(inside) => Some((uid.clone(), inside)),
                Attachment::None | Attachment::Device | Attachment::Unseen => None,
            });
            mounted.collect::<Vec<_>>()
        } else {
            Vec::new()
        };
        if !mounted.is_empty() {
            refuse_long_freeze(members)?;
        }
        for (uid, inside) in &mounted {
            self.sync_filesystem(uid, inside)?;
        }
        barrier.prepared(unfrozen)?;
        let freeze = Freeze::begin(self, mounted)?;
        let cloned = clone_all(members, barrier);
        // Ends the freeze even if cloning failed, so that the filesystems are thawed.
        let stayed_frozen = freeze.end();
        let time = cloned?;
        stayed_frozen?;
        Ok(time)
    }
}

impl Root {
    /// Syncs a filesystem before the freeze. Its writers continue, and little is left to be written
    /// while it is frozen.
    fn sync_filesystem(&self, uid: &Uid, inside: &OwnedFd) -> Result<(), Error> {
        let failed = || failed("sync the filesystem", uid);
        let inside = inside.try_clone().map_err(failed())?;
        let system = Arc::clone(&self.system);
        let sync = move || system.sync_filesystem(inside.as_fd());
        // A filesystem that hangs costs one thread, however often a snapshot of it is tried.
        let written = self.ask_within(uid.as_str().as_ref(), SYNC_LIMIT, sync);
        let written = written.ok_or_else(|| Error::FreezeFailed {
            uid: uid.clone(),
            why: NotFrozen::SyncTooSlow,
        })?;
        Ok(written.map_err(failed())?)
    }
}

/// Fails if the clones of a group would block its writers for too long: those of a frozen filesystem wait for all of them.
fn refuse_long_freeze(members: &[Prepared<'_>]) -> Result<(), Error> {
    let limits = members.iter().filter_map(Prepared::stall_limit);
    let limit = limits.fold(FREEZE_LIMIT, Duration::min);
    let stall: Duration = members.iter().map(Prepared::stall).sum();
    if members.len() < 2 || stall <= limit {
        return Ok(());
    }
    Err(Error::StallTooLong {
        members: members.len(),
        extents: members.iter().map(|member| member.extents).sum(),
        stall,
        limit,
    })
}

/// Clones every member once all parts are frozen, and returns the time of the group.
fn clone_all(members: &[Prepared<'_>], barrier: &mut dyn Barrier) -> Result<DateTime<Utc>, Error> {
    let time = barrier.frozen()?;
    members.iter().try_for_each(Prepared::reflink)?;
    barrier.cloned()?;
    Ok(time)
}

/// The images of snapshots that were taken, once their names are on the disk.
fn images_of(members: &[Member<'_>]) -> Result<Vec<Image>, Error> {
    let images = members.iter().map(|member| {
        let (pool, uid) = (member.pool, &member.request.uid);
        // Also for an existing snapshot: the call that took it may have failed at this sync.
        pool.system
            .sync(pool.images.as_fd())
            .map_err(failed("sync the name", uid))?;
        Ok(pool.image(uid)?.ok_or_else(|| pool.missing(uid))?)
    });
    images.collect()
}

/// Counts the members that can change while the others are frozen. Fails when there is more than one, or when a
/// filesystem-consistent snapshot cannot freeze its filesystem.
fn refuse_unfrozen(
    attached: &[(&Uid, Attachment)],
    consistency: Consistency,
) -> Result<usize, Error> {
    let freeze_failed = |uid: &Uid, why| Error::FreezeFailed {
        uid: uid.clone(),
        why,
    };
    let mut unfrozen = attached.iter().filter(|(_, found)| match found {
        Attachment::None | Attachment::Mounted(_) => false,
        Attachment::Device | Attachment::Unseen => true,
    });
    let first = unfrozen.next();
    if let Some((uid, _)) = unfrozen.next() {
        return Err(freeze_failed(uid, NotFrozen::SecondUnfrozen));
    }
    if let Some((uid, Attachment::Unseen)) = first
        && consistency == Consistency::Filesystem
    {
        return Err(freeze_failed(uid, NotFrozen::Unseen));
    }
    Ok(usize::from(first.is_some()))
}

/// Gives all members their names, or none.
fn commit(mut members: Vec<Prepared<'_>>, time: DateTime<Utc>) -> Result<(), Error> {
    members
        .iter()
        .try_for_each(|member| member.identify(time))?;
    members.iter_mut().try_for_each(Prepared::name)?;
    members.into_iter().for_each(Prepared::keep);
    Ok(())
}

/// Returns the members whose snapshots an earlier call has taken, each with its time.
fn taken_earlier<'a>(
    members: &'a [Member<'a>],
) -> Result<Vec<(&'a Member<'a>, DateTime<Utc>)>, image::Error> {
    let mut found = Vec::new();
    for member in members {
        let (pool, request) = (member.pool, &member.request);
        let Some(image) = pool.image(&request.uid)? else {
            continue;
        };
        let owner = image.identity.as_ref().map(|identity| &identity.owner);
        let record = owner.and_then(Owner::snapshot);
        let Some(record) = record.filter(|it| **it == request.record_at(it.time)) else {
            let why = owner.map_or(IdentityConflict::NoIdentity, |owner| {
                IdentityConflict::OtherOwner(Box::new(owner.clone()))
            });
            let uid = request.uid.clone();
            return Err(image::Error::IdentityConflict { uid, why });
        };
        found.push((member, record.time));
    }
    Ok(found)
}

fn have_same_time(two: &[(&Member<'_>, DateTime<Utc>)]) -> bool {
    matches!(two, [(_, first), (_, second)] if first == second)
}

impl SnapshotRequest {
    fn record_at(&self, time: DateTime<Utc>) -> SnapshotRecord {
        SnapshotRecord {
            name: self.snapshot.clone(),
            volume: self.volume.clone(),
            source: self.source.clone(),
            time,
        }
    }
}
