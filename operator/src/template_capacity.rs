//! Capacity of nodes that do not exist yet, for the cluster autoscaler: one CSIStorageCapacity for each
//! class and each of its pools with `spec.autoscaling`. The pools of a class may be on other nodes, so their
//! numbers are not added: an object selects the nodes of one pool, and a volume is in one pool.
//!
//! The autoscaler simulates the scheduler with a template of a new node. The template has the labels of
//! its node group and [`names::TEMPLATE_NODE_LABEL`], and no agent.
//!
//! *Invariant:* these objects select template nodes only, so they never count for a node of the cluster.

use cistern_crds::{Bytes, NodePoolStatus, Parameters, Provisioning, StoragePool, names};
use k8s_openapi::{
    api::storage::v1::CSIStorageCapacity, apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use kube::{Resource as _, ResourceExt as _};
use serde_json::json;

use crate::{
    Context,
    capacity::{
        Error, numbers,
        object::{self, Published, Write},
        parameters,
    },
    change::Change,
    cluster_state::ClusterState,
    controller::{Controller, Next},
    kinds::kubernetes,
    pool::declaration::declared,
};

/// Keeps the capacity of new nodes up to date, by class.
#[derive(Debug)]
pub struct TemplateCapacityController;

impl Controller for TemplateCapacityController {
    type Key = String;
    type Error = Error;
    const NAME: &'static str = "template-capacity";

    fn keys(&self, context: &Context, change: &Change) -> Vec<String> {
        let cluster = &context.cluster;
        let classes_of = |pool: Option<&str>| -> Vec<String> {
            let classes = cluster.classes.filter(|class| {
                let is_of = |name| parameters(class).is_some_and(|it| it.pools.contains(name));
                pool.is_none_or(is_of)
            });
            classes.iter().map(|class| class.name_any()).collect()
        };
        match change {
            Change::Everything => {
                let objects = cluster
                    .capacities
                    .filter(|it| kubernetes::segment(it).is_none());
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
            | Change::Replica(_)
            | Change::Move(_)
            | Change::Transfer(_)
            | Change::AttributesClass(_)
            | Change::Volume { .. }
            | Change::Snapshot { .. }
            | Change::Claim { .. }
            | Change::Owner => Vec::new(),
        }
    }

    async fn reconcile(&self, context: &Context, class: &String) -> Result<Next, Error> {
        let class_object = context.cluster.class(class);
        let parameters = class_object.as_deref().and_then(parameters);
        let mut expected = Vec::new();
        for pool in parameters.iter().flat_map(|it| it.pools.iter()) {
            let name = object_name(class, pool);
            let desired = parameters
                .as_ref()
                .and_then(|parameters| desired(&context.cluster, class, pool, parameters));
            publish(context, class, &name, desired).await?;
            expected.push(name);
        }
        // Of a class that is gone, or that was made again with other pools.
        let others = context.cluster.capacities.filter(|it| {
            it.storage_class_name == *class
                && kubernetes::segment(it).is_none()
                && !expected.contains(&it.name_any())
        });
        for other in others {
            publish(context, class, &other.name_any(), None).await?;
        }
        Ok(Next::OnChange)
    }
}

/// Makes an object as desired.
async fn publish(
    context: &Context,
    class: &str,
    name: &str,
    desired: Option<CSIStorageCapacity>,
) -> Result<(), Error> {
    let Ok(current) = object::current(context, name) else {
        return Ok(());
    };
    let write = match (current.as_deref(), desired) {
        (None, Some(desired)) => Write::Create(Box::new(desired)),
        // A selector cannot be changed. The deletion is a change that leads to a new object.
        (Some(current), desired) if desired.as_ref().is_none_or(|it| !same_nodes(current, it)) => {
            Write::Delete(current)
        }
        (Some(current), Some(desired)) if !same_numbers(current, &desired) => {
            let change = json!({
                "capacity": desired.capacity,
                "maximumVolumeSize": desired.maximum_volume_size,
            });
            Write::Update(current, change)
        }
        (None, None) | (Some(_), _) => return Ok(()),
    };
    write.execute(context, class, "new nodes").await
}

/// The object of a class for one of its pools; `None` if the pool publishes nothing for new nodes.
fn desired(
    cluster: &ClusterState,
    class: &str,
    pool: &str,
    parameters: &Parameters,
) -> Option<CSIStorageCapacity> {
    let guard = cluster.pool(pool)?;
    let (pool, _) = declared(&guard).ok()?;
    if pool.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let usable = pool.spec.usable_on_new_node()?;
    let empty = empty(pool, usable);
    let kind = parameters.attributes.provisioning;
    let source = &pool.spec.source;
    let holds = source.holds(&pool.name_any(), kind);
    let offered = holds.is_ok().then_some(&empty);
    let (room, maximum) = numbers(offered.into_iter(), parameters);
    Some(object(class, pool, room, maximum))
}

/// What a new node will report of the pool.
fn empty(pool: &StoragePool, usable: Bytes) -> NodePoolStatus {
    NodePoolStatus {
        usable,
        thin_room: room(pool, usable, Provisioning::Thin),
        thick_room: room(pool, usable, Provisioning::Thick),
        ..NodePoolStatus::default()
    }
}

/// Total room of a new node for volumes with this provisioning, in bytes.
fn room(pool: &StoragePool, usable: Bytes, provisioning: Provisioning) -> Bytes {
    match (provisioning, pool.spec.overcommit_percent) {
        (Provisioning::Thin, percent) => usable.percent(percent),
        (Provisioning::Thick, 100) => usable,
        // An overcommitted pool holds thin volumes only.
        (Provisioning::Thick, _) => Bytes::ZERO,
    }
}

fn object(class: &str, pool: &StoragePool, room: Bytes, maximum: Bytes) -> CSIStorageCapacity {
    let mut nodes = pool.spec.node_selector.clone();
    nodes
        .match_labels
        .get_or_insert_default()
        .insert(names::TEMPLATE_NODE_LABEL.to_owned(), "true".to_owned());
    let published = Published {
        capacity: room,
        maximum,
        owner: pool.owner_ref(&()),
    };
    let name = object_name(class, &pool.name_any());
    published.object(name, class, nodes)
}

fn object_name(class: &str, pool: &str) -> String {
    let both = format!("{class}/{pool}");
    format!("csisc-new-node-{}", names::short_hash(&both))
}

/// Whether both objects are for the same nodes and belong to the same pool.
fn same_nodes(left: &CSIStorageCapacity, right: &CSIStorageCapacity) -> bool {
    let selector = |object: &CSIStorageCapacity| -> LabelSelector {
        let mut selector = object.node_topology.clone().unwrap_or_default();
        // The API server omits an empty list.
        selector.match_expressions = selector.match_expressions.filter(|it| !it.is_empty());
        selector
    };
    selector(left) == selector(right) && left.owner_references() == right.owner_references()
}

fn same_numbers(left: &CSIStorageCapacity, right: &CSIStorageCapacity) -> bool {
    let numbers = |object| Published::of(object).map(|it| (it.capacity, it.maximum));
    numbers(left) == numbers(right)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    use kube::core::DeserializeGuard;

    use super::*;
    use crate::testing::put;

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
    fn a_volume_group_has_room_only_for_volumes_that_it_holds() {
        let cluster = ClusterState::unwatched();
        let published = |provisioning: &str| {
            let pairs = [("pool", "fast"), ("provisioning", provisioning)];
            let pairs = pairs.map(|(key, value)| (key.to_owned(), value.to_owned()));
            let parameters = Parameters::parse(&BTreeMap::from(pairs)).unwrap();
            let made = desired(&cluster, "gold", "fast", &parameters).unwrap();
            let published = Published::of(&made).unwrap();
            (published.capacity, published.maximum)
        };
        let full = Bytes::gib(90);
        for source in [
            json!({"volumeGroup": {"name": "vg-data"}}),
            json!({"device": {"paths": ["/dev/a"], "engine": "LogicalVolume"}}),
        ] {
            let mut spec = image_pool();
            spec["source"] = source;
            spec["autoscaling"] = json!({"usableOnNewNode": "90Gi"});
            let pool = pool(&spec);
            put(&cluster.pools, "fast", DeserializeGuard(Ok(pool)));
            assert_eq!(published("thick"), (full, full));
            assert_eq!(published("thin"), (Bytes::ZERO, Bytes::ZERO));
        }
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
    fn each_pool_of_a_class_has_an_object_of_its_own() {
        let of = |class, pool: &StoragePool| object(class, pool, Bytes::gib(1), Bytes::gib(1));
        let first = pool(&image_pool());
        let mut second = first.clone();
        second.metadata.name = Some("slow".to_owned());
        let made = [of("gold", &first), of("gold", &second), of("fast", &first)];
        let names: std::collections::BTreeSet<_> =
            made.iter().map(kube::ResourceExt::name_any).collect();
        assert_eq!(names.len(), 3);
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
