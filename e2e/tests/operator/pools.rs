//! Pools are assigned to nodes, removed from them, and kept while they hold volumes.

use cistern_crds::{
    Bytes, ConditionType, NodePoolStatus, PoolOwner, PoolSnapshot, PoolVolume, StoragePool, names,
};
use cistern_e2e::{
    control_plane::UNREADABLE_SIZE,
    eventually,
    objects::{accepted, write_status},
};
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, SOON},
    objects::{change, condition_message, create, delete, gone},
};

#[tokio::test]
async fn a_cordoned_node_is_told_so_and_the_pool_says_what_is_used_and_where_it_is_cordoned() {
    let api = Cluster::shared().await.api();
    api.add_node("cor-1", &[("cor", "yes")]).await;
    api.add_pool("cor", &[("cor", "yes")]).await;
    api.carried("cor-1", "cor").await;
    api.report("cor-1", "cor", Bytes::gib(9)).await;
    api.pool_is("cor", "True", "Reconciled").await;
    let node = api.storage_nodes().get("cor-1").await.unwrap();
    let mut reported = node.status.unwrap().pools;
    (reported[0].used, reported[0].free) = (Bytes::gib(1), Bytes::gib(8));
    api.report_pools("cor-1", &reported).await;
    let cordoned = json!({"spec": {"cordonedNodes": ["cor-1", "cor-9"]}});
    change(&api.pools(), "cor", cordoned).await;
    api.storage_node("cor-1 to be cordoned", "cor-1", |node| {
        node.spec.pools.first().filter(|it| it.cordoned).map(drop)
    })
    .await;
    eventually("the pool to say so", SOON, async || {
        let status = api.pools().get("cor").await.unwrap().status.unwrap();
        let ready = cistern_crds::condition::find(&status.conditions, ConditionType::Ready);
        let says = ready.is_some_and(|it| it.message.ends_with("; cordoned: cor-1"));
        if says && (status.used, status.free) == (Bytes::gib(1), Bytes::gib(8)) {
            Ok(())
        } else {
            Err(format!("{status:?}"))
        }
    })
    .await;
}

#[tokio::test]
async fn a_pool_follows_its_selector_and_leaves_a_node_only_when_it_is_empty() {
    let api = Cluster::shared().await.api();
    api.add_node("sel-1", &[("sel", "yes")]).await;
    api.add_node("sel-2", &[("sel", "no")]).await;
    let pool = api.add_pool("sel", &[("sel", "yes")]).await;

    let entry = api.carried("sel-1", "sel").await;
    assert_eq!(entry.uid, pool.uid().unwrap());
    assert!(!entry.retiring);
    let node = api.storage_nodes().get("sel-1").await.unwrap();
    assert_eq!(node.spec.topology[names::TOPOLOGY_KEY], "sel-1");
    assert_eq!(node.finalizers(), [names::FINALIZER]);
    let other = api
        .storage_node("StorageNode sel-2", "sel-2", |node| Some(node.clone()))
        .await;
    assert!(other.spec.pools.is_empty() && other.finalizers().is_empty());

    let message = api.pool_is("sel", "False", "NodesNotReady").await;
    assert!(message.contains("sel-1"), "{message}");
    api.report("sel-1", "sel", Bytes::gib(9)).await;
    api.pool_is("sel", "True", "Reconciled").await;
    let status = api.pools().get("sel").await.unwrap().status.unwrap();
    assert_eq!(status.nodes_summary, "1/1");
    assert_eq!(
        (status.usable, status.largest_volume),
        (Bytes::gib(9), Bytes::gib(9))
    );

    // The selector matches a second node, and no longer the first, which holds a volume.
    change(
        &api.nodes(),
        "sel-2",
        json!({"metadata": {"labels": {"sel": "yes"}}}),
    )
    .await;
    api.carried("sel-2", "sel").await;
    let other = api.storage_nodes().get("sel-2").await.unwrap();
    assert_eq!(other.finalizers(), [names::FINALIZER]);
    api.report("sel-2", "sel", Bytes::gib(9)).await;
    api.add_volume("sel-volume", "sel", "sel-1").await;
    change(
        &api.nodes(),
        "sel-1",
        json!({"metadata": {"labels": {"sel": "no"}}}),
    )
    .await;
    api.storage_node("sel-1 to retire the pool", "sel-1", |node| {
        node.spec
            .pools
            .first()
            .filter(|entry| entry.retiring)
            .map(drop)
    })
    .await;
    let message = api.pool_is("sel", "True", "Retiring").await;
    assert!(message.contains("sel-1 (holds 1 volume"), "{message}");

    // The selector matches the first node again and then finally not: its volume is removed, then its pool.
    change(
        &api.nodes(),
        "sel-1",
        json!({"metadata": {"labels": {"sel": "yes"}}}),
    )
    .await;
    api.storage_node("the pool to be active again", "sel-1", |node| {
        node.spec
            .pools
            .first()
            .filter(|entry| !entry.retiring)
            .map(drop)
    })
    .await;
    change(
        &api.nodes(),
        "sel-1",
        json!({"metadata": {"labels": {"sel": "no"}}}),
    )
    .await;
    api.remove::<PoolVolume>("sel-volume").await;
    api.pool("the message that the node is empty", "sel", |pool| {
        let conditions = &pool.status.as_ref()?.conditions;
        let message = condition_message(conditions, ConditionType::Ready, "True", "Retiring")?;
        message.contains("sel-1 (empty").then_some(())
    })
    .await;
    let held = api.storage_nodes().get("sel-1").await.unwrap().spec.pools;
    assert_eq!(held.len(), 1, "the agent has not removed the pool");
    api.report_pools("sel-1", &[]).await;
    api.storage_node("sel-1 to be emptied", "sel-1", |node| {
        node.spec.pools.is_empty().then_some(())
    })
    .await;
    api.pool_is("sel", "True", "Reconciled").await;

    // A StorageNode exists as long as its Node, and is deleted after it.
    delete(&api.nodes(), "sel-1").await;
    gone(&api.storage_nodes(), "sel-1").await;
}

#[tokio::test]
async fn a_pool_size_can_be_reduced_to_the_largest_file_of_a_node_and_no_further() {
    let api = Cluster::shared().await.api();
    api.add_node("shrink-1", &[("shrink", "yes")]).await;
    api.add_pool("shrink", &[("shrink", "yes")]).await;
    let resize = async |size: &str| {
        let patch = Patch::Merge(json!({"spec": {"source": {"image": {"size": size}}}}));
        let (pools, parameters) = (api.pools(), PatchParams::default());
        pools.patch("shrink", &parameters, &patch).await.map(drop)
    };
    let carried = async |size: &str| {
        let size: Bytes = size.parse().unwrap();
        let what = format!("shrink-1 to carry {size}");
        api.storage_node(&what, "shrink-1", |node| {
            let image = node.spec.pools.first()?.source.image.as_ref()?;
            (image.size == size).then_some(())
        })
        .await;
    };
    // No node has created the file yet.
    for size in ["100Ti", "2Gi"] {
        resize(size).await.unwrap();
        carried(size).await;
    }
    // A node has created its file, which keeps its size; the status can still be written.
    api.report("shrink-1", "shrink", Bytes::gib(9)).await;
    api.pool("the largest file to be reported", "shrink", |pool| {
        (pool.status.as_ref()?.largest_file == Bytes::gib(10)).then_some(())
    })
    .await;
    resize("100Ti").await.unwrap();
    carried("100Ti").await;
    let error = resize("9Gi").await.unwrap_err();
    let message = "a pool cannot be made smaller than a node has made it";
    assert!(error.to_string().contains(message), "{error}");
    resize("10Gi").await.unwrap();
    carried("10Gi").await;
}

#[tokio::test]
async fn a_pool_that_is_recreated_smaller_reaches_the_nodes_that_hold_its_volumes() {
    let api = Cluster::shared().await.api();
    api.add_node("back-1", &[("back", "yes")]).await;
    let first = api.add_pool("back", &[("back", "yes")]).await;
    api.carried("back-1", "back").await;
    api.report("back-1", "back", Bytes::gib(8)).await;
    api.pool_is("back", "True", "Reconciled").await;
    api.add_volume("back-volume", "back", "back-1").await;
    // As after the restore of a cluster: the pool is a new object, and its volumes exist.
    delete(&api.pools(), "back").await;
    change(
        &api.pools(),
        "back",
        json!({"metadata": {"finalizers": null}}),
    )
    .await;
    gone(&api.pools(), "back").await;
    let second = json!({
        "metadata": {"name": "back"},
        "spec": {
            "nodeSelector": {"matchLabels": {"back": "yes"}},
            "source": {"image": {"size": "5Gi"}},
        },
    });
    let second = create(&api.pools(), &second).await;
    assert_ne!(first.uid(), second.uid());
    api.storage_node("back-1 to carry the new pool", "back-1", |node| {
        let entry = node.spec.pools.first()?;
        let image = entry.source.image.as_ref()?;
        (Some(&entry.uid) == second.uid().as_ref() && image.size == Bytes::gib(5)).then_some(())
    })
    .await;
    api.remove::<PoolVolume>("back-volume").await;
}

#[tokio::test]
async fn a_pool_is_not_overcommitted_while_it_has_thick_volumes_or_snapshots() {
    let api = Cluster::shared().await.api();
    let nodes = ["oc-1", "oc-2"];
    for node in nodes {
        api.add_node(node, &[("oc", "yes")]).await;
    }
    let pool = api.add_pool("oc", &[("oc", "yes")]).await;
    for node in nodes {
        api.carried(node, "oc").await;
    }
    let class = api
        .add_class("oc", json!({"pool": "oc", "provisioning": "thick"}))
        .await;
    let thick = |name: &str, mut spec: serde_json::Value| {
        match spec.get_mut("attributes") {
            Some(attributes) => *attributes = json!({"provisioning": "Thick"}),
            None => spec["provisioning"] = json!("Thick"),
        }
        json!({"metadata": {"name": name, "finalizers": [names::FINALIZER]}, "spec": spec})
    };
    let volume = api.add_volume("oc-thin", "oc", "oc-1").await;
    create(&api.volumes(), &thick("oc-volume", json!(volume.spec))).await;
    let admitted = json!({"reserved": "1Gi", "attributes": {"provisioning": "Thick"}});
    write_status(&api.volumes(), "oc-volume", admitted).await;
    let snapshot = api.add_snapshot("oc-thin", "oc", "oc-2").await;
    create(
        &api.snapshots(),
        &thick("oc-snapshot", json!(snapshot.spec)),
    )
    .await;

    let percent = json!({"spec": {"overcommitPercent": 200}});
    change(&api.pools(), "oc", percent).await;
    let is_refused_for = async |held: &str| {
        let what = format!("the percentage to be refused for {held}");
        api.pool(&what, "oc", |pool| {
            let conditions = &pool.status.as_ref()?.conditions;
            let kind = ConditionType::OvercommitApplied;
            let message = condition_message(conditions, kind, "False", "ThickVolumesPresent")?;
            message.contains(held).then_some(())
        })
        .await;
        for node in nodes {
            assert_eq!(api.carried(node, "oc").await.overcommit_percent, 100);
        }
    };
    is_refused_for("holds 1 volume and 1 snapshot").await;
    let uid = pool.uid().unwrap();
    let note = api.event(&uid, "OvercommitRefused").await;
    assert!(note.contains("overcommitPercent 200"), "{note}");
    api.remove::<PoolVolume>("oc-volume").await;
    is_refused_for("holds 1 snapshot").await;

    api.remove::<PoolSnapshot>("oc-snapshot").await;
    for node in nodes {
        api.storage_node("the percentage to come into force", node, |node| {
            let mut entries = node.spec.pools.iter();
            entries
                .any(|entry| entry.overcommit_percent == 200)
                .then_some(())
        })
        .await;
    }
    api.pool("the percentage to be in force", "oc", |pool| {
        let conditions = &pool.status.as_ref()?.conditions;
        let kind = ConditionType::OvercommitApplied;
        condition_message(conditions, kind, "True", "Reconciled").map(drop)
    })
    .await;
    // From now on no thick volume of the class can be created.
    change(
        &api.classes(),
        "oc",
        json!({"metadata": {"labels": {"looked": "at"}}}),
    )
    .await;
    let note = api.event(&class.uid().unwrap(), "PoolOvercommitted").await;
    assert!(note.contains("StoragePool oc"), "{note}");
}

#[tokio::test]
async fn a_pool_stays_overcommitted_while_a_thick_volume_is_only_requested() {
    let api = Cluster::shared().await.api();
    api.add_node("asked-1", &[("asked", "yes")]).await;
    for pool in ["asked", "granted"] {
        api.add_pool(pool, &[("asked", "yes")]).await;
        let percent = json!({"spec": {"overcommitPercent": 200}});
        change(&api.pools(), pool, percent).await;
        let volume = format!("{pool}-volume");
        api.add_volume(&volume, pool, "asked-1").await;
        let admitted = json!({"reserved": "1Gi", "attributes": {"provisioning": "Thin"}});
        write_status(&api.volumes(), &volume, admitted).await;
    }
    // Percentages of the pools "asked" and "granted" on the node, as soon as `look` selects them.
    let percentages = async |what: &str, look: fn([u32; 2]) -> bool| {
        api.storage_node(what, "asked-1", |node| {
            let percentage = |pool: &str| {
                let mut entries = node.spec.pools.iter();
                let entry = entries.find(|entry| entry.name == pool)?;
                Some(entry.overcommit_percent)
            };
            let both = [percentage("asked")?, percentage("granted")?];
            look(both).then_some(both)
        })
        .await
    };
    percentages("both pools to be at 200 %", |both| both == [200; 2]).await;
    let thick = json!({"attributes": {"provisioning": "Thick"}});
    change(&api.volumes(), "asked-volume", json!({"spec": thick})).await;
    write_status(&api.volumes(), "granted-volume", thick).await;
    // The operator writes both percentages together, and sees the request first.
    let both = percentages("pool granted to be at 100 %", |[_, granted]| granted == 100).await;
    assert_eq!(both, [200, 100]);
}

#[tokio::test]
async fn a_pool_reports_the_number_and_the_reserved_bytes_of_its_snapshots() {
    let api = Cluster::shared().await.api();
    let nodes = ["sum-1", "sum-2"];
    for node in nodes {
        api.add_node(node, &[("sum", "yes")]).await;
    }
    api.add_pool("sum", &[("sum", "yes")]).await;
    for (node, snapshots) in nodes.into_iter().zip([2, 5]) {
        api.report(node, "sum", Bytes::gib(4)).await;
        let reported = api.storage_nodes().get(node).await.unwrap().status.unwrap();
        let mut pools = reported.pools;
        pools[0].snapshots = snapshots;
        pools[0].reserved_for_snapshots = Bytes::gib(u64::from(snapshots));
        api.report_pools(node, &pools).await;
    }
    api.pool("the sum", "sum", |pool| {
        let status = pool.status.as_ref()?;
        let sum = (status.snapshots, status.reserved_for_snapshots);
        (sum == (7, Bytes::gib(7))).then_some(())
    })
    .await;
}

#[tokio::test]
async fn deleting_a_pool_is_held_while_volumes_and_snapshots_remain_and_says_what_to_do() {
    let api = Cluster::shared().await.api();
    api.add_node("held-1", &[("held", "yes")]).await;
    api.add_pool("held", &[("held", "yes")]).await;
    api.carried("held-1", "held").await;
    api.report("held-1", "held", Bytes::gib(8)).await;
    api.pool_is("held", "True", "Reconciled").await;
    api.add_volume("held-volume", "held", "held-1").await;
    api.add_snapshot("held-snapshot", "held", "held-1").await;
    delete(&api.pools(), "held").await;
    let held = async |by: &str| {
        let what = format!("the deletion to be held by {by}");
        api.pool(&what, "held", |pool| {
            let conditions = &pool.status.as_ref()?.conditions;
            let kind = ConditionType::DeletionHeld;
            let message = condition_message(conditions, kind, "True", "VolumesRemain")?;
            message.contains(by).then_some(message)
        })
        .await
    };
    let message = held("1 volume and 1 snapshot on held-1").await;
    assert!(message.contains("delete their claims and VolumeSnapshots"));
    api.storage_node("held-1 to retire the pool", "held-1", |node| {
        node.spec
            .pools
            .first()
            .filter(|entry| entry.retiring)
            .map(drop)
    })
    .await;

    // A snapshot outlives its volume, and blocks the deletion on its own.
    api.remove::<PoolVolume>("held-volume").await;
    held("(1 snapshot on held-1)").await;
    api.remove::<PoolSnapshot>("held-snapshot").await;
    let message = api
        .pool("the deletion to wait for the node", "held", |pool| {
            let conditions = &pool.status.as_ref()?.conditions;
            condition_message(conditions, ConditionType::DeletionHeld, "True", "Retiring")
        })
        .await;
    assert!(message.contains("held-1"), "{message}");
    api.report_pools("held-1", &[]).await;
    gone(&api.pools(), "held").await;
    api.storage_node("held-1 to be emptied", "held-1", |node| {
        node.spec.pools.is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_unused_pool_is_deleted_immediately() {
    let api = Cluster::shared().await.api();
    api.add_pool("unused", &[("nobody", "has this")]).await;
    api.pool_is("unused", "False", "NoNodes").await;
    delete(&api.pools(), "unused").await;
    gone(&api.pools(), "unused").await;
}

#[tokio::test]
async fn volumes_and_snapshots_of_a_deleted_node_keep_its_storage_node() {
    let api = Cluster::shared().await.api();
    api.add_node("lost-1", &[("lost", "yes")]).await;
    api.add_pool("lost", &[("lost", "yes")]).await;
    api.carried("lost-1", "lost").await;
    api.report("lost-1", "lost", Bytes::gib(8)).await;
    api.add_volume("lost-volume", "lost", "lost-1").await;
    api.add_snapshot("lost-snapshot", "lost", "lost-1").await;
    delete(&api.nodes(), "lost-1").await;
    let gone_with = |part: &'static str| {
        let api = api.clone();
        async move {
            let what = format!("lost-1 to say {part:?}");
            api.storage_node(&what, "lost-1", |node| {
                let conditions = &node.status.as_ref()?.conditions;
                let message =
                    condition_message(conditions, ConditionType::Ready, "False", "NodeGone")?;
                message.contains(part).then_some(())
            })
            .await;
        }
    };
    gone_with("(1 volume and 1 snapshot in pool lost)").await;
    // Deleting the StorageNode removes no volume and no snapshot.
    delete(&api.storage_nodes(), "lost-1").await;
    api.storage_node("the deletion to be held", "lost-1", |node| {
        let conditions = &node.status.as_ref()?.conditions;
        condition_message(
            conditions,
            ConditionType::DeletionHeld,
            "True",
            "VolumesRemain",
        )
    })
    .await;
    api.remove::<PoolVolume>("lost-volume").await;
    gone_with("(1 snapshot in pool lost)").await;
    api.remove::<PoolSnapshot>("lost-snapshot").await;
    gone(&api.storage_nodes(), "lost-1").await;
}

#[tokio::test]
async fn conditions_of_a_node_follow_kubelet_and_agent() {
    let api = Cluster::shared().await.api();
    let labels = json!({"reg": "yes"});
    let node = json!({"metadata": {"name": "reg-1", "labels": labels}});
    create(&api.nodes(), &node).await;
    api.add_pool("reg", &[("reg", "yes")]).await;
    let is = |kind: ConditionType, status: &'static str, reason: &'static str| {
        let api = api.clone();
        async move {
            let what = format!("{kind} to be {status} for {reason}");
            api.storage_node(&what, "reg-1", |node| {
                condition_message(&node.status.as_ref()?.conditions, kind, status, reason)
            })
            .await
        }
    };
    is(
        ConditionType::TopologyRegistered,
        "False",
        "DriverNotRegistered",
    )
    .await;
    is(ConditionType::AgentReporting, "False", "AgentMissing").await;
    is(ConditionType::Ready, "False", "DriverNotRegistered").await;
    api.register("reg-1").await;
    is(ConditionType::TopologyRegistered, "False", "LabelMissing").await;
    let label = json!({"metadata": {"labels": {names::TOPOLOGY_KEY: "reg-1"}}});
    change(&api.nodes(), "reg-1", label).await;
    is(ConditionType::TopologyRegistered, "True", "Reconciled").await;
    api.add_agent("reg-1", 9812).await;
    is(ConditionType::AgentReporting, "True", "Reconciled").await;
    is(ConditionType::Ready, "False", "Pending").await;
    api.report("reg-1", "reg", Bytes::gib(9)).await;
    is(ConditionType::Ready, "True", "Reconciled").await;
    api.set_agent_ready("reg-1", false).await;
    is(ConditionType::AgentReporting, "False", "AgentNotReady").await;
    is(ConditionType::Ready, "False", "AgentNotReady").await;

    // Each writer owns its fields: the agent's report is unchanged.
    let node = api.storage_nodes().get("reg-1").await.unwrap();
    assert_eq!(node.status.unwrap().pools[0].name, "reg");
    let operators = node.metadata.managed_fields.unwrap();
    let status = operators.iter().find(|entry| {
        entry.manager.as_deref() == Some(names::OPERATOR_MANAGER)
            && entry.operation.as_deref() == Some("Apply")
    });
    let owned = format!("{:?}", status.unwrap().fields_v1);
    assert!(
        owned.contains("f:conditions") && !owned.contains("f:pools"),
        "{owned}"
    );
}

#[tokio::test]
async fn an_edited_status_is_reverted_and_logged() {
    let cluster = Cluster::shared().await;
    let api = cluster.api();
    api.add_node("edit-1", &[("edit", "yes")]).await;
    api.add_pool("edit", &[("edit", "yes")]).await;
    api.report("edit-1", "edit", Bytes::gib(9)).await;
    let reporting = async |status: &'static str, reason: &'static str| {
        let what = format!("AgentReporting to be {status} for {reason}");
        let kind = ConditionType::AgentReporting;
        api.storage_node(&what, "edit-1", |node| {
            condition_message(&node.status.as_ref()?.conditions, kind, status, reason)
        })
        .await
    };
    reporting("True", "Reconciled").await;
    // Edits as `kubectl edit --subresource=status` does, and adds a condition of another type.
    let edit = kube::api::PostParams {
        field_manager: Some("kubectl-edit".to_owned()),
        ..kube::api::PostParams::default()
    };
    let nodes = api.storage_nodes();
    cistern_e2e::eventually("the edit", crate::cluster::SOON, async || {
        let mut node = nodes.get("edit-1").await.unwrap();
        let conditions = &mut node.status.as_mut().unwrap().conditions;
        for condition in conditions.iter_mut() {
            "edited by hand".clone_into(&mut condition.message);
        }
        let mut foreign = conditions[0].clone();
        "Foreign".clone_into(&mut foreign.type_);
        conditions.push(foreign);
        let edited = nodes.replace_status("edit-1", &edit, &node).await;
        edited.map(drop).map_err(|error| error.to_string())
    })
    .await;

    api.set_agent_ready("edit-1", false).await;
    let message = reporting("False", "AgentNotReady").await;
    assert!(message.contains("agent-edit-1"), "{message}");
    let node = nodes.get("edit-1").await.unwrap();
    let conditions = node.status.unwrap().conditions;
    let edited: Vec<&str> = conditions
        .iter()
        .filter(|condition| condition.message == "edited by hand")
        .map(|condition| condition.type_.as_str())
        .collect();
    assert_eq!(edited, ["Foreign"]);
    cistern_e2e::eventually("the warning", crate::cluster::SOON, async || {
        let log = cluster.operator.process().log();
        let is_it = |line: &&str| {
            ["WARN", "edit-1", "kubectl-edit", "AgentReporting"]
                .iter()
                .all(|part| line.contains(part))
        };
        log.lines().find(is_it).map(drop).ok_or_else(|| log.clone())
    })
    .await;
}

#[tokio::test]
async fn r21_an_invalid_spec_that_passes_the_schema_is_reported_and_corrected() {
    let api = Cluster::shared().await.api();
    api.add_node("bad-1", &[("bad", "yes")]).await;
    api.add_pool("bad", &[("bad", "yes")]).await;
    api.carried("bad-1", "bad").await;
    api.report("bad-1", "bad", Bytes::gib(9)).await;
    api.pool_is("bad", "True", "Reconciled").await;

    let selector = |requirement: serde_json::Value| json!({"spec": {"nodeSelector": {"matchExpressions": requirement}}});
    let invalid = selector(json!([{"key": "bad", "operator": "In"}]));
    change(&api.pools(), "bad", invalid).await;
    let message = api.pool_is("bad", "False", "InvalidSpec").await;
    assert!(message.contains("needs values"), "{message}");
    let entry = api.carried("bad-1", "bad").await;
    assert!(!entry.retiring, "the pool stays on its nodes");
    change(&api.pools(), "bad", selector(json!(null))).await;
    api.pool_is("bad", "True", "Reconciled").await;
}

#[tokio::test]
async fn r21_a_pool_that_cannot_be_read_is_reported_and_corrected() {
    // A cluster of its own, which accepts such a pool. Other tests list all pools.
    let cluster = Cluster::start().await;
    let api = cluster.api();
    api.add_node("odd-1", &[("odd", "yes")]).await;
    api.add_pool("odd", &[("odd", "yes")]).await;
    api.carried("odd-1", "odd").await;
    api.report("odd-1", "odd", Bytes::gib(9)).await;
    api.pool_is("odd", "True", "Reconciled").await;

    cluster
        .control_plane
        .accept_each_size::<StoragePool>()
        .await;
    let raw = ApiResource::erase::<StoragePool>(&());
    let raw: Api<DynamicObject> = Api::all_with(api.client.clone(), &raw);
    let sized = |size: &str| json!({"spec": {"source": {"image": {"size": size}}}});
    let (parameters, odd) = (PatchParams::default(), sized(UNREADABLE_SIZE));
    accepted(async || raw.patch("odd", &parameters, &Patch::Merge(&odd)).await).await;
    eventually("the pool to report InvalidSpec", SOON, async || {
        let pool = raw.get("odd").await.unwrap();
        let conditions = pool.data["status"]["conditions"].as_array().unwrap();
        let mut conditions = conditions.iter();
        let ready = conditions.find(|condition| condition["type"] == "Ready");
        let ready = ready.unwrap();
        if ready["reason"] == "InvalidSpec" {
            Ok(())
        } else {
            Err(ready.to_string())
        }
    })
    .await;
    let entry = api.carried("odd-1", "odd").await;
    assert!(!entry.retiring, "the pool stays on its nodes");
    change(&raw, "odd", sized("10Gi")).await;
    api.pool_is("odd", "True", "Reconciled").await;
}

/// Returns the `nodeInfo` that kubelet reports, with this machine ID.
fn node_info(machine: &str) -> Value {
    let names = [
        "architecture",
        "bootID",
        "containerRuntimeVersion",
        "kernelVersion",
        "kubeProxyVersion",
        "kubeletVersion",
        "operatingSystem",
        "osImage",
        "systemUUID",
    ];
    let mut info = json!({"machineID": machine});
    for name in names {
        info[name] = json!("");
    }
    info
}

#[tokio::test]
async fn a_pool_of_another_node_is_granted_to_one_node_once_the_other_is_gone() {
    let api = Cluster::shared().await.api();
    let nodes = ["move-1", "move-2", "move-3"];
    for node in nodes {
        api.add_node(node, &[("move", "yes")]).await;
    }
    let pool = api.add_pool("move", &[("move", "yes")]).await;
    let uid = pool.uid().unwrap();
    api.report("move-1", "move", Bytes::gib(9)).await;
    api.add_volume("move-volume", "move", "move-1").await;
    let owner = |pool_uid: &str| PoolOwner {
        node: "move-1".to_owned(),
        machine_id: Some("machine-1".to_owned()),
        pool_uid: pool_uid.to_owned(),
        filesystem_uuid: "6b3f1a52-0000-4000-8000-000000000000".to_owned(),
    };
    let report_owner = async |node: &str, owner: Option<PoolOwner>| {
        let entry = api.carried(node, "move").await;
        let status = NodePoolStatus {
            name: "move".to_owned(),
            uid: entry.uid,
            belongs_to: owner,
            ..NodePoolStatus::default()
        };
        api.report_pools(node, &[status]).await;
    };
    for node in &nodes[1..] {
        report_owner(node, Some(owner(&uid))).await;
    }
    let granted = async || {
        let mut granted = Vec::new();
        for node in &nodes[1..] {
            let entry = api.carried(node, "move").await;
            granted.extend(entry.take_over.map(|owner| ((*node).to_owned(), owner)));
        }
        granted
    };
    // The operator handles changes in order: once it has seen this one, it has seen the reported owners.
    let machine = json!({"status": {"nodeInfo": node_info("machine-2")}});
    let (parameters, patch) = (PatchParams::default(), Patch::Merge(machine));
    let nodes_api = api.nodes();
    nodes_api
        .patch_status("move-2", &parameters, &patch)
        .await
        .unwrap();
    api.storage_node("the machine of move-2", "move-2", |node| {
        (node.spec.machine_id.as_deref() == Some("machine-2")).then_some(())
    })
    .await;
    assert_eq!(granted().await, []);

    // The volume keeps the StorageNode of the deleted node; that does not prevent the grant.
    delete(&api.nodes(), "move-1").await;
    delete(&api.pods(), "agent-move-1").await;
    let winner = eventually("a grant", SOON, async || match &granted().await[..] {
        [(node, granted)] if *granted == owner(&uid) => Ok(node.clone()),
        other => Err(format!("{other:?}")),
    })
    .await;
    assert!(api.storage_nodes().get("move-1").await.is_ok());
    // Once the winner has taken the pool over, the other node reports that the pool belongs to it.
    report_owner(&winner, None).await;
    let loser = nodes[1..].iter().find(|node| **node != winner).unwrap();
    report_owner(
        loser,
        Some(PoolOwner {
            node: winner.clone(),
            ..owner(&uid)
        }),
    )
    .await;
    eventually("the end of the grants", SOON, async || {
        match &granted().await[..] {
            [] => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;

    // A pool that the cluster does not know is granted by an annotation.
    report_owner(loser, Some(owner("uid-of-another-cluster"))).await;
    let consent = json!({"metadata": {"annotations": {
        (names::TAKE_OVER_ANNOTATION): owner("").filesystem_uuid,
    }}});
    change(&api.storage_nodes(), loser, consent).await;
    api.storage_node("the grant by the annotation", loser, |node| {
        let entry = node.spec.pools.first()?;
        (entry.take_over.as_ref()?.pool_uid == "uid-of-another-cluster").then_some(())
    })
    .await;
}
