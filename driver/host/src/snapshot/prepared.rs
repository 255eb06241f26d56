//! One member of a group of snapshots, before and after the clone.

use std::{io, time::Duration};

use chrono::{DateTime, Utc};
use cistern_types::Bytes;

use super::{Error, Member};
use crate::image::{
    self, Identity, IdentityConflict, Owner, failed, read::Reading, unfinished::Unfinished,
};

/// A member with everything done that can be done before the freeze.
pub(super) struct Prepared<'a> {
    member: &'a Member<'a>,
    pub(super) source: Reading,
    pub(super) extents: u64,
    identity: Identity,
    image: Unfinished<'a>,
}

impl<'a> Prepared<'a> {
    pub(super) fn new(member: &'a Member<'a>) -> Result<Self, Error> {
        let (pool, request) = (member.pool, &member.request);
        let source = pool.read_source(&request.source)?;
        let identity = source.image.identity.clone().filter(|found| {
            found.owner.volume() == Some(&request.volume)
                && found.pool_uuid == pool.filesystem_uuid()
        });
        let identity = identity.ok_or_else(|| image::Error::IdentityConflict {
            uid: request.source.clone(),
            why: IdentityConflict::OtherVolume {
                volume: request.volume.clone(),
                pool: pool.to_string(),
            },
        })?;
        let extents = pool.refuse_extents(&source, request.extent_limits)?;
        let image = Unfinished::begin(pool, &request.uid, None)?;
        Ok(Self {
            member,
            source,
            extents,
            identity,
            image,
        })
    }

    /// How long the clone blocks the writers of the source.
    pub(super) fn stall(&self) -> Duration {
        self.member.pool.extent_cost.of(self.extents)
    }

    /// The longest time for which cloning may block the writers of the source; none for no limit.
    pub(super) fn stall_limit(&self) -> Option<Duration> {
        self.member.request.extent_limits.stall
    }

    /// Clones the source.
    pub(super) fn reflink(&self) -> Result<(), image::Error> {
        let (pool, uid) = (self.member.pool, &self.member.request.uid);
        pool.copy_extents(&self.source, self.image.as_fd(), self.extents)
            .map_err(|source| pool.no_space_or("clone the source", uid, source.into()))
    }

    /// Writes the identity of the snapshot and syncs the file.
    pub(super) fn identify(&self, time: DateTime<Utc>) -> Result<(), image::Error> {
        let (pool, request) = (self.member.pool, &self.member.request);
        let write = || -> io::Result<()> {
            let size = pool.system.stat(self.image.as_fd())?.size;
            self.image.identify(&Identity {
                owner: Owner::Snapshot(request.record_at(time)),
                uid: request.uid.clone(),
                size: Bytes(size).saturating_sub(self.identity.header()),
                source: None,
                ..self.identity.clone()
            })
        };
        write()
            .map_err(|source| pool.no_space_or("write the identity", &request.uid, source.into()))
    }

    /// Gives the image its name. Dropping this value still removes it, until [`Self::keep`] is
    /// called.
    pub(super) fn name(&mut self) -> Result<(), image::Error> {
        let uid = &self.member.request.uid;
        self.image.name().map_err(failed("give a name", uid))
    }

    /// Marks the snapshot as complete: dropping no longer removes it.
    pub(super) fn keep(self) {
        self.image.keep();
    }
}
