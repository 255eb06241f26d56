//! The table of `pools`: a row for each pool, and below it one for each of its nodes.

use cistern_crds::Bytes;

use super::{Capacity, PoolOnNode, Pools};
use crate::{
    condition_state::ConditionState,
    output::{Cell, Paint, Style, Table, View, human},
};

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
