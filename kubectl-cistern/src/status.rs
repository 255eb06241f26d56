//! `status`: a summary of pools, nodes and issues. Pure.

use std::cmp::Reverse;

use chrono::{DateTime, Utc};
use cistern_crds::{Bytes, ConditionType, StorageNode};
use kube::ResourceExt as _;
use serde::Serialize;

use crate::{
    age::age,
    arguments::Selection,
    cluster::Cluster,
    condition_state::ConditionState,
    issues::{self, Issue, Severity},
    output::{Cell, Paint, Style, Table, View, bar::bar, counted, human, one_line, wrap},
    pools::{Capacity, PoolOnNode, PoolView, Pools},
};

/// Width of a bar in characters.
const BAR: usize = 20;
/// Maximum number of nodes per pool. Of more nodes, those that are not ready are selected first,
/// and then the fullest. The table of nodes leaves out healthy nodes if there are more.
const LINES: usize = 10;
/// Characters per line of text.
const WIDTH: usize = 100;

/// State of the cluster.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Pools, with their nodes.
    pub pools: Vec<PoolView>,
    /// Nodes with pools.
    pub nodes: Vec<NodeView>,
    /// Number of volumes in the cluster.
    pub volumes: usize,
    /// Number of snapshots in the cluster.
    pub snapshots: usize,
    /// Issues, most severe first.
    #[serde(rename = "wrong")]
    pub issues: Vec<Issue>,
    /// Time at which the objects were listed.
    #[serde(skip)]
    pub now: DateTime<Utc>,
}

/// A node with pools.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeView {
    /// Name of the node.
    pub name: String,
    /// Condition Ready: all of its pools can be used.
    pub ready: ConditionState,
    /// Condition Healthy: no problem is known.
    pub healthy: ConditionState,
    /// Condition AgentReporting, which the operator sets: the node plugin's pod is ready.
    pub agent: ConditionState,
    /// Condition TopologyRegistered: kubelet has registered the driver.
    pub registered: ConditionState,
    /// Sum over its pools; `largest_volume_bytes` is the maximum instead.
    #[serde(flatten)]
    pub capacity: Capacity,
}

impl NodeView {
    fn of(node: &StorageNode) -> Self {
        let status = node.status.clone().unwrap_or_default();
        let state = |kind| ConditionState::of(&status.conditions, kind);
        let capacities = status.pools.iter().map(Capacity::from);
        Self {
            name: node.name_any(),
            ready: state(ConditionType::Ready),
            healthy: state(ConditionType::Healthy),
            agent: state(ConditionType::AgentReporting),
            registered: state(ConditionType::TopologyRegistered),
            capacity: capacities.fold(Capacity::default(), Capacity::and),
        }
    }

    fn is_well(&self) -> bool {
        let all = [self.ready, self.healthy, self.agent, self.registered];
        all.iter().all(|state| *state == ConditionState::True)
    }
}

impl Status {
    /// Builds the summary of a cluster.
    pub fn of(cluster: &Cluster, now: DateTime<Utc>) -> Self {
        let nodes = cluster.nodes.iter().filter(|node| node.has_pools());
        let mut nodes: Vec<NodeView> = nodes.map(NodeView::of).collect();
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        Self {
            pools: Pools::of(cluster, &Selection::default(), None).items,
            nodes,
            volumes: cluster.volumes.len(),
            snapshots: cluster.snapshots.len(),
            issues: issues::all(cluster, now),
            now,
        }
    }

    /// Returns the severity of the most severe issue; `None` if there are no issues.
    pub fn worst(&self) -> Option<Severity> {
        self.issues.iter().map(|issue| issue.severity).min()
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
            text.push_str("\nThere are no pools yet: create a StoragePool.\n");
        } else {
            text.push('\n');
            text.push_str(&pools(&self.pools, wide).render(paint));
            text.push_str(&paint.of(Style::Faint, "█ volumes  ▒ snapshots  · free"));
            text.push('\n');
        }
        if !self.nodes.is_empty() {
            text.push('\n');
            text.push_str(&nodes(&self.nodes, wide, paint));
        }
        text.push('\n');
        text.push_str(&self.issues_text(paint));
        text
    }
}

fn pools(pools: &[PoolView], wide: bool) -> Table {
    let mut headings = vec![
        "POOL",
        "NODES",
        "RESERVED",
        "",
        "",
        "VOLUMES",
        "SNAPSHOTS",
        "HOLD",
    ];
    if wide {
        headings.push("USED");
    }
    let used = |capacity: Capacity| wide.then(|| human(Bytes(capacity.used_bytes)).into());
    let mut table = Table::new(&headings);
    for pool in pools {
        let style = match pool.ready {
            ConditionState::True => Style::Good,
            ConditionState::False | ConditionState::Unknown => Style::Bad,
        };
        let ready = format!("{}/{}", pool.nodes_ready, pool.nodes.len());
        let mut row = vec![
            Cell::new(&pool.name, Style::Strong),
            Cell::new(ready, style),
        ];
        row.extend(capacity(pool.capacity));
        row.extend(used(pool.capacity));
        table.row(row);
        // With one node, its row would repeat the row of the pool.
        if pool.nodes.len() < 2 {
            continue;
        }
        let shown = fullest(&pool.nodes, wide);
        let hidden = pool.nodes.len() - shown.len();
        for (index, node) in shown.iter().enumerate() {
            let style = match node.worst() {
                Some(cistern_crds::PoolSeverity::Degraded) => Style::Warning,
                _ if node.ready == ConditionState::True => Style::Plain,
                _ => Style::Bad,
            };
            let is_last = hidden == 0 && index + 1 == shown.len();
            let branch = if is_last { "└─ " } else { "├─ " };
            let branch = (Style::Faint, branch.to_owned());
            let mut row = vec![
                Cell::of(vec![branch, (style, node.node.clone())]),
                " ".into(),
            ];
            row.extend(capacity(node.capacity));
            row.extend(used(node.capacity));
            table.row(row);
        }
        if hidden > 0 {
            let more = format!("└─ {hidden} more: see kubectl cistern pools");
            table.row(vec![Cell::new(more, Style::Faint)]);
        }
    }
    table
}

/// Selects the nodes of a pool to show, sorted by name.
fn fullest(nodes: &[PoolOnNode], wide: bool) -> Vec<&PoolOnNode> {
    let mut all: Vec<&PoolOnNode> = nodes.iter().collect();
    if !wide && all.len() > LINES {
        all.sort_by_key(|node| {
            (
                node.ready == ConditionState::True,
                Reverse(node.capacity.percent()),
            )
        });
        all.truncate(LINES);
        all.sort_by(|a, b| a.node.cmp(&b.node));
    }
    all
}

fn capacity(capacity: Capacity) -> [Cell; 6] {
    let (reserved, snapshots) = (
        Bytes(capacity.reserved_bytes),
        Bytes(capacity.reserved_for_snapshots_bytes),
    );
    let usable = Bytes(capacity.usable_bytes);
    let volumes = reserved.saturating_sub(snapshots);
    let percent = capacity.percent().map(|percent| format!("{percent:>3} %"));
    [
        Cell::of(bar(volumes, snapshots, usable, BAR)),
        percent.unwrap_or_default().into(),
        format!("{} of {}", human(reserved), human(usable)).into(),
        capacity.volumes.to_string().into(),
        capacity.snapshots.to_string().into(),
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
            Cell::condition(node.ready),
            Cell::condition(node.healthy),
            Cell::condition(node.agent),
            Cell::condition(node.registered),
        ]);
    }
    match nodes.len() - shown.len() {
        0 => table.render(paint),
        well if shown.is_empty() => format!("All {} are healthy.\n", counted(well, "node")),
        well => format!(
            "{}{} more are healthy.\n",
            table.render(paint),
            counted(well, "node")
        ),
    }
}

impl Status {
    fn issues_text(&self, paint: Paint) -> String {
        if self.issues.is_empty() {
            return paint.of(Style::Good, "No problems are known.") + "\n";
        }
        let title = format!("Problems ({}):", self.issues.len());
        let mut lines = vec![paint.of(Style::Strong, &title) + "\n"];
        for issue in &self.issues {
            let (mark, style) = match issue.severity {
                Severity::Error => ("✗", Style::Bad),
                Severity::Warning => ("!", Style::Warning),
            };
            let since = issue
                .since
                .map(|since| format!(", {}", age(since, self.now)));
            let mut whose = format!("{} {}", issue.kind, issue.name);
            if issue.count > 1 {
                whose = format!(
                    "{} {}s, one of them {}",
                    issue.count, issue.kind, issue.name
                );
            }
            // The issue of a node already names the node.
            if let Some(node) = issue.node.as_ref().filter(|node| **node != issue.name) {
                whose = format!("{whose} on {node}");
            }
            let whose = one_line(&whose);
            let reason = paint.of(style, &issue.reason);
            lines.push(format!(
                "  {} {whose}: {reason}{}\n    {}\n",
                paint.of(style, mark),
                since.unwrap_or_default(),
                wrap(&issue.message, WIDTH, 4),
            ));
        }
        lines.concat()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{at, cluster, object};

    #[test]
    fn the_summary_shows_pools_nodes_and_issues() {
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

Problems (4):
  ✗ Pool fast on worker-2: ProbeTimedOut, 5m
    no answer for 10 s: look at the node's disk
  ✗ PoolVolume pvc-2 on worker-1: ImageMissing, 5m
    its image is gone: restore it
  ! Pool fast on worker-1: Orphans, 10m
    2 images of 1.5Gi unclaimed: see `kubectl cistern orphans`
  ! Claim shop/more: NoSpace, 10m
    no node of pool fast has 50Gi free
"
        );
        assert!(text.lines().all(|line| line.chars().count() <= 100));
        let wide = Status::of(&cluster(), at(600)).text(true, Paint::plain());
        assert!(wide.contains("2Gi    2.5Gi\n"), "{wide}");
    }

    #[test]
    fn a_node_without_pools_is_not_listed() {
        let mut cluster = cluster();
        let bare = json!({"metadata": {"name": "bare"}, "spec": {"topology": {}}});
        cluster.nodes.push(object(bare));
        let status = Status::of(&cluster, at(600));
        assert!(status.nodes.iter().all(|node| node.name != "bare"));
        assert_eq!(status.nodes.len(), 2);
    }

    #[test]
    fn an_empty_cluster_has_no_issues() {
        let status = Status::of(&Cluster::default(), at(0));
        assert_eq!(
            status.text(false, Paint::plain()),
            "Cistern: 0 pools, 0 nodes, 0 volumes, 0 snapshots\n\n\
             There are no pools yet: create a StoragePool.\n\nNo problems are known.\n"
        );
        assert_eq!(status.worst(), None);
    }

    #[test]
    fn of_many_nodes_the_fullest_and_those_not_ready_are_shown() {
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
    fn json_has_the_same_content() {
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
