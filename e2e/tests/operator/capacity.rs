//! Capacity objects follow classes, nodes and the reports of the agents.

use cistern_crds::{Bytes, names};
use cistern_e2e::eventually;
use kube::ResourceExt as _;
use serde_json::json;

use crate::{
    cluster::{Cluster, SOON},
    objects::{change, delete},
};

#[tokio::test]
async fn every_class_of_the_driver_has_a_capacity_object_on_every_node_with_the_driver() {
    let api = Cluster::shared().await.api();
    api.add_node("cap-1", &[("cap", "yes")]).await;
    api.add_node("cap-2", &[]).await;
    api.add_pool("cap", &[("cap", "yes")]).await;
    api.carried("cap-1", "cap").await;
    api.report("cap-1", "cap", Bytes::gib(7)).await;
    // The class is created last.
    api.add_class(
        "cap",
        json!({"pool": "cap", "csi.storage.k8s.io/fstype": "xfs"}),
    )
    .await;
    let of_nodes = |expected: &'static [(&'static str, u64)]| {
        let api = api.clone();
        async move {
            let what = format!("capacity {expected:?}");
            eventually(&what, SOON, async || {
                // Leaves out the nodes of other tests.
                let found = api.capacities("cap").await;
                let ours = found.iter().filter(|(node, ..)| node.starts_with("cap-"));
                let ours: Vec<_> = ours
                    .map(|(node, room, _)| (node.as_str(), room.0 >> 30))
                    .collect();
                if ours == expected {
                    Ok(())
                } else {
                    Err(format!("{found:?}"))
                }
            })
            .await;
        }
    };
    of_nodes(&[("cap-1", 7), ("cap-2", 0)]).await;
    let objects = api.capacity_objects("cap").await;
    for object in &objects {
        assert_eq!(
            object.labels()[names::MANAGED_BY_LABEL],
            names::OPERATOR_MANAGER
        );
        let on_first = object
            .node_topology
            .as_ref()
            .unwrap()
            .match_labels
            .as_ref()
            .unwrap()[names::TOPOLOGY_KEY]
            == "cap-1";
        if on_first {
            let owners = object.owner_references();
            assert_eq!(owners.len(), 1, "{owners:?}");
            assert_eq!(
                (owners[0].kind.as_str(), owners[0].name.as_str()),
                ("StorageNode", "cap-1")
            );
        }
    }

    // The agent falls silent, the pool is removed from a node, and a node is deleted.
    api.set_agent_ready("cap-1", false).await;
    of_nodes(&[("cap-1", 0), ("cap-2", 0)]).await;
    api.set_agent_ready("cap-1", true).await;
    of_nodes(&[("cap-1", 7), ("cap-2", 0)]).await;
    change(
        &api.nodes(),
        "cap-1",
        json!({"metadata": {"labels": {"cap": "no"}}}),
    )
    .await;
    of_nodes(&[("cap-1", 0), ("cap-2", 0)]).await;
    delete(&api.csi_nodes(), "cap-2").await;
    of_nodes(&[("cap-1", 0), ("cap-2", 0)]).await;
    delete(&api.nodes(), "cap-2").await;
    of_nodes(&[("cap-1", 0)]).await;
    delete(&api.classes(), "cap").await;
    of_nodes(&[]).await;
}

#[tokio::test]
async fn a_class_of_several_pools_publishes_their_sum_and_the_largest_volume_of_one() {
    let api = Cluster::shared().await.api();
    api.add_node("adds-1", &[("adds", "yes")]).await;
    let mut reports = Vec::new();
    for (pool, room) in [("adds-a", 7), ("adds-b", 4)] {
        api.add_pool(pool, &[("adds", "yes")]).await;
        reports.push(api.ready_report("adds-1", pool, Bytes::gib(room)).await);
    }
    api.report_pools("adds-1", &reports).await;
    api.add_class("adds", json!({"pool": "adds-a,adds-b"}))
        .await;
    api.add_class("adds-alone", json!({"pool": "adds-b"})).await;
    let published = async |class: &str, capacity: u64, largest: u64| {
        let what = format!("{capacity} and {largest} GiB for {class}");
        eventually(&what, SOON, async || {
            let found = api.capacities(class).await;
            let expected = (
                "adds-1".to_owned(),
                Bytes::gib(capacity),
                Bytes::gib(largest),
            );
            if found.contains(&expected) {
                Ok(())
            } else {
                Err(format!("{found:?}"))
            }
        })
        .await;
    };
    published("adds", 11, 7).await;
    published("adds-alone", 4, 4).await;

    // A cordoned pool takes nothing new, and the other one still does.
    let cordoned = json!({"spec": {"cordonedNodes": ["adds-1"]}});
    change(&api.pools(), "adds-a", cordoned).await;
    published("adds", 4, 4).await;
    reports[1].thin_room = Bytes::gib(1);
    api.report_pools("adds-1", &reports).await;
    published("adds", 1, 1).await;
    published("adds-alone", 1, 1).await;
    change(
        &api.pools(),
        "adds-a",
        json!({"spec": {"cordonedNodes": null}}),
    )
    .await;
    published("adds", 8, 7).await;
}

#[tokio::test]
async fn a_class_with_wrong_parameters_has_no_capacity_anywhere() {
    let api = Cluster::shared().await.api();
    api.add_node("wrong-1", &[("wrong", "yes")]).await;
    api.add_pool("wrong", &[("wrong", "yes")]).await;
    api.carried("wrong-1", "wrong").await;
    api.report("wrong-1", "wrong", Bytes::gib(7)).await;
    api.add_class("wrong", json!({"pool": "wrong", "bogus": "x"}))
        .await;
    api.add_class("right", json!({"pool": "wrong"})).await;
    eventually("both classes to be published", SOON, async || {
        let room = async |class: &str| {
            let found = api.capacities(class).await;
            found
                .into_iter()
                .find(|(node, ..)| node == "wrong-1")
                .map(|(_, room, _)| room)
        };
        match (room("right").await, room("wrong").await) {
            (Some(right), Some(wrong)) if right == Bytes::gib(7) && wrong == Bytes::ZERO => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

#[tokio::test]
async fn published_capacity_follows_the_reports_of_the_agent() {
    let api = Cluster::shared().await.api();
    api.add_node("lag-1", &[("lag", "yes")]).await;
    api.add_pool("lag", &[("lag", "yes")]).await;
    api.carried("lag-1", "lag").await;
    api.add_class("lag", json!({"pool": "lag"})).await;
    for room in [7, 6, 3, 8] {
        api.report("lag-1", "lag", Bytes::gib(room)).await;
        eventually(&format!("{room} GiB to be published"), SOON, async || {
            let found = api.capacities("lag").await;
            let ours = found.iter().find(|(node, ..)| node == "lag-1");
            match ours {
                Some((_, seen, _)) if *seen == Bytes::gib(room) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }
}

#[tokio::test]
async fn capacity_of_new_nodes_is_published_for_the_autoscaler_while_the_pool_asks_for_it() {
    let api = Cluster::shared().await.api();
    api.add_pool("grown", &[("grown", "yes")]).await;
    api.add_class("grown", json!({"pool": "grown"})).await;
    // Returns the objects with their labels and GiB when there are as many as expected.
    let published = async |what: &str, expected: &[(&str, u64)]| {
        eventually(what, SOON, async || {
            let objects = api.capacity_objects("grown").await;
            let found = objects.iter().filter_map(|object| {
                let labels = object.node_topology.as_ref()?.match_labels.as_ref()?;
                let template = labels.get(names::TEMPLATE_NODE_LABEL)?;
                let bytes: Bytes = object.capacity.as_ref()?.0.parse().ok()?;
                Some((template.as_str(), labels.get("grown")?.as_str(), bytes))
            });
            let mut found: Vec<_> = found.collect();
            found.sort_unstable();
            let expected = expected
                .iter()
                .map(|(label, gib)| ("true", *label, Bytes::gib(*gib)));
            if found.iter().copied().eq(expected) {
                Ok(())
            } else {
                Err(format!("{found:?}"))
            }
        })
        .await;
    };
    let set =
        async |spec: serde_json::Value| change(&api.pools(), "grown", json!({"spec": spec})).await;

    // Off by default.
    published("no capacity of new nodes", &[]).await;
    set(json!({"autoscaling": {"usableOnNewNode": "50Gi"}})).await;
    published("50 GiB on a new node", &[("yes", 50)]).await;
    set(json!({"overcommitPercent": 200})).await;
    published("100 GiB for thin volumes", &[("yes", 100)]).await;
    set(json!({"nodeSelector": {"matchLabels": {"grown": "more"}}})).await;
    published("other new nodes", &[("more", 100)]).await;
    let object = api.capacity_objects("grown").await.remove(0);
    delete(&api.capacity_api(), &object.name_any()).await;
    published("the object to be back", &[("more", 100)]).await;
    set(json!({"autoscaling": null})).await;
    published("no capacity of new nodes again", &[]).await;
    set(json!({"autoscaling": {"usableOnNewNode": "1Gi"}})).await;
    published("1 GiB on a new node", &[("more", 2)]).await;

    // A class of several pools has an object for each, because their nodes may differ.
    api.add_pool("grown-too", &[("grown", "too")]).await;
    let autoscaling = json!({"spec": {"autoscaling": {"usableOnNewNode": "5Gi"}}});
    change(&api.pools(), "grown-too", autoscaling).await;
    delete(&api.classes(), "grown").await;
    published("no capacity of a class that is gone", &[]).await;
    api.add_class("grown", json!({"pool": "grown,grown-too"}))
        .await;
    published("both pools on new nodes", &[("more", 2), ("too", 5)]).await;
    delete(&api.classes(), "grown").await;
    api.add_class("grown", json!({"pool": "grown-too"})).await;
    published("only the pool of the new class", &[("too", 5)]).await;
    delete(&api.classes(), "grown").await;
    published("no capacity of a class that is gone again", &[]).await;
}
