//! `top volumes`: space and I/O of each volume. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use cistern_crds::{Bytes, volume::ClaimReference};
use serde::Serialize;

use super::rates::{self, NodeMetrics, Rates};
use crate::{
    arguments::{Selection, TopOrder},
    output::{Cell, Paint, Table, View, human},
};

/// List of volumes.
#[derive(Clone, Debug, Serialize)]
pub struct TopVolumes {
    /// Volumes in the requested order.
    pub items: Vec<TopVolume>,
}

/// Usage of a volume.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TopVolume {
    /// Claim that uses the volume; absent if none is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim: Option<ClaimReference>,
    /// Name of the PoolVolume.
    pub name: String,
    /// Name of the node.
    pub node: String,
    /// Name of the pool.
    pub pool: String,
    /// Size in bytes; absent until the volume is created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Bytes of the pool that are allocated to its image, including extents that it shares. Absent
    /// while the pool cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocated_bytes: Option<u64>,
    /// I/O of the volume; absent unless it was attached in both samples.
    #[serde(flatten)]
    pub rates: Option<Rates>,
}

/// Selection of volumes.
#[derive(Clone, Debug, Default)]
pub struct Wanted<'a> {
    /// Pool and node of the volumes.
    pub only: Selection,
    /// Namespace of the claim; `None` selects all volumes.
    pub namespace: Option<&'a str>,
    /// Claims that the label selector selects; `None` without a selector.
    pub claims: Option<BTreeSet<ClaimReference>>,
}

impl Wanted<'_> {
    fn includes(&self, volume: &TopVolume) -> bool {
        let is = |wanted: &Option<String>, found: &String| {
            wanted.as_ref().is_none_or(|wanted| wanted == found)
        };
        let claim = volume.claim.as_ref();
        let namespace = claim.map(|claim| claim.namespace.as_str());
        let is_selected = |claims: &BTreeSet<_>| claim.is_some_and(|claim| claims.contains(claim));
        is(&self.only.pool, &volume.pool)
            && is(&self.only.node, &volume.node)
            && (self.namespace.is_none() || namespace == self.namespace)
            && self.claims.as_ref().is_none_or(is_selected)
    }
}

impl TopVolumes {
    /// Collects the selected volumes from two samples of the metrics of their nodes.
    pub fn of(
        before: &BTreeMap<String, NodeMetrics>,
        after: &BTreeMap<String, NodeMetrics>,
        wanted: &Wanted<'_>,
        order: TopOrder,
    ) -> Self {
        let nodes = after.values();
        let items = nodes.flat_map(|node| of_node(before.get(&node.node), node));
        let mut items: Vec<TopVolume> = items.filter(|it| wanted.includes(it)).collect();
        let key = |volume: &TopVolume| {
            let claim = volume.claim.clone();
            (claim.is_none(), claim, volume.name.clone())
        };
        items.sort_by_cached_key(key);
        let descending = |by: fn(&TopVolume) -> f64| move |a: &_, b: &_| by(b).total_cmp(&by(a));
        match order {
            TopOrder::Name => {}
            TopOrder::Operations => {
                items.sort_by(descending(|it| it.rates.unwrap_or_default().operations()));
            }
            TopOrder::Throughput => {
                items.sort_by(descending(|it| it.rates.unwrap_or_default().bytes()));
            }
            TopOrder::Used => items.sort_by_key(|it| std::cmp::Reverse(it.allocated_bytes)),
        }
        Self { items }
    }
}

fn of_node(before: Option<&NodeMetrics>, after: &NodeMetrics) -> Vec<TopVolume> {
    let rates = before.map(|before| rates::of_volumes(before, after));
    let rates = rates.unwrap_or_default();
    let bytes = |metric: &str| -> HashMap<&str, u64> {
        let samples = after.metrics.of(metric).iter();
        let each = samples.map(|sample| (sample.label("volume"), sample.bytes()));
        each.collect()
    };
    let sizes = bytes("cistern_volume_size_bytes");
    let allocated = bytes("cistern_volume_allocated_bytes");
    let volumes = after.metrics.of("cistern_volume_info").iter();
    let volume = volumes.map(|sample| {
        let name = sample.label("volume");
        let claim = ClaimReference {
            namespace: sample.label("claim_namespace").to_owned(),
            name: sample.label("claim").to_owned(),
        };
        TopVolume {
            claim: Some(claim).filter(|claim| !claim.name.is_empty()),
            node: after.node.clone(),
            pool: sample.label("pool").to_owned(),
            size_bytes: sizes.get(name).copied(),
            allocated_bytes: allocated.get(name).copied(),
            rates: rates.get(name).copied(),
            name: name.to_owned(),
        }
    });
    volume.collect()
}

const HEADINGS: [&str; 10] = [
    "CLAIM",
    "VOLUME",
    "NODE",
    "POOL",
    "SIZE",
    "USED",
    "READS/S",
    "WRITES/S",
    "READ/S",
    "WRITTEN/S",
];

impl View for TopVolumes {
    const KIND: &'static str = "VolumeUsageList";

    fn text(&self, _: bool, paint: Paint) -> String {
        if self.items.is_empty() {
            return "There are no such volumes.\n".to_owned();
        }
        let mut table = Table::new(&HEADINGS);
        for volume in &self.items {
            let claim = volume.claim.as_ref();
            let claim = claim.map(|claim| format!("{}/{}", claim.namespace, claim.name));
            let size =
                |bytes: Option<u64>| bytes.map_or_else(String::new, |bytes| human(Bytes(bytes)));
            let mut row: Vec<Cell> = vec![
                claim.unwrap_or_default().into(),
                volume.name.as_str().into(),
                volume.node.as_str().into(),
                volume.pool.as_str().into(),
                size(volume.size_bytes).into(),
                size(volume.allocated_bytes).into(),
            ];
            row.extend(super::rate_cells(volume.rates));
            table.row(row);
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

    fn top(wanted: &Wanted<'_>, order: TopOrder) -> TopVolumes {
        TopVolumes::of(&before(), &after(), wanted, order)
    }

    #[test]
    fn volumes_show_their_space_and_what_they_read_and_write() {
        let text = top(&Wanted::default(), TopOrder::Name).text(false, Paint::plain());
        assert_eq!(
            text,
            "\
CLAIM       VOLUME   NODE       POOL   SIZE   USED    READS/S   WRITES/S   READ/S   WRITTEN/S
shop/copy   pvc-2    worker-1   fast   2Gi    512Mi   -         -          -        -
shop/data   pvc-1    worker-1   fast   2Gi    1Gi     50        10         200Ki    1Mi
-           pvc-3    worker-2   fast   1Gi    1Gi     0         200        0        800Ki
"
        );
    }

    #[test]
    fn volumes_are_selected_by_pool_node_namespace_and_claim_and_sorted_by_use() {
        let names = |wanted: &Wanted<'_>, order| -> Vec<String> {
            let items = top(wanted, order).items.into_iter();
            items.map(|volume| volume.name).collect()
        };
        let all = Wanted::default();
        assert_eq!(
            names(&all, TopOrder::Operations),
            ["pvc-3", "pvc-1", "pvc-2"]
        );
        assert_eq!(
            names(&all, TopOrder::Throughput),
            ["pvc-1", "pvc-3", "pvc-2"]
        );
        assert_eq!(names(&all, TopOrder::Used), ["pvc-1", "pvc-3", "pvc-2"]);
        let of_node = Wanted {
            only: Selection {
                node: Some("worker-2".to_owned()),
                pool: None,
            },
            ..Wanted::default()
        };
        assert_eq!(names(&of_node, TopOrder::Name), ["pvc-3"]);
        let in_shop = Wanted {
            namespace: Some("shop"),
            ..Wanted::default()
        };
        assert_eq!(names(&in_shop, TopOrder::Name), ["pvc-2", "pvc-1"]);
        let claims = BTreeSet::from([ClaimReference {
            namespace: "shop".to_owned(),
            name: "data".to_owned(),
        }]);
        let labelled = Wanted {
            claims: Some(claims),
            ..Wanted::default()
        };
        assert_eq!(names(&labelled, TopOrder::Name), ["pvc-1"]);
    }

    #[test]
    fn json_has_numbers_and_omits_the_io_of_a_volume_that_is_not_attached() {
        let json = serde_json::to_value(top(&Wanted::default(), TopOrder::Name)).unwrap();
        let items = json["items"].as_array().unwrap();
        assert_eq!(items[0].get("readsPerSecond"), None);
        assert_eq!(items[1]["readsPerSecond"], 50.0);
        assert_eq!(items[1]["allocatedBytes"], 1_u64 << 30);
    }
}
