//! Group snapshots of several claims.

use cistern_crds::Bytes;
use cistern_e2e::{
    Test,
    cluster::{
        PATIENCE,
        objects::{Binding::WaitForFirstConsumer, WRITER, pod_spec},
        snapshots::Source,
    },
    eventually,
};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use serde_json::{Value, json};

const SIZE: Bytes = Bytes::mib(64);

/// Appends 1, 2, 3 … to a log in the first volume and then in the second, with a sync after each write.
/// The second log is never ahead, and never more than one entry behind.
const ORDERED: &str = "n=0; while n=$((n + 1)); do
echo $n >> /first/log && sync -d /first/log && echo $n >> /second/log && sync -d /second/log || exit 1
done";

/// A pod with two claims at `/first` and `/second`.
async fn pod_of_two(test: &Test, name: &str, claims: [&str; 2], script: &str) {
    let volume = |claim| json!({"persistentVolumeClaim": {"claimName": claim}});
    let mut spec = pod_spec(script, volume(claims[0]));
    let mut second = volume(claims[1]);
    second["name"] = json!("second");
    spec["volumes"].as_array_mut().unwrap().push(second);
    spec["containers"][0]["volumeMounts"] = json!([
        {"name": "data", "mountPath": "/first"},
        {"name": "second", "mountPath": "/second"},
    ]);
    test.object::<Pod>(name, spec).await;
    test.running(name).await;
}

/// Number of complete lines in each of the two logs; 0 for one that the pod has not begun yet. `grep` fails if it
/// counts none.
async fn written(test: &Test, pod: &str) -> [u64; 2] {
    let lines = async |log: &str| {
        let script = format!("cat {log} 2>/dev/null | grep -c . || true");
        let lines = test.shell(pod, &script).await;
        lines.unwrap().trim().parse::<u64>().unwrap()
    };
    // The second log, which may be behind, is counted first.
    let second = lines("/second/log").await;
    [lines("/first/log").await, second]
}

async fn later_writes_are_never_there_without_earlier_ones(name: &str, parameters: Value) {
    Test::run(name, async |test| {
        if !test.cluster.takes_snapshots_or_skip("groups").await {
            return;
        }
        let [node, ..] = test.cluster.workers().await;
        let pool = test.pool("pool", Bytes::gib(2), &[&node]).await;
        let class = test.class("class", &pool, WaitForFirstConsumer, &[]).await;
        let together = test.group_class("together", parameters).await;
        for claim in ["first", "second"] {
            test.claim(claim, &class, SIZE).await;
        }
        pod_of_two(test, "writer", ["first", "second"], ORDERED).await;
        let mut groups = Vec::new();
        for group in ["one", "two", "three"] {
            let [_, acknowledged] = written(test, "writer").await;
            let taken = test.snapshot_group(group, &together).await;
            groups.push((acknowledged, taken));
            // The writer continues after each group.
            eventually("the writer to go on", PATIENCE, async || {
                match written(test, "writer").await {
                    [_, now] if now > acknowledged + 3 => Ok(()),
                    now => Err(format!("{now:?}, {acknowledged} before")),
                }
            })
            .await;
        }
        for (acknowledged, group) in groups {
            let group_name = group.name_any();
            let mut restored = Vec::new();
            for claim in ["first", "second"] {
                let member = test.member(&group, claim).await;
                let name = format!("{group_name}-{claim}");
                test.claim_from(Source::Snapshot(&member), &name, &class, SIZE)
                    .await;
                restored.push(name);
            }
            let pod = format!("reads-{group_name}");
            pod_of_two(test, &pod, [&restored[0], &restored[1]], "sleep 3600").await;
            let [first, second] = written(test, &pod).await;
            assert!(
                (first == second || first == second + 1) && second >= acknowledged,
                "{first} in the first volume, {second} in the second, {acknowledged} acknowledged"
            );
        }
    })
    .await;
}

#[tokio::test]
async fn a_group_of_a_running_pods_claims_never_has_a_later_write_without_an_earlier_one() {
    later_writes_are_never_there_without_earlier_ones("group-live", json!({})).await;
}

#[tokio::test]
async fn a_group_of_frozen_filesystems_never_has_a_later_write_without_an_earlier_one() {
    let parameters = json!({"consistency": "filesystem"});
    later_writes_are_never_there_without_earlier_ones("group-at-rest", parameters).await;
}

#[tokio::test]
async fn a_group_of_claims_on_two_nodes_is_taken_while_pods_write_and_is_restored() {
    Test::run("group-across", async |test| {
        if !test
            .cluster
            .takes_snapshots_or_skip("groups across nodes")
            .await
        {
            return;
        }
        let [first, second, _] = test.cluster.workers().await;
        let pool = test.pool("pool", Bytes::gib(1), &[&first, &second]).await;
        let class = test.class("class", &pool, WaitForFirstConsumer, &[]).await;
        let together = test.group_class("together", json!({})).await;
        let places = [("first", &first), ("second", &second)];
        for (claim, node) in places {
            test.claim(claim, &class, SIZE).await;
            let selector = json!({"kubernetes.io/hostname": node});
            test.pod(claim, claim, WRITER, selector).await;
            assert_eq!(&test.running(claim).await, node);
        }
        let mut written = Vec::new();
        for (pod, _) in places {
            written.push(test.writes_go_on(pod).await);
        }
        let group = test.snapshot_group("group", &together).await;
        for ((claim, node), written) in places.into_iter().zip(written) {
            test.writes_go_on(claim).await;
            let member = test.member(&group, claim).await;
            let restored = format!("restored-{claim}");
            test.claim_from(Source::Snapshot(&member), &restored, &class, SIZE)
                .await;
            test.writer(&restored, &restored).await;
            assert_eq!(&test.running(&restored).await, node);
            test.writes_go_on_after(&restored, written).await;
        }
    })
    .await;
}
