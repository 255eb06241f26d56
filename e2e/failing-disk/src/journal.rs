//! What a disk was asked to write, in order, for tests of power cuts.

use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use rustix::fs::{FallocateFlags, fallocate};

/// A request that changes the disk, or makes former ones durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Data, from this byte on.
    Write {
        /// The first byte.
        offset: u64,
        /// The data.
        data: Vec<u8>,
    },
    /// A range that is discarded or becomes zero, as the flags of fallocate(2) say.
    Allocate {
        /// Flags of fallocate(2).
        flags: u32,
        /// The first byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
    /// All requests that were answered before are durable.
    Flush,
}

impl Change {
    /// The byte behind the last one that it changes; 0 for a flush.
    pub fn end(&self) -> u64 {
        match self {
            Self::Write { offset, data } => offset.saturating_add(data.len() as u64),
            Self::Allocate { offset, length, .. } => offset.saturating_add(*length),
            Self::Flush => 0,
        }
    }

    /// Makes the change in a file that holds the disk.
    pub fn apply(&self, disk: &File) -> io::Result<()> {
        match self {
            Self::Write { offset, data } => disk.write_all_at(data, *offset),
            Self::Allocate {
                flags,
                offset,
                length,
            } => {
                let flags = FallocateFlags::from_bits_retain(*flags);
                Ok(fallocate(disk, flags, *offset, *length)?)
            }
            Self::Flush => Ok(()),
        }
    }

    /// Appends the change to a journal, by one write.
    pub fn append(&self, mut journal: &File) -> io::Result<()> {
        let none: &[u8] = &[];
        let (kind, offset, length, data) = match self {
            Self::Write { offset, data } => (0, *offset, data.len() as u64, data.as_slice()),
            Self::Allocate {
                flags,
                offset,
                length,
            } => (2 + u64::from(*flags), *offset, *length, none),
            Self::Flush => (1, 0, 0, none),
        };
        let mut record: Vec<u8> = [kind, offset, length]
            .into_iter()
            .flat_map(u64::to_le_bytes)
            .collect();
        record.extend_from_slice(data);
        journal.write_all(&record)
    }

    /// Reads a journal. Fails if it ends in the middle of a change.
    pub fn read_all(journal: &Path) -> io::Result<Vec<Self>> {
        let bytes = std::fs::read(journal)?;
        let mut rest = bytes.as_slice();
        let mut changes = Vec::new();
        while !rest.is_empty() {
            changes.push(Self::read(&mut rest)?);
        }
        Ok(changes)
    }

    fn read(rest: &mut &[u8]) -> io::Result<Self> {
        let mut number = || {
            let mut bytes = [0; 8];
            rest.read_exact(&mut bytes)
                .map(|()| u64::from_le_bytes(bytes))
        };
        let (kind, offset, length) = (number()?, number()?, number()?);
        match kind {
            0 => {
                let mut data = vec![0; usize::try_from(length).map_err(io::Error::other)?];
                rest.read_exact(&mut data)?;
                Ok(Self::Write { offset, data })
            }
            1 => Ok(Self::Flush),
            _ => Ok(Self::Allocate {
                flags: u32::try_from(kind - 2).map_err(io::Error::other)?,
                offset,
                length,
            }),
        }
    }
}

/// The journal of the disk over a file.
pub fn journal_file(backing: &Path) -> PathBuf {
    let mut path = backing.as_os_str().to_owned();
    path.push(".journal");
    path.into()
}
