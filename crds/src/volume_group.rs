//! What a pool that is a volume group of LVM cannot have: its volumes are thick logical volumes, and no images. The
//! group exists already, or the node makes it of devices.
//!
//! The operator, the controller and the agents share this decision.

use crate::{
    Explanation, NodePool, PoolSource, Provisioning, Reason, StorageNode, attributes::PROVISIONING,
};

impl PoolSource {
    /// Whether a pool of this name holds such volumes.
    ///
    /// # Errors
    ///
    /// [`Reason::NotInVolumeGroup`]. The message names the parameter and can follow the name of the node.
    pub fn holds(&self, pool: &str, provisioning: Provisioning) -> Result<(), Explanation> {
        if self.has_images() || provisioning == Provisioning::Thick {
            return Ok(());
        }
        let message = format!(
            "pool {pool} is a volume group, which holds thick volumes only: set {PROVISIONING}: thick in the StorageClass \
             or VolumeAttributesClass"
        );
        Err(Explanation::new(Reason::NotInVolumeGroup, message))
    }

    /// Whether the volumes of a pool of this name can be snapshotted, cloned and moved.
    ///
    /// # Errors
    ///
    /// [`Reason::NotInVolumeGroup`].
    pub fn copies(&self, pool: &str) -> Result<(), Explanation> {
        if self.has_images() {
            return Ok(());
        }
        let message = format!(
            "pool {pool} is a volume group, whose volumes have no snapshots and clones and do not move"
        );
        Err(Explanation::new(Reason::NotInVolumeGroup, message))
    }
}

impl StorageNode {
    /// The source of a pool on the node. None if the node does not carry the pool.
    pub fn source_of(&self, pool: &str) -> Option<&PoolSource> {
        let mut pools = self.spec.pools.iter();
        let found: Option<&NodePool> = pools.find(|entry| entry.name == pool);
        found.map(|entry| &entry.source)
    }

    /// As [`PoolSource::holds`], for a pool on the node; also a pool that the node does not carry.
    pub fn holds(&self, pool: &str, provisioning: Provisioning) -> Result<(), Explanation> {
        let source = self.source_of(pool);
        source.map_or(Ok(()), |it| it.holds(pool, provisioning))
    }

    /// As [`PoolSource::copies`], for a pool on the node; also a pool that the node does not carry.
    pub fn copies(&self, pool: &str) -> Result<(), Explanation> {
        self.source_of(pool).map_or(Ok(()), |it| it.copies(pool))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Bytes, StorageNodeSpec,
        pool::DeviceEngine,
        testing::{image_source, logical_volumes_on, node_pool, volume_group_source},
    };

    #[test]
    fn a_volume_group_holds_thick_volumes_only() {
        let mut on_device = logical_volumes_on("/dev/a");
        on_device.device.as_mut().unwrap().engine = DeviceEngine::Image;
        for image in [image_source(Bytes::gib(1)), on_device] {
            for provisioning in [Provisioning::Thick, Provisioning::Thin] {
                assert_eq!(image.holds("fast", provisioning), Ok(()));
            }
        }
        for group in [volume_group_source("vg"), logical_volumes_on("/dev/a")] {
            assert_eq!(group.holds("fast", Provisioning::Thick), Ok(()));
            let refused = group.holds("fast", Provisioning::Thin).unwrap_err();
            assert_eq!(refused.reason, Reason::NotInVolumeGroup);
            assert!(
                refused.message.contains("pool fast")
                    && refused.message.contains("provisioning: thick"),
                "{refused}"
            );
        }
    }

    #[test]
    fn volumes_of_a_volume_group_are_not_copied() {
        let pools = vec![
            node_pool("fast", "u1", volume_group_source("vg")),
            node_pool("disks", "u3", logical_volumes_on("/dev/a")),
            node_pool("slow", "u2", image_source(Bytes::gib(1))),
        ];
        let spec = StorageNodeSpec {
            pools,
            ..StorageNodeSpec::default()
        };
        let node = StorageNode::new("w1", spec);
        let refused = node.copies("fast").unwrap_err();
        assert_eq!(refused.reason, Reason::NotInVolumeGroup);
        assert!(refused.message.contains("no snapshots"), "{refused}");
        assert!(node.copies("disks").is_err());
        assert!(node.copies("slow").is_ok() && node.copies("gone").is_ok());
        assert!(node.holds("fast", Provisioning::Thin).is_err());
        assert!(node.holds("slow", Provisioning::Thin).is_ok());
        assert!(node.holds("gone", Provisioning::Thin).is_ok());
    }
}
