//! Builds the custom resource of an orphaned image from the identity that is recorded in it. Pure.

use cistern_crds::{
    AccessMode, Consistency, ContentSource, HasImage, PoolSnapshot, PoolSnapshotSpec, PoolVolume,
    PoolVolumeSpec, SourceKind, VolumeAttributes,
};
use kube::ResourceExt as _;

use super::list::SelectedOrphan;
use crate::cluster::Cluster;

/// The custom resource of an image.
#[derive(Clone, Debug, PartialEq)]
pub enum CustomResource {
    /// A PoolVolume.
    Volume(Box<PoolVolume>),
    /// A PoolSnapshot.
    Snapshot(Box<PoolSnapshot>),
}

impl CustomResource {
    /// Builds the custom resource of an orphan.
    pub fn of(choice: &SelectedOrphan, cluster: &Cluster) -> Self {
        match choice.identity.kind {
            SourceKind::Volume => Self::Volume(Box::new(volume(choice, cluster))),
            SourceKind::Snapshot => Self::Snapshot(Box::new(snapshot(choice))),
        }
    }

    /// Returns the kind: `PoolVolume` or `PoolSnapshot`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Volume(_) => "PoolVolume",
            Self::Snapshot(_) => "PoolSnapshot",
        }
    }

    /// Returns the name of the object.
    pub fn name(&self) -> String {
        match self {
            Self::Volume(volume) => volume.name_any(),
            Self::Snapshot(snapshot) => snapshot.name_any(),
        }
    }
}

fn volume(choice: &SelectedOrphan, cluster: &Cluster) -> PoolVolume {
    let identity = &choice.identity;
    let spec = PoolVolumeSpec {
        // The name in the original CSI request may be lost; then only a request with this name finds it.
        requested_name: identity.name.clone(),
        node_name: choice.node.clone(),
        pool_name: choice.pool.clone(),
        size: identity.volume_size,
        access_type: identity.access_type,
        filesystem: identity.filesystem,
        mkfs_options: None,
        extent_size: None,
        adopt_filesystem: false,
        encryption: identity.encryption,
        // The image does not record it.
        encryption_discards: false,
        // This mode includes the other supported modes.
        access_modes: vec![AccessMode::SingleNodeMultiWriter],
        attributes: VolumeAttributes {
            provisioning: identity.provisioning,
            ..VolumeAttributes::default()
        },
        content_source: identity
            .source_image
            .as_ref()
            .map(|image| source(image, cluster)),
        claim: cluster
            .persistent_volume(&identity.name)
            .and_then(|object| object.spec.as_ref()?.claim_ref.as_ref())
            .and_then(|claim| {
                Some(cistern_crds::volume::ClaimReference {
                    namespace: claim.namespace.clone()?,
                    name: claim.name.clone()?,
                })
            }),
        deletion_requested: false,
        epoch: 0,
        takeovers: 0,
        target: None,
        cancelled_move_uid: None,
        promoted_move_uid: None,
    };
    PoolVolume::desired(&identity.name, spec)
}

/// Returns the source of a volume by its image, with the name of the object if it still exists. The agent
/// compares only the image.
fn source(image: &str, cluster: &Cluster) -> ContentSource {
    let name = |it: Option<String>| it.unwrap_or_else(|| image.to_owned());
    let of = |it: &PoolVolume| it.image().is_some_and(|known| known.uid == image);
    let volume = cluster.volumes.iter().find(|volume| of(volume));
    let snapshot = cluster
        .snapshots
        .iter()
        .find(|snapshot| snapshot.image().is_some_and(|known| known.uid == image));
    let kind = match volume {
        Some(_) => SourceKind::Volume,
        None => SourceKind::Snapshot,
    };
    let known = volume.map(kube::ResourceExt::name_any);
    ContentSource {
        kind,
        name: name(known.or_else(|| snapshot.map(kube::ResourceExt::name_any))),
        image: image.to_owned(),
        node_name: None,
        snapshot_name: None,
    }
}

fn snapshot(choice: &SelectedOrphan) -> PoolSnapshot {
    let identity = &choice.identity;
    let spec = PoolSnapshotSpec {
        requested_name: identity.name.clone(),
        node_name: choice.node.clone(),
        pool_name: choice.pool.clone(),
        source_volume: identity.source_volume.clone().unwrap_or_default(),
        source_image: identity.source_image.clone().unwrap_or_default(),
        access_type: identity.access_type,
        filesystem: identity.filesystem,
        encryption: identity.encryption,
        provisioning: identity.provisioning,
        consistency: Consistency::default(),
        group_name: None,
        across_nodes: false,
        taken_at: None,
        copied_for: None,
        incremental_base: None,
        deletion_requested: false,
        epoch: 0,
        takeovers: 0,
    };
    PoolSnapshot::desired(&identity.name, spec)
}

#[cfg(test)]
mod tests {
    use cistern_crds::{Bytes, FilesystemType, names};
    use serde_json::json;

    use super::*;
    use crate::{
        arguments::Selection,
        orphans::list::choose,
        testing::{cluster, object},
    };

    #[test]
    fn a_volume_is_built_from_the_identity_of_its_image() {
        let cluster = cluster();
        let choice = choose(&cluster, "pvc-lost", &Selection::default()).unwrap();
        let CustomResource::Volume(volume) = CustomResource::of(&choice, &cluster) else {
            panic!("{choice:?}");
        };
        assert_eq!(volume.name_any(), "pvc-lost");
        assert_eq!(volume.spec.node_name, "worker-1");
        assert_eq!(volume.spec.size, Bytes::gib(1));
        assert_eq!(volume.spec.filesystem, Some(FilesystemType::Xfs));
        assert_eq!(volume.finalizers(), [names::FINALIZER]);
        assert_eq!(volume.labels()[names::POOL_LABEL], "fast");
        assert!(!volume.spec.deletion_requested);
        assert_eq!(volume.status, None);
    }

    #[test]
    fn a_copy_names_its_source_if_that_exists() {
        let cluster = cluster();
        let mut choice = choose(&cluster, "pvc-lost", &Selection::default()).unwrap();
        for (image, kind, name) in [
            ("uid-of-pvc-1", SourceKind::Volume, "pvc-1"),
            ("uid-of-snap-1", SourceKind::Snapshot, "snap-1"),
            ("missing", SourceKind::Snapshot, "missing"),
        ] {
            choice.identity.source_image = Some(image.to_owned());
            let CustomResource::Volume(volume) = CustomResource::of(&choice, &cluster) else {
                panic!("{choice:?}");
            };
            let source = volume.spec.content_source.unwrap();
            assert_eq!((source.kind, source.name.as_str()), (kind, name));
            assert_eq!(source.image, image);
        }
    }

    #[test]
    fn a_snapshot_is_built_from_the_identity_of_its_image() {
        let choice = SelectedOrphan {
            image: "i".to_owned(),
            pool: "fast".to_owned(),
            node: "worker-1".to_owned(),
            identity: object(
                json!({"kind": "Snapshot", "name": "snap-9", "sourceVolume": "pvc-1",
                "sourceImage": "uid-of-pvc-1", "volumeSize": "2Gi", "accessType": "Block",
                "provisioning": "Thick"}),
            ),
        };
        let CustomResource::Snapshot(snapshot) = CustomResource::of(&choice, &cluster()) else {
            panic!("{choice:?}");
        };
        assert_eq!(snapshot.spec.source_volume, "pvc-1");
        assert_eq!(snapshot.spec.source_image, "uid-of-pvc-1");
        assert_eq!(snapshot.finalizers(), [names::FINALIZER]);
    }
}
