//! Objects for the tests of every controller.

use chrono::{DateTime, Utc};
use cistern_crds::{
    Bytes, ConditionType, NodePoolStatus, PoolLimits, PoolSource, Reason, StorageNode,
    StorageNodeSpec, StorageNodeStatus, StoragePool, StoragePoolSpec,
    condition::{self, ConditionUpdate},
    names,
    testing::{image_source, node_pool},
};
use k8s_openapi::{
    api::core::v1::Node,
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta},
};

use crate::{
    cache::{Cache, Entry, Writer},
    registration::Registration,
};

/// A fixed time.
pub(crate) fn moment() -> DateTime<Utc> {
    DateTime::from_timestamp(1_800_000_000, 0).unwrap()
}

/// The UID that a test's pool of this name has.
pub(crate) fn uid(pool: &str) -> String {
    format!("uid-of-{pool}")
}

/// A pool of 10 GiB on the nodes that match `labels`, with the operator's finalizer.
pub(crate) fn pool(name: &str, labels: &[(&str, &str)]) -> StoragePool {
    let labels = labels
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    StoragePool {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            uid: Some(uid(name)),
            generation: Some(1),
            finalizers: Some(vec![names::FINALIZER.to_owned()]),
            ..ObjectMeta::default()
        },
        spec: StoragePoolSpec {
            node_selector: LabelSelector {
                match_labels: Some(labels.collect()),
                ..LabelSelector::default()
            },
            source: source(),
            overcommit_percent: 100,
            reserved_percent: 5,
            limits: PoolLimits::default(),
            autoscaling: None,
            cordoned_nodes: Vec::new(),
            replaced_disks: Vec::new(),
            reclaim_orphans_after_hours: None,
        },
        status: None,
    }
}

/// A Node with labels.
pub(crate) fn node(name: &str, labels: &[(&str, &str)]) -> Node {
    let labels = labels
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    Node {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(labels.collect()),
            ..ObjectMeta::default()
        },
        ..Node::default()
    }
}

/// Puts an object into a cache, as its watch does.
pub(crate) fn put<E: Entry>(cache: &Cache<E>, name: &str, entry: E) {
    Writer::new(cache).replace(name, Some(entry));
}

/// The registration of a node without problems.
pub(crate) fn registered(node: &str) -> Registration {
    let well =
        |kind| ConditionUpdate::new(kind, true, Reason::Reconciled, format!("{node} is well"));
    Registration {
        topology: well(ConditionType::TopologyRegistered),
        agent: well(ConditionType::AgentReporting),
    }
}

/// The registration of a node on which kubelet has not registered the driver.
pub(crate) fn unregistered(node: &str) -> Registration {
    let mut registration = registered(node);
    registration.topology = ConditionUpdate::new(
        ConditionType::TopologyRegistered,
        false,
        Reason::DriverNotRegistered,
        "kubelet has not registered the driver",
    );
    registration
}

/// Builds a StorageNode.
#[derive(Clone, Debug)]
pub(crate) struct StorageNodeBuilder(StorageNode);

/// Begins a StorageNode without pools.
pub(crate) fn storage_node(name: &str) -> StorageNodeBuilder {
    let topology = [(names::TOPOLOGY_KEY.to_owned(), names::topology_value(name))];
    StorageNodeBuilder(StorageNode {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            uid: Some(format!("uid-of-{name}")),
            generation: Some(1),
            resource_version: Some("1".to_owned()),
            finalizers: Some(vec![names::FINALIZER.to_owned()]),
            ..ObjectMeta::default()
        },
        spec: StorageNodeSpec {
            topology: topology.into(),
            machine_id: None,
            transfer_endpoint: None,
            pools: Vec::new(),
        },
        status: Some(StorageNodeStatus::default()),
    })
}

impl StorageNodeBuilder {
    /// The spec names the pool.
    pub(crate) fn carrying(mut self, pool: &str) -> Self {
        self.0
            .spec
            .pools
            .push(node_pool(pool, &uid(pool), source()));
        self
    }

    /// The pool is leaving the node.
    pub(crate) fn retiring(mut self, pool: &str) -> Self {
        let mut pools = self.0.spec.pools.iter_mut();
        pools.find(|entry| entry.name == pool).unwrap().retiring = true;
        self
    }

    /// The agent reports the pool as ready, 10 GiB large, with this much room.
    pub(crate) fn with_room(mut self, pool: &str, room: Bytes) -> Self {
        let mut status = NodePoolStatus {
            name: pool.to_owned(),
            uid: uid(pool),
            filesystem_uuid: Some("filesystem".to_owned()),
            size: Bytes::gib(10),
            usable: Bytes::gib(10),
            used: Bytes::gib(1),
            free: Bytes::gib(9),
            reserved: Bytes::gib(10).saturating_sub(room),
            thin_room: room,
            thick_room: room,
            ..NodePoolStatus::default()
        };
        let well = ConditionUpdate::new(ConditionType::Ready, true, Reason::Reconciled, "");
        condition::set(&mut status.conditions, &well, None, moment());
        self.0.status.as_mut().unwrap().pools.push(status);
        self
    }

    /// The agent has observed the current spec.
    pub(crate) fn answered(mut self) -> Self {
        self.0.status.as_mut().unwrap().observed_generation = self.0.metadata.generation;
        self
    }

    /// The agent reports that the pool cannot be used.
    pub(crate) fn broken(mut self, pool: &str, reason: Reason) -> Self {
        let mut pools = self.0.status.as_mut().unwrap().pools.iter_mut();
        let status = pools.find(|status| status.name == pool).unwrap();
        let broken =
            ConditionUpdate::new(ConditionType::Ready, false, reason, "something is broken");
        condition::set(&mut status.conditions, &broken, None, moment());
        self
    }

    /// The object.
    pub(crate) fn build(self) -> StorageNode {
        self.0
    }
}

fn source() -> PoolSource {
    image_source(Bytes::gib(10))
}
