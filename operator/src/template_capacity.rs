//! Capacity of nodes that do not exist yet, for the cluster autoscaler: one CSIStorageCapacity for each
//! class of a pool with `spec.autoscaling`.
//!
//! The autoscaler simulates the scheduler with a template of a new node. The template has the labels of
//! its node group and [`names::TEMPLATE_NODE_LABEL`], and no agent.
//!
//! *Invariant:* these objects select template nodes only, so they never count for a node of the cluster.

use cistern_client::writes::{delete_exactly, patch_guarded};
use cistern_crds::{Bytes, Parameters, Provisioning, StoragePool, names};
use k8s_openapi::{
    api::storage::v1::CSIStorageCapacity,
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference},
    },
};
use kube::{Api, Resource as _, ResourceExt as _, api::PostParams};
use serde_json::json;

use crate::{
    Context, cache,
    change::Change,
    cluster_state::ClusterState,
    controller::{Controller, Next},
    kinds, pool,
};

/// Why the capacity of a class on new nodes is not up to date.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused a write.
    #[error("cannot {verb} the capacity of StorageClass {class} on new nodes")]
    Write {
        /// What was tried.
        verb: &'static str,
        /// Name of the StorageClass.
        class: String,
        /// The API server's answer.
        #[source]
        source: kube::Error,
    },
}

/// Keeps the capacity of new nodes up to date, by class.
#[derive(Debug)]
pub struct TemplateCapacityController(pub Context);

impl Controller for TemplateCapacityController {
    type Key = String;
    type Error = Error;
    const NAME: &'static str = "template-capacity";

    fn keys(&self, change: &Change) -> Vec<String> {
        concerned(&self.0.cluster, change)
    }

    async fn reconcile(&self, class: &String) -> Result<Next, Error> {
        reconcile(&self.0, class).await
    }
}

async fn reconcile(context: &Context, class: &str) -> Result<Next, Error> {
    let (cluster, namespace) = (&context.cluster, &context.namespace);
    let name = object_name(class);
    let key = cache::key(Some(namespace), &name);
    let own_writes = &cluster.own_writes;
    let copy = || cluster.capacities.get(&key);
    let Ok(current) = own_writes.read_or_created(Some(namespace), &name, copy) else {
        return Ok(Next::OnChange);
    };
    let api = Api::<CSIStorageCapacity>::namespaced(context.client.clone(), namespace);
    let failed = |verb| {
        let class = class.to_owned();
        move |source| Error::Write {
            verb,
            class,
            source,
        }
    };
    match (current.as_deref(), desired(cluster, class)) {
        (None, Some(desired)) => {
            let parameters = PostParams {
                field_manager: Some(names::OPERATOR_MANAGER.to_owned()),
                ..PostParams::default()
            };
            let created = api.create(&parameters, &desired).await;
            let created = created.map_err(failed("create"))?;
            own_writes.created(&created, || cluster.capacities.get(&kinds::key(&created)));
        }
        // A selector cannot be changed. The deletion is a change that leads to a new object.
        (Some(current), desired) if desired.as_ref().is_none_or(|it| !same_nodes(current, it)) => {
            let deleted = delete_exactly(&api, current).await;
            deleted.map_err(failed("delete"))?;
        }
        (Some(current), Some(desired)) if !same_numbers(current, &desired) => {
            let change = json!({
                "capacity": desired.capacity,
                "maximumVolumeSize": desired.maximum_volume_size,
            });
            let written = patch_guarded(&api, current, names::OPERATOR_MANAGER, change).await;
            let written = written.map_err(failed("update"))?;
            own_writes.wrote(&written, || cluster.capacities.get(&kinds::key(current)));
        }
        (None, None) | (Some(_), _) => {}
    }
    Ok(Next::OnChange)
}

/// The classes that a change concerns.
fn concerned(cluster: &ClusterState, change: &Change) -> Vec<String> {
    let classes_of = |pool: Option<&str>| -> Vec<String> {
        let classes = cluster.classes.filter(|class| {
            pool.is_none_or(|pool| {
                class
                    .parameters
                    .as_ref()
                    .and_then(|it| it.get("pool"))
                    .is_some_and(|it| it == pool)
            })
        });
        classes.iter().map(|class| class.name_any()).collect()
    };
    match change {
        Change::Everything => {
            let objects = cluster.capacities.filter(|it| kinds::segment(it).is_none());
            let mut classes = classes_of(None);
            classes.extend(objects.iter().map(|it| it.storage_class_name.clone()));
            classes
        }
        Change::Pool(pool) => classes_of(Some(pool)),
        Change::Class(class) => vec![class.clone()],
        // An object for a node has a segment.
        Change::Capacity { class, segment } if segment.is_empty() => vec![class.clone()],
        Change::Capacity { .. }
        | Change::PoolStatus(_)
        | Change::StorageNode(_)
        | Change::Node(_)
        | Change::AttributesClass(_)
        | Change::Volume { .. }
        | Change::Snapshot { .. }
        | Change::Claim { .. }
        | Change::Owner => Vec::new(),
    }
}

/// The object of a class; `None` if its pool publishes nothing for new nodes.
fn desired(cluster: &ClusterState, class: &str) -> Option<CSIStorageCapacity> {
    let parameters = cluster.class(class)?.parameters.clone();
    let parameters = Parameters::of_class(parameters.iter().flatten()).ok()?;
    let guard = cluster.pool(&parameters.pool)?;
    let (pool, _) = pool::declared(&guard).ok()?;
    if pool.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let usable = pool.spec.usable_on_new_node()?;
    let room = room(pool, usable, parameters.attributes.provisioning);
    Some(object(
        class,
        pool,
        room,
        room.min(usable).round_down_to_mib(),
    ))
}

/// What a new node has room for, in total.
fn room(pool: &StoragePool, usable: Bytes, provisioning: Provisioning) -> Bytes {
    match (provisioning, pool.spec.overcommit_percent) {
        (Provisioning::Thin, percent) => usable.percent(percent),
        (Provisioning::Thick, 100) => usable,
        // An overcommitted pool holds thin volumes only.
        (Provisioning::Thick, _) => Bytes::ZERO,
    }
}

fn object(class: &str, pool: &StoragePool, room: Bytes, maximum: Bytes) -> CSIStorageCapacity {
    let label = (names::MANAGED_BY_LABEL, names::OPERATOR_MANAGER);
    let mut nodes = pool.spec.node_selector.clone();
    nodes
        .match_labels
        .get_or_insert_default()
        .insert(names::TEMPLATE_NODE_LABEL.to_owned(), "true".to_owned());
    CSIStorageCapacity {
        metadata: ObjectMeta {
            name: Some(object_name(class)),
            labels: Some([(label.0.to_owned(), label.1.to_owned())].into()),
            owner_references: Some(vec![owner(pool)]),
            ..ObjectMeta::default()
        },
        storage_class_name: class.to_owned(),
        node_topology: Some(nodes),
        capacity: Some(Quantity(room.to_string())),
        maximum_volume_size: Some(Quantity(maximum.to_string())),
    }
}

fn owner(pool: &StoragePool) -> OwnerReference {
    OwnerReference {
        api_version: StoragePool::api_version(&()).into_owned(),
        kind: StoragePool::kind(&()).into_owned(),
        name: pool.name_any(),
        uid: pool.uid().unwrap_or_default(),
        ..OwnerReference::default()
    }
}

fn object_name(class: &str) -> String {
    format!("csisc-new-node-{}", names::short_hash(class))
}

/// Whether both objects are for the same nodes and belong to the same pool.
fn same_nodes(left: &CSIStorageCapacity, right: &CSIStorageCapacity) -> bool {
    let selector = |object: &CSIStorageCapacity| -> LabelSelector {
        let mut selector = object.node_topology.clone().unwrap_or_default();
        // The API server leaves out what is empty.
        selector.match_expressions = selector.match_expressions.filter(|it| !it.is_empty());
        selector
    };
    selector(left) == selector(right) && left.owner_references() == right.owner_references()
}

/// The API server may write a quantity in other words.
fn same_numbers(left: &CSIStorageCapacity, right: &CSIStorageCapacity) -> bool {
    let numbers = |object: &CSIStorageCapacity| {
        let bytes = |quantity: &Option<Quantity>| quantity.as_ref()?.0.parse::<Bytes>().ok();
        (bytes(&object.capacity), bytes(&object.maximum_volume_size))
    };
    numbers(left) == numbers(right)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(spec: &serde_json::Value) -> StoragePool {
        serde_json::from_value(json!({"metadata": {"name": "fast", "uid": "u"}, "spec": spec}))
            .unwrap()
    }

    fn image_pool() -> serde_json::Value {
        json!({
            "nodeSelector": {"matchLabels": {"disk": "fast"}},
            "source": {"image": {"size": "100Gi"}},
            "autoscaling": {},
        })
    }

    #[test]
    fn only_template_nodes_with_the_labels_of_the_pool_are_selected() {
        let pool = pool(&image_pool());
        let made = object("gold", &pool, Bytes::gib(1), Bytes::gib(1));
        let labels = made.node_topology.unwrap().match_labels.unwrap();
        assert_eq!(labels[names::TEMPLATE_NODE_LABEL], "true");
        assert_eq!(labels["disk"], "fast");
        assert!(!labels.contains_key(names::TOPOLOGY_KEY));
    }

    #[test]
    fn the_room_follows_the_overcommitment_of_the_pool() {
        let mut spec = image_pool();
        let usable = Bytes::gib(90);
        let of = |spec: &serde_json::Value, kind| room(&pool(spec), usable, kind);
        assert_eq!(of(&spec, Provisioning::Thin), usable);
        assert_eq!(of(&spec, Provisioning::Thick), usable);
        spec["overcommitPercent"] = json!(200);
        assert_eq!(of(&spec, Provisioning::Thin), Bytes::gib(180));
        assert_eq!(of(&spec, Provisioning::Thick), Bytes::ZERO);
    }

    #[test]
    fn an_object_that_the_api_server_wrote_in_other_words_is_the_same() {
        let pool = pool(&image_pool());
        let desired = object("gold", &pool, Bytes::gib(5), Bytes::gib(3));
        let mut current = desired.clone();
        current.capacity = Some(Quantity("5Gi".to_owned()));
        current.node_topology.as_mut().unwrap().match_expressions = Some(Vec::new());
        assert!(same_numbers(&current, &desired) && same_nodes(&current, &desired));
        current.capacity = Some(Quantity("6Gi".to_owned()));
        assert!(!same_numbers(&current, &desired));
    }

    #[test]
    fn another_selector_or_pool_needs_another_object() {
        let before = pool(&image_pool());
        let of = |pool: &StoragePool| object("gold", pool, Bytes::gib(1), Bytes::gib(1));
        let mut spec = image_pool();
        spec["nodeSelector"] = json!({"matchLabels": {"disk": "slow"}});
        assert!(!same_nodes(&of(&before), &of(&pool(&spec))));
        let mut again = before.clone();
        again.metadata.uid = Some("another".to_owned());
        assert!(!same_nodes(&of(&before), &of(&again)));
    }
}
