//! Snapshots: what a volume's image holds at one moment, kept in an image of its own; and groups of
//! them, of the same moment.
//!
//! ```text
//! prepare     sources locked, extents counted, empty files made, filesystems written out
//!    ┌─ hold        filesystems frozen, all at once
//!    │  moment      clock
//!    │  reflink     one FICLONE for each member
//!    └─ release     filesystems thawed
//! keep        identities, fsync; then names, and a sync of each directory
//! ```
//!
//! Why it is one moment. FICLONE and a write of a loop device, which is direct, wait for each other
//! at the lock of the image's inode: a clone falls between two writes, and has every write that was
//! acknowledged before. That is enough for one image. Of a group, the images with a mounted
//! filesystem do not change from the last freeze to the first thaw, and all clones are made between
//! the two; those that nobody has attached cannot be attached meanwhile, because their lock is held;
//! and there is at most one other, a raw block volume, whose writers nothing can stop. So each clone
//! is what its image was at the moment at which that one was cloned.
//!
//! *Invariants:* a snapshot has its name only when it is whole and on the disk; of a group, all are
//! returned or none; no filesystem stays frozen for longer than [`HOLD_LIMIT`]; what was thawed before
//! its clone was made is not kept; and the image of a snapshot is never written to.

mod attachment;
mod freezes;
mod hold;
mod prepared;
mod thaw;

use std::{
    os::fd::{AsFd as _, OwnedFd},
    sync::Arc,
    time::Duration,
};

use chrono::{DateTime, Utc};
use cistern_crds::Consistency;

pub(crate) use self::freezes::Freezes;
pub use self::hold::HOLD_LIMIT;
use self::{attachment::Attachment, hold::Hold, prepared::Prepared};
use crate::{
    id::Uid,
    image::{self, Cut, Image, Owner, failed},
    pool::Pool,
    root::Root,
};

/// How long a filesystem may take to write out what it has only in memory, before it is held: some
/// gigabytes on a slow disk.
const WRITE_OUT_LIMIT: Duration = Duration::from_mins(2);

/// A snapshot to be cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotRequest {
    /// Name of the PoolSnapshot.
    pub snapshot: String,
    /// Its UID, which names the image.
    pub uid: Uid,
    /// Name of the PoolVolume that it is of.
    pub volume: String,
    /// That volume's image.
    pub source: Uid,
    /// With how many extents the source is not cut: its writers would wait for too long.
    pub maximum_extents: u64,
}

/// One snapshot of those that are cut together.
#[derive(Clone, Debug)]
pub struct Member<'a> {
    /// The pool of both images.
    pub pool: &'a Pool,
    /// What is to be cut.
    pub request: SnapshotRequest,
}

/// Why nothing was cut. Nothing of any member remains.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An image or its pool cannot be used.
    #[error(transparent)]
    Image(#[from] image::Error),
    /// What must not change while it is cut could not be made to.
    #[error("image {uid} could not be held still: {why}")]
    NotHeldStill {
        /// Name of the volume's image.
        uid: Uid,
        /// Why, and what to do.
        why: String,
    },
}

impl Root {
    /// Cuts snapshots of one or several volumes at one moment: all of them, or none. They are on the
    /// disk when it returns, in the order of the members.
    ///
    /// A repeated call finds what is there, with the moment that it shows. Where only some are there,
    /// which nobody was ever told of, they go, and all are cut anew: so this is not to be called for
    /// a snapshot that was announced.
    pub fn cut(
        &self,
        members: &[Member<'_>],
        consistency: Consistency,
        clock: fn() -> DateTime<Utc>,
    ) -> Result<Vec<Image>, Error> {
        for member in members {
            member.pool.check().map_err(image::Error::from)?;
        }
        let found = cut_earlier(members)?;
        let is_whole = found.len() == members.len() && found.windows(2).all(are_of_one_moment);
        if !is_whole {
            for (member, _) in found {
                member.pool.remove_image(&member.request.uid)?;
            }
            self.cut_all(members, consistency, clock)?;
        }
        let images = members.iter().map(|member| {
            let (pool, uid) = (member.pool, &member.request.uid);
            // Also of one that an earlier call cut: it may have failed just here.
            pool.system
                .sync(pool.images.as_fd())
                .map_err(failed("keep the name", uid))?;
            Ok(pool.image(uid)?.ok_or_else(|| pool.missing(uid))?)
        });
        images.collect()
    }

    /// Cuts all members, none of which is there.
    fn cut_all(
        &self,
        members: &[Member<'_>],
        consistency: Consistency,
        clock: fn() -> DateTime<Utc>,
    ) -> Result<(), Error> {
        // In one order, whatever that of the members, so that no two groups that share some wait
        // for each other.
        let mut ordered: Vec<_> = members.iter().collect();
        ordered.sort_by_key(|member| &member.request.source);
        let prepared = ordered.into_iter().map(Prepared::new);
        let prepared = prepared.collect::<Result<Vec<_>, _>>()?;
        let time = self.reflink(&prepared, consistency, clock)?;
        keep(prepared, time)
    }

    /// Clones every member at one moment, and says at which.
    fn reflink(
        &self,
        members: &[Prepared<'_>],
        consistency: Consistency,
        clock: fn() -> DateTime<Utc>,
    ) -> Result<DateTime<Utc>, Error> {
        let is_group = members.len() > 1;
        let still = match consistency {
            Consistency::Crash => is_group,
            Consistency::Filesystem => true,
        };
        let mounted = if still {
            let attached = members.iter().map(|member| {
                let found = attachment::find(&*self.system, &member.source)?;
                Ok((&member.source.image.uid, found))
            });
            let attached = attached.collect::<Result<Vec<_>, Error>>()?;
            refuse_unheld(&attached, consistency)?;
            let mounted = attached.into_iter().filter_map(|(uid, found)| match found {
                Attachment::Mounted(inside) => Some((uid.clone(), inside)),
                Attachment::None | Attachment::Device | Attachment::Unseen => None,
            });
            mounted.collect::<Vec<_>>()
        } else {
            Vec::new()
        };
        for (uid, inside) in &mounted {
            self.write_out(uid, inside)?;
        }
        let hold = Hold::begin(self, mounted)?;
        let time = clock();
        let cloned = members.iter().try_for_each(Prepared::reflink);
        // Also when it failed: they are thawed when this returns.
        let was_still = hold.end();
        cloned?;
        was_still?;
        Ok(time)
    }
}

impl Root {
    /// Has a filesystem write out what it has only in memory. Its writers go on meanwhile, and little
    /// is left to be written while it is frozen.
    fn write_out(&self, uid: &Uid, inside: &OwnedFd) -> Result<(), Error> {
        let failed = || failed("write out the filesystem", uid);
        let inside = inside.try_clone().map_err(failed())?;
        let system = Arc::clone(&self.system);
        let sync = move || system.sync_filesystem(inside.as_fd());
        // One that hangs costs one thread, however often it is to be cut.
        let written = self.ask_within(uid.as_str().as_ref(), WRITE_OUT_LIMIT, sync);
        let written = written.ok_or_else(|| Error::NotHeldStill {
            uid: uid.clone(),
            why: format!(
                "its filesystem was not written out within {WRITE_OUT_LIMIT:?}: try again"
            ),
        })?;
        Ok(written.map_err(failed())?)
    }
}

/// Of a group, one member at most may change while the others are held. Of one that is to be at
/// rest, none.
fn refuse_unheld(attached: &[(&Uid, Attachment)], consistency: Consistency) -> Result<(), Error> {
    let not_held = |uid: &Uid, why: &str| Error::NotHeldStill {
        uid: uid.clone(),
        why: why.to_owned(),
    };
    let mut unheld = attached.iter().filter(|(_, found)| match found {
        Attachment::None | Attachment::Mounted(_) => false,
        Attachment::Device | Attachment::Unseen => true,
    });
    let first = unheld.next();
    if let Some((uid, _)) = unheld.next() {
        return Err(not_held(
            uid,
            "a group can have one attached volume whose writers cannot be stopped, and this is a \
             second one; nothing stops those of a raw block volume: cut it by itself, or while no \
             pod has it",
        ));
    }
    if let Some((uid, Attachment::Unseen)) = first
        && consistency == Consistency::Filesystem
    {
        return Err(not_held(
            uid,
            "it is attached, but its filesystem is not mounted where the driver sees it: try again",
        ));
    }
    Ok(())
}

/// Gives all their names, or none.
fn keep(mut members: Vec<Prepared<'_>>, time: DateTime<Utc>) -> Result<(), Error> {
    members
        .iter()
        .try_for_each(|member| member.identify(time))?;
    members.iter_mut().try_for_each(Prepared::name)?;
    members.into_iter().for_each(Prepared::keep);
    Ok(())
}

/// The members that an earlier call has cut, each with the moment that it shows.
fn cut_earlier<'a>(
    members: &'a [Member<'a>],
) -> Result<Vec<(&'a Member<'a>, DateTime<Utc>)>, image::Error> {
    let mut found = Vec::new();
    for member in members {
        let (pool, request) = (member.pool, &member.request);
        let Some(image) = pool.image(&request.uid)? else {
            continue;
        };
        let owner = image.identity.as_ref().map(|identity| &identity.owner);
        let cut = owner.and_then(Owner::snapshot);
        let Some(cut) = cut.filter(|cut| **cut == request.cut_at(cut.time)) else {
            let owner = owner.map_or_else(|| "nobody's".to_owned(), Owner::to_string);
            return Err(image::Error::IdentityConflict {
                uid: request.uid.clone(),
                why: format!("it is {owner}"),
            });
        };
        found.push((member, cut.time));
    }
    Ok(found)
}

fn are_of_one_moment(two: &[(&Member<'_>, DateTime<Utc>)]) -> bool {
    matches!(two, [(_, first), (_, second)] if first == second)
}

impl SnapshotRequest {
    fn cut_at(&self, time: DateTime<Utc>) -> Cut {
        Cut {
            name: self.snapshot.clone(),
            volume: self.volume.clone(),
            source: self.source.clone(),
            time,
        }
    }
}
