//! `pools`: pools and their capacity on each node. Pure.

use cistern_crds::{
    Bytes, ConditionType, NodePoolStatus, PoolSource, Reason, StorageNode, StorageNodeStatus,
    StoragePool, StoragePoolSpec, condition,
    health::{PoolProblem, PoolSeverity, Problem},
    pool::DeviceSource,
};
use kube::{
    ResourceExt as _,
    core::{Selector, SelectorExt as _},
};
use serde::Serialize;

use crate::{
    arguments::Selection,
    cluster::Cluster,
    condition_state::ConditionState,
    output::{Cell, Paint, Style, Table, View, human, size::percent},
};

/// List of pools.
#[derive(Clone, Debug, Serialize)]
pub struct Pools {
    /// Pools, sorted by name.
    pub items: Vec<PoolView>,
}

/// A pool with its nodes.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolView {
    /// Name of the StoragePool.
    pub name: String,
    /// Source of its space, such as `image 2Gi` or `device`.
    pub source: String,
    /// Percentage of the capacity that may be reserved for thin volumes.
    pub overcommit_percent: u32,
    /// Condition Ready: the pool can be used on all of its nodes.
    pub ready: ConditionState,
    /// Condition Healthy: no problem is known.
    pub healthy: ConditionState,
    /// Number of `nodes` on which it is ready.
    pub nodes_ready: u32,
    /// Message of the condition Ready.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Sum over `nodes`; `largest_volume_bytes` is the maximum instead.
    #[serde(flatten)]
    pub capacity: Capacity,
    /// State of the pool on each selected node, sorted by name of the node.
    pub nodes: Vec<PoolOnNode>,
}

/// A pool on one node.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolOnNode {
    /// Name of the node.
    pub node: String,
    /// Condition Ready on this node.
    pub ready: ConditionState,
    /// Condition Healthy on this node.
    pub healthy: ConditionState,
    /// Whether `cordonedNodes` of the StoragePool excludes this node from new volumes.
    pub cordoned: bool,
    /// Message of the condition Ready. If the agent has not reported or the node is gone, a message
    /// about that.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Path of the block device; absent if the pool is in an image file or is a volume group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// UUID of the pool's filesystem; absent until the pool is created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filesystem_uuid: Option<String>,
    /// Capacity on this node.
    #[serde(flatten)]
    pub capacity: Capacity,
    /// Problems that the agent reports.
    pub problems: Vec<PoolProblem>,
    /// Number of orphaned images, including those that the status has no room for.
    pub orphans: usize,
}

/// Capacity and reservations. Sizes are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Capacity {
    /// Space for volumes and snapshots.
    pub usable_bytes: u64,
    /// Space that the ledger reserves. With overcommit, it can exceed `usable_bytes`.
    pub reserved_bytes: u64,
    /// Part of `reserved_bytes` that is reserved for snapshots.
    pub reserved_for_snapshots_bytes: u64,
    /// Space that is physically in use, accurate to about 1 %.
    pub used_bytes: u64,
    /// Space that is physically free, accurate to about 1 %.
    pub free_bytes: u64,
    /// Size of the largest volume that fits on one node.
    pub largest_volume_bytes: u64,
    /// Number of volumes with a reservation, whether or not their images are made.
    pub volumes: u32,
    /// Number of snapshots with a reservation, whether or not they are taken.
    pub snapshots: u32,
}

impl Capacity {
    /// Adds the capacity of another pool or node. The largest volume is the larger of the two.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            usable_bytes: self.usable_bytes.saturating_add(other.usable_bytes),
            reserved_bytes: self.reserved_bytes.saturating_add(other.reserved_bytes),
            reserved_for_snapshots_bytes: self
                .reserved_for_snapshots_bytes
                .saturating_add(other.reserved_for_snapshots_bytes),
            used_bytes: self.used_bytes.saturating_add(other.used_bytes),
            free_bytes: self.free_bytes.saturating_add(other.free_bytes),
            largest_volume_bytes: self.largest_volume_bytes.max(other.largest_volume_bytes),
            volumes: self.volumes.saturating_add(other.volumes),
            snapshots: self.snapshots.saturating_add(other.snapshots),
        }
    }

    /// Returns the reserved percentage of the usable capacity; `None` if that is 0.
    pub fn percent(self) -> Option<u64> {
        percent(Bytes(self.reserved_bytes), Bytes(self.usable_bytes))
    }
}

impl From<&NodePoolStatus> for Capacity {
    fn from(pool: &NodePoolStatus) -> Self {
        Self {
            usable_bytes: pool.usable.0,
            reserved_bytes: pool.reserved.0,
            reserved_for_snapshots_bytes: pool.reserved_for_snapshots.0,
            used_bytes: pool.used.0,
            free_bytes: pool.free.0,
            largest_volume_bytes: pool.largest_volume_of_any().0,
            volumes: pool.volumes,
            snapshots: pool.snapshots,
        }
    }
}

impl Pools {
    /// Collects the selected pools of a cluster.
    pub fn of(cluster: &Cluster, only: &Selection, labels: Option<&Selector>) -> Self {
        let mut items: Vec<PoolView> = cluster
            .pools
            .iter()
            .filter(|pool| {
                only.pool
                    .as_ref()
                    .is_none_or(|name| *name == pool.name_any())
            })
            .filter(|pool| labels.is_none_or(|labels| labels.matches(pool.labels())))
            .map(|pool| PoolView::of(pool, &cluster.nodes, only.node.as_deref()))
            .filter(|pool| only.node.is_none() || !pool.nodes.is_empty())
            .collect();
        items.sort_by(|a, b| a.name.cmp(&b.name));
        Self { items }
    }
}

impl PoolView {
    fn of(pool: &StoragePool, nodes: &[StorageNode], only: Option<&str>) -> Self {
        let name = pool.name_any();
        let status = pool.status.clone().unwrap_or_default();
        let mut on_nodes: Vec<PoolOnNode> = nodes
            .iter()
            .filter(|node| only.is_none_or(|only| only == node.name_any()))
            .filter_map(|node| PoolOnNode::of(&name, node))
            .collect();
        on_nodes.sort_by(|a, b| a.node.cmp(&b.node));
        let ready = condition::find(&status.conditions, ConditionType::Ready);
        let capacities = on_nodes.iter().map(|node| node.capacity);
        let is_ready = |node: &&PoolOnNode| node.ready == ConditionState::True;
        Self {
            source: source(&pool.spec),
            overcommit_percent: pool.spec.overcommit_percent,
            ready: ConditionState::of(&status.conditions, ConditionType::Ready),
            healthy: ConditionState::of(&status.conditions, ConditionType::Healthy),
            nodes_ready: u32::try_from(on_nodes.iter().filter(is_ready).count())
                .unwrap_or(u32::MAX),
            message: ready.map(|ready| ready.message.clone()).unwrap_or_default(),
            capacity: capacities.fold(Capacity::default(), Capacity::and),
            nodes: on_nodes,
            name,
        }
    }
}

impl PoolOnNode {
    /// Returns `None` if the pool is neither in the spec nor in the status of the node.
    fn of(pool: &str, node: &StorageNode) -> Option<Self> {
        let mut said = node.status.iter().flat_map(|status| &status.pools);
        let said = said.find(|said| said.name == pool).cloned();
        let wanted = node.spec.pools.iter().find(|wanted| wanted.name == pool);
        if said.is_none() && wanted.is_none() {
            return None;
        }
        let cordoned = wanted.is_some_and(|wanted| wanted.cordoned);
        let said = said.unwrap_or_default();
        let reported = node.status.as_ref();
        let unknown = reported.and_then(StorageNodeStatus::unknown_state);
        if let Some((Reason::NodeGone, gone)) = unknown {
            return Some(Self::gone(node, &gone.message, said));
        }
        let ready = condition::find(&said.conditions, ConditionType::Ready);
        let silent = "the agent of the node has not reported yet".to_owned();
        Some(Self {
            node: node.name_any(),
            ready: ConditionState::of(&said.conditions, ConditionType::Ready),
            healthy: ConditionState::of(&said.conditions, ConditionType::Healthy),
            cordoned,
            message: ready.map_or(silent, |ready| ready.message.clone()),
            capacity: Capacity::from(&said),
            orphans: said.orphan_count(),
            device: said.device,
            filesystem_uuid: said.filesystem_uuid,
            problems: said.problems,
        })
    }

    /// State on a node that is gone: the pool is unusable and has no capacity.
    fn gone(node: &StorageNode, message: &str, said: NodePoolStatus) -> Self {
        Self {
            node: node.name_any(),
            ready: ConditionState::False,
            healthy: ConditionState::Unknown,
            cordoned: false,
            message: message.to_owned(),
            capacity: Capacity::default(),
            orphans: 0,
            device: said.device,
            filesystem_uuid: said.filesystem_uuid,
            problems: Vec::new(),
        }
    }

    /// Returns the highest severity of its problems.
    pub fn worst(&self) -> Option<PoolSeverity> {
        Problem::worst(&self.problems).map(|problem| problem.severity)
    }
}

/// Describes the source of a pool's space.
fn source(spec: &StoragePoolSpec) -> String {
    let PoolSource {
        image,
        device,
        volume_group,
    } = &spec.source;
    match (image, device, volume_group) {
        (Some(image), _, _) => match &image.directory {
            Some(directory) => format!("image {} in {directory}", image.size),
            None => format!("image {}", image.size),
        },
        (None, Some(_), _) if spec.source.has_images() => "device".to_owned(),
        (None, Some(DeviceSource { stripes, .. }), _) => match stripes {
            Some(stripes) => format!("volume group of devices, {stripes} stripes"),
            None => "volume group of devices".to_owned(),
        },
        (None, None, Some(group)) => format!("volume group {}", group.name),
        (None, None, None) => String::new(),
    }
}

const HEADINGS: [&str; 9] = [
    "POOL",
    "READY",
    "HEALTHY",
    "USABLE",
    "RESERVED",
    "USED",
    "LARGEST",
    "VOLUMES",
    "SNAPSHOTS",
];
const WIDE: [&str; 6] = [
    "FREE",
    "IN SNAPSHOTS",
    "OVERCOMMIT",
    "SOURCE",
    "ORPHANS",
    "FILESYSTEM",
];

impl View for Pools {
    const KIND: &'static str = "PoolList";

    fn text(&self, wide: bool, paint: Paint) -> String {
        if self.items.is_empty() {
            return "There are no pools: see `kubectl explain storagepool.spec`.\n".to_owned();
        }
        let more: &[&str] = if wide { &WIDE } else { &[] };
        let mut table = Table::new(&[&HEADINGS, more].concat());
        for pool in &self.items {
            let ready = format!("{}/{}", pool.nodes_ready, pool.nodes.len());
            let style = match pool.ready {
                ConditionState::True => Style::Good,
                ConditionState::False | ConditionState::Unknown => Style::Bad,
            };
            let mut row = vec![
                Cell::new(&pool.name, Style::Strong),
                Cell::new(ready, style),
                Cell::condition(pool.healthy),
            ];
            row.extend(numbers(pool.capacity));
            if wide {
                let orphans = pool.nodes.iter().map(|node| node.orphans).sum::<usize>();
                row.extend([
                    free(pool.capacity),
                    in_snapshots(pool.capacity),
                    format!("{} %", pool.overcommit_percent).into(),
                    pool.source.as_str().into(),
                    orphans.to_string().into(),
                    "".into(),
                ]);
            }
            table.row(row);
            for (index, node) in pool.nodes.iter().enumerate() {
                let branch = if index + 1 == pool.nodes.len() {
                    "└─"
                } else {
                    "├─"
                };
                table.row(on_node(node, branch, wide));
            }
        }
        table.render(paint)
    }

    fn has_headings(&self) -> bool {
        !self.items.is_empty()
    }
}

fn on_node(node: &PoolOnNode, branch: &str, wide: bool) -> Vec<Cell> {
    let name = Cell::of(vec![
        (Style::Faint, format!("{branch} ")),
        (Style::Plain, node.node.clone()),
    ]);
    let ready = if node.cordoned && node.ready == ConditionState::True {
        Cell::new("Cordoned", Style::Warning)
    } else {
        Cell::condition(node.ready)
    };
    let mut row = vec![name, ready, Cell::condition(node.healthy)];
    row.extend(numbers(node.capacity));
    if wide {
        row.extend([
            free(node.capacity),
            in_snapshots(node.capacity),
            "".into(),
            node.device.as_deref().unwrap_or_default().into(),
            node.orphans.to_string().into(),
            node.filesystem_uuid.as_deref().unwrap_or_default().into(),
        ]);
    }
    row
}

fn numbers(capacity: Capacity) -> [Cell; 6] {
    let size = |bytes| human(Bytes(bytes));
    let reserved = match capacity.percent() {
        Some(percent) => format!("{} ({percent} %)", size(capacity.reserved_bytes)),
        None => size(capacity.reserved_bytes),
    };
    [
        size(capacity.usable_bytes).into(),
        reserved.into(),
        size(capacity.used_bytes).into(),
        size(capacity.largest_volume_bytes).into(),
        capacity.volumes.to_string().into(),
        capacity.snapshots.to_string().into(),
    ]
}

fn free(capacity: Capacity) -> Cell {
    human(Bytes(capacity.free_bytes)).into()
}

fn in_snapshots(capacity: Capacity) -> Cell {
    human(Bytes(capacity.reserved_for_snapshots_bytes)).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{cluster, condition, object};

    #[test]
    fn the_nodes_of_a_pool_are_listed_below_it() {
        let text = Pools::of(&cluster(), &Selection::default(), None).text(false, Paint::plain());
        assert_eq!(
            text,
            "\
POOL          READY   HEALTHY   USABLE   RESERVED     USED    LARGEST   VOLUMES   SNAPSHOTS
fast          1/2     False     20Gi     6Gi (30 %)   2.5Gi   4Gi       2         1
├─ worker-1   True    True      10Gi     6Gi (60 %)   2.5Gi   4Gi       2         1
└─ worker-2   False   False     10Gi     0 (0 %)      0       0         0         0
"
        );
    }

    #[test]
    fn the_source_of_a_pool_names_its_directory_its_volume_group_or_its_engine() {
        let mut cluster = cluster();
        let source = |cluster: &_| {
            let pools = Pools::of(cluster, &Selection::default(), None);
            pools.items[0].source.clone()
        };
        assert_eq!(source(&cluster), "image 11Gi");
        let image = cluster.pools[0].spec.source.image.as_mut().unwrap();
        image.directory = Some("/data/cistern".to_owned());
        assert_eq!(source(&cluster), "image 11Gi in /data/cistern");
        cluster.pools[0].spec.source =
            object(serde_json::json!({"volumeGroup": {"name": "vg-data"}}));
        assert_eq!(source(&cluster), "volume group vg-data");
        let mut device = serde_json::json!({"paths": ["/dev/a"]});
        for (field, value, expected) in [
            ("engine", serde_json::json!("Image"), "device"),
            (
                "engine",
                serde_json::json!("LogicalVolume"),
                "volume group of devices",
            ),
            (
                "stripes",
                serde_json::json!(2),
                "volume group of devices, 2 stripes",
            ),
        ] {
            device[field] = value;
            cluster.pools[0].spec.source = object(serde_json::json!({"device": device}));
            assert_eq!(source(&cluster), expected);
        }
    }

    #[test]
    fn a_node_that_is_gone_has_no_capacity() {
        let mut cluster = cluster();
        let gone = condition("Healthy", "Unknown", "NodeGone", "Node worker-2 is gone");
        let status = cluster.nodes[1].status.as_mut().unwrap();
        status.conditions = vec![object(gone)];
        let pools = Pools::of(&cluster, &Selection::default(), None);
        let pool = &pools.items[0];
        assert_eq!(pool.capacity.usable_bytes, 10 << 30);
        assert_eq!(pool.nodes[1].message, "Node worker-2 is gone");
    }

    #[test]
    fn pools_are_filtered_by_name_and_node() {
        let only = Selection {
            pool: Some("fast".to_owned()),
            node: Some("worker-2".to_owned()),
        };
        let pools = Pools::of(&cluster(), &only, None);
        assert_eq!(pools.items.len(), 1);
        assert_eq!(pools.items[0].nodes.len(), 1);
        let none = Selection {
            pool: Some("slow".to_owned()),
            node: None,
        };
        assert!(Pools::of(&cluster(), &none, None).items.is_empty());
    }

    #[test]
    fn a_cordoned_pool_says_so_in_place_of_ready() {
        let mut cluster = cluster();
        let entry = serde_json::json!({"name": "fast", "uid": "uid-of-fast", "cordoned": true,
            "source": {"image": {"size": "11Gi"}}, "overcommitPercent": 100, "reservedPercent": 5});
        for node in &mut cluster.nodes {
            node.spec.pools = vec![object(entry.clone())];
        }
        let pools = Pools::of(&cluster, &Selection::default(), None);
        let text = pools.text(false, Paint::plain());
        assert!(text.contains("worker-1   Cordoned   True"), "{text}");
        assert!(text.contains("worker-2   False      False"), "{text}");
    }

    #[test]
    fn pools_are_filtered_by_their_labels() {
        let mut cluster = cluster();
        cluster.pools[0]
            .labels_mut()
            .insert("tier".to_owned(), "fast".to_owned());
        let count = |selector: &str| {
            let selector = crate::selector::parse(selector).unwrap();
            let pools = Pools::of(&cluster, &Selection::default(), Some(&selector));
            pools.items.len()
        };
        assert_eq!((count("tier=fast"), count("tier=slow")), (1, 0));
    }

    #[test]
    fn json_contains_sizes_in_bytes() {
        let pools = Pools::of(&cluster(), &Selection::default(), None);
        let json = serde_json::to_value(&pools).unwrap();
        assert_eq!(json["items"][0]["usableBytes"], 20_u64 << 30);
        assert_eq!(json["items"][0]["usedBytes"], 2560_u64 << 20);
        assert_eq!(json["items"][0]["freeBytes"], 8_u64 << 30);
        assert_eq!(
            json["items"][0]["nodes"][1]["problems"][0]["severity"],
            "Unreachable"
        );
        assert_eq!(json["items"][0]["nodes"][0]["healthy"], "True");
    }
}
