//! Claims that change to another VolumeAttributesClass while a pod writes.

use cistern_crds::{Bytes, ConditionType, PoolVolume, Provisioning, condition};
use cistern_e2e::{
    Test,
    cluster::{PATIENCE, objects::Binding::WaitForFirstConsumer},
    eventually,
};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{
    ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde_json::json;

const SIZE: Bytes = Bytes::mib(300);

/// Names another VolumeAttributesClass in the claim `claim`.
async fn name_class(test: &Test, class: &str) {
    let patch = Patch::Merge(json!({"spec": {"volumeAttributesClassName": class}}));
    test.namespaced::<PersistentVolumeClaim>()
        .patch("claim", &PatchParams::default(), &patch)
        .await
        .unwrap();
}

/// Waits until Kubernetes reports the class as the one of the volume and no change under way, and returns the volume.
async fn modified(test: &Test, class: &str) -> PoolVolume {
    let claims = test.namespaced::<PersistentVolumeClaim>();
    eventually(
        &format!("class {class} to be current"),
        PATIENCE,
        async || {
            let status = claims
                .get("claim")
                .await
                .unwrap()
                .status
                .unwrap_or_default();
            match status.current_volume_attributes_class_name.as_deref() {
                // While another class is refused, the former one stays the current one.
                Some(current) if current == class && status.modify_volume_status.is_none() => {
                    Ok(())
                }
                _ => Err(format!("{status:?}")),
            }
        },
    )
    .await;
    let name = test.bound("claim").await.name_any();
    test.all::<PoolVolume>().get(&name).await.unwrap()
}

#[tokio::test]
async fn a_claim_becomes_thick_and_limited_and_returns_to_its_class_while_its_pod_writes() {
    Test::run("modify", async |test| {
        let [node, ..] = test.cluster.workers().await;
        let pool = test.pool("pool", Bytes::gib(1), &[&node]).await;
        let class = test
            .class(
                "class",
                &pool,
                WaitForFirstConsumer,
                &[("provisioning", "thin")],
            )
            .await;
        let small = json!({"provisioning": "thick", "writeIOPS": "5000"});
        let small = test.attributes_class("small", small).await;
        let free = json!({"provisioning": "thin", "writeIOPS": "unlimited"});
        let free = test.attributes_class("free", free).await;
        let wrong = test
            .attributes_class("wrong", json!({"iops": "5000"}))
            .await;
        test.claim("claim", &class, SIZE).await;
        test.writer("writer", "claim").await;
        test.running("writer").await;
        test.writes_go_on("writer").await;

        name_class(test, &small).await;
        let volume = modified(test, &small).await;
        let attributes = volume.admitted_attributes();
        assert_eq!(attributes.provisioning, Provisioning::Thick);
        assert_eq!(attributes.io_limits.write_iops, Some(5000));
        limits_are_enforced_or_the_claim_says_why_not(test, &volume.name_any()).await;
        test.writes_go_on("writer").await;

        // An unknown parameter changes nothing, and the claim can return to its class.
        name_class(test, &wrong).await;
        test.event(
            "PersistentVolumeClaim",
            "claim",
            &["VolumeModifyFailed", "\"iops\""],
        )
        .await;
        name_class(test, &small).await;
        let volume = modified(test, &small).await;
        assert_eq!(volume.admitted_attributes(), attributes);
        test.writes_go_on("writer").await;

        name_class(test, &free).await;
        let volume = modified(test, &free).await;
        assert_eq!(
            volume.admitted_attributes(),
            cistern_crds::VolumeAttributes::default()
        );
        test.writes_go_on("writer").await;
    })
    .await;
}

/// A node with cgroup v2 enforces the limits. Any other reports that it does not.
async fn limits_are_enforced_or_the_claim_says_why_not(test: &Test, volume: &str) {
    let volumes = test.all::<PoolVolume>();
    let what = "the volume to say whether its limits are enforced";
    let enforced = eventually(what, PATIENCE, async || {
        let conditions = volumes
            .get(volume)
            .await
            .unwrap()
            .status
            .unwrap()
            .conditions;
        let enforced = condition::find(&conditions, ConditionType::LimitsEnforced);
        match enforced.map(|it| (it.status.as_str(), it.reason.as_str())) {
            Some(("True", _)) => Ok(true),
            Some(("False", "LimitsUnavailable")) => Ok(false),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let script = "cat /sys/fs/cgroup/cgroup.controllers";
    let is_version_2 = test.shell("writer", script).await.is_ok();
    assert_eq!(enforced, is_version_2);
    if !enforced {
        let says = [
            "VolumeNotLimited",
            "without the limits of its I/O",
            "cgroup",
        ];
        test.event("PersistentVolumeClaim", "claim", &says).await;
    }
}
