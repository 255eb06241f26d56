//! Writes the copy of a snapshot or of a closed volume that another node sends.
//!
//! An extended attribute records what is copied and how much of it is on the disk. A copy that is
//! complete has the identity of the original.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::Arc,
};

use cistern_types::Bytes;
use serde::{Deserialize, Serialize};

use super::{Chunk, CopyRequest, Original, point::Folder};
use crate::{
    id::Uid,
    image::{Error, IDENTITY, Identity, failed},
    layout::INCOMING,
    pool::Pool,
    system::{OFlags, System},
};

/// The extended attribute that records the state of a copy. Only root can read or change it.
pub(super) const STATE: &str = "trusted.cistern.copy";

/// Length of what the disk begins to write at a time. Smaller pieces of copies that are received at the same
/// time would lie between each other on the disk.
const WRITE_BACK: u64 = 16 << 20;

/// What is copied, and how much of it is on the disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct State {
    pub(super) original: Original,
    synced: u64,
    /// The move that a snapshot is copied for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    point_for: Option<Uid>,
    /// Image of the point that the copy began with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    base: Option<Uid>,
}

impl State {
    /// Reads the state of a copy; none if a crash came before it, or if it cannot be parsed.
    pub(super) fn read(system: &dyn System, copy: BorrowedFd<'_>) -> io::Result<Option<Self>> {
        let text = system.attribute(copy, STATE)?;
        Ok(text.and_then(|text| serde_json::from_slice(&text).ok()))
    }

    /// UID of the move that the copy is for; none for the copy of a snapshot.
    pub(super) fn moved_by(&self) -> Option<&Uid> {
        self.original.moved_by(self.point_for.as_ref())
    }

    fn is_for(&self, request: &CopyRequest) -> bool {
        self.original == request.original
            && self.point_for == request.point_for
            && self.base == request.base
    }
}

/// A copy that is being received. Nobody else can write, use or remove it while this value lives.
#[derive(Debug)]
pub struct Incoming {
    system: Arc<dyn System>,
    file: OwnedFd,
    /// The folder of the copy, if it becomes a point.
    folder: Option<Folder>,
    /// Name of the pool, for messages.
    pool: String,
    request: CopyRequest,
    /// UUID of the filesystem of the pool.
    pool_uuid: uuid::Uuid,
    /// End of what was written or is a hole.
    written: u64,
    /// End of what the disk has begun to write.
    begun: u64,
}

impl Pool {
    /// Begins to receive a copy, or goes on with one that was interrupted. A copy of something else under
    /// this name is removed, and so is a point of the volume that a copy for a move does not begin with. Fails if
    /// it is received by another caller, if the pool has the volume itself already, if the point is missing that it
    /// begins with, or if a step fails.
    pub fn receive(&self, request: &CopyRequest) -> Result<Incoming, Error> {
        self.check()?;
        let uid = &request.volume;
        if request.moved_by().is_some() || request.original.identity.uid == *uid {
            self.refuse_volume(uid)?;
        }
        let mut incoming = match self.open_incoming(uid)? {
            Some(file) => self.resume(file, request)?,
            None => None,
        };
        if incoming.is_none() {
            self.remove_any_copy(uid)?;
            let point = self.point_to_begin_with(request)?;
            let begun = self.begin_incoming(request, point.as_ref().map(|it| it.as_fd()));
            incoming = Some(begun.map_err(|source| self.no_space_or("begin", uid, source.into()))?);
        }
        incoming.ok_or_else(|| self.missing(uid))
    }

    fn resume(&self, file: OwnedFd, request: &CopyRequest) -> Result<Option<Incoming>, Error> {
        self.lock_incoming(&file, &request.volume)?;
        let state = State::read(&*self.system, file.as_fd())
            .map_err(failed("read the state of the copy", &request.volume))?;
        let Some(state) = state.filter(|state| state.is_for(request)) else {
            return Ok(None);
        };
        let incoming = self.incoming_of(file, request, state.synced);
        incoming
            .map(Some)
            .map_err(failed("open the copy", &request.volume))
    }

    /// The state of a copy; none if a crash came before it. Fails if it cannot be read or parsed.
    pub(super) fn state_of(
        &self,
        copy: BorrowedFd<'_>,
        volume: &Uid,
    ) -> Result<Option<State>, Error> {
        let read = || -> io::Result<Option<State>> {
            let text = self.system.attribute(copy, STATE)?;
            let parse = |text: Vec<u8>| serde_json::from_slice(&text);
            Ok(text.map(parse).transpose()?)
        };
        read().map_err(failed("read the state of the copy", volume))
    }

    fn begin_incoming(
        &self,
        request: &CopyRequest,
        point: Option<BorrowedFd<'_>>,
    ) -> io::Result<Incoming> {
        let system = &*self.system;
        let folder = self.make_folder(INCOMING)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let name = request.volume.as_str().as_ref();
        let file = system.open_beneath(folder.as_fd(), name, flags)?;
        if !system.try_lock(file.as_fd())? {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        if let Some(size) = request.extent_size {
            system.set_extent_size(file.as_fd(), size.bytes().0)?;
        }
        if let Some(point) = point {
            system.reflink(point, file.as_fd())?;
        }
        system.truncate(file.as_fd(), request.original.size.0)?;
        // With the state, the disk says that the copy began with the point.
        system.sync(file.as_fd())?;
        let incoming = self.incoming_of(file, request, 0)?;
        system.set_attribute(incoming.file.as_fd(), STATE, &incoming.state()?)?;
        system.sync(incoming.file.as_fd())?;
        system.sync(folder.as_fd())?;
        Ok(incoming)
    }

    fn incoming_of(
        &self,
        file: OwnedFd,
        request: &CopyRequest,
        written: u64,
    ) -> io::Result<Incoming> {
        let folder = || self.open_folder(INCOMING).map(Folder);
        let folder = request.point_for.is_some().then(folder).transpose()?;
        Ok(Incoming {
            system: Arc::clone(&self.system),
            file,
            folder,
            pool: self.to_string(),
            request: request.clone(),
            pool_uuid: self.filesystem_uuid(),
            written,
            begun: written,
        })
    }
}

impl Incoming {
    /// Offset up to which nothing has to be sent any more.
    pub fn written(&self) -> Bytes {
        Bytes(self.written)
    }

    /// Writes a chunk. What lies between it and the one before is a hole, or as it is in the point that the copy
    /// began with. Fails if it begins before the end of the one before, or exceeds the original, or if the pool
    /// lacks space.
    pub fn write(&mut self, chunk: &Chunk) -> Result<(), Error> {
        let size = self.request.original.size.0;
        let end = chunk.end();
        let Some(end) = end.filter(|end| *end <= size && chunk.offset >= self.written) else {
            let place = format!(
                "{} bytes and {} zeros at {} do not follow the {} of {size} bytes that were written",
                chunk.data.len(),
                chunk.zeros,
                chunk.offset,
                self.written
            );
            let source = io::Error::new(io::ErrorKind::InvalidData, place);
            return Err(failed("write the copy", &self.request.volume)(source));
        };
        let (system, file) = (&*self.system, self.file.as_fd());
        let write = || -> io::Result<()> {
            if !chunk.data.is_empty() {
                system.write(file, chunk.offset, &chunk.data)?;
            }
            if chunk.zeros > 0 {
                system.punch(file, &(end - chunk.zeros..end))?;
            }
            Ok(())
        };
        write().map_err(|source| self.failed("write the copy", source))?;
        self.written = end;
        self.write_back()
    }

    /// Lets the disk write while the next chunks arrive, so that a sync takes little time.
    fn write_back(&mut self) -> Result<(), Error> {
        let part = self.begun..self.written;
        if part.end - part.start < WRITE_BACK {
            return Ok(());
        }
        let begun = self.system.write_back(self.file.as_fd(), &part);
        begun.map_err(|source| self.failed("write the copy", source))?;
        self.begun = part.end;
        Ok(())
    }

    /// Syncs what was written, and records it: an interrupted copy goes on there.
    pub fn sync(&mut self) -> Result<(), Error> {
        let record = || -> io::Result<()> {
            let file = self.file.as_fd();
            self.system.sync(file)?;
            self.system.replace_attribute(file, STATE, &self.state()?)?;
            self.system.sync(file)
        };
        record().map_err(|source| self.failed("sync the copy", source))?;
        self.begun = self.written;
        Ok(())
    }

    /// Completes the copy after its last chunk: it becomes the point of the volume, or can be opened. Idempotent.
    pub fn complete(mut self) -> Result<(), Error> {
        self.written = self.request.original.size.0;
        self.sync()?;
        if let Some(folder) = &self.folder {
            let kept = folder.keep(&*self.system, &self.request.volume);
            return kept.map_err(|source| self.failed("keep the copy as a point", source));
        }
        let identity = Identity {
            pool_uuid: self.pool_uuid,
            ..self.request.original.identity.clone()
        };
        let record = || match self.system.attribute(self.file.as_fd(), IDENTITY)? {
            // An earlier call may have failed at the sync.
            Some(_) => self.system.sync(self.file.as_fd()),
            None => identity.write(&*self.system, self.file.as_fd()),
        };
        record().map_err(|source| self.failed("write the identity of the copy", source))
    }

    fn state(&self) -> io::Result<Vec<u8>> {
        let state = State {
            original: self.request.original.clone(),
            synced: self.written,
            point_for: self.request.point_for.clone(),
            base: self.request.base.clone(),
        };
        serde_json::to_vec(&state).map_err(io::Error::other)
    }

    fn failed(&self, operation: &'static str, source: io::Error) -> Error {
        let uid = &self.request.volume;
        if source.kind() == io::ErrorKind::StorageFull {
            let (uid, pool) = (uid.clone(), self.pool.clone());
            return Error::NoSpace {
                uid,
                pool,
                source: source.into(),
            };
        }
        failed(operation, uid)(source)
    }
}
