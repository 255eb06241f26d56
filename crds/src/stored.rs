//! What volumes and snapshots have in common.

use kube::core::ClusterResourceScope;

use crate::{
    condition::Condition, size::Bytes, snapshot::PoolSnapshot, volume::ImageStatus,
    volume::PoolVolume,
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
    /// Bytes that the node's ledger holds for it; none before its admission, and when it is gone.
    fn reserved(&self) -> Option<Bytes>;
    /// The image, once it is known.
    fn image(&self) -> Option<&ImageStatus>;
    /// What the agent says of it.
    fn conditions(&self) -> &[Condition];
}

macro_rules! stored {
    ($($kind:ty),+) => { $(
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

stored!(PoolVolume, PoolSnapshot);
