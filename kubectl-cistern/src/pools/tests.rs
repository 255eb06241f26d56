use super::*;
use crate::{
    output::{Paint, View as _},
    testing::{cluster, condition, object},
};

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
    cluster.pools[0].spec.source = object(serde_json::json!({"volumeGroup": {"name": "vg-data"}}));
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
