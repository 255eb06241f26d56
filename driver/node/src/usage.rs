//! A volume as it can be used on this node, and the requested usage. Pure.

use std::fmt;

use cistern_crds::{
    AccessMode, AccessType, Bytes, Encryption, ExtentSize, FenceState, FilesystemType,
    HasImage as _, IoLimits, MkfsOptions, PoolVolume, Provisioning,
};
use cistern_host::{Content, MountOptions, Uid, options};
use kube::ResourceExt as _;

use crate::image::mkfs_options_of;

/// The requested usage of a volume.
#[derive(Clone, PartialEq, Eq)]
pub struct Usage {
    /// A filesystem, or the bare block device.
    pub access_type: AccessType,
    /// The access mode.
    pub access_mode: AccessMode,
    /// The filesystem; None for any.
    pub filesystem: Option<FilesystemType>,
    /// Mount options as in the request. They may contain secrets (SEC-05).
    pub mount_flags: Vec<String>,
}

/// A volume that has an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// The volume id.
    pub name: String,
    /// Name of its pool.
    pub pool: String,
    /// Name of its image.
    pub image: Uid,
    /// Size of its image.
    pub size: Bytes,
    /// Its filesystem, or raw block.
    pub content: Content,
    /// Whether all of its blocks are allocated.
    pub provisioning: Provisioning,
    /// Limits of its I/O, without those of its pool.
    pub io_limits: IoLimits,
    /// The extent size hint of its image.
    pub extent_size: Option<ExtentSize>,
    /// Whether discards inside the encrypted volume free space of its pool.
    pub encryption_discards: bool,
    /// Options for mkfs, for an encrypted volume that is staged for the first time.
    pub mkfs_options: MkfsOptions,
    /// Whether a filesystem that a program has written to the raw block volume may be adopted.
    adopts_filesystem: bool,
    /// The number of takeovers of its pool with which its image was verified.
    takeovers: u32,
    /// Whether a move of it to another node is declared.
    is_moving: bool,
    access_modes: Vec<AccessMode>,
}

impl Usage {
    /// Whether the access mode is read-only, regardless of `readonly` (NPV-17).
    pub fn is_read_only(&self) -> bool {
        self.access_mode.is_read_only()
    }

    /// The mount options for a volume with this filesystem (VCP-13). Fails if one is not supported.
    pub fn options(
        &self,
        filesystem: FilesystemType,
    ) -> Result<MountOptions, options::Unsupported> {
        MountOptions::parse(filesystem, self.mount_flags.iter().map(String::as_str))
    }
}

impl fmt::Debug for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Usage")
            .field("access_type", &self.access_type)
            .field("access_mode", &self.access_mode)
            .field("filesystem", &self.filesystem)
            .finish_non_exhaustive()
    }
}

/// Why a volume cannot be used, or not as requested. The messages follow the name of the volume.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// The agent has committed the deletion.
    #[error("its data is being destroyed, as requested")]
    BeingDestroyed,
    /// The agent has not created the image yet.
    #[error("it is not made yet")]
    NotReady,
    /// Its image was last verified on another node, or before the pool was taken over.
    #[error("its disk was in another machine, and its image is not verified on this node yet")]
    NotVerified,
    /// Its image is closed, or is to be closed.
    #[error("it moves to another node, and no other pod gets it on this one")]
    Moving,
    /// A field of the spec cannot be parsed.
    #[error("its spec has no valid {0}")]
    InvalidSpec(&'static str),
    /// A field of the status cannot be parsed.
    #[error("its status has no valid {0}")]
    InvalidStatus(&'static str),
    /// A raw block volume is requested as a filesystem.
    #[error("it is a raw block volume and has no filesystem")]
    NoFilesystem,
    /// A filesystem volume is requested as a block device.
    #[error("it has a filesystem and cannot be published as a block device")]
    HasFilesystem,
    /// Another filesystem is requested.
    #[error("its filesystem is {own} and not {requested}")]
    OtherFilesystem {
        /// Filesystem of the volume.
        own: FilesystemType,
        /// Filesystem of the request.
        requested: FilesystemType,
    },
    /// The access mode is none of those that the volume was created for.
    #[error("it was not made for access mode {0:?}")]
    AccessMode(AccessMode),
    /// The PersistentVolume names another image.
    #[error(
        "its PersistentVolume was made for image {expected}, and the volume has the newer image {own}: look for \
         {expected} among the orphans of the pools, or restore the data and make a new PersistentVolume"
    )]
    OtherImage {
        /// Image that the PersistentVolume names.
        expected: String,
        /// Image of the volume.
        own: Uid,
    },
}

impl Volume {
    /// Reads the status of a volume. Fails with a reason while it cannot be used.
    ///
    /// A deleted custom resource or a deletion request changes nothing: the volume works until the
    /// agent has committed the deletion.
    pub fn read(object: &PoolVolume) -> Result<Self, Unusable> {
        if object.deletion_committed() {
            return Err(Unusable::BeingDestroyed);
        }
        let status = object.status.as_ref();
        let made = status.and_then(|status| Some((status, status.size?, status.image.as_ref()?)));
        let (status, size, image) = made.ok_or(Unusable::NotReady)?;
        if status.epoch != object.spec.epoch {
            return Err(Unusable::NotVerified);
        }
        if let Some(fence) = &status.fence
            && fence.state == FenceState::Closed
        {
            return Err(Unusable::Moving);
        }
        let content = match object.access_type() {
            AccessType::Block => Content::Block,
            AccessType::Filesystem => {
                let filesystem = status.filesystem.as_ref().ok_or(Unusable::NotReady)?;
                Content::Filesystem {
                    filesystem: filesystem.kind,
                    uuid: filesystem
                        .uuid
                        .parse()
                        .map_err(|_| Unusable::InvalidStatus("filesystem"))?,
                }
            }
        };
        Ok(Self {
            name: object.name_any(),
            pool: object.spec.pool_name.clone(),
            image: image
                .uid
                .parse()
                .map_err(|_| Unusable::InvalidStatus("image"))?,
            size,
            content,
            provisioning: object.admitted_attributes().provisioning,
            io_limits: object.admitted_attributes().io_limits,
            extent_size: object.spec.extent_size,
            encryption_discards: object.spec.encryption_discards,
            mkfs_options: match object.spec.encryption {
                Some(Encryption::Luks2) => {
                    mkfs_options_of(object).map_err(|_| Unusable::InvalidSpec("mkfsOptions"))?
                }
                None => MkfsOptions::default(),
            },
            adopts_filesystem: object.spec.adopt_filesystem,
            takeovers: status.takeovers,
            is_moving: object.spec.target.is_some(),
            access_modes: object.spec.access_modes.clone(),
        })
    }

    /// Checks that the image was verified in its pool after the last takeover of the pool. A node that
    /// acts on an older view must not use a volume that another node has used since.
    pub fn is_verified(&self, takeovers: u32) -> Result<(), Unusable> {
        if self.takeovers == takeovers {
            Ok(())
        } else {
            Err(Unusable::NotVerified)
        }
    }

    /// Checks that no move of the volume is declared. Its copy on the other node may be complete, and must not miss
    /// what a pod writes. Pods that have the volume keep it.
    pub fn is_staying(&self) -> Result<(), Unusable> {
        if self.is_moving {
            Err(Unusable::Moving)
        } else {
            Ok(())
        }
    }

    /// Whether the volume supports a usage as soon as the filesystem in it is adopted.
    pub fn awaits_adoption(&self, usage: &Usage) -> bool {
        self.adopts_filesystem
            && self.serves(usage.access_mode)
            && self.supports(usage) == Err(Unusable::NoFilesystem)
    }

    /// Checks that the volume supports a usage (NSV-08, NPV-09). Fails with the first difference.
    pub fn supports(&self, usage: &Usage) -> Result<(), Unusable> {
        match (self.content, usage.access_type, usage.filesystem) {
            (Content::Block, AccessType::Filesystem, _) => {
                return Err(Unusable::NoFilesystem);
            }
            (Content::Filesystem { .. }, AccessType::Block, _) => {
                return Err(Unusable::HasFilesystem);
            }
            (Content::Filesystem { filesystem, .. }, AccessType::Filesystem, Some(requested))
                if requested != filesystem =>
            {
                return Err(Unusable::OtherFilesystem {
                    own: filesystem,
                    requested,
                });
            }
            (Content::Block, AccessType::Block, _)
            | (Content::Filesystem { .. }, AccessType::Filesystem, _) => {}
        }
        if !self.serves(usage.access_mode) {
            return Err(Unusable::AccessMode(usage.access_mode));
        }
        Ok(())
    }

    fn serves(&self, mode: AccessMode) -> bool {
        self.access_modes.iter().any(|made| made.serves(mode))
    }

    /// Checks that the volume is the one that a PersistentVolume was made for, if that names an
    /// image. Fails if it names another image.
    ///
    /// A PoolVolume that is restored from a backup without its image gets a new, empty image. A pod
    /// must not start with it.
    pub fn is_meant(&self, image: Option<&str>) -> Result<(), Unusable> {
        match image {
            Some(image) if image != self.image.as_str() => Err(Unusable::OtherImage {
                expected: image.to_owned(),
                own: self.image.clone(),
            }),
            Some(_) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use cistern_crds::{FenceStatus, MoveTarget};

    use super::*;
    use crate::testing::{admitted_volume, being_deleted, ready_volume};

    fn usage() -> Usage {
        Usage {
            access_type: AccessType::Filesystem,
            access_mode: AccessMode::SingleNodeWriter,
            filesystem: None,
            mount_flags: Vec::new(),
        }
    }

    #[test]
    fn a_volume_can_be_used_from_its_creation_until_its_deletion_is_committed() {
        assert!(Volume::read(&ready_volume()).is_ok());
        assert!(Volume::read(&admitted_volume()).is_err());
        let mut deleted = being_deleted(ready_volume());
        assert!(Volume::read(&deleted).is_ok());
        deleted.spec.deletion_requested = true;
        assert!(Volume::read(&deleted).is_ok());
        deleted.status.as_mut().unwrap().deletion_committed = true;
        assert!(Volume::read(&deleted).is_err());
    }

    #[test]
    fn a_volume_whose_disk_was_in_another_machine_is_used_once_it_is_verified_there() {
        let mut moved = ready_volume();
        (moved.spec.epoch, moved.spec.takeovers) = (1, 1);
        assert_eq!(Volume::read(&moved), Err(Unusable::NotVerified));
        let status = moved.status.as_mut().unwrap();
        (status.epoch, status.takeovers) = (1, 1);
        let verified = Volume::read(&moved).unwrap();
        assert_eq!(verified.is_verified(1), Ok(()));
        // The disk was away once more, and this view is older than that.
        assert_eq!(verified.is_verified(3), Err(Unusable::NotVerified));
    }

    #[test]
    fn a_volume_whose_move_is_declared_stays_with_its_pods_and_is_not_for_others() {
        let mut moving = ready_volume();
        assert_eq!(Volume::read(&moving).unwrap().is_staying(), Ok(()));
        moving.spec.target = Some(MoveTarget {
            node_name: "node-2".to_owned(),
            move_uid: "move-1".to_owned(),
        });
        // Its image may not be marked as closing yet.
        assert_eq!(moving.status.as_ref().unwrap().fence, None);
        let volume = Volume::read(&moving).unwrap();
        assert_eq!(volume.is_staying(), Err(Unusable::Moving));
        moving.status.as_mut().unwrap().fence = Some(FenceStatus {
            state: FenceState::Closed,
            move_uid: "move-1".to_owned(),
        });
        assert_eq!(Volume::read(&moving), Err(Unusable::Moving));
    }

    #[test]
    fn r22_an_invalid_status_is_refused() {
        let mut broken = ready_volume();
        let image = broken.status.as_mut().unwrap().image.as_mut().unwrap();
        image.uid = "../../etc".to_owned();
        assert!(
            Volume::read(&broken)
                .unwrap_err()
                .to_string()
                .contains("image")
        );
    }

    #[test]
    fn nsv_08_npv_09_a_volume_supports_only_the_usage_that_it_was_made_for() {
        let volume = Volume::read(&ready_volume()).unwrap();
        assert_eq!(volume.supports(&usage()), Ok(()));
        let named = |filesystem| Usage {
            filesystem: Some(filesystem),
            ..usage()
        };
        assert_eq!(volume.supports(&named(FilesystemType::Ext4)), Ok(()));
        assert!(volume.supports(&named(FilesystemType::Xfs)).is_err());
        let block = Usage {
            access_type: AccessType::Block,
            ..usage()
        };
        assert!(volume.supports(&block).is_err());
        let mut made_to_be_read = ready_volume();
        made_to_be_read.spec.access_modes = vec![AccessMode::SingleNodeReaderOnly];
        let made_to_be_read = Volume::read(&made_to_be_read).unwrap();
        assert!(made_to_be_read.supports(&usage()).is_err());
        let reader = Usage {
            access_mode: AccessMode::SingleNodeReaderOnly,
            ..usage()
        };
        assert!(reader.is_read_only());
        assert_eq!(made_to_be_read.supports(&reader), Ok(()));
    }

    #[test]
    fn a_volume_with_a_new_image_does_not_match_its_persistent_volume() {
        let volume = Volume::read(&ready_volume()).unwrap();
        let own = volume.image.as_str();
        assert_eq!(volume.is_meant(Some(own)), Ok(()));
        assert_eq!(volume.is_meant(None), Ok(()), "made by an administrator");
        let refused = volume.is_meant(Some("uid-of-another")).unwrap_err();
        let refused = refused.to_string();
        assert!(refused.contains("uid-of-another") && refused.contains(own));
    }

    #[test]
    fn nsv_08_a_raw_block_volume_is_a_device_and_nothing_else() {
        let mut object = ready_volume();
        object.spec.access_type = AccessType::Block;
        object.spec.filesystem = None;
        object.status.as_mut().unwrap().filesystem = None;
        let volume = Volume::read(&object).unwrap();
        assert_eq!(volume.content, Content::Block);
        assert!(volume.supports(&usage()).is_err());
        let block = Usage {
            access_type: AccessType::Block,
            ..usage()
        };
        assert_eq!(volume.supports(&block), Ok(()));
    }

    #[test]
    fn a_raw_block_volume_of_a_class_that_adopts_filesystems_awaits_that_until_it_has_one() {
        let mut object = ready_volume();
        let filesystem = object.status.as_mut().unwrap().filesystem.take();
        (object.spec.access_type, object.spec.filesystem) = (AccessType::Block, None);
        let awaits = |object: &PoolVolume, usage: &Usage| {
            let volume = Volume::read(object).unwrap();
            (
                volume.awaits_adoption(usage),
                volume.supports(usage).is_ok(),
            )
        };
        assert_eq!(awaits(&object, &usage()), (false, false));
        object.spec.adopt_filesystem = true;
        assert_eq!(awaits(&object, &usage()), (true, false));
        let block = Usage {
            access_type: AccessType::Block,
            ..usage()
        };
        assert_eq!(awaits(&object, &block), (false, true));
        let mut readable = object.clone();
        readable.spec.access_modes = vec![AccessMode::SingleNodeReaderOnly];
        assert_eq!(awaits(&readable, &usage()), (false, false));

        object.status.as_mut().unwrap().filesystem = filesystem;
        assert_eq!(awaits(&object, &usage()), (false, true));
        assert_eq!(awaits(&object, &block), (false, false));
    }

    #[test]
    fn vcp_09_a_volume_made_before_the_newer_modes_were_announced_is_used_in_them() {
        // kubelet formerly mapped `ReadWriteOnce` to the first mode, and now maps it and
        // `ReadWriteOncePod` to the others.
        let volume = Volume::read(&ready_volume()).unwrap();
        assert_eq!(volume.access_modes, [AccessMode::SingleNodeWriter]);
        for access_mode in [
            AccessMode::SingleNodeMultiWriter,
            AccessMode::SingleNodeSingleWriter,
        ] {
            let usage = Usage {
                access_mode,
                ..usage()
            };
            assert_eq!(volume.supports(&usage), Ok(()), "{access_mode:?}");
        }
    }

    #[test]
    fn sec_05_mount_flags_are_not_shown() {
        let usage = Usage {
            mount_flags: vec!["MARKER".into()],
            ..usage()
        };
        assert!(!format!("{usage:?}").contains("MARKER"));
    }
}
