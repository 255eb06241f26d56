//! Cistern's custom resources, and the objects around them.

use std::collections::{BTreeMap, BTreeSet};

use cistern_client::{Chain, Rejection};
use cistern_crds::{
    ImageTransfer, PoolReplica, PoolSnapshot, PoolSnapshotGroup, PoolVolume, StorageNode,
    StoragePool, VolumeMove,
    names::{DRIVER, GROUP},
};
use futures::{StreamExt as _, stream};
use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment},
    core::v1::{Event, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass},
};
use kube::Resource;
use serde_json::Value;

use super::{contents::Contents, redaction::redact};
use crate::{Connection, Error};

/// Page size of list requests.
const PAGE: u32 = 500;
/// Maximum number of kinds that are listed at the same time.
const AT_ONCE: usize = 4;
/// The label that all pods, Deployments and DaemonSets of Cistern have.
const OURS: (&str, &str) = ("app.kubernetes.io/name", "cistern");

/// Objects by the plural name of their kind, as the API server returns them.
pub type Objects = BTreeMap<String, Vec<Value>>;

/// Namespace and name of an object. The namespace of a cluster-wide object is empty.
type Key = (String, String);

/// Lists all kinds. A kind that cannot be listed is missing in the contents.
pub async fn list(connection: &Connection, contents: &mut Contents) -> Objects {
    let lists = stream::iter(kinds(&connection.system_namespace))
        .map(|(name, path)| async move {
            let items = pages(connection, &name, &path).await;
            (name, items)
        })
        .buffered(AT_ONCE)
        .collect::<Vec<_>>()
        .await;
    let mut objects = Objects::new();
    for (name, items) in lists {
        match items {
            Ok(items) => _ = objects.insert(name, items),
            Err(error) => {
                let why = match error.rejection() {
                    Some(Rejection::NotFound) => "the cluster does not have this kind".to_owned(),
                    Some(_) | None => Chain(&error).to_string(),
                };
                contents.miss(&format!("objects/{name}.json"), why);
            }
        }
    }
    objects
}

/// The kinds, and the path of each list.
fn kinds(namespace: &str) -> Vec<(String, String)> {
    fn kind<K: Resource<DynamicType = ()>>(namespace: Option<&str>) -> (String, String) {
        (K::plural(&()).into_owned(), K::url_path(&(), namespace))
    }
    let mut kinds = vec![
        kind::<StoragePool>(None),
        kind::<StorageNode>(None),
        kind::<PoolVolume>(None),
        kind::<PoolSnapshot>(None),
        kind::<PoolSnapshotGroup>(None),
        kind::<VolumeMove>(None),
        kind::<ImageTransfer>(None),
        kind::<PoolReplica>(None),
        kind::<StorageClass>(None),
        kind::<PersistentVolume>(None),
        kind::<PersistentVolumeClaim>(None),
        kind::<CSIDriver>(None),
        kind::<CSINode>(None),
        kind::<CSIStorageCapacity>(None),
        kind::<Event>(None),
        kind::<Pod>(Some(namespace)),
        kind::<Deployment>(Some(namespace)),
        kind::<DaemonSet>(Some(namespace)),
    ];
    for name in ["volumesnapshotclasses", "volumesnapshotcontents"] {
        let path = format!("/apis/snapshot.storage.k8s.io/v1/{name}");
        kinds.push((name.to_owned(), path));
    }
    kinds
}

async fn pages(connection: &Connection, name: &str, path: &str) -> Result<Vec<Value>, Error> {
    let what = format!("cannot list {name}");
    let (mut all, mut token) = (Vec::new(), String::new());
    loop {
        let url = format!("{path}?limit={PAGE}&continue={token}");
        let request = http::Request::get(url).body(Vec::new());
        let request = request.map_err(kube::Error::HttpError);
        let client = connection.client();
        let page = async { client.request::<Value>(request?).await };
        let mut page = connection.ask(&what, page).await?;
        let of_list = |field| {
            page.pointer(field)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let (kind, version) = (
            of_list("/kind").to_owned(),
            of_list("/apiVersion").to_owned(),
        );
        of_list("/metadata/continue").clone_into(&mut token);
        if let Some(Value::Array(items)) = page.get_mut("items").map(Value::take) {
            // The items of a list of a built-in kind do not say what they are.
            all.extend(items.into_iter().map(|item| named(item, &kind, &version)));
        }
        if token.is_empty() {
            return Ok(all);
        }
    }
}

fn named(mut item: Value, kind: &str, version: &str) -> Value {
    if let Value::Object(fields) = &mut item {
        let kind = kind.strip_suffix("List").unwrap_or(kind);
        fields.entry("kind").or_insert_with(|| kind.into());
        fields.entry("apiVersion").or_insert_with(|| version.into());
    }
    item
}

/// Keeps the objects of Cistern and those that use them, redacted and sorted by namespace and name.
pub fn selected(mut objects: Objects, namespace: &str) -> Objects {
    let is_ours = |field: &'static str| move |it: &Value| text(it, field) == DRIVER;
    let mut keep = |kind: &str, is_kept: &dyn Fn(&Value) -> bool| -> BTreeSet<Key> {
        let Some(items) = objects.get_mut(kind) else {
            return BTreeSet::new();
        };
        items.retain(is_kept);
        items.iter().map(key).collect()
    };
    let classes = keep("storageclasses", &is_ours("/provisioner"));
    let volumes = keep("persistentvolumes", &is_ours("/spec/csi/driver"));
    keep("volumesnapshotclasses", &is_ours("/driver"));
    keep("volumesnapshotcontents", &is_ours("/spec/driver"));
    keep("csidrivers", &is_ours("/metadata/name"));
    let claims = keep("persistentvolumeclaims", &|it| {
        classes.contains(&cluster_wide(text(it, "/spec/storageClassName")))
            || volumes.contains(&cluster_wide(text(it, "/spec/volumeName")))
    });
    keep("csistoragecapacities", &|it| {
        classes.contains(&cluster_wide(text(it, "/storageClassName")))
    });
    for kind in ["pods", "deployments", "daemonsets"] {
        keep(kind, &|it| {
            let labels = it.pointer("/metadata/labels").unwrap_or(&Value::Null);
            labels.get(OURS.0).and_then(Value::as_str) == Some(OURS.1)
        });
    }
    keep("events", &|it| {
        is_about_us(it, namespace, &volumes, &claims)
    });
    for node in objects.get_mut("csinodes").into_iter().flatten() {
        if let Some(Value::Array(drivers)) = node.pointer_mut("/spec/drivers") {
            drivers.retain(|driver| text(driver, "/name") == DRIVER);
        }
    }
    for items in objects.values_mut() {
        items.iter_mut().for_each(redact);
        items.sort_by_cached_key(key);
    }
    objects
}

/// Whether an event concerns an object of Cistern, of its namespace, or one that uses Cistern.
fn is_about_us(
    event: &Value,
    namespace: &str,
    volumes: &BTreeSet<Key>,
    claims: &BTreeSet<Key>,
) -> bool {
    let about = |field| text(event, field);
    let name = about("/involvedObject/name");
    let its_namespace = about("/involvedObject/namespace");
    let group = about("/involvedObject/apiVersion").split('/').next();
    its_namespace == namespace
        || group == Some(GROUP)
        || match about("/involvedObject/kind") {
            "PersistentVolume" => volumes.contains(&cluster_wide(name)),
            "PersistentVolumeClaim" => {
                claims.contains(&(its_namespace.to_owned(), name.to_owned()))
            }
            _ => about("/source/component").starts_with("cistern"),
        }
}

fn key(object: &Value) -> Key {
    let field = |field| text(object, field).to_owned();
    (field("/metadata/namespace"), field("/metadata/name"))
}

fn cluster_wide(name: &str) -> Key {
    (String::new(), name.to_owned())
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value
        .pointer(field)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn names(objects: &Objects, kind: &str) -> Vec<String> {
        objects[kind].iter().map(|it| key(it).1).collect()
    }

    fn event(kind: &str, namespace: &str, name: &str) -> Value {
        json!({
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {"kind": kind, "name": name, "namespace": namespace, "apiVersion": "v1"},
        })
    }

    fn objects<const N: usize>(lists: [(&str, Value); N]) -> Objects {
        Objects::from(
            lists.map(|(kind, items)| (kind.to_owned(), items.as_array().unwrap().clone())),
        )
    }

    #[test]
    fn events_of_a_claim_with_the_same_name_in_another_namespace_are_left_out() {
        let ours = selected(
            objects([
                (
                    "storageclasses",
                    json!([{"metadata": {"name": "fast"}, "provisioner": DRIVER}]),
                ),
                (
                    "persistentvolumeclaims",
                    json!([
                        {"metadata": {"name": "data", "namespace": "shop"}, "spec": {"storageClassName": "fast"}},
                        {"metadata": {"name": "data", "namespace": "bank"}, "spec": {"storageClassName": "other"}},
                    ]),
                ),
                (
                    "events",
                    json!([
                        event("PersistentVolumeClaim", "shop", "data"),
                        event("PersistentVolumeClaim", "bank", "data"),
                    ]),
                ),
            ]),
            "cistern-system",
        );
        let namespaces = ours["events"].iter().map(|it| key(it).0);
        assert_eq!(namespaces.collect::<Vec<_>>(), ["shop"]);
    }

    #[test]
    fn objects_of_others_are_left_out() {
        let all = objects([
            (
                "storageclasses",
                json!([
                    {"metadata": {"name": "fast"}, "provisioner": DRIVER},
                    {"metadata": {"name": "other"}, "provisioner": "other"},
                ]),
            ),
            (
                "persistentvolumes",
                json!([
                    {"metadata": {"name": "pv-2"}, "spec": {"nfs": {}}},
                    {"metadata": {"name": "pv-1"}, "spec": {"csi": {"driver": DRIVER}}},
                ]),
            ),
            (
                "persistentvolumeclaims",
                json!([
                    {"metadata": {"name": "z", "namespace": "shop", "managedFields": []},
                        "spec": {"storageClassName": "fast"}},
                    {"metadata": {"name": "bound", "namespace": "shop"}, "spec": {"volumeName": "pv-1"}},
                    {"metadata": {"name": "foreign", "namespace": "shop"}, "spec": {"storageClassName": "other"}},
                ]),
            ),
            (
                "csinodes",
                json!([{"metadata": {"name": "n"}, "spec": {"drivers": [{"name": "x"}, {"name": DRIVER}]}}]),
            ),
            (
                "pods",
                json!([
                    {"metadata": {"name": "agent", "labels": {OURS.0: OURS.1}}},
                    {"metadata": {"name": "foreign"}},
                ]),
            ),
            (
                "events",
                json!([
                    event("PersistentVolumeClaim", "shop", "z"),
                    event("PersistentVolumeClaim", "shop", "foreign"),
                    event("Secret", "shop", "z"),
                ]),
            ),
        ]);
        let ours = selected(all, "cistern-system");
        assert_eq!(names(&ours, "storageclasses"), ["fast"]);
        assert_eq!(names(&ours, "persistentvolumes"), ["pv-1"]);
        assert_eq!(names(&ours, "persistentvolumeclaims"), ["bound", "z"]);
        assert_eq!(names(&ours, "pods"), ["agent"]);
        assert_eq!(names(&ours, "events"), ["z"]);
        assert_eq!(
            ours["events"][0]["involvedObject"]["kind"],
            "PersistentVolumeClaim"
        );
        assert_eq!(
            ours["csinodes"][0]["spec"]["drivers"],
            json!([{"name": DRIVER}])
        );
        assert!(!json!(ours).to_string().contains("managedFields"));
    }
}
