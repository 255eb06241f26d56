//! What volumes and snapshots have in common.

use kube::core::ClusterResourceScope;

use crate::{
    condition::Condition,
    names,
    size::Bytes,
    snapshot::{PoolSnapshot, PoolSnapshotSpec},
    volume::{ImageStatus, PoolVolume, PoolVolumeSpec},
};

/// A custom resource that stands for one image on one node: made when the agent has promised its
/// bytes, and destroyed on the wish in its spec.
pub trait Stored: kube::Resource<DynamicType = (), Scope = ClusterResourceScope> {
    /// The node that holds the image.
    fn node_name(&self) -> &str;
    /// The StoragePool that the image is in.
    fn pool_name(&self) -> &str;
    /// Whether its data is to be destroyed.
    fn deletion_requested(&self) -> bool;
    /// Whether the desired deletion can no longer be taken back, so that the data must not be used.
    fn deletion_committed(&self) -> bool {
        self.deletion_requested()
    }
    /// Bytes that the node's ledger holds for it; none before its admission, and when it is gone.
    fn reserved(&self) -> Option<Bytes>;
    /// The image, once it is known.
    fn image(&self) -> Option<&ImageStatus>;
    /// What the agent says of it.
    fn conditions(&self) -> &[Condition];
}

macro_rules! stored {
    ($($kind:ty { $spec:ty $(, $own:item)? }),+) => { $(
        impl $kind {
            /// The custom resource as whoever asks for its data creates it. Its finalizer is there
            /// from the beginning: an object that could vanish by itself would leave an image that
            /// nobody knows.
            pub fn wish(name: &str, spec: $spec) -> Self {
                let labels = [(names::POOL_LABEL.to_owned(), spec.pool_name.clone())];
                let mut object = Self::new(name, spec);
                object.metadata.labels = Some(labels.into());
                object.metadata.finalizers = Some(vec![names::FINALIZER.to_owned()]);
                object
            }
        }

        impl Stored for $kind {
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

            fn reserved(&self) -> Option<Bytes> {
                self.status.as_ref()?.reserved
            }

            fn image(&self) -> Option<&ImageStatus> {
                self.status.as_ref()?.image.as_ref()
            }

            fn conditions(&self) -> &[Condition] {
                self.status.as_ref().map_or(&[], |status| &status.conditions)
            }
        }
    )+ };
}

stored!(
    PoolVolume {
        PoolVolumeSpec,
        // A pod may start to use the volume until then.
        fn deletion_committed(&self) -> bool {
            self.spec.deletion_requested
                && self.status.as_ref().is_some_and(|status| status.deletion_committed)
        }
    },
    PoolSnapshot { PoolSnapshotSpec }
);
