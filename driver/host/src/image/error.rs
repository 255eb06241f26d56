//! Why an operation on an image failed.

use std::time::Duration;

use cistern_types::FilesystemType;

use super::{FilesystemConflict, IdentityConflict, NotAdoptable};
use crate::{
    cause::Cause,
    check,
    encryption::HeaderConflict,
    id::Uid,
    pool,
    system::{DeviceNumber, Holder, named},
};

/// Why an operation on an image failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The pool cannot be used.
    #[error(transparent)]
    Pool(#[from] pool::Error),
    /// No image has this name.
    #[error("image {uid} is not in pool {pool}")]
    Missing {
        /// Name of the image.
        uid: Uid,
        /// Name of the StoragePool.
        pool: String,
    },
    /// The source image does not exist.
    #[error("image {uid}, the source, is not in pool {pool}")]
    SourceMissing {
        /// Name of the source.
        uid: Uid,
        /// Name of the StoragePool.
        pool: String,
    },
    /// The image has more extents than the pool's limit for cloning.
    #[error(
        "image {uid} has {extents} extents, more than the {limit} that are cloned: copy its data to a new volume, \
         where it takes fewer, or raise the pool's limit"
    )]
    TooManyExtents {
        /// Name of the source.
        uid: Uid,
        /// Its number of extents.
        extents: u64,
        /// Highest number of extents of an image that is cloned.
        limit: u64,
    },
    /// Cloning the image would block its writers for longer than the pool allows.
    #[error(
        "image {uid} has {extents} extents, and cloning it would block its writers for {} ms, more than {} ms: copy \
         its data to a new volume, where it takes fewer, or raise the pool's limit",
        stall.as_millis(),
        limit.as_millis()
    )]
    StallTooLong {
        /// Name of the source.
        uid: Uid,
        /// Its number of extents.
        extents: u64,
        /// How long its writers would be blocked.
        stall: Duration,
        /// Longest time for which cloning may block writers.
        limit: Duration,
    },
    /// The image of this name belongs to another volume, or was made with another spec.
    #[error("image {uid} does not match the request: {why}; it is not changed")]
    IdentityConflict {
        /// Name of the image.
        uid: Uid,
        /// What differs.
        why: IdentityConflict,
    },
    /// The image does not contain the filesystem that was made in it.
    #[error("image {uid} does not hold the filesystem that was made in it: {why}")]
    FilesystemConflict {
        /// Name of the image.
        uid: Uid,
        /// What differs.
        why: FilesystemConflict,
    },
    /// The image is encrypted, and the request has no key.
    #[error(
        "image {uid} is encrypted, and the request has no key: the StorageClass has to name its Secret in \
         csi.storage.k8s.io/node-stage-secret-name and -namespace"
    )]
    KeyNeeded {
        /// Name of the image.
        uid: Uid,
    },
    /// No key of the request opens the encrypted image.
    #[error(
        "image {uid} is encrypted with another key than those of its Secret: put the key that it was made with there \
         as previousKey; without that key its data is lost"
    )]
    WrongKey {
        /// Name of the image.
        uid: Uid,
    },
    /// The file of an encrypted image is not what was made, or the image is not encrypted.
    #[error("image {uid} is not opened with a key: {why}; it is not changed")]
    EncryptionConflict {
        /// Name of the image.
        uid: Uid,
        /// What is in the way.
        why: HeaderConflict,
    },
    /// The content of a raw block volume is not a filesystem that can be adopted.
    #[error("image {uid} is not adopted as a filesystem: {why}; it is not changed")]
    NotAdoptable {
        /// Name of the image.
        uid: Uid,
        /// What is in the way.
        why: NotAdoptable,
    },
    /// The filesystem is damaged and needs a manual repair.
    #[error(
        "the {filesystem} in image {uid} is damaged and is not mounted: {report}; repair it with {}, or restore the \
         volume from a backup",
        repair_tool(*.filesystem)
    )]
    Damaged {
        /// Name of the image.
        uid: Uid,
        /// Type of the filesystem.
        filesystem: FilesystemType,
        /// Output of the tool, or the kernel's error.
        report: String,
    },
    /// The filesystem needs a full check first, which the caller did not allow in this call.
    #[error("the filesystem in image {uid} must be checked first")]
    CheckNeeded {
        /// Name of the image.
        uid: Uid,
    },
    /// Checking the filesystem needs more memory or processor time than a check may use.
    #[error(
        "the filesystem in image {uid} is too large to be checked by the node plugin, whose checks have {} of memory \
         and {:?} of processor time: {report}; run e2fsck -f -p on the image on its node, where it may take more",
        check::LIMITS.address_space,
        check::LIMITS.cpu
    )]
    TooLargeToCheck {
        /// Name of the image.
        uid: Uid,
        /// Output of the tool.
        report: String,
    },
    /// The image is attached, in this or another mount namespace, or is being read.
    #[error("image {uid} is still {by}")]
    InUse {
        /// Name of the image.
        uid: Uid,
        /// How it is used.
        by: ImageUse,
    },
    /// The image is closing or closed for a move, or the pool has a copy of it that moves here.
    #[error(
        "image {uid} is being moved by the VolumeMove with UID {by}: until that has ended, the volume is not made, \
         staged, published, grown or removed here"
    )]
    Moving {
        /// Name of the image.
        uid: Uid,
        /// UID of the move.
        by: Uid,
    },
    /// The image is closed only after it was marked as closing.
    #[error(
        "image {uid} is not marked as closing for the VolumeMove with UID {by}, and is not closed"
    )]
    NotClosing {
        /// Name of the image.
        uid: Uid,
        /// UID of the move.
        by: Uid,
    },
    /// The pool supports no such volume or operation.
    #[error(
        "pool {pool} is a volume group of LVM, which does not support {what}: use a pool of an image or a device"
    )]
    Unsupported {
        /// What was requested.
        what: &'static str,
        /// Name of the StoragePool.
        pool: String,
    },
    /// The pool's filesystem is full.
    #[error("pool {pool} has no space left for image {uid}")]
    NoSpace {
        /// Name of the image.
        uid: Uid,
        /// Name of the StoragePool.
        pool: String,
        /// Why the step failed.
        #[source]
        source: Cause,
    },
    /// A step failed.
    #[error("could not {operation} of image {uid}")]
    Failed {
        /// What was tried.
        operation: &'static str,
        /// Name of the image.
        uid: Uid,
        /// Why it failed.
        #[source]
        source: Cause,
    },
}

impl From<pool::GroupError> for Error {
    fn from(error: pool::GroupError) -> Self {
        Self::Pool(error.into())
    }
}

/// How an image is used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageUse {
    /// A loop device is bound to it.
    #[error("attached as /dev/loop{device}{}", held_by(.holders))]
    Attached {
        /// Number of the loop device.
        device: u32,
        /// Devices that something on the node has made of the content of the volume.
        holders: Vec<Holder>,
    },
    /// It is a logical volume whose device is open: it is mounted, or a pod uses it.
    #[error("used as block device {device}")]
    Mapped {
        /// Number of its device.
        device: DeviceNumber,
    },
    /// It is a logical volume that has a snapshot or a cache.
    #[error(
        "the origin of {}, a snapshot or a cache that was made with LVM: remove that on the node first", .of.join(", ")
    )]
    Origin {
        /// Names of the logical volumes that are made of it.
        of: Vec<String>,
    },
    /// A snapshot, a clone, a check or a transfer to another node is reading it.
    #[error("read or checked")]
    Locked,
    /// Another node is sending it.
    #[error("received from another node")]
    Received,
}

fn held_by(holders: &[Holder]) -> String {
    if holders.is_empty() {
        return String::new();
    }
    let holders = named(holders);
    format!(", and held by {holders}: deactivate that on the node")
}

const fn repair_tool(filesystem: FilesystemType) -> &'static str {
    match filesystem {
        FilesystemType::Ext4 => "e2fsck",
        FilesystemType::Xfs => "xfs_repair",
        FilesystemType::Btrfs => "btrfs check",
    }
}

pub(crate) fn failed<E: Into<Cause>>(
    operation: &'static str,
    uid: &Uid,
) -> impl FnOnce(E) -> Error + use<E> {
    let uid = uid.clone();
    move |source| Error::Failed {
        operation,
        uid,
        source: source.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_an_attached_image_names_what_holds_its_device() {
        let error = |holders| Error::InUse {
            uid: "uid-1".parse().unwrap(),
            by: ImageUse::Attached { device: 5, holders },
        };
        let array = Holder {
            name: "md127".to_owned(),
            mapping: None,
        };
        assert_eq!(
            error(vec![]).to_string(),
            "image uid-1 is still attached as /dev/loop5"
        );
        assert_eq!(
            error(vec![array]).to_string(),
            "image uid-1 is still attached as /dev/loop5, and held by the array md127: deactivate that on the node"
        );
    }
}
