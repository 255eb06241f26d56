//! Two samples of two nodes, 2 seconds apart: a volume that reads and writes, one that is not attached, and
//! one without a claim that only writes.

use std::{
    collections::BTreeMap,
    sync::OnceLock,
    time::{Duration, Instant},
};

use super::{exposition::Exposition, rates::NodeMetrics};

fn began() -> Instant {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    *BEGAN.get_or_init(Instant::now)
}

fn volume(node: &str, name: &str, claim: &str, size: u64, allocated: u64) -> String {
    let labels = format!("node=\"{node}\",volume=\"{name}\",pool=\"fast\"");
    let namespace = if claim.is_empty() { "" } else { "shop" };
    format!(
        "cistern_volume_info{{{labels},claim_namespace=\"{namespace}\",claim=\"{claim}\"}} 1\n\
         cistern_volume_size_bytes{{{labels}}} {}\n\
         cistern_volume_allocated_bytes{{{labels}}} {}\n",
        size << 20,
        allocated << 20
    )
}

fn io(name: &str, [reads, writes, read, written]: [u64; 4]) -> String {
    let labels = format!("volume=\"{name}\",pool=\"fast\",device=\"loop0\"");
    format!(
        "cistern_volume_reads_completed_total{{{labels}}} {reads}\n\
         cistern_volume_writes_completed_total{{{labels}}} {writes}\n\
         cistern_volume_read_bytes_total{{{labels}}} {}\n\
         cistern_volume_written_bytes_total{{{labels}}} {}\n",
        read << 10,
        written << 10
    )
}

fn pool(usable: u64, reserved: u64, used: u64, free: u64) -> String {
    let metric = |name: &str, mib: u64| {
        let bytes = mib << 20;
        format!("cistern_pool_{name}_bytes{{pool=\"fast\"}} {bytes}\n")
    };
    [
        metric("usable", usable),
        metric("reserved", reserved),
        metric("allocated", used),
        metric("available", free),
    ]
    .concat()
}

fn nodes(seconds: u64, first: [u64; 4], second: [u64; 4]) -> BTreeMap<String, NodeMetrics> {
    let one = [
        pool(10 << 10, 4 << 10, 1536, 9 << 10),
        volume("worker-1", "pvc-1", "data", 2 << 10, 1 << 10),
        volume("worker-1", "pvc-2", "copy", 2 << 10, 512),
        io("pvc-1", first),
    ];
    let two = [
        pool(10 << 10, 1 << 10, 1 << 10, 9728),
        volume("worker-2", "pvc-3", "", 1 << 10, 1 << 10),
        io("pvc-3", second),
    ];
    let node = |name: &str, text: String| {
        let metrics = NodeMetrics {
            node: name.to_owned(),
            at: began() + Duration::from_secs(seconds),
            metrics: Exposition::parse(&text),
        };
        (name.to_owned(), metrics)
    };
    BTreeMap::from([
        node("worker-1", one.concat()),
        node("worker-2", two.concat()),
    ])
}

/// Returns the first samples.
pub(crate) fn before() -> BTreeMap<String, NodeMetrics> {
    nodes(0, [1000, 100, 4000, 1000], [0, 0, 0, 0])
}

/// Returns the second samples.
pub(crate) fn after() -> BTreeMap<String, NodeMetrics> {
    nodes(2, [1100, 120, 4400, 3048], [0, 400, 0, 1600])
}
