//! `pools`: each pool, and what every node has of it. Pure.

use cistern_crds::{
    Bytes, ConditionType, NodePoolStatus, Reason, StorageNode, StorageNodeStatus, StoragePool,
    StoragePoolSpec, condition,
    health::{PoolProblem, PoolSeverity},
};
use kube::ResourceExt as _;
use serde::Serialize;

use crate::{
    arguments::Selection,
    cluster::Cluster,
    output::{Cell, Paint, Table, Tone, View, human, size::percent},
    truth::Truth,
};

/// Every pool.
#[derive(Clone, Debug, Serialize)]
pub struct Pools {
    /// In the order of their names.
    pub items: Vec<PoolView>,
}

/// One pool.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolView {
    /// Its name.
    pub name: String,
    /// Where its space comes from: `image 2Gi`, `device`.
    pub source: String,
    /// How much may be promised to thin volumes, in hundredths.
    pub overcommit_percent: u32,
    /// Whether it can be used on all of its nodes.
    pub ready: Truth,
    /// Whether nothing is known to be wrong with it.
    pub healthy: Truth,
    /// Nodes on which it can be used.
    pub nodes_ready: u32,
    /// Why it is not ready.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// All of its nodes together.
    #[serde(flatten)]
    pub room: Room,
    /// What each node has of it.
    pub nodes: Vec<PoolOnNode>,
}

/// A pool on one node.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolOnNode {
    /// The node.
    pub node: String,
    /// Whether it can be used there.
    pub ready: Truth,
    /// Whether nothing is known to be wrong with it there.
    pub healthy: Truth,
    /// Why it is not ready.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Its device, where it is on one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// UUID of its filesystem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filesystem_uuid: Option<String>,
    /// How full it is.
    #[serde(flatten)]
    pub room: Room,
    /// What is wrong with it.
    pub problems: Vec<PoolProblem>,
    /// Images that nobody claims.
    pub orphans: usize,
}

/// How full something is. The sizes are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Room {
    /// Space for volumes and snapshots.
    pub usable_bytes: u64,
    /// What of it is promised.
    pub reserved_bytes: u64,
    /// What of that is promised to snapshots.
    pub reserved_for_snapshots_bytes: u64,
    /// The largest thin volume that fits on one node.
    pub largest_volume_bytes: u64,
    /// Volumes.
    pub volumes: u32,
    /// Snapshots.
    pub snapshots: u32,
}

impl Room {
    /// Together with another.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            usable_bytes: self.usable_bytes.saturating_add(other.usable_bytes),
            reserved_bytes: self.reserved_bytes.saturating_add(other.reserved_bytes),
            reserved_for_snapshots_bytes: self
                .reserved_for_snapshots_bytes
                .saturating_add(other.reserved_for_snapshots_bytes),
            largest_volume_bytes: self.largest_volume_bytes.max(other.largest_volume_bytes),
            volumes: self.volumes.saturating_add(other.volumes),
            snapshots: self.snapshots.saturating_add(other.snapshots),
        }
    }

    /// What is promised, in hundredths of what there is.
    pub fn percent(self) -> Option<u64> {
        percent(Bytes(self.reserved_bytes), Bytes(self.usable_bytes))
    }
}

impl From<&NodePoolStatus> for Room {
    fn from(pool: &NodePoolStatus) -> Self {
        Self {
            usable_bytes: pool.usable.0,
            reserved_bytes: pool.reserved.0,
            reserved_for_snapshots_bytes: pool.reserved_for_snapshots.0,
            largest_volume_bytes: pool.largest_volume(cistern_crds::Provisioning::Thin).0,
            volumes: pool.volumes,
            snapshots: pool.snapshots,
        }
    }
}

impl Pools {
    /// The pools of a cluster.
    pub fn of(cluster: &Cluster, only: &Selection) -> Self {
        let mut items: Vec<PoolView> = cluster
            .pools
            .iter()
            .filter(|pool| {
                only.pool
                    .as_ref()
                    .is_none_or(|name| *name == pool.name_any())
            })
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
        let rooms = on_nodes.iter().map(|node| node.room);
        let is_ready = |node: &&PoolOnNode| node.ready == Truth::True;
        Self {
            source: source(&pool.spec),
            overcommit_percent: pool.spec.overcommit_percent,
            ready: Truth::of(&status.conditions, ConditionType::Ready),
            healthy: Truth::of(&status.conditions, ConditionType::Healthy),
            nodes_ready: u32::try_from(on_nodes.iter().filter(is_ready).count())
                .unwrap_or(u32::MAX),
            message: ready.map(|ready| ready.message.clone()).unwrap_or_default(),
            room: rooms.fold(Room::default(), Room::and),
            nodes: on_nodes,
            name,
        }
    }
}

impl PoolOnNode {
    /// None where the node is not to carry the pool, and has none of it.
    fn of(pool: &str, node: &StorageNode) -> Option<Self> {
        let mut said = node.status.iter().flat_map(|status| &status.pools);
        let said = said.find(|said| said.name == pool).cloned();
        if said.is_none() && !node.spec.pools.iter().any(|wanted| wanted.name == pool) {
            return None;
        }
        let said = said.unwrap_or_default();
        let silence = node.status.as_ref().and_then(StorageNodeStatus::silence);
        if let Some((Reason::NodeGone, gone)) = silence {
            return Some(Self::gone(node, &gone.message, said));
        }
        let ready = condition::find(&said.conditions, ConditionType::Ready);
        let silent = "the agent of the node has not said anything yet".to_owned();
        Some(Self {
            node: node.name_any(),
            ready: Truth::of(&said.conditions, ConditionType::Ready),
            healthy: Truth::of(&said.conditions, ConditionType::Healthy),
            message: ready.map_or(silent, |ready| ready.message.clone()),
            room: Room::from(&said),
            orphans: said.orphans.len(),
            device: said.device,
            filesystem_uuid: said.filesystem_uuid,
            problems: said.problems,
        })
    }

    /// On a node that is gone: nobody can use what is there, and there is no room in it.
    fn gone(node: &StorageNode, message: &str, said: NodePoolStatus) -> Self {
        Self {
            node: node.name_any(),
            ready: Truth::False,
            healthy: Truth::Unknown,
            message: message.to_owned(),
            room: Room::default(),
            orphans: 0,
            device: said.device,
            filesystem_uuid: said.filesystem_uuid,
            problems: Vec::new(),
        }
    }

    /// The worst that is wrong with it.
    pub fn worst(&self) -> Option<PoolSeverity> {
        self.problems.iter().map(|problem| problem.severity).max()
    }
}

/// Where the space of a pool comes from.
fn source(spec: &StoragePoolSpec) -> String {
    match (&spec.source.image, &spec.source.device) {
        (Some(image), _) => format!("image {}", image.size),
        (None, Some(_)) => "device".to_owned(),
        (None, None) => String::new(),
    }
}

const HEADINGS: [&str; 8] = [
    "POOL",
    "READY",
    "HEALTHY",
    "USABLE",
    "RESERVED",
    "LARGEST",
    "VOLUMES",
    "SNAPSHOTS",
];
const WIDE: [&str; 5] = [
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
            let tone = match pool.ready {
                Truth::True => Tone::Good,
                Truth::False | Truth::Unknown => Tone::Bad,
            };
            let mut row = vec![
                Cell::new(&pool.name, Tone::Strong),
                Cell::new(ready, tone),
                Cell::truth(pool.healthy),
            ];
            row.extend(numbers(pool.room));
            if wide {
                let orphans = pool.nodes.iter().map(|node| node.orphans).sum::<usize>();
                row.extend([
                    in_snapshots(pool.room),
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
}

fn on_node(node: &PoolOnNode, branch: &str, wide: bool) -> Vec<Cell> {
    let name = Cell::of(vec![
        (Tone::Faint, format!("{branch} ")),
        (Tone::Plain, node.node.clone()),
    ]);
    let mut row = vec![name, Cell::truth(node.ready), Cell::truth(node.healthy)];
    row.extend(numbers(node.room));
    if wide {
        row.extend([
            in_snapshots(node.room),
            "".into(),
            node.device.as_deref().unwrap_or_default().into(),
            node.orphans.to_string().into(),
            node.filesystem_uuid.as_deref().unwrap_or_default().into(),
        ]);
    }
    row
}

fn numbers(room: Room) -> [Cell; 5] {
    let size = |bytes| human(Bytes(bytes));
    let reserved = match room.percent() {
        Some(percent) => format!("{} ({percent} %)", size(room.reserved_bytes)),
        None => size(room.reserved_bytes),
    };
    [
        size(room.usable_bytes).into(),
        reserved.into(),
        size(room.largest_volume_bytes).into(),
        room.volumes.to_string().into(),
        room.snapshots.to_string().into(),
    ]
}

fn in_snapshots(room: Room) -> Cell {
    human(Bytes(room.reserved_for_snapshots_bytes)).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{cluster, condition, object};

    #[test]
    fn a_pool_stands_above_its_nodes() {
        let text = Pools::of(&cluster(), &Selection::default()).text(false, Paint::plain());
        assert_eq!(
            text,
            "\
POOL          READY   HEALTHY   USABLE   RESERVED     LARGEST   VOLUMES   SNAPSHOTS
fast          1/2     False     20Gi     6Gi (30 %)   4Gi       2         1
├─ worker-1   True    True      10Gi     6Gi (60 %)   4Gi       2         1
└─ worker-2   False   False     10Gi     0 (0 %)      0         0         0
"
        );
    }

    #[test]
    fn a_node_that_is_gone_has_no_room() {
        let mut cluster = cluster();
        let gone = condition("Healthy", "Unknown", "NodeGone", "Node worker-2 is gone");
        let status = cluster.nodes[1].status.as_mut().unwrap();
        status.conditions = vec![object(gone)];
        let pools = Pools::of(&cluster, &Selection::default());
        let pool = &pools.items[0];
        assert_eq!(pool.room.usable_bytes, 10 << 30);
        assert_eq!(pool.nodes[1].message, "Node worker-2 is gone");
    }

    #[test]
    fn one_node_of_one_pool_can_be_asked_for() {
        let only = Selection {
            pool: Some("fast".to_owned()),
            node: Some("worker-2".to_owned()),
        };
        let pools = Pools::of(&cluster(), &only);
        assert_eq!(pools.items.len(), 1);
        assert_eq!(pools.items[0].nodes.len(), 1);
        let none = Selection {
            pool: Some("slow".to_owned()),
            node: None,
        };
        assert!(Pools::of(&cluster(), &none).items.is_empty());
    }

    #[test]
    fn programs_read_bytes() {
        let pools = Pools::of(&cluster(), &Selection::default());
        let json = serde_json::to_value(&pools).unwrap();
        assert_eq!(json["items"][0]["usableBytes"], 20_u64 << 30);
        assert_eq!(
            json["items"][0]["nodes"][1]["problems"][0]["severity"],
            "Unreachable"
        );
        assert_eq!(json["items"][0]["nodes"][0]["healthy"], "True");
    }
}
