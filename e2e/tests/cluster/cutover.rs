//! A volume that is copied while a pod writes to it, and moves once the pod is evicted.

use std::time::Duration;

use cistern_crds::{Bytes, Cutover};
use cistern_e2e::{
    Test,
    cluster::{Harness, objects::Binding::WaitForFirstConsumer, objects::pod_spec},
};
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::ResourceExt as _;
use serde_json::json;

use crate::relocation::{all_moved, move_all};

const NAME: &str = "writer";
const POD: &str = "writer-0";
/// The folder on each node for the notes of the pod.
const FOLDER: &str = "/run/cistern-e2e-cutover";
/// Writes ascending numbers to the volume. Notes on the node which number it found at its start, before it writes the next one,
/// and each number that is durable. A container that is started again adds to the notes.
const SCRIPT: &str = "n=0; if [ -s /data/log ]; then n=$(tail -n 1 /data/log) || exit 1; fi
echo found $n >>/node/notes
while echo $((n += 1)) >>/data/log && sync -d /data/log; do
    echo acknowledged $n >>/node/notes
    [ -e /node/first ] || touch /node/first
done; exit 1";

/// Starts the writer.
async fn start(test: &Test) {
    let mut spec = pod_spec(
        SCRIPT,
        json!({"persistentVolumeClaim": {"claimName": "claim"}}),
    );
    spec["restartPolicy"] = json!("Always");
    let node = json!({"name": "node", "hostPath": {"path": FOLDER, "type": "DirectoryOrCreate"}});
    spec["volumes"].as_array_mut().unwrap().push(node);
    let mount = json!({"name": "node", "mountPath": "/node"});
    let mounts = &mut spec["containers"][0]["volumeMounts"];
    mounts.as_array_mut().unwrap().push(mount);
    let labels = json!({"app": NAME});
    let set = json!({
        "replicas": 1, "serviceName": NAME, "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": spec},
    });
    test.object::<StatefulSet>(NAME, set).await;
}

/// When a file of the writer on a node was changed last, since the epoch.
async fn changed(harness: Harness, node: &str, file: &str) -> Duration {
    let script = format!("date -r {FOLDER}/{file} +%s.%N");
    let seconds = harness.shell(node, &script).await;
    Duration::from_secs_f64(seconds.trim().parse().unwrap())
}

/// Checks the notes of the writer: whatever is acknowledged is found at each later start. Returns the last acknowledged number.
fn last_acknowledged(notes: &str) -> u64 {
    let mut acknowledged = 0;
    for note in notes.lines() {
        let (what, number) = note.split_once(' ').unwrap();
        let number: u64 = number.parse().unwrap();
        match what {
            "acknowledged" => acknowledged = number,
            _ => assert!(
                number >= acknowledged,
                "the writer found {number} of {acknowledged} acknowledged numbers"
            ),
        }
    }
    acknowledged
}

#[tokio::test]
async fn a_volume_that_a_pod_writes_to_moves_with_every_acknowledged_write() {
    let Some(harness) = Harness::or_skip("what a pod has written until it is evicted") else {
        return;
    };
    Test::run("cutover", async |test| {
        let [first, second, _] = test.cluster.workers().await;
        let nodes = [first.as_str(), &second];
        for node in nodes {
            // A test that was killed may have left notes.
            harness.shell(node, &format!("rm -rf {FOLDER}")).await;
            test.afterwards(harness, node, &format!("rm -rf {FOLDER}"));
            test.if_it_fails(harness, node, &format!("rm -rf {FOLDER}"));
        }
        let pool = test.pool("pool", Bytes::gib(1), &nodes).await;
        let class = test.class("class", &pool, WaitForFirstConsumer, &[]).await;
        test.claim("claim", &class, Bytes::mib(256)).await;
        start(test).await;
        let volumes = [test.bound("claim").await.name_any()];
        for _ in 0..2 {
            test.writes_go_on(POD).await;
            let from = test.running(POD).await;
            let to = nodes.into_iter().find(|it| **it != from).unwrap();
            // The notes of the round before.
            harness.shell(to, &format!("rm -rf {FOLDER}/*")).await;
            move_all(test, &volumes, to, Cutover::Automatic).await;
            all_moved(test, &volumes, to).await;
            assert_eq!(test.running(POD).await, to);
            test.writes_go_on(POD).await;
            let read = format!("cat {FOLDER}/notes");
            let mut written = harness.shell(&from, &read).await;
            assert!(last_acknowledged(&written) > 0, "{written}");
            written.push_str(&harness.shell(to, &read).await);
            last_acknowledged(&written);
            let begun = changed(harness, to, "first").await;
            let down = begun.abs_diff(changed(harness, &from, "notes").await);
            eprintln!("the writer was down for {:.1} s", down.as_secs_f64());
        }
        test.delete(&test.namespaced::<StatefulSet>(), NAME).await;
    })
    .await;
}
