//! `top pools`: space and I/O of each pool, in total and on each node. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use cistern_crds::Bytes;
use serde::Serialize;

use super::rates::{self, NodeMetrics, Rates};
use crate::{
    arguments::{Selection, TopOrder},
    output::{Cell, Paint, Style, Table, View, human},
};

/// List of pools.
#[derive(Clone, Debug, Serialize)]
pub struct TopPools {
    /// Pools in the requested order.
    pub items: Vec<TopPool>,
}

/// Usage of a pool.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TopPool {
    /// Name of the StoragePool.
    pub name: String,
    /// Sum over `nodes`.
    #[serde(flatten)]
    pub usage: PoolUsage,
    /// Usage on each node, in the requested order; sorted by name of the node where it is equal.
    pub nodes: Vec<TopPoolOnNode>,
}

/// Usage of a pool on one node.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TopPoolOnNode {
    /// Name of the node.
    pub node: String,
    /// Usage on this node.
    #[serde(flatten)]
    pub usage: PoolUsage,
}

/// Space of a pool in bytes, and the I/O of its volumes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolUsage {
    /// Space for volumes and snapshots.
    pub usable_bytes: u64,
    /// Space that the ledger reserves.
    pub reserved_bytes: u64,
    /// Space that is physically in use.
    pub used_bytes: u64,
    /// Space that is physically free.
    pub free_bytes: u64,
    /// I/O of its attached volumes.
    #[serde(flatten)]
    pub rates: Rates,
}

impl PoolUsage {
    fn and(self, other: Self) -> Self {
        Self {
            usable_bytes: self.usable_bytes.saturating_add(other.usable_bytes),
            reserved_bytes: self.reserved_bytes.saturating_add(other.reserved_bytes),
            used_bytes: self.used_bytes.saturating_add(other.used_bytes),
            free_bytes: self.free_bytes.saturating_add(other.free_bytes),
            rates: self.rates + other.rates,
        }
    }
}

impl TopPools {
    /// Collects the pools of the selected nodes from two samples of their metrics. `pools` has the
    /// names of the selected pools; `None` selects all.
    pub fn of(
        before: &BTreeMap<String, NodeMetrics>,
        after: &BTreeMap<String, NodeMetrics>,
        only: &Selection,
        pools: Option<&BTreeSet<String>>,
        order: TopOrder,
    ) -> Self {
        let mut all = BTreeMap::<String, Vec<TopPoolOnNode>>::new();
        let is_wanted = |node: &&NodeMetrics| only.node.as_ref().is_none_or(|it| *it == node.node);
        for node in after.values().filter(is_wanted) {
            for (pool, usage) in of_node(before.get(&node.node), node) {
                let node = node.node.clone();
                let nodes = all.entry(pool).or_default();
                nodes.push(TopPoolOnNode { node, usage });
            }
        }
        let is_wanted = |name: &String| {
            only.pool.as_ref().is_none_or(|it| it == name)
                && pools.is_none_or(|pools| pools.contains(name))
        };
        let pools = all.into_iter().filter(|(name, _)| is_wanted(name));
        let pool = |(name, nodes): (String, Vec<TopPoolOnNode>)| {
            let usages = nodes.iter().map(|node| node.usage);
            let usage = usages.fold(PoolUsage::default(), PoolUsage::and);
            TopPool { name, usage, nodes }
        };
        let mut items: Vec<TopPool> = pools.map(pool).collect();
        let by = |usage: &PoolUsage| match order {
            TopOrder::Name => 0.0,
            TopOrder::Operations => usage.rates.operations(),
            TopOrder::Throughput => usage.rates.bytes(),
            #[expect(
                clippy::cast_precision_loss,
                reason = "an order does not need each byte"
            )]
            TopOrder::Used => usage.used_bytes as f64,
        };
        items.sort_by(|a, b| by(&b.usage).total_cmp(&by(&a.usage)));
        for pool in &mut items {
            pool.nodes
                .sort_by(|a, b| by(&b.usage).total_cmp(&by(&a.usage)));
        }
        Self { items }
    }
}

fn of_node(before: Option<&NodeMetrics>, after: &NodeMetrics) -> BTreeMap<String, PoolUsage> {
    let mut all = BTreeMap::<String, PoolUsage>::new();
    for (metric, set) in SPACE {
        for sample in after.metrics.of(metric) {
            let usage = all.entry(sample.label("pool").to_owned()).or_default();
            *set(usage) = sample.bytes();
        }
    }
    let volumes = after.metrics.of("cistern_volume_info").iter();
    let volumes = volumes.map(|sample| (sample.label("volume"), sample.label("pool")));
    let pools: HashMap<&str, &str> = volumes.collect();
    let rates = before.map(|before| rates::of_volumes(before, after));
    for (volume, rates) in rates.unwrap_or_default() {
        let pool = pools.get(volume.as_str());
        if let Some(usage) = pool.and_then(|pool| all.get_mut(*pool)) {
            usage.rates = usage.rates + rates;
        }
    }
    all
}

type Field = fn(&mut PoolUsage) -> &mut u64;

const SPACE: [(&str, Field); 4] = [
    ("cistern_pool_usable_bytes", |usage| &mut usage.usable_bytes),
    ("cistern_pool_reserved_bytes", |usage| {
        &mut usage.reserved_bytes
    }),
    ("cistern_pool_allocated_bytes", |usage| {
        &mut usage.used_bytes
    }),
    ("cistern_pool_available_bytes", |usage| {
        &mut usage.free_bytes
    }),
];

const HEADINGS: [&str; 9] = [
    "POOL",
    "USABLE",
    "RESERVED",
    "USED",
    "FREE",
    "READS/S",
    "WRITES/S",
    "READ/S",
    "WRITTEN/S",
];

impl View for TopPools {
    const KIND: &'static str = "PoolUsageList";

    fn text(&self, _: bool, paint: Paint) -> String {
        if self.items.is_empty() {
            return "There are no such pools.\n".to_owned();
        }
        let mut table = Table::new(&HEADINGS);
        let row = |name: Cell, usage: &PoolUsage| {
            let size = |bytes: u64| Cell::from(human(Bytes(bytes)));
            let mut row = vec![
                name,
                size(usage.usable_bytes),
                size(usage.reserved_bytes),
                size(usage.used_bytes),
                size(usage.free_bytes),
            ];
            row.extend(super::rate_cells(Some(usage.rates)));
            row
        };
        for pool in &self.items {
            table.row(row(Cell::new(&pool.name, Style::Strong), &pool.usage));
            for (index, node) in pool.nodes.iter().enumerate() {
                let is_last = index + 1 == pool.nodes.len();
                let branch = if is_last { "└─ " } else { "├─ " };
                let name = Cell::of(vec![
                    (Style::Faint, branch.to_owned()),
                    (Style::Plain, node.node.clone()),
                ]);
                table.row(row(name, &node.usage));
            }
        }
        table.render(paint)
    }

    fn has_headings(&self) -> bool {
        !self.items.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::testing::{after, before};

    #[test]
    fn pools_show_reserved_and_used_space_and_the_io_of_their_volumes() {
        let only = Selection::default();
        let top = TopPools::of(&before(), &after(), &only, None, TopOrder::Name);
        assert_eq!(
            top.text(false, Paint::plain()),
            "\
POOL          USABLE   RESERVED   USED    FREE     READS/S   WRITES/S   READ/S   WRITTEN/S
fast          20Gi     5Gi        2.5Gi   18.5Gi   50        210        200Ki    1.7Mi
├─ worker-1   10Gi     4Gi        1.5Gi   9Gi      50        10         200Ki    1Mi
└─ worker-2   10Gi     1Gi        1Gi     9.5Gi    0         200        0        800Ki
"
        );
        let json = serde_json::to_value(&top).unwrap();
        assert_eq!(json["items"][0]["usedBytes"], 2560_u64 << 20);
        assert_eq!(json["items"][0]["nodes"][1]["writesPerSecond"], 200.0);
    }

    #[test]
    fn pools_are_selected_by_name_node_and_label_and_sorted_by_use() {
        let top = |only: &Selection, pools: Option<&BTreeSet<String>>, order| {
            TopPools::of(&before(), &after(), only, pools, order).items
        };
        let only = |pool: Option<&str>, node: Option<&str>| Selection {
            pool: pool.map(str::to_owned),
            node: node.map(str::to_owned),
        };
        let second = top(&only(None, Some("worker-2")), None, TopOrder::Name);
        assert_eq!(second[0].nodes.len(), 1);
        assert!(top(&only(Some("slow"), None), None, TopOrder::Name).is_empty());
        let none = BTreeSet::new();
        assert!(top(&Selection::default(), Some(&none), TopOrder::Name).is_empty());
        let busiest = top(&Selection::default(), None, TopOrder::Operations);
        assert_eq!(busiest[0].nodes[0].node, "worker-2");
    }
}
