//! Capacity for the scheduler: one CSIStorageCapacity for each StorageClass of this driver and each
//! node where the driver is registered. Each report of an agent updates it.
//!
//! *Invariant:* a published number is never larger than the agent's last report, except for the
//! time of one write. A pool that refuses volumes shows as zero. The operator writes only objects
//! with its label.

pub(crate) mod object;

use std::time::Duration;

use cistern_crds::{
    Bytes, NodePoolStatus, Parameters,
    availability::{Needs, takes},
    names,
};
use k8s_openapi::{
    api::storage::v1::{CSIStorageCapacity, StorageClass},
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use kube::{Resource as _, ResourceExt as _};
use serde_json::json;

use crate::{
    Context,
    capacity::object::{Published, Write},
    change::Change,
    cluster_state::ClusterState,
    controller::{Controller, Next},
    outdated::Slot,
    registration,
};

/// Delay before growth is published, to batch it. A shrink is published immediately: otherwise the
/// scheduler would place pods on nodes without room.
const GROWTH_DELAY: Duration = Duration::from_millis(500);

/// Why a capacity object is not up to date.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused a write.
    #[error("cannot {verb} the capacity of StorageClass {class} on {segment}")]
    Write {
        /// The attempted action, as a verb.
        verb: &'static str,
        /// Name of the StorageClass.
        class: String,
        /// The node's value of the topology key, or a text for the nodes that do not exist yet.
        segment: String,
        /// The error of the API server or of the connection.
        #[source]
        source: kube::Error,
    },
}

/// Action that reconciles one slot.
#[derive(Clone, Debug, PartialEq)]
enum CapacityAction {
    Keep,
    Create(Published),
    Delete,
    /// More room, or another owner; may be delayed.
    Raise(Published),
    /// Less room.
    Lower(Published),
}

/// Keeps the capacity objects up to date.
#[derive(Debug)]
pub struct CapacityController;

impl Controller for CapacityController {
    type Key = Slot;
    type Error = Error;
    const NAME: &'static str = "capacity";

    fn keys(&self, context: &Context, change: &Change) -> Vec<Slot> {
        let cluster = &context.cluster;
        let classes = || -> Vec<String> {
            let classes = cluster.classes.all();
            classes.iter().map(|class| class.name_any()).collect()
        };
        let existing = |of: Option<&str>| -> Vec<Slot> {
            let ours = cluster
                .capacities
                .filter(|object| of.is_none_or(|class| object.storage_class_name == class));
            ours.iter().filter_map(|object| Slot::of(object)).collect()
        };
        match change {
            Change::Everything => {
                let mut slots: Vec<Slot> = existing(None);
                slots.extend(cross(&classes(), &segments(cluster)));
                slots
            }
            Change::StorageNode(node) | Change::Node(node) => {
                cross(&classes(), &[names::topology_value(node)])
            }
            Change::Class(class) => {
                let mut slots: Vec<Slot> = existing(Some(class));
                slots.extend(cross(std::slice::from_ref(class), &segments(cluster)));
                slots
            }
            Change::Capacity { class, segment } => {
                cross(std::slice::from_ref(class), std::slice::from_ref(segment))
            }
            Change::Pool(_)
            | Change::PoolStatus(_)
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

    async fn reconcile(&self, context: &Context, slot: &Slot) -> Result<Next, Error> {
        let outdated = &context.outdated;
        let Ok(current) = object::current(context, &slot.object_name()) else {
            return Ok(Next::OnChange);
        };
        let desired = desired(&context.cluster, slot, current.is_some());
        let action = plan(current.as_deref(), desired);
        if action == CapacityAction::Keep {
            outdated.settle(slot);
            return Ok(Next::OnChange);
        }
        if let Some(delay) = delay(&action, outdated.age(slot)) {
            return Ok(Next::After(delay));
        }
        execute(context, slot, current.as_deref(), action).await?;
        if let Some(lag) = outdated.settle(slot) {
            context.metrics.published(lag);
        }
        Ok(Next::OnChange)
    }
}

async fn execute(
    context: &Context,
    slot: &Slot,
    seen: Option<&CSIStorageCapacity>,
    action: CapacityAction,
) -> Result<(), Error> {
    let write = match (action, seen) {
        (CapacityAction::Create(published), _) => Write::Create(Box::new(object(slot, published))),
        (CapacityAction::Raise(published) | CapacityAction::Lower(published), Some(seen)) => {
            let change = json!({
                "metadata": {"ownerReferences": published.owner.as_slice()},
                "capacity": published.capacity,
                "maximumVolumeSize": published.maximum,
            });
            Write::Update(seen, change)
        }
        (CapacityAction::Delete, Some(seen)) => Write::Delete(seen),
        (
            CapacityAction::Keep
            | CapacityAction::Delete
            | CapacityAction::Raise(_)
            | CapacityAction::Lower(_),
            _,
        ) => return Ok(()),
    };
    write.execute(context, &slot.class, &slot.segment).await
}

/// Desired contents of the slot's object; `None` if the object should not exist.
///
/// An existing object stays while its class and its Node exist, because the driver is missing in
/// CSINode for a moment whenever its pod is replaced.
fn desired(cluster: &ClusterState, slot: &Slot, exists: bool) -> Option<Published> {
    let class = cluster.class(&slot.class)?;
    let node = cluster.node_of_segment(&slot.segment)?;
    let csi_node = cluster.csi_node(&node);
    let is_registered = csi_node.is_some_and(|csi_node| registration::is_registered(&csi_node));
    if !is_registered && !exists {
        return None;
    }
    let guard = cluster.storage_node(&node);
    let storage_node = guard.as_ref().and_then(|guard| guard.0.as_ref().ok());
    let of_class = |parameters: Parameters| {
        let registration = registration::observe(cluster, &node);
        let needs = Needs {
            provisioning: parameters.attributes.provisioning,
            encryption: parameters.encryption,
            is_copy: false,
        };
        let offered = |pool| takes(pool, storage_node, needs, &registration.parts()).ok();
        numbers(parameters.pools.iter().filter_map(offered), &parameters)
    };
    let (capacity, maximum) = parameters(&class).map(of_class).unwrap_or_default();
    Some(Published {
        capacity,
        maximum,
        owner: storage_node.and_then(|node| node.owner_ref(&())),
    })
}

/// The parameters of a class, if they are valid.
pub(crate) fn parameters(class: &StorageClass) -> Option<Parameters> {
    Parameters::of_class(class.parameters.iter().flatten()).ok()
}

/// Capacity and largest volume of the pools on a node, for volumes of a class. The capacity is their sum;
/// a volume is in one of them.
pub(crate) fn numbers<'a>(
    pools: impl Iterator<Item = &'a NodePoolStatus>,
    parameters: &Parameters,
) -> (Bytes, Bytes) {
    let (kind, header) = (parameters.attributes.provisioning, parameters.header());
    pools.fold((Bytes::ZERO, Bytes::ZERO), |(capacity, maximum), pool| {
        (
            capacity.saturating_add(pool.room(kind).saturating_sub(header)),
            maximum.max(pool.largest_volume(kind).saturating_sub(header)),
        )
    })
}

fn segments(cluster: &ClusterState) -> Vec<String> {
    let csi_nodes = cluster.csi_nodes.all();
    let named = csi_nodes.iter().map(|node| node.name_any());
    named.map(|name| names::topology_value(&name)).collect()
}

fn cross(classes: &[String], segments: &[String]) -> Vec<Slot> {
    let slot = |class: &String, segment: &String| Slot {
        class: class.clone(),
        segment: segment.clone(),
    };
    classes
        .iter()
        .flat_map(|class| segments.iter().map(move |segment| slot(class, segment)))
        .collect()
}

fn object(slot: &Slot, published: Published) -> CSIStorageCapacity {
    let segment = (names::TOPOLOGY_KEY.to_owned(), slot.segment.clone());
    let nodes = LabelSelector {
        match_labels: Some([segment].into()),
        match_expressions: None,
    };
    published.object(slot.object_name(), &slot.class, nodes)
}

/// Computes the action for one slot.
fn plan(current: Option<&CSIStorageCapacity>, desired: Option<Published>) -> CapacityAction {
    let (current, desired) = match (current, desired) {
        (None, None) => return CapacityAction::Keep,
        (None, Some(desired)) => return CapacityAction::Create(desired),
        (Some(_), None) => return CapacityAction::Delete,
        (Some(current), Some(desired)) => (Published::of(current), desired),
    };
    if current.as_ref() == Some(&desired) {
        return CapacityAction::Keep;
    }
    match current {
        Some(current)
            if current.capacity <= desired.capacity && current.maximum <= desired.maximum =>
        {
            CapacityAction::Raise(desired)
        }
        // An unreadable value may be too large.
        Some(_) | None => CapacityAction::Lower(desired),
    }
}

/// How long to delay an action, to batch it with later ones; None for no delay. The object has been
/// out of date for `age`.
fn delay(action: &CapacityAction, age: Duration) -> Option<Duration> {
    let left = GROWTH_DELAY.checked_sub(age).filter(|left| !left.is_zero());
    left.filter(|_| matches!(action, CapacityAction::Raise(_)))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

    use super::*;
    use crate::testing::{self, put, storage_node};

    fn slot() -> Slot {
        Slot {
            class: "fast".to_owned(),
            segment: "w1".to_owned(),
        }
    }

    fn said(capacity: u64, maximum: u64) -> Published {
        Published {
            capacity: Bytes::gib(capacity),
            maximum: Bytes::gib(maximum),
            owner: None,
        }
    }

    #[test]
    fn the_name_is_made_of_class_and_node_and_leads_back_to_them() {
        let made = object(&slot(), said(1, 1));
        assert_eq!(Slot::of(&made), Some(slot()));
        assert_eq!(made.name_any(), slot().object_name());
        let other = Slot {
            segment: "w2".to_owned(),
            ..slot()
        };
        assert_ne!(other.object_name(), slot().object_name());
    }

    #[test]
    fn a_node_whose_driver_lacks_the_topology_key_gets_no_object() {
        let cluster = ClusterState::unwatched();
        let class = json!({
            "metadata": {"name": "fast"}, "provisioner": names::DRIVER, "parameters": {"pool": "fast"},
        });
        let class = serde_json::from_value(class).unwrap();
        put(&cluster.classes, "fast", class);
        put(&cluster.nodes, "w1", testing::node("w1", &[]));
        let is_wanted = |keys: &[&str]| {
            let csi_node = json!({
                "metadata": {"name": "w1"},
                "spec": {"drivers": [{"name": names::DRIVER, "nodeID": "w1", "topologyKeys": keys}]},
            });
            let csi_node = serde_json::from_value(csi_node).unwrap();
            put(&cluster.csi_nodes, "w1", csi_node);
            desired(&cluster, &slot(), false).is_some()
        };
        assert!(!is_wanted(&["kubernetes.io/hostname"]));
        assert!(is_wanted(&[names::TOPOLOGY_KEY]));
    }

    #[test]
    fn both_numbers_are_always_set_and_the_one_key_selects_the_node() {
        let made = object(&slot(), Published::default());
        assert_eq!(made.capacity, Some(Quantity("0".to_owned())));
        assert_eq!(made.maximum_volume_size, Some(Quantity("0".to_owned())));
        let labels = made.node_topology.unwrap().match_labels.unwrap();
        let expected = (names::TOPOLOGY_KEY.to_owned(), "w1".to_owned());
        assert_eq!(labels.into_iter().collect::<Vec<_>>(), [expected]);
    }

    #[test]
    fn a_shrink_of_either_number_is_distinguished_from_growth() {
        let current = object(&slot(), said(5, 3));
        let action = |desired| plan(Some(&current), Some(desired));
        assert_eq!(action(said(5, 3)), CapacityAction::Keep);
        assert_eq!(action(said(6, 3)), CapacityAction::Raise(said(6, 3)));
        assert_eq!(action(said(6, 2)), CapacityAction::Lower(said(6, 2)));
        assert_eq!(action(said(4, 4)), CapacityAction::Lower(said(4, 4)));
        assert_eq!(plan(Some(&current), None), CapacityAction::Delete);
        assert_eq!(
            plan(None, Some(said(1, 1))),
            CapacityAction::Create(said(1, 1))
        );
        assert_eq!(plan(None, None), CapacityAction::Keep);
    }

    #[test]
    fn a_shrink_is_published_at_once_and_growth_after_half_a_second() {
        let (now, soon) = (Duration::ZERO, GROWTH_DELAY / 2);
        let raise = CapacityAction::Raise(said(6, 3));
        assert_eq!(delay(&raise, now), Some(GROWTH_DELAY));
        assert_eq!(delay(&raise, soon), Some(GROWTH_DELAY / 2));
        assert_eq!(delay(&raise, GROWTH_DELAY), None);
        for action in [
            CapacityAction::Lower(said(4, 3)),
            CapacityAction::Create(said(1, 1)),
            CapacityAction::Delete,
        ] {
            assert_eq!(delay(&action, now), None, "{action:?}");
        }
    }

    #[test]
    fn r05_a_number_that_the_api_server_writes_in_other_words_is_the_same() {
        let mut current = object(&slot(), said(5, 3));
        current.capacity = Some(Quantity("5120Mi".to_owned()));
        assert_eq!(plan(Some(&current), Some(said(5, 3))), CapacityAction::Keep);
    }

    #[test]
    fn an_object_that_says_nothing_or_has_two_owners_is_written_at_once() {
        let mut silent = object(&slot(), said(1, 1));
        silent.maximum_volume_size = None;
        assert_eq!(
            plan(Some(&silent), Some(said(1, 1))),
            CapacityAction::Lower(said(1, 1))
        );
        let node = storage_node("w1").build().owner_ref(&()).unwrap();
        let mut owned = object(&slot(), said(1, 1));
        owned.metadata.owner_references = Some(vec![node.clone(), node]);
        assert_eq!(
            plan(Some(&owned), Some(said(1, 1))),
            CapacityAction::Lower(said(1, 1))
        );
    }

    #[test]
    fn the_pools_of_a_class_add_up_and_the_largest_volume_is_that_of_one() {
        let node = storage_node("w1")
            .carrying("nvme-0")
            .with_room("nvme-0", Bytes::gib(8))
            .carrying("nvme-1")
            .with_room("nvme-1", Bytes::gib(5));
        let pools = node.build().status.unwrap().pools;
        let pair = ("pool".to_owned(), "nvme-0,nvme-1".to_owned());
        let parameters = Parameters::parse(&std::collections::BTreeMap::from([pair])).unwrap();
        assert_eq!(
            numbers(pools.iter(), &parameters),
            (Bytes::gib(13), Bytes::gib(8))
        );
        assert_eq!(
            numbers(std::iter::empty(), &parameters),
            (Bytes::ZERO, Bytes::ZERO)
        );
    }

    #[test]
    fn thick_volumes_get_the_thick_room_and_no_volume_exceeds_the_pool() {
        let node = storage_node("w1")
            .carrying("fast")
            .with_room("fast", Bytes::gib(8))
            .build();
        let mut status = node.status.unwrap().pools.remove(0);
        status.thick_room = Bytes::gib(2);
        status.thin_room = Bytes::gib(30);
        let parameters = |provisioning: &str| {
            let pairs = [("pool", "fast"), ("provisioning", provisioning)];
            let map = pairs.map(|(key, value)| (key.to_owned(), value.to_owned()));
            Parameters::parse(&std::collections::BTreeMap::from(map)).unwrap()
        };
        let thick = numbers(std::iter::once(&status), &parameters("thick"));
        assert_eq!(thick, (Bytes::gib(2), Bytes::gib(2)));
        let thin = numbers(std::iter::once(&status), &parameters("thin"));
        assert_eq!(thin, (Bytes::gib(30), Bytes::gib(10)));
    }
}
