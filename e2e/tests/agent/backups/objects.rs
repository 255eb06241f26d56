//! The kinds and objects of a cluster in which backup programs ask for changed blocks.

use std::{fs, path::Path};

use cistern_e2e::eventually;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use super::front::{PROGRAM, SNAPSHOTS};
use crate::SOON;

/// Allows the backup program to read snapshots in namespace default.
pub(super) async fn allow_program(client: &Client) {
    let version = "rbac.authorization.k8s.io/v1";
    let metadata = json!({"name": PROGRAM, "namespace": "default"});
    let rule =
        json!({"apiGroups": [SNAPSHOTS], "resources": ["volumesnapshots"], "verbs": ["get"]});
    let rules =
        json!({"apiVersion": version, "kind": "Role", "metadata": metadata, "rules": [rule]});
    apply(client, rules).await;
    let binding = json!({
        "apiVersion": version,
        "kind": "RoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": PROGRAM},
        "subjects": [{"kind": "ServiceAccount", "name": PROGRAM, "namespace": "default"}],
    });
    apply(client, binding).await;
}

/// The objects of a manifest.
pub(super) fn documents(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    serde_saphyr::from_multiple(&text).unwrap()
}

/// Installs a minimal definition.
pub(super) async fn define(client: &Client, group: &str, version: &str, kind: &str, scope: &str) {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let singular = kind.to_lowercase();
    let plural = plural(&singular);
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{plural}.{group}"),
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements"},
        },
        "spec": {
            "group": group,
            "scope": scope,
            "names": {"plural": plural, "singular": singular, "kind": kind, "listKind": format!("{kind}List")},
            "versions": [{"name": version, "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    });
    apply(client, definition).await;
    let kind =
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), &plural);
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
    eventually(&format!("{plural} to be served"), SOON, async || {
        let list = api.list(&ListParams::default()).await;
        list.map(drop).map_err(|error| error.to_string())
    })
    .await;
}

/// The name of a kind in URLs.
fn plural(singular: &str) -> String {
    let ending = if singular.ends_with('s') { "es" } else { "s" };
    format!("{singular}{ending}")
}

pub(super) async fn apply(client: &Client, object: Value) {
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    let types = object.types.as_ref().unwrap();
    let kind = ApiResource::from_gvk(&GroupVersionKind::try_from(types).unwrap());
    let api: Api<DynamicObject> = match &object.metadata.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &kind),
        None => Api::all_with(client.clone(), &kind),
    };
    let name = object.metadata.name.clone().unwrap();
    let parameters = PatchParams::apply("cistern-e2e").force();
    let applied = api.patch(&name, &parameters, &Patch::Apply(&object)).await;
    applied.unwrap();
}
