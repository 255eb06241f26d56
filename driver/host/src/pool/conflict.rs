//! What is found in a pool's place instead of the pool.

use std::path::PathBuf;

use crate::{
    id::{Uid, Uuid},
    system::LoopSettings,
};

/// Why a file, a device or a mounted filesystem is not the pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    /// The file holds no XFS.
    #[error("it holds no XFS")]
    NoXfs,
    /// Another filesystem is mounted.
    #[error("it is not an XFS")]
    NotXfs,
    /// Its XFS cannot clone files.
    #[error("it is an XFS without reflink")]
    NoReflink,
    /// The filesystem is not the recorded one.
    #[error("its UUID is {found} and not {expected}")]
    Uuid {
        /// UUID that was found.
        found: Uuid,
        /// The recorded UUID.
        expected: Uuid,
    },
    /// The label is not made from the pool's UID.
    #[error("its label is {found:?}")]
    Label {
        /// Label that was found.
        found: String,
    },
    /// The label of a file is not made from the file's name.
    #[error("it holds no pool of this name")]
    NoPool,
    /// The marker is missing.
    #[error("it has no marker")]
    NoMarker,
    /// The marker is missing, and the filesystem is not empty.
    #[error("it holds files and has no marker")]
    FilesWithoutMarker,
    /// The marker cannot be parsed.
    #[error("its marker cannot be read ({error})")]
    UnreadableMarker {
        /// Error of the parser.
        error: String,
    },
    /// The marker changed while the pool is mounted.
    #[error("its marker is not the one that was read before")]
    MarkerChanged,
    /// The marker names another filesystem.
    #[error("it is a copy: its marker names another UUID")]
    Copy,
    /// The marker names another pool.
    #[error("it is pool {name} ({uid})")]
    OtherPool {
        /// Name of its StoragePool.
        name: String,
        /// UID of its StoragePool.
        uid: Uid,
    },
    /// Another file has the name of the mounted one.
    #[error("it was replaced while the pool is mounted")]
    Replaced,
}

/// What is found at the mount point of a pool that is not mounted there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotMounted {
    /// Nothing is mounted there.
    #[error("nothing is mounted there")]
    Nothing,
    /// Another mount than that of the open pool is there.
    #[error("something else is mounted there")]
    OtherMount,
    /// A filesystem of another device is mounted there.
    #[error("{filesystem} from {device} is mounted there")]
    OtherDevice {
        /// Type of the filesystem.
        filesystem: String,
        /// Device of that filesystem.
        device: PathBuf,
    },
}

/// The feature that the filesystem of the host lacks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostFault {
    /// It does not allocate the space of a file in advance.
    #[error("does not preallocate space for a file, so other files could take it")]
    NoPreallocation,
    /// It has no direct I/O.
    #[error("has no direct I/O with sectors of 4096 bytes ({found})")]
    NoDirectIo {
        /// The settings of a loop device on it.
        found: LoopSettings,
    },
}

/// Why a directory of the host cannot hold the file of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DirectoryFault {
    /// It does not exist.
    #[error("it does not exist: mount its disk, and create it there")]
    Missing,
    /// Something else than a directory is there, or in its path.
    #[error("it is not a directory")]
    NoDirectory,
    /// A part of its path is a symbolic link, which may lead out of the allowed directory.
    #[error("a part of its path is a symbolic link: name the directory itself")]
    SymbolicLink,
    /// It is in the filesystem of a pool or volume of this host.
    #[error("it is in a pool or volume of Cistern: name a directory of another filesystem")]
    InPool,
    /// It is on the filesystem of the folder of the pools, as the mount point of a missing disk usually is.
    #[error(
        "it is on the same filesystem as the default folder of the pools, so its disk is probably not mounted: mount \
         the disk, or declare a pool without a directory"
    )]
    DefaultFilesystem,
}
