//! Expansion of claims: volumes grow under running pods, or report why not.

use cistern_crds::{Bytes, ConditionType, PoolVolume, condition};
use cistern_e2e::{
    Test,
    cluster::{PATIENCE, objects::Binding::WaitForFirstConsumer},
    eventually,
};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{
    ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde_json::json;

const FROM: Bytes = Bytes::mib(300);
const TO: Bytes = Bytes::mib(400);

/// A class of volumes with a filesystem, from a pool on one node.
async fn class(test: &Test, filesystem: &str) -> String {
    let [node, ..] = test.cluster.workers().await;
    let pool = test.pool("pool", Bytes::gib(1), &[&node]).await;
    let parameters = [("csi.storage.k8s.io/fstype", filesystem)];
    test.class("class", &pool, WaitForFirstConsumer, &parameters)
        .await
}

/// Requests another size for the claim `claim`.
async fn request(test: &Test, size: Bytes) {
    let resources = json!({"requests": {"storage": size.to_string()}});
    let patch = Patch::Merge(json!({"spec": {"resources": resources}}));
    test.namespaced::<PersistentVolumeClaim>()
        .patch("claim", &PatchParams::default(), &patch)
        .await
        .unwrap();
}

async fn claim(test: &Test) -> PersistentVolumeClaim {
    let claims = test.namespaced::<PersistentVolumeClaim>();
    claims.get("claim").await.unwrap()
}

/// Capacity in the status of the claim.
fn capacity(claim: &PersistentVolumeClaim) -> Option<Bytes> {
    let capacity = claim.status.as_ref()?.capacity.as_ref()?;
    capacity.get("storage")?.0.parse().ok()
}

/// Waits until the claim's capacity is `size`: after ControllerExpandVolume and NodeExpandVolume.
async fn has(test: &Test, size: Bytes) {
    eventually(&format!("the claim to have {size}"), PATIENCE, async || {
        let claim = claim(test).await;
        if capacity(&claim) == Some(size) {
            Ok(())
        } else {
            Err(format!("{:#?}", claim.status))
        }
    })
    .await;
}

async fn volume(test: &Test) -> PoolVolume {
    let name = test.bound("claim").await.name_any();
    test.all::<PoolVolume>().get(&name).await.unwrap()
}

/// Waits until the volume's condition Expanded has this status and reason.
async fn expanded(test: &Test, status: &str, reason: &str) -> PoolVolume {
    let what = format!("the volume's Expanded to be {status} for {reason}");
    eventually(&what, PATIENCE, async || {
        let volume = volume(test).await;
        let conditions = volume.status.clone().unwrap_or_default().conditions;
        match condition::find(&conditions, ConditionType::Expanded) {
            Some(found) if (found.status.as_str(), found.reason.as_str()) == (status, reason) => {
                Ok(volume)
            }
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

/// Size of the filesystem in the pod, in bytes.
async fn seen(test: &Test, pod: &str) -> u64 {
    let table = test.shell(pod, "df -k /data").await.unwrap();
    let line = table.lines().last().unwrap();
    let blocks: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    blocks * 1024
}

/// Starts a pod that writes to the claim `claim` continuously; returns the size of its filesystem.
async fn writer(test: &Test, filesystem: &str) -> u64 {
    let class = class(test, filesystem).await;
    test.claim("claim", &class, FROM).await;
    test.writer("writer", "claim").await;
    test.running("writer").await;
    test.writes_go_on("writer").await;
    seen(test, "writer").await
}

async fn grows_under_a_running_pod(filesystem: &str) {
    Test::run(&format!("expand-{filesystem}"), async |test| {
        let before = writer(test, filesystem).await;
        request(test, TO).await;
        has(test, TO).await;
        assert!(seen(test, "writer").await > before + (90 << 20));
        test.writes_go_on("writer").await;
        expanded(test, "True", "Reconciled").await;
        assert_eq!(volume(test).await.status.unwrap().size, Some(TO));
    })
    .await;
}

#[tokio::test]
async fn xfs_grows_under_a_running_pod() {
    grows_under_a_running_pod("xfs").await;
}

#[tokio::test]
async fn btrfs_grows_under_a_running_pod() {
    grows_under_a_running_pod("btrfs").await;
}

#[tokio::test]
async fn ext4_grows_under_a_running_pod_or_with_the_next_one_and_says_so() {
    Test::run("expand-ext4", async |test| {
        let before = writer(test, "ext4").await;
        request(test, TO).await;
        let grows_online = eventually("either way", PATIENCE, async || {
            let volume = volume(test).await;
            let conditions = volume.status.clone().unwrap_or_default().conditions;
            let expanded = condition::find(&conditions, ConditionType::Expanded);
            let waits = expanded.is_some_and(|found| found.reason == "FilesystemSmaller");
            match capacity(&claim(test).await) {
                _ if waits => Ok(false),
                Some(TO) => Ok(true),
                _ => Err(format!("{expanded:?}")),
            }
        })
        .await;
        if grows_online {
            eprintln!("ext4 grew under its pod: the nodes give CAP_SYS_RESOURCE");
        } else {
            eprintln!("ext4 waits for its next pod: the nodes lack CAP_SYS_RESOURCE");
            assert_eq!(seen(test, "writer").await, before);
            test.writes_go_on("writer").await;
            let says = ["CAP_SYS_RESOURCE", "when the volume is staged again"];
            test.event("PersistentVolumeClaim", "claim", &says).await;
            let written = test.written("writer").await;
            test.delete(&test.namespaced::<Pod>(), "writer").await;
            test.writer("writer", "claim").await;
            test.running("writer").await;
            test.writes_go_on_after("writer", written).await;
        }
        has(test, TO).await;
        assert!(seen(test, "writer").await > before + (90 << 20));
        test.writes_go_on("writer").await;
        expanded(test, "True", "Reconciled").await;
    })
    .await;
}

#[tokio::test]
async fn a_raw_block_volume_grows_under_a_running_pod() {
    Test::run("expand-block", async |test| {
        let [node, ..] = test.cluster.workers().await;
        let pool = test.pool("pool", Bytes::gib(1), &[&node]).await;
        let class = test.class("class", &pool, WaitForFirstConsumer, &[]).await;
        test.block_claim("claim", &class, Bytes::mib(64)).await;
        test.device_pod("pod", "claim").await;
        let write = "printf data | dd of=/dev/data conv=fsync 2>/dev/null";
        test.shell("pod", write).await.unwrap();

        request(test, Bytes::mib(128)).await;
        has(test, Bytes::mib(128)).await;
        let size = test.shell("pod", "blockdev --getsize64 /dev/data").await;
        assert_eq!(size.unwrap().trim(), Bytes::mib(128).0.to_string());
        let kept = test.shell("pod", "head -c 4 /dev/data").await;
        assert_eq!(kept.unwrap(), "data");
    })
    .await;
}

#[tokio::test]
async fn agents_that_are_replaced_between_the_two_halves_do_the_second_for_the_next_pod() {
    Test::run_alone("expand-halves", async |test| {
        let before = writer(test, "xfs").await;
        // Without a pod, kubelet does not call NodeExpandVolume yet.
        let written = test.written("writer").await;
        test.delete(&test.namespaced::<Pod>(), "writer").await;
        request(test, TO).await;
        let grown = async || match volume(test).await.status {
            Some(status) if status.size == Some(TO) => Ok(()),
            other => Err(format!("{other:?}")),
        };
        eventually("the first half", PATIENCE, grown).await;
        assert_eq!(capacity(&claim(test).await), Some(FROM));
        let node = volume(test).await.spec.node_name;
        test.cluster.replace_agent(&node).await;

        test.writer("writer", "claim").await;
        test.running("writer").await;
        has(test, TO).await;
        assert!(seen(test, "writer").await > before + (90 << 20));
        test.writes_go_on_after("writer", written).await;
    })
    .await;
}

#[tokio::test]
async fn a_request_beyond_the_pool_is_refused_with_what_would_fit_and_can_be_lowered_to_it() {
    Test::run("expand-beyond", async |test| {
        let before = writer(test, "xfs").await;
        request(test, Bytes::gib(5)).await;
        let event = ["can grow to ", "5Gi is asked for"];
        let event = test.event("PersistentVolumeClaim", "claim", &event).await;
        let (_, rest) = event.split_once("can grow to ").unwrap();
        let largest: Bytes = rest.split_whitespace().next().unwrap().parse().unwrap();
        assert!(largest > FROM && largest < Bytes::gib(1), "{event}");

        // Nothing remains of it: neither in the spec nor in the ledger.
        let taken_back = expanded(test, "False", "TooLarge").await;
        let what = "the request to be withdrawn";
        eventually(what, PATIENCE, async || {
            match volume(test).await.spec.size {
                FROM => Ok(()),
                other => Err(other.to_string()),
            }
        })
        .await;
        let spec = taken_back.spec;
        test.ledger_holds(&spec.node_name, &spec.pool_name, FROM)
            .await;
        let written = test.writes_go_on("writer").await;
        // The next pod starts with the current size of the volume.
        test.delete(&test.namespaced::<Pod>(), "writer").await;
        test.writer("writer", "claim").await;
        test.running("writer").await;
        test.writes_go_on_after("writer", written).await;
        assert_eq!(seen(test, "writer").await, before);

        request(test, largest).await;
        has(test, largest).await;
        assert!(seen(test, "writer").await > before + (largest.0 - FROM.0) / 2);
        test.writes_go_on("writer").await;
        expanded(test, "True", "Reconciled").await;
    })
    .await;
}
