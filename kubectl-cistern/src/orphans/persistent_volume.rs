//! Builds and creates the PersistentVolume of an adopted volume.

use std::collections::BTreeMap;

use cistern_crds::{
    AccessType, FilesystemType, HasImage as _, PoolVolume,
    names::{DRIVER, IMAGE_CONTEXT, TOPOLOGY_KEY, topology_value},
    volume::ClaimReference,
};
use k8s_openapi::{
    api::{
        core::v1::{
            CSIPersistentVolumeSource, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
            ObjectReference, PersistentVolume, PersistentVolumeSpec, SecretReference,
            VolumeNodeAffinity,
        },
        storage::v1::StorageClass,
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

/// What a PersistentVolume has from the flags of the command.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Name of its StorageClass; empty if it has none.
    pub class_name: &'a str,
    /// That class, unless it is missing or of another provisioner.
    pub class: Option<&'a StorageClass>,
    /// Claim to which it is bound.
    pub claim: Option<&'a ClaimReference>,
}

/// Returns the PersistentVolume of a volume, like the one that external-provisioner creates. Its reclaim policy is
/// Retain, so that deleting the claim by mistake does not lose recovered data. Fails if the volume is encrypted and it
/// is not known which Secret has its key.
pub fn of(volume: &PoolVolume, wanted: Wanted<'_>) -> Result<PersistentVolume, Error> {
    let spec = &volume.spec;
    let (mut stage_secret, mut expand_secret) = (None, None);
    if spec.encryption.is_some() {
        stage_secret = secret(volume, wanted, "node-stage")?;
        expand_secret = secret(volume, wanted, "node-expand")?;
        if stage_secret.is_none() {
            return Err(Error::SecretUnknown {
                name: volume.name_any(),
            });
        }
    }
    let image = volume.image();
    let image = image.map(|image| BTreeMap::from([(IMAGE_CONTEXT.to_owned(), image.uid.clone())]));
    let size = volume
        .status
        .as_ref()
        .and_then(|status| status.size)
        .unwrap_or(spec.size);
    let mode = match volume.access_type() {
        AccessType::Filesystem => "Filesystem",
        AccessType::Block => "Block",
    };
    let bound = wanted.claim.map(|claim| ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("PersistentVolumeClaim".to_owned()),
        namespace: Some(claim.namespace.clone()),
        name: Some(claim.name.clone()),
        ..ObjectReference::default()
    });
    let class = wanted.class_name;
    Ok(PersistentVolume {
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
                node_expand_secret_ref: expand_secret,
                node_stage_secret_ref: stage_secret,
                volume_attributes: image,
                ..CSIPersistentVolumeSource::default()
            }),
            mount_options: wanted.class.and_then(|class| class.mount_options.clone()),
            node_affinity: Some(on_node(&spec.node_name)),
            persistent_volume_reclaim_policy: Some("Retain".to_owned()),
            storage_class_name: (!class.is_empty()).then(|| class.to_owned()),
            volume_mode: Some(mode.to_owned()),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    })
}

/// Returns the Secret that the class names for a volume in the requests of a kind; `None` if it names none. Fails if
/// the name depends on what is not known.
fn secret(
    volume: &PoolVolume,
    wanted: Wanted<'_>,
    kind: &str,
) -> Result<Option<SecretReference>, Error> {
    let parameters = wanted.class.and_then(|class| class.parameters.as_ref());
    let parameter = |part: &str| {
        let key = format!("csi.storage.k8s.io/{kind}-secret-{part}");
        let template = parameters.and_then(|all| all.get(&key));
        template
            .filter(|template| !template.is_empty())
            .map(|template| resolved(template, volume, wanted))
            .transpose()
    };
    let (name, namespace) = (parameter("name")?, parameter("namespace")?);
    let is_named = name.is_some() && namespace.is_some();
    Ok(is_named.then_some(SecretReference { name, namespace }))
}

/// Returns a value of a class with the names of the volume and of its claim in place of the templates of
/// external-provisioner. Fails if it has others, or if the claim is not known.
fn resolved(template: &str, volume: &PoolVolume, wanted: Wanted<'_>) -> Result<String, Error> {
    let mut text = template.replace("${pv.name}", &volume.name_any());
    if let Some(claim) = wanted.claim {
        text = text.replace("${pvc.name}", &claim.name);
        text = text.replace("${pvc.namespace}", &claim.namespace);
    }
    if !text.contains("${") {
        return Ok(text);
    }
    let (class, template) = (wanted.class_name.to_owned(), template.to_owned());
    Err(match wanted.claim {
        None => Error::SecretOfClaim { class, template },
        Some(_) => Error::SecretTemplate { class, template },
    })
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
    use cistern_crds::Encryption;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{cluster, object};

    const fn of_class(class: &StorageClass) -> Wanted<'_> {
        Wanted {
            class_name: "cistern",
            class: Some(class),
            claim: None,
        }
    }

    fn class(secrets: &[(&str, &str)]) -> StorageClass {
        let parameters = secrets.iter();
        let parameters =
            parameters.map(|(key, value)| (format!("csi.storage.k8s.io/{key}"), json!(value)));
        object(
            json!({"metadata": {"name": "cistern"}, "provisioner": "csi.cistern.storage",
            "parameters": parameters.collect::<serde_json::Map<String, Value>>(),
            "mountOptions": ["noatime"]}),
        )
    }

    #[test]
    fn the_persistent_volume_of_an_encrypted_volume_names_the_secrets_and_mount_options_of_its_class()
     {
        let mut volume = cluster().volumes[0].clone();
        let class = class(&[
            ("node-stage-secret-name", "${pvc.name}"),
            ("node-stage-secret-namespace", "${pvc.namespace}"),
            ("node-expand-secret-name", "of-${pv.name}"),
            ("node-expand-secret-namespace", "keys"),
        ]);
        let claim = parse_claim("shop/data").unwrap();
        let wanted = Wanted {
            claim: Some(&claim),
            ..of_class(&class)
        };
        let spec = |volume: &PoolVolume| json!(of(volume, wanted).unwrap().spec);
        let plain = spec(&volume);
        assert_eq!(plain["mountOptions"], json!(["noatime"]));
        assert_eq!(plain["csi"].get("nodeStageSecretRef"), None);
        volume.spec.encryption = Some(Encryption::Luks2);
        let csi = &spec(&volume)["csi"];
        let stage = json!({"name": "data", "namespace": "shop"});
        assert_eq!(csi["nodeStageSecretRef"], stage);
        let expand = json!({"name": "of-pvc-1", "namespace": "keys"});
        assert_eq!(csi["nodeExpandSecretRef"], expand);
    }

    #[test]
    fn an_encrypted_volume_gets_no_persistent_volume_without_the_name_of_its_secret() {
        let mut volume = cluster().volumes[0].clone();
        volume.spec.encryption = Some(Encryption::Luks2);
        let refused = |wanted: Wanted<'_>| of(&volume, wanted).unwrap_err().to_string();
        let none = refused(of_class(&class(&[])));
        assert!(none.contains("--storage-class"), "{none}");
        let of_claim = class(&[
            ("node-stage-secret-name", "${pvc.name}"),
            ("node-stage-secret-namespace", "keys"),
        ]);
        let text = refused(of_class(&of_claim));
        assert!(
            text.contains("${pvc.name}") && text.contains("--claim"),
            "{text}"
        );
        let annotated = class(&[
            ("node-stage-secret-name", "${pvc.annotations['team/key']}"),
            ("node-stage-secret-namespace", "keys"),
        ]);
        let claim = parse_claim("shop/data").unwrap();
        let text = refused(Wanted {
            claim: Some(&claim),
            ..of_class(&annotated)
        });
        assert!(text.contains("${pvc.annotations['team/key']}"), "{text}");
    }

    #[test]
    fn a_persistent_volume_references_volume_and_node_and_is_retained() {
        let claim = parse_claim("shop/data").unwrap();
        let cluster = cluster();
        let wanted = Wanted {
            claim: Some(&claim),
            ..of_class(&cluster.classes[0])
        };
        let object = of(&cluster.volumes[0], wanted).unwrap();
        let json = serde_json::to_value(&object).unwrap();
        let spec = &json["spec"];
        assert_eq!(spec["csi"]["volumeHandle"], "pvc-1");
        assert_eq!(spec["csi"]["fsType"], "ext4");
        let attributes = json!({"cistern.storage/image": "uid-of-pvc-1"});
        assert_eq!(spec["csi"]["volumeAttributes"], attributes);
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
