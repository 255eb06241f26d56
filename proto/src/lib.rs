//! The gRPC protocols of Cistern: CSI, kubelet's plugin registration, the transfer of data between nodes, and
//! groups of snapshots across nodes.
//!
//! All code is generated from the `.proto` files next to `src`. `Debug` of a message omits secrets
//! and mount flags.

// Generated code and the protocol's own names.
#![allow(clippy::all, clippy::pedantic, missing_docs)]

/// The Container Storage Interface.
pub mod csi {
    /// CSI 1.x; see `csi.proto`.
    pub mod v1 {
        tonic::include_proto!("csi.v1");
        include!(concat!(env!("OUT_DIR"), "/debug.rs"));

        // Mount flags are not marked as csi_secret, but the specification forbids leaking them.
        impl std::fmt::Debug for volume_capability::MountVolume {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct("MountVolume")
                    .field("fs_type", &self.fs_type)
                    .field("volume_mount_group", &self.volume_mount_group)
                    .finish_non_exhaustive()
            }
        }
    }
}

/// Registration of a plugin with kubelet.
pub mod registration {
    /// See `registration.proto`.
    pub mod v1 {
        tonic::include_proto!("pluginregistration");
    }
}

/// Groups of snapshots across nodes.
pub mod group {
    /// See `group.proto`.
    pub mod v1alpha1 {
        tonic::include_proto!("cistern.group.v1alpha1");
    }
}

/// Transfer of data between nodes.
pub mod transfer {
    /// See `transfer.proto`.
    pub mod v1alpha1 {
        tonic::include_proto!("cistern.transfer.v1alpha1");
    }
}
