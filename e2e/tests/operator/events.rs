//! Events on claims and classes say why a claim waits.

use cistern_crds::{
    Bytes, ConditionType, PoolVolume, Reason, StoragePool,
    condition::{self, ConditionUpdate},
    names, time,
};
use cistern_e2e::eventually;
use k8s_openapi::{
    api::storage::v1::VolumeAttributesClass, apimachinery::pkg::apis::meta::v1::Time,
    jiff::Timestamp,
};
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::{
    cluster::{Cluster, SOON},
    objects::{change, create, delete},
};

#[tokio::test]
async fn a_claim_that_fits_nowhere_gets_one_event_with_pool_sizes_and_node() {
    let api = Cluster::shared().await.api();
    api.add_node("ev-1", &[("ev", "yes")]).await;
    api.add_node("ev-2", &[("ev", "yes")]).await;
    api.add_pool("ev", &[("ev", "yes")]).await;
    for (node, room) in [("ev-1", 2), ("ev-2", 5)] {
        api.carried(node, "ev").await;
        api.report(node, "ev", Bytes::gib(room)).await;
    }
    api.pool_is("ev", "True", "Reconciled").await;
    api.add_class("ev", json!({"pool": "ev"})).await;
    api.add_claim("ev-fits", "ev", "4Gi").await;
    api.add_claim("ev-waits", "ev", "7Gi").await;
    api.add_claim("ev-never", "ev", "50Gi").await;
    let uid = async |name: &str| api.claims().get(name).await.unwrap().uid().unwrap();

    let note = api.event(&uid("ev-waits").await, "NoSpace").await;
    for part in ["StoragePool ev", "7Gi", "5Gi", "ev-2"] {
        assert!(note.contains(part), "{note}");
    }
    let note = api.event(&uid("ev-never").await, "TooLarge").await;
    for part in ["StoragePool ev", "50Gi", "9Gi"] {
        assert!(note.contains(part), "{note}");
    }
    // After many reconciles each waiting claim has one event, and the claim that fits has none.
    for room in [4, 5, 4, 5] {
        api.report("ev-2", "ev", Bytes::gib(room)).await;
    }
    api.add_claim("ev-last", "ev", "50Gi").await;
    api.event(&uid("ev-last").await, "TooLarge").await;
    assert_eq!(api.events(&uid("ev-waits").await).await.len(), 1);
    assert_eq!(api.events(&uid("ev-never").await).await.len(), 1);
    assert_eq!(api.events(&uid("ev-fits").await).await, []);
}

#[tokio::test]
async fn a_claim_that_fits_into_no_pool_of_its_class_gets_the_reason_of_each() {
    let api = Cluster::shared().await.api();
    api.add_node("each-1", &[("each", "yes")]).await;
    let mut reports = Vec::new();
    for (pool, room) in [("each-a", 2), ("each-b", 5)] {
        api.add_pool(pool, &[("each", "yes")]).await;
        reports.push(api.ready_report("each-1", pool, Bytes::gib(room)).await);
    }
    api.report_pools("each-1", &reports).await;
    for pool in ["each-a", "each-b"] {
        api.pool_is(pool, "True", "Reconciled").await;
    }
    let pools = json!({"pool": "each-a,each-b,each-missing"});
    let class = api.add_class("each", pools).await;
    api.add_claim("each-fits", "each", "4Gi").await;
    api.add_claim("each-waits", "each", "7Gi").await;
    let uid = async |name: &str| api.claims().get(name).await.unwrap().uid().unwrap();
    let note = api.event(&uid("each-waits").await, "NoSpace").await;
    for part in [
        "7Gi",
        "each-a: the largest that fits now is 2Gi on node each-1",
        "each-b: the largest that fits now is 5Gi on node each-1",
        "each-missing: it does not exist",
    ] {
        assert!(note.contains(part), "{part} in {note}");
    }
    // The class itself names the pool that is missing, and its volumes come from the others.
    let note = api.event(&class.uid().unwrap(), "PoolMissing").await;
    assert!(note.contains("each-missing"), "{note}");
    assert_eq!(api.events(&uid("each-fits").await).await, []);
}

#[tokio::test]
async fn the_event_about_a_claim_that_waits_is_updated_when_its_numbers_change() {
    let mut cluster = Cluster::start().await;
    let api = cluster.api();
    api.add_node("up-1", &[("up", "yes")]).await;
    api.add_pool("up", &[("up", "yes")]).await;
    api.carried("up-1", "up").await;
    api.report("up-1", "up", Bytes::gib(5)).await;
    api.pool_is("up", "True", "Reconciled").await;
    api.add_class("up", json!({"pool": "up"})).await;
    api.add_claim("up-waits", "up", "7Gi").await;
    let uid = api.claims().get("up-waits").await.unwrap().uid().unwrap();
    let note = api.event(&uid, "NoSpace").await;
    assert!(note.contains("5Gi"), "{note}");

    // An operator that has just started has published nothing yet, so it need not wait to update it.
    let command = cluster.operator_command();
    cluster.operator.kill();
    api.report("up-1", "up", Bytes::gib(3)).await;
    cluster.operator.start_again(command).await;
    eventually("the event names the new size", SOON, async || {
        let events = api.events(&uid).await;
        match events.as_slice() {
            [(reason, note)] if reason == "NoSpace" && note.contains("3Gi") => Ok(()),
            _ => Err(format!("{events:?}")),
        }
    })
    .await;
    cluster.operator.stop().await;
}

#[tokio::test]
async fn a_wrong_class_is_reported_on_the_class_and_on_its_claims() {
    let api = Cluster::shared().await.api();
    let bogus = api
        .add_class("ev-bogus", json!({"pool": "x", "bogus": "y"}))
        .await;
    let homeless = api
        .add_class("ev-homeless", json!({"pool": "nobody-made-it"}))
        .await;
    // The default filesystem is ext4.
    let parameters = json!({"pool": "x", "mkfsOptions": "-i size=512"});
    let optional = api.add_class("ev-mkfs", parameters).await;
    api.add_claim("ev-bogus", "ev-bogus", "1Gi").await;
    api.add_claim("ev-mkfs", "ev-mkfs", "1Gi").await;
    api.add_claim("ev-homeless", "ev-homeless", "1Gi").await;
    for (class, reason, part) in [
        (bogus, "InvalidParameters", "\"bogus\""),
        (optional, "InvalidParameters", "-I 256|512|1024"),
        (homeless, "PoolMissing", "nobody-made-it"),
    ] {
        let claim = api.claims().get(&class.name_any()).await.unwrap();
        for uid in [class.uid().unwrap(), claim.uid().unwrap()] {
            let note = api.event(&uid, reason).await;
            assert!(note.contains(part), "{note}");
        }
    }
}

#[tokio::test]
async fn a_claim_is_judged_by_the_provisioning_of_its_volume_attributes_class() {
    let api = Cluster::shared().await.api();
    let pools = Api::<StoragePool>::all(api.client.clone());
    api.add_node("at-1", &[("at", "yes")]).await;
    api.add_pool("at", &[("at", "yes")]).await;
    change(&pools, "at", json!({"spec": {"overcommitPercent": 200}})).await;
    api.carried("at-1", "at").await;
    api.report("at-1", "at", Bytes::gib(9)).await;
    api.add_class("at", json!({"pool": "at"})).await;
    let thick = json!({
        "metadata": {"name": "at-thick"},
        "driverName": names::DRIVER,
        "parameters": {"provisioning": "thick"},
    });
    create(
        &Api::<VolumeAttributesClass>::all(api.client.clone()),
        &thick,
    )
    .await;
    api.add_claim("at-thin", "at", "1Gi").await;
    let claim = json!({
        "metadata": {"name": "at-waits"},
        "spec": {
            "storageClassName": "at",
            "volumeAttributesClassName": "at-thick",
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    let uid = create(&api.claims(), &claim).await.uid().unwrap();
    let note = api.event(&uid, "PoolOvercommitted").await;
    assert!(note.contains("StoragePool at"), "{note}");
    let thin = api.claims().get("at-thin").await.unwrap().uid().unwrap();
    assert_eq!(api.events(&thin).await, []);
}

#[tokio::test]
async fn a_claim_with_a_volume_and_a_claim_of_another_driver_get_no_events() {
    let api = Cluster::shared().await.api();
    api.add_node("busy-1", &[("busy", "yes")]).await;
    api.add_pool("busy", &[("busy", "yes")]).await;
    api.carried("busy-1", "busy").await;
    api.report("busy-1", "busy", Bytes::gib(1)).await;
    api.pool_is("busy", "True", "Reconciled").await;
    api.add_class("busy", json!({"pool": "busy"})).await;
    api.add_claim("busy-served", "busy", "5Gi").await;
    let served = api
        .claims()
        .get("busy-served")
        .await
        .unwrap()
        .uid()
        .unwrap();
    api.add_volume(&format!("pvc-{served}"), "busy", "busy-1")
        .await;
    api.add_claim("busy-other", "of-another-driver", "5Gi")
        .await;
    let other = api.claims().get("busy-other").await.unwrap().uid().unwrap();
    api.add_claim("busy-waits", "busy", "5Gi").await;
    let waits = api.claims().get("busy-waits").await.unwrap().uid().unwrap();
    // Its event comes later than events on the other claims would have come.
    api.event(&waits, "NoSpace").await;
    assert_eq!(api.events(&served).await, []);
    assert_eq!(api.events(&other).await, []);
    // A claim whose volume is gone gets events again.
    api.remove::<PoolVolume>(&format!("pvc-{served}")).await;
    api.event(&served, "NoSpace").await;
    delete(&api.claims(), "busy-waits").await;
}

#[tokio::test]
async fn a_pool_that_is_ready_nowhere_is_reported_with_the_reason() {
    let api = Cluster::shared().await.api();
    api.add_node("down-1", &[("down", "yes")]).await;
    api.add_pool("down", &[("down", "yes")]).await;
    api.carried("down-1", "down").await;
    api.report("down-1", "down", Bytes::gib(9)).await;
    api.set_agent_ready("down-1", false).await;
    api.add_class("down", json!({"pool": "down"})).await;
    api.add_claim("down", "down", "1Gi").await;
    let uid = api.claims().get("down").await.unwrap().uid().unwrap();
    let note = api.event(&uid, "PoolNotReady").await;
    assert!(note.contains("agent-down-1"), "{note}");
    change(
        &api.nodes(),
        "down-1",
        json!({"metadata": {"labels": {"down": "no"}}}),
    )
    .await;
}

#[tokio::test]
async fn a_claim_whose_volume_is_not_as_requested_is_reported_unless_the_resizer_does() {
    let api = Cluster::shared().await.api();
    let add = async |name: &str, kind: ConditionType, reason: Reason| {
        api.add_claim(name, "nobody-made-it", "1Gi").await;
        let uid = api.claims().get(name).await.unwrap().uid().unwrap();
        let volume = json!({
            "metadata": {"name": name},
            "spec": {
                "requestedName": format!("pvc-{uid}"),
                "nodeName": "ev-grow",
                "poolName": "ev-grow",
                "size": "2Gi",
                "accessType": "Filesystem",
                "filesystem": "ext4",
                "accessModes": ["SingleNodeWriter"],
                "attributes": {"provisioning": "Thin"},
                "claim": {"namespace": "default", "name": name},
            },
        });
        create(&api.volumes(), &volume).await;
        let since = time::from_kubernetes(&Time(Timestamp::UNIX_EPOCH));
        let mut conditions = Vec::new();
        let update = ConditionUpdate::new(kind, false, reason, "the agent's words");
        condition::set(&mut conditions, &update, None, since);
        let status = Patch::Merge(json!({"status": {"conditions": conditions}}));
        let parameters = PatchParams::default();
        let volumes = api.volumes();
        volumes
            .patch_status(name, &parameters, &status)
            .await
            .unwrap();
        uid
    };
    // The resizer publishes refusals on the claim; the operator does not.
    let (grown, modified) = (ConditionType::Expanded, ConditionType::AttributesApplied);
    let refused = add("ev-refused", grown, Reason::NoSpace).await;
    let other = add("ev-unmodified", modified, Reason::Overcommitted).await;
    let limited = ConditionType::LimitsEnforced;
    for (name, kind, reason, event) in [
        (
            "ev-grows-later",
            grown,
            Reason::FilesystemSmaller,
            "VolumeNotExpanded",
        ),
        (
            "ev-not-modified",
            modified,
            Reason::ModificationFailed,
            "VolumeNotModified",
        ),
        (
            "ev-unlimited",
            limited,
            Reason::LimitsUnavailable,
            "VolumeNotLimited",
        ),
    ] {
        let claim = add(name, kind, reason).await;
        let note = api.event(&claim, event).await;
        assert!(
            note.contains(name) && note.ends_with("the agent's words"),
            "{note}"
        );
        delete(&api.volumes(), name).await;
    }
    assert_eq!(api.events(&refused).await, []);
    assert_eq!(api.events(&other).await, []);
    for name in ["ev-refused", "ev-unmodified"] {
        delete(&api.volumes(), name).await;
    }
}
