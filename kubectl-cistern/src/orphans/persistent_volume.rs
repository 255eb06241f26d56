//! Builds and creates the PersistentVolume of an adopted volume.

use std::collections::BTreeMap;

use cistern_crds::{
    AccessType, FilesystemType, PoolVolume,
    names::{DRIVER, TOPOLOGY_KEY, topology_value},
    volume::ClaimReference,
};
use k8s_openapi::{
    api::core::v1::{
        CSIPersistentVolumeSource, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
        ObjectReference, PersistentVolume, PersistentVolumeSpec, VolumeNodeAffinity,
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::ObjectMeta},
};
use kube::{ResourceExt as _, api::PostParams};

use super::Error;
use crate::{Connection, cluster::Cluster};

/// Annotation with the provisioner. Kubernetes needs it to expand and delete the volume.
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

/// Parses `NAMESPACE/NAME`. Fails if the slash or one of the two is missing.
pub fn parse_claim(text: &str) -> Result<ClaimReference, Error> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
            Ok(ClaimReference {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            })
        }
        Some(_) | None => Err(Error::Claim {
            claim: text.to_owned(),
        }),
    }
}

/// Returns the PersistentVolume of a volume, bound to `claim` if there is one. Its reclaim policy
/// is Retain, so that deleting the claim by mistake does not lose recovered data.
pub fn of(volume: &PoolVolume, class: &str, claim: Option<&ClaimReference>) -> PersistentVolume {
    let spec = &volume.spec;
    let size = volume
        .status
        .as_ref()
        .and_then(|status| status.size)
        .unwrap_or(spec.size);
    let mode = match volume.access_type() {
        AccessType::Filesystem => "Filesystem",
        AccessType::Block => "Block",
    };
    let bound = claim.map(|claim| ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("PersistentVolumeClaim".to_owned()),
        namespace: Some(claim.namespace.clone()),
        name: Some(claim.name.clone()),
        ..ObjectReference::default()
    });
    PersistentVolume {
        metadata: ObjectMeta {
            name: Some(volume.name_any()),
            annotations: Some([(PROVISIONED_BY.to_owned(), DRIVER.to_owned())].into()),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
            capacity: Some(BTreeMap::from([(
                "storage".to_owned(),
                Quantity(size.to_string()),
            )])),
            claim_ref: bound,
            csi: Some(CSIPersistentVolumeSource {
                driver: DRIVER.to_owned(),
                volume_handle: volume.name_any(),
                fs_type: spec
                    .filesystem
                    .map(FilesystemType::as_str)
                    .map(str::to_owned),
                ..CSIPersistentVolumeSource::default()
            }),
            node_affinity: Some(on_node(&spec.node_name)),
            persistent_volume_reclaim_policy: Some("Retain".to_owned()),
            storage_class_name: (!class.is_empty()).then(|| class.to_owned()),
            volume_mode: Some(mode.to_owned()),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    }
}

fn on_node(node: &str) -> VolumeNodeAffinity {
    let is_there = NodeSelectorRequirement {
        key: TOPOLOGY_KEY.to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![topology_value(node)]),
    };
    let term = NodeSelectorTerm {
        match_expressions: Some(vec![is_there]),
        match_fields: None,
    };
    VolumeNodeAffinity {
        required: Some(NodeSelector {
            node_selector_terms: vec![term],
        }),
    }
}

/// Creates the PersistentVolume, unless the volume has one. Fails if the request fails.
pub async fn create(
    connection: &Connection,
    cluster: &Cluster,
    manifest: &PersistentVolume,
) -> Result<(), crate::Error> {
    let name = manifest.name_any();
    if let Some(existing) = cluster.persistent_volume(&name) {
        let note = format!(
            "PersistentVolume {} already exists for this volume",
            existing.name_any()
        );
        crate::print_notes(&[note]);
        return Ok(());
    }
    let api = connection.everywhere::<PersistentVolume>();
    let what = format!("cannot create PersistentVolume {name}");
    let parameters = PostParams::default();
    connection
        .ask(what, api.create(&parameters, manifest))
        .await?;
    crate::print_notes(&[format!("PersistentVolume {name} created")]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::cluster;

    #[test]
    fn a_persistent_volume_references_volume_and_node_and_is_retained() {
        let claim = parse_claim("shop/data").unwrap();
        let object = of(&cluster().volumes[0], "cistern", Some(&claim));
        let json = serde_json::to_value(&object).unwrap();
        let spec = &json["spec"];
        assert_eq!(spec["csi"]["volumeHandle"], "pvc-1");
        assert_eq!(spec["csi"]["fsType"], "ext4");
        assert_eq!(spec["capacity"]["storage"], "2Gi");
        assert_eq!(spec["claimRef"]["namespace"], "shop");
        assert_eq!(spec["persistentVolumeReclaimPolicy"], "Retain");
        let term = &spec["nodeAffinity"]["required"]["nodeSelectorTerms"][0];
        assert_eq!(term["matchExpressions"][0]["values"][0], "worker-1");
    }

    #[test]
    fn a_claim_has_a_namespace_and_a_name() {
        for bad in ["", "data", "/data", "shop/"] {
            assert!(parse_claim(bad).is_err(), "{bad}");
        }
    }
}
