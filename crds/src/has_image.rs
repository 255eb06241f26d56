//! The common interface of objects with an image: volumes, snapshots and replicas.

use cistern_types::Bytes;
use kube::core::ClusterResourceScope;

use crate::{
    condition::Condition,
    names,
    snapshot::{PoolSnapshot, PoolSnapshotSpec},
    volume::{FilesystemStatus, ImageStatus, PoolVolume, PoolVolumeSpec},
};

/// A custom resource that represents one image on one node. The agent makes the image after it has
/// reserved the bytes, and destroys it on the deletion request in the spec.
pub trait HasImage: kube::Resource<DynamicType = (), Scope = ClusterResourceScope> {
    /// The node that holds the image.
    fn node_name(&self) -> &str;
    /// The StoragePool that holds the image.
    fn pool_name(&self) -> &str;
    /// Whether the spec requests the destruction of the data.
    fn deletion_requested(&self) -> bool;
    /// Whether the deletion request can no longer be withdrawn, so that the data must not be used.
    fn deletion_committed(&self) -> bool {
        self.deletion_requested()
    }
    /// How often its node has changed.
    fn epoch(&self) -> u32;
    /// The number of takeovers of its pool up to which its location is known: the larger one of spec and
    /// status.
    fn takeovers(&self) -> u32;
    /// Bytes that the node's ledger reserves for it; None before the admission and after the removal.
    fn reserved(&self) -> Option<Bytes>;
    /// The image; None until it is made or adopted.
    fn image(&self) -> Option<&ImageStatus>;
    /// Size of the volume, or of the snapshot's volume at that moment; None until it was ready once.
    fn size(&self) -> Option<Bytes>;
    /// The filesystem in the image; None until the image exists, and for raw block volumes.
    fn filesystem(&self) -> Option<&FilesystemStatus>;
    /// The conditions, which the agent writes.
    fn conditions(&self) -> &[Condition];
}

macro_rules! has_image {
    ($($kind:ty { $spec:ty $(, $own:item)? }),+) => { $(
        impl $kind {
            /// A new custom resource, to be created. It has its finalizer from the start, because an
            /// object that is deleted without it would leave an orphaned image.
            pub fn desired(name: &str, spec: $spec) -> Self {
                let labels = [(names::POOL_LABEL.to_owned(), spec.pool_name.clone())];
                let mut object = Self::new(name, spec);
                object.metadata.labels = Some(labels.into());
                object.metadata.finalizers = Some(vec![names::FINALIZER.to_owned()]);
                object
            }
        }

        impl HasImage for $kind {
            fn node_name(&self) -> &str {
                &self.spec.node_name
            }

            fn pool_name(&self) -> &str {
                &self.spec.pool_name
            }

            fn deletion_requested(&self) -> bool {
                self.spec.deletion_requested
            }

            $($own)?

            fn epoch(&self) -> u32 {
                self.spec.epoch
            }

            fn takeovers(&self) -> u32 {
                let verified = self.status.as_ref().map_or(0, |status| status.takeovers);
                self.spec.takeovers.max(verified)
            }

            fn reserved(&self) -> Option<Bytes> {
                self.status.as_ref()?.reserved
            }

            fn image(&self) -> Option<&ImageStatus> {
                self.status.as_ref()?.image.as_ref()
            }

            fn size(&self) -> Option<Bytes> {
                self.status.as_ref()?.size
            }

            fn filesystem(&self) -> Option<&FilesystemStatus> {
                self.status.as_ref()?.filesystem.as_ref()
            }

            fn conditions(&self) -> &[Condition] {
                self.status.as_ref().map_or(&[], |status| &status.conditions)
            }
        }
    )+ };
}

has_image!(
    PoolVolume {
        PoolVolumeSpec,
        // Until the agent commits the deletion, a pod may start to use the volume.
        fn deletion_committed(&self) -> bool {
            self.spec.deletion_requested
                && self.status.as_ref().is_some_and(|status| status.deletion_committed)
        }
    },
    PoolSnapshot { PoolSnapshotSpec }
);
