//! Image versions, RBAC rules and admission policies from the manifests of this version. The manifests are
//! compiled in, so they cannot diverge from the plugin.

use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    rbac::v1::{PolicyRule, RoleRef, Subject},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

const BASE: &str = include_str!("../../../manifests/base/kustomization.yaml");
const SNAPSHOTS: &str = include_str!("../../../manifests/components/snapshots/kustomization.yaml");
const RIGHTS: [&str; 4] = [
    include_str!("../../../manifests/base/operator-rbac.yaml"),
    include_str!("../../../manifests/base/controller-rbac.yaml"),
    include_str!("../../../manifests/base/node-rbac.yaml"),
    include_str!("../../../manifests/components/snapshots/rbac.yaml"),
];
const POLICIES: [&str; 3] = [
    include_str!("../../../manifests/base/node-policy.yaml"),
    include_str!("../../../manifests/base/location-policy.yaml"),
    include_str!("../../../manifests/crds/deletion-policy.yaml"),
];

/// A container image with its tested version.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pinned {
    /// Name of the image with its registry.
    pub name: String,
    /// Tag of the tested version.
    pub new_tag: String,
}

impl Pinned {
    /// Returns the last part of the image name, such as `csi-provisioner`.
    pub fn program(&self) -> &str {
        self.name.rsplit('/').next().unwrap_or_default()
    }
}

#[derive(Deserialize)]
struct Kustomization {
    images: Vec<Pinned>,
}

/// Returns the CSI sidecars with their tested versions.
pub fn sidecars() -> Vec<Pinned> {
    let read = |text| serde_saphyr::from_str::<Kustomization>(text).ok();
    let all = [BASE, SNAPSHOTS]
        .into_iter()
        .filter_map(read)
        .flat_map(|it| it.images);
    all.filter(|image| image.program().starts_with("csi-"))
        .collect()
}

/// RBAC rules that a service account of Cistern needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Rights {
    /// Name of the ServiceAccount.
    pub account: String,
    /// Whether the rules apply only in Cistern's namespace (a RoleBinding).
    pub namespaced: bool,
    /// Name of the Role or ClusterRole.
    pub role: String,
    /// Rules of the role.
    pub rules: Vec<PolicyRule>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    kind: String,
    metadata: Metadata,
    #[serde(default)]
    rules: Vec<PolicyRule>,
    #[serde(default)]
    subjects: Vec<Subject>,
    role_ref: Option<RoleRef>,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
}

/// Returns the rules of all accounts; those of the snapshot component only if `with_snapshots`.
pub fn rights(with_snapshots: bool) -> Vec<Rights> {
    let texts = RIGHTS.iter().take(if with_snapshots { 4 } else { 3 });
    let all: Vec<Manifest> = texts
        .filter_map(|text| serde_saphyr::from_multiple(text).ok())
        .flat_map(|manifests: Vec<Manifest>| manifests)
        .collect();
    let mut rights = Vec::new();
    for binding in &all {
        let Some(role) = &binding.role_ref else {
            continue;
        };
        let is_it = |it: &&Manifest| it.kind == role.kind && it.metadata.name == role.name;
        let Some(found) = all.iter().find(is_it) else {
            continue;
        };
        rights.extend(binding.subjects.iter().map(|subject| Rights {
            account: subject.name.clone(),
            namespaced: binding.kind == "RoleBinding",
            role: role.name.clone(),
            rules: found.rules.clone(),
        }));
    }
    rights
}

/// Returns the admission policies.
pub fn policies() -> Vec<ValidatingAdmissionPolicy> {
    of_kind("ValidatingAdmissionPolicy")
}

/// Returns the bindings of the admission policies.
pub fn policy_bindings() -> Vec<ValidatingAdmissionPolicyBinding> {
    of_kind("ValidatingAdmissionPolicyBinding")
}

fn of_kind<K: DeserializeOwned>(kind: &str) -> Vec<K> {
    let all = POLICIES
        .iter()
        .filter_map(|text| serde_saphyr::from_multiple::<Value>(text).ok())
        .flatten();
    all.filter(|object| object.get("kind").and_then(Value::as_str) == Some(kind))
        .filter_map(|object| serde_json::from_value(object).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_of_the_manifests_is_known_with_its_binding() {
        let names: Vec<Option<String>> =
            policies().into_iter().map(|it| it.metadata.name).collect();
        let expected = [
            "nodes.cistern.storage",
            "locations.cistern.storage",
            "persistentvolumes.cistern.storage",
            "persistentvolumeclaims.cistern.storage",
            "pods.cistern.storage",
            "evictions.cistern.storage",
            "definitions.cistern.storage",
        ];
        assert_eq!(names, expected.map(|name| Some(name.to_owned())));
        let bound: Vec<String> = policy_bindings()
            .into_iter()
            .map(|it| it.spec.policy_name)
            .collect();
        assert_eq!(bound, expected);
    }

    #[test]
    fn every_sidecar_of_the_manifests_is_known() {
        let sidecars = sidecars();
        let names: Vec<&str> = sidecars.iter().map(Pinned::program).collect();
        assert_eq!(names, ["csi-provisioner", "csi-resizer", "csi-snapshotter"]);
        assert!(sidecars.iter().all(|image| image.new_tag.starts_with('v')));
    }

    #[test]
    fn every_account_of_the_manifests_has_its_rights() {
        let bindings = RIGHTS.join("---\n").matches("roleRef:").count();
        assert_eq!(rights(true).len(), bindings);
        let few = rights(false);
        assert!(few.len() < bindings);
        for account in ["cistern-operator", "cistern-controller", "cistern-node"] {
            assert!(
                few.iter().any(|rights| rights.account == account),
                "{account}"
            );
        }
        assert!(rights(true).iter().all(|rights| !rights.rules.is_empty()));
    }
}
