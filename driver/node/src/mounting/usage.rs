//! A volume as it can be used on this node, and how somebody wants to use it. Pure.

use std::fmt;

use cistern_crds::{
    AccessMode, AccessType, Bytes, FilesystemType, PoolVolume, Provisioning, Stored as _,
};
use cistern_host::{Content, MountOptions, Uid, options};
use kube::ResourceExt as _;

/// How somebody wants to use a volume.
#[derive(Clone, PartialEq, Eq)]
pub struct Usage {
    /// A filesystem, or the bare block device.
    pub access_type: AccessType,
    /// By whom.
    pub access_mode: AccessMode,
    /// The filesystem; none where any is right.
    pub filesystem: Option<FilesystemType>,
    /// Mount options, as they were written. They may hold sensitive words (SEC-05).
    pub mount_flags: Vec<String>,
}

/// A volume that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Its id.
    pub name: String,
    /// Its pool's name.
    pub pool: String,
    /// Name of its image.
    pub image: Uid,
    /// The size that was granted.
    pub size: Bytes,
    /// The filesystem in it, or none.
    pub content: Content,
    /// Whether its space is allocated in full.
    pub provisioning: Provisioning,
    access_modes: Vec<AccessMode>,
}

impl Usage {
    /// Whether nothing may be written, whatever the caller says (NPV-17).
    pub fn is_read_only(&self) -> bool {
        self.access_mode.is_read_only()
    }

    /// The mount options for a volume with this filesystem (VCP-13).
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

impl Volume {
    /// Reads what the agent said of a volume; fails with a reason while it cannot be used.
    ///
    /// A deletion of its custom resource, or one that is only asked for, changes nothing: the volume
    /// goes on working until the agent has committed itself to removing its image.
    pub fn read(object: &PoolVolume) -> Result<Self, String> {
        if object.deletion_committed() {
            return Err("its data is being destroyed, as was asked".to_owned());
        }
        let status = object.status.as_ref();
        let made = status.and_then(|status| Some((status, status.size?, status.image.as_ref()?)));
        let (status, size, image) = made.ok_or("it is not made yet")?;
        let illegible = |what: &str| format!("its status holds no legible {what}");
        let content = match object.spec.access_type {
            AccessType::Block => Content::Block,
            AccessType::Filesystem => {
                let filesystem = status.filesystem.as_ref().ok_or("it is not made yet")?;
                Content::Filesystem {
                    filesystem: filesystem.kind,
                    uuid: filesystem
                        .uuid
                        .parse()
                        .map_err(|_| illegible("filesystem"))?,
                }
            }
        };
        Ok(Self {
            name: object.name_any(),
            pool: object.spec.pool_name.clone(),
            image: image.uid.parse().map_err(|_| illegible("image"))?,
            size,
            content,
            provisioning: object.spec.provisioning,
            access_modes: object.spec.access_modes.clone(),
        })
    }

    /// Whether the volume can be used so (NSV-08, NPV-09).
    pub fn supports(&self, usage: &Usage) -> Result<(), String> {
        match (self.content, usage.access_type, usage.filesystem) {
            (Content::Block, AccessType::Filesystem, _) => {
                return Err("it is a raw block volume and has no filesystem".to_owned());
            }
            (Content::Filesystem { .. }, AccessType::Block, _) => {
                return Err("it has a filesystem and is not given as a block device".to_owned());
            }
            (Content::Filesystem { filesystem, .. }, AccessType::Filesystem, Some(asked))
                if asked != filesystem =>
            {
                return Err(format!("its filesystem is {filesystem} and not {asked}"));
            }
            (Content::Block, AccessType::Block, _)
            | (Content::Filesystem { .. }, AccessType::Filesystem, _) => {}
        }
        let mut made_for = self.access_modes.iter();
        if !made_for.any(|made| made.serves(usage.access_mode)) {
            return Err(format!(
                "it was not made for access mode {:?}",
                usage.access_mode
            ));
        }
        Ok(())
    }

    /// Whether the volume is the one that a PersistentVolume was made for, where that names an image.
    ///
    /// A PoolVolume that comes back from a backup without its image has a new one, which is empty:
    /// what runs from it would begin from nothing.
    pub fn is_meant(&self, image: Option<&str>) -> Result<(), String> {
        let own = self.image.as_str();
        match image {
            Some(image) if image != own => Err(format!(
                "its PersistentVolume was made for image {image}, and what is here is the newer image \
                 {own}: look for {image} among the orphans of the pools, or restore the data and make \
                 a new PersistentVolume"
            )),
            Some(_) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
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
    fn a_volume_is_used_once_it_is_made_and_until_the_agent_is_committed_to_its_end() {
        assert!(Volume::read(&ready_volume()).is_ok());
        assert!(Volume::read(&admitted_volume()).is_err());
        let mut leaving = being_deleted(ready_volume());
        assert!(Volume::read(&leaving).is_ok());
        leaving.spec.deletion_requested = true;
        assert!(Volume::read(&leaving).is_ok());
        leaving.status.as_mut().unwrap().deletion_committed = true;
        assert!(Volume::read(&leaving).is_err());
    }

    #[test]
    fn r22_a_status_that_makes_no_sense_is_refused() {
        let mut broken = ready_volume();
        let image = broken.status.as_mut().unwrap().image.as_mut().unwrap();
        image.uid = "../../etc".to_owned();
        assert!(Volume::read(&broken).unwrap_err().contains("image"));
    }

    #[test]
    fn nsv_08_npv_09_a_volume_is_used_as_it_was_made_and_in_no_other_way() {
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
    fn a_volume_that_was_made_anew_is_not_the_one_that_its_persistent_volume_means() {
        let volume = Volume::read(&ready_volume()).unwrap();
        let own = volume.image.as_str();
        assert_eq!(volume.is_meant(Some(own)), Ok(()));
        assert_eq!(volume.is_meant(None), Ok(()), "made by a person");
        let refused = volume.is_meant(Some("uid-of-another")).unwrap_err();
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
    fn vcp_09_a_volume_made_before_the_newer_modes_were_announced_is_used_in_them() {
        // What `ReadWriteOnce` was to kubelet before, and what it and `ReadWriteOncePod` are now.
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
