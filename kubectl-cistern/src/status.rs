//! `status`: one screen. Pure.

use std::cmp::Reverse;

use chrono::{DateTime, Utc};
use cistern_crds::{Bytes, ConditionType, StorageNode};
use kube::ResourceExt as _;
use serde::Serialize;

use crate::{
    arguments::Selection,
    cluster::Cluster,
    duration::age,
    output::{Cell, Paint, Table, Tone, View, bar::bar, counted, human, one_line, wrap},
    pools::{PoolOnNode, PoolView, Pools, Room},
    truth::Truth,
    wrong::{self, Severity, Wrong},
};

/// Characters of a bar.
const BAR: usize = 20;
/// Nodes that have a line of their own; of more, the fullest and those with trouble.
const LINES: usize = 10;
/// Characters of a line of text.
const WIDTH: usize = 100;

/// The whole of it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The pools, and what each node has of them.
    pub pools: Vec<PoolView>,
    /// The nodes that carry them.
    pub nodes: Vec<NodeView>,
    /// Volumes in the cluster.
    pub volumes: usize,
    /// Snapshots in the cluster.
    pub snapshots: usize,
    /// What is wrong, the worst first.
    pub wrong: Vec<Wrong>,
    /// When somebody looked.
    #[serde(skip)]
    pub now: DateTime<Utc>,
}

/// One node.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeView {
    /// Its name.
    pub name: String,
    /// Whether all of its pools can be used.
    pub ready: Truth,
    /// Whether nothing is known to be wrong with it.
    pub healthy: Truth,
    /// Whether its agent reports.
    pub agent: Truth,
    /// Whether kubelet has registered the driver.
    pub registered: Truth,
    /// All of its pools together.
    #[serde(flatten)]
    pub room: Room,
}

impl NodeView {
    fn of(node: &StorageNode) -> Self {
        let status = node.status.clone().unwrap_or_default();
        let truth = |kind| Truth::of(&status.conditions, kind);
        let rooms = status.pools.iter().map(Room::from);
        Self {
            name: node.name_any(),
            ready: truth(ConditionType::Ready),
            healthy: truth(ConditionType::Healthy),
            agent: truth(ConditionType::AgentReporting),
            registered: truth(ConditionType::TopologyRegistered),
            room: rooms.fold(Room::default(), Room::and),
        }
    }

    fn is_well(&self) -> bool {
        let all = [self.ready, self.healthy, self.agent, self.registered];
        all.iter().all(|truth| *truth == Truth::True)
    }
}

impl Status {
    /// The state of a cluster.
    pub fn of(cluster: &Cluster, now: DateTime<Utc>) -> Self {
        let mut nodes: Vec<NodeView> = cluster.nodes.iter().map(NodeView::of).collect();
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        Self {
            pools: Pools::of(cluster, &Selection::default()).items,
            nodes,
            volumes: cluster.volumes.len(),
            snapshots: cluster.snapshots.len(),
            wrong: wrong::all(cluster, now),
            now,
        }
    }

    /// The worst that is wrong.
    pub fn worst(&self) -> Option<Severity> {
        self.wrong.iter().map(|wrong| wrong.severity).min()
    }

    fn summary(&self) -> String {
        [
            counted(self.pools.len(), "pool"),
            counted(self.nodes.len(), "node"),
            counted(self.volumes, "volume"),
            counted(self.snapshots, "snapshot"),
        ]
        .join(", ")
    }
}

impl View for Status {
    const KIND: &'static str = "Status";

    fn text(&self, wide: bool, paint: Paint) -> String {
        let mut text = format!("Cistern: {}\n", self.summary());
        if self.pools.is_empty() {
            text.push_str("\nThere are no pools yet: declare a StoragePool.\n");
        } else {
            text.push('\n');
            text.push_str(&pools(&self.pools, wide).render(paint));
            text.push_str(&paint.of(Tone::Faint, "█ volumes  ▒ snapshots  · free"));
            text.push('\n');
        }
        if !self.nodes.is_empty() {
            text.push('\n');
            text.push_str(&nodes(&self.nodes, wide, paint));
        }
        text.push('\n');
        text.push_str(&self.wrong_text(paint));
        text
    }
}

fn pools(pools: &[PoolView], wide: bool) -> Table {
    let mut table = Table::new(&[
        "POOL",
        "NODES",
        "RESERVED",
        "",
        "",
        "VOLUMES",
        "SNAPSHOTS",
        "HOLD",
    ]);
    for pool in pools {
        let tone = match pool.ready {
            Truth::True => Tone::Good,
            Truth::False | Truth::Unknown => Tone::Bad,
        };
        let ready = format!("{}/{}", pool.nodes_ready, pool.nodes.len());
        let mut row = vec![Cell::new(&pool.name, Tone::Strong), Cell::new(ready, tone)];
        row.extend(room(pool.room));
        table.row(row);
        // One node is the pool.
        if pool.nodes.len() < 2 {
            continue;
        }
        let shown = fullest(&pool.nodes, wide);
        let hidden = pool.nodes.len() - shown.len();
        for (index, node) in shown.iter().enumerate() {
            let tone = match node.worst() {
                Some(cistern_crds::PoolSeverity::Degraded) => Tone::Warning,
                _ if node.ready == Truth::True => Tone::Plain,
                _ => Tone::Bad,
            };
            let is_last = hidden == 0 && index + 1 == shown.len();
            let branch = if is_last { "└─ " } else { "├─ " };
            let branch = (Tone::Faint, branch.to_owned());
            let mut row = vec![
                Cell::of(vec![branch, (tone, node.node.clone())]),
                " ".into(),
            ];
            row.extend(room(node.room));
            table.row(row);
        }
        if hidden > 0 {
            let more = format!("└─ {hidden} more: see kubectl cistern pools");
            table.row(vec![Cell::new(more, Tone::Faint)]);
        }
    }
    table
}

/// The nodes of a pool that are worth a line, in the order of their names.
fn fullest(nodes: &[PoolOnNode], wide: bool) -> Vec<&PoolOnNode> {
    let mut all: Vec<&PoolOnNode> = nodes.iter().collect();
    if !wide && all.len() > LINES {
        all.sort_by_key(|node| (node.ready == Truth::True, Reverse(node.room.percent())));
        all.truncate(LINES);
        all.sort_by(|a, b| a.node.cmp(&b.node));
    }
    all
}

fn room(room: Room) -> [Cell; 6] {
    let (reserved, snapshots) = (
        Bytes(room.reserved_bytes),
        Bytes(room.reserved_for_snapshots_bytes),
    );
    let usable = Bytes(room.usable_bytes);
    let volumes = reserved.saturating_sub(snapshots);
    let percent = room.percent().map(|percent| format!("{percent:>3} %"));
    [
        Cell::of(bar(volumes, snapshots, usable, BAR)),
        percent.unwrap_or_default().into(),
        format!("{} of {}", human(reserved), human(usable)).into(),
        room.volumes.to_string().into(),
        room.snapshots.to_string().into(),
        human(snapshots).into(),
    ]
}

fn nodes(nodes: &[NodeView], wide: bool, paint: Paint) -> String {
    let is_many = !wide && nodes.len() > LINES;
    let shown: Vec<&NodeView> = nodes
        .iter()
        .filter(|node| !is_many || !node.is_well())
        .collect();
    let mut table = Table::new(&["NODE", "READY", "HEALTHY", "AGENT", "REGISTERED"]);
    for node in &shown {
        table.row(vec![
            node.name.as_str().into(),
            Cell::truth(node.ready),
            Cell::truth(node.healthy),
            Cell::truth(node.agent),
            Cell::truth(node.registered),
        ]);
    }
    match nodes.len() - shown.len() {
        0 => table.render(paint),
        well if shown.is_empty() => format!("All {} are well.\n", counted(well, "node")),
        well => format!(
            "{}{} more are well.\n",
            table.render(paint),
            counted(well, "node")
        ),
    }
}

impl Status {
    fn wrong_text(&self, paint: Paint) -> String {
        if self.wrong.is_empty() {
            return paint.of(Tone::Good, "Nothing is known to be wrong.") + "\n";
        }
        let title = format!("What is wrong ({}):", self.wrong.len());
        let mut lines = vec![paint.of(Tone::Strong, &title) + "\n"];
        for wrong in &self.wrong {
            let (mark, tone) = match wrong.severity {
                Severity::Error => ("✗", Tone::Bad),
                Severity::Warning => ("!", Tone::Warning),
            };
            let since = wrong
                .since
                .map(|since| format!(", {}", age(since, self.now)));
            let mut whose = format!("{} {}", wrong.kind, wrong.name);
            if wrong.count > 1 {
                whose = format!(
                    "{} {}s, one of them {}",
                    wrong.count, wrong.kind, wrong.name
                );
            }
            // A node need not be told of itself.
            if let Some(node) = wrong.node.as_ref().filter(|node| **node != wrong.name) {
                whose = format!("{whose} on {node}");
            }
            let whose = one_line(&whose);
            let reason = paint.of(tone, &wrong.reason);
            lines.push(format!(
                "  {} {whose}: {reason}{}\n    {}\n",
                paint.of(tone, mark),
                since.unwrap_or_default(),
                wrap(&wrong.message, WIDTH, 4),
            ));
        }
        lines.concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, cluster};

    #[test]
    fn one_screen_tells_what_there_is_and_what_is_wrong() {
        let text = Status::of(&cluster(), at(600)).text(false, Paint::plain());
        assert_eq!(
            text,
            "\
Cistern: 1 pool, 2 nodes, 2 volumes, 1 snapshot

POOL          NODES   RESERVED                                     VOLUMES   SNAPSHOTS   HOLD
fast          1/2     ████▒▒··············    30 %   6Gi of 20Gi   2         1           2Gi
├─ worker-1           ████████▒▒▒▒········    60 %   6Gi of 10Gi   2         1           2Gi
└─ worker-2           ····················     0 %   0 of 10Gi     0         0           0
█ volumes  ▒ snapshots  · free

NODE       READY   HEALTHY   AGENT   REGISTERED
worker-1   True    Unknown   True    True
worker-2   True    Unknown   True    True

What is wrong (4):
  ✗ Pool fast on worker-2: ProbeTimedOut, 5m
    no answer for 10 s: look at the node's disk
  ✗ PoolVolume pvc-2 on worker-1: ImageMissing, 5m
    its image is gone: restore it
  ! Pool fast on worker-1: Orphans, 10m
    2 images of 1.5Gi that nobody claims: see `kubectl cistern orphans`
  ! Claim shop/more: NoSpace, 10m
    no node of pool fast has 50Gi free
"
        );
        assert!(text.lines().all(|line| line.chars().count() <= 100));
    }

    #[test]
    fn a_cluster_without_trouble_is_told_in_a_sentence() {
        let status = Status::of(&Cluster::default(), at(0));
        assert_eq!(
            status.text(false, Paint::plain()),
            "Cistern: 0 pools, 0 nodes, 0 volumes, 0 snapshots\n\n\
             There are no pools yet: declare a StoragePool.\n\nNothing is known to be wrong.\n"
        );
        assert_eq!(status.worst(), None);
    }

    #[test]
    fn of_many_nodes_those_are_shown_that_are_full_or_in_trouble() {
        let mut cluster = cluster();
        let (well, broken) = (cluster.nodes[0].clone(), cluster.nodes[1].clone());
        cluster.nodes = (0..50)
            .map(|number| {
                let mut node = if number == 25 {
                    broken.clone()
                } else {
                    well.clone()
                };
                node.metadata.name = Some(format!("worker-{number:02}"));
                node
            })
            .collect();
        let text = Status::of(&cluster, at(600)).text(false, Paint::plain());
        assert!(text.contains("├─ worker-25"), "{text}");
        assert!(text.contains("└─ 40 more"), "{text}");
        let wide = Status::of(&cluster, at(600)).text(true, Paint::plain());
        assert!(wide.contains("└─ worker-49"), "{wide}");
    }

    #[test]
    fn programs_read_the_same() {
        let json = serde_json::to_value(Status::of(&cluster(), at(600))).unwrap();
        assert_eq!(json["volumes"], 2);
        assert_eq!(
            json["pools"][0]["nodes"][0]["reservedForSnapshotsBytes"],
            2_u64 << 30
        );
        assert_eq!(json["nodes"][0]["agent"], "True");
        assert_eq!(json["wrong"][0]["severity"], "Error");
        assert_eq!(json["wrong"][0]["node"], "worker-2");
    }
}
