//! A volume that moves while a pod writes to it: how long the pod is without it. The bench is kubelet, the scheduler and
//! the controller of the pod; operator and agents are real.
//!
//! The pod ends as soon as it is evicted, and its successor starts as soon as the volume can be mounted on the other
//! node. So the figure is what the move adds to the stop and the start of the pod itself.

use std::{
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use cistern_crds::{
    Bytes, ConditionType, HasImage as _, PoolVolume, StoragePool, VolumeMove, condition, names,
    persistent_volume::nodes_of, testing::volume_spec,
};
use cistern_e2e::{ControlPlane, Driver, Operator, eventually, gone, objects, process::output};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::{Api, Client, api::DeleteParams};
use serde_json::json;

use crate::{Figure, latency, staging};

const POOL: &str = "bench-moves";
const NODES: [&str; 2] = ["bench-from", "bench-to"];
/// Name of the volume and of everything that uses it.
const NAME: &str = "moved";
const NAMESPACE: &str = "default";
/// What the pod writes per second, in blocks of 4 KiB at random places.
const WRITES: Bytes = Bytes::mib(8);
/// Deadline of each wait: a copy of the whole volume.
const LONGEST: Duration = Duration::from_mins(10);

/// A pod that writes steadily. It ends when this is dropped.
struct Writer(Child);

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.kill().expect("it runs until it is killed");
        self.0.wait().expect("it was killed");
    }
}

/// Prints the figure for a volume of this many mebibytes, which is full of data.
pub(crate) async fn figures(size: u64) {
    let size = Bytes::mib(size);
    let control_plane = ControlPlane::start().await;
    control_plane.install_definitions().await;
    let client = control_plane.client();
    objects::create_namespace(&client).await;
    let [from, to] = [
        start(&control_plane, 0).await,
        start(&control_plane, 1).await,
    ];
    let operator = Operator::start(&control_plane).await;
    create_pool(&client, size).await;
    for driver in [&from, &to] {
        driver.ready_pool(POOL).await;
    }
    create_volume(&client, size).await;
    measure(&client, &from, &to, size).await.print();
    latency::delete(&to, vec![NAME.to_owned()]).await;
    operator.finish().await;
    from.finish().await;
    to.finish().await;
}

async fn start(control_plane: &ControlPlane, number: usize) -> Driver {
    let name = NODES[number];
    let driver = Driver::start(control_plane, name).await;
    let (agent, transfer) = (format!("agent-{name}"), driver.transfer());
    objects::create_node(&control_plane.client(), name, &agent, Some(transfer)).await;
    driver
}

/// Creates a pool with room for the volume, for what a move keeps of it, and for the snapshots and copies of its passes.
async fn create_pool(client: &Client, volume: Bytes) {
    let room = Bytes(volume.0 * 7 / 2)
        .round_up_to_mib()
        .expect("it is no exbibyte");
    let spec = json!({"nodeSelector": {}, "source": {"image": {"size": room}}});
    let pools: Api<StoragePool> = Api::all(client.clone());
    objects::create(&pools, json!({"metadata": {"name": POOL}, "spec": spec})).await;
}

/// Creates a volume on the first node, its PersistentVolume and its claim.
async fn create_volume(client: &Client, size: Bytes) {
    let volumes: Api<PoolVolume> = Api::all(client.clone());
    let mut spec = volume_spec(NAME, NODES[0], POOL);
    spec.size = size;
    objects::create(&volumes, json!(PoolVolume::desired(NAME, spec))).await;
    let made = until(&volumes, NODES[0]).await;
    let node = names::topology_value(NODES[0]);
    let object = json!({
        "metadata": {"name": NAME},
        "spec": {
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": POOL,
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": NAMESPACE,
                "name": NAME, "uid": "uid-of-claim",
            },
            "csi": {
                "driver": names::DRIVER, "volumeHandle": NAME, "fsType": "ext4",
                "volumeAttributes": {
                    (names::IMAGE_CONTEXT): made.image().expect("it is made").uid,
                },
            },
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": names::TOPOLOGY_KEY, "operator": "In", "values": [node]},
            ]}]}},
        },
    });
    let all: Api<PersistentVolume> = Api::all(client.clone());
    objects::create(&all, object).await;
    let claim = json!({
        "metadata": {"name": NAME},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": POOL, "volumeName": NAME,
            "resources": {"requests": {"storage": size}},
        },
    });
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), NAMESPACE);
    objects::create(&claims, claim).await;
}

/// Moves the volume, and measures from the end of the pod to the moment when its successor has the volume.
async fn measure(client: &Client, from: &Driver, to: &Driver, size: Bytes) -> Figure {
    let target = staging::mount(from, NAME).await;
    let file = target.join("data");
    let fio = || {
        let mut fio = from.command_on_node("fio");
        fio.args(["--name=data", "--direct=1", "--ioengine=libaio", "--thread"])
            .arg(format!("--filename={}", file.display()))
            // The rest is for the metadata of the filesystem.
            .arg(format!("--size={}", size.percent(90).0));
        fio
    };
    let mut all = fio();
    all.args(["--rw=write", "--bs=1M", "--iodepth=8", "--end_fsync=1"]);
    output(all, LONGEST).await;
    create_pod(client, NODES[0]).await;
    let writer = write(fio());
    let begun = Instant::now();
    let moves: Api<VolumeMove> = Api::all(client.clone());
    let spec = json!({"volumeName": NAME, "toNode": NODES[1], "cutover": "Automatic"});
    objects::create(&moves, json!({"metadata": {"name": NAME}, "spec": spec})).await;

    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    eventually("the pod to be evicted", LONGEST, async || {
        let pod = pods.get(NAME).await.map_err(|error| error.to_string())?;
        let is_evicted = pod.metadata.deletion_timestamp.is_some();
        is_evicted.then_some(()).ok_or_else(|| "it runs".to_owned())
    })
    .await;
    let copied = begun.elapsed();
    let found = moves.get(NAME).await.expect("it goes on");
    let passes = found
        .status
        .and_then(|it| it.prepared)
        .map_or(0, |pass| pass.number);
    drop(writer);
    let stopped = Instant::now();
    staging::unmount(from, NAME).await;
    delete(&pods).await;
    let volumes: Api<PoolVolume> = Api::all(client.clone());
    until(&volumes, NODES[1]).await;
    until_bound(client).await;
    staging::mount(to, NAME).await;
    let without = stopped.elapsed();

    // The old image is removed once a pod uses the volume here.
    create_pod(client, NODES[1]).await;
    gone(&moves, NAME, LONGEST).await;
    let stopped = Instant::now();
    staging::unmount(to, NAME).await;
    staging::mount(to, NAME).await;
    let bare = stopped.elapsed();
    staging::unmount(to, NAME).await;
    delete(&pods).await;
    let (without, bare) = (without.as_secs_f64(), bare.as_secs_f64());
    Figure {
        what: format!("a pod without its volume of {size}, which moves"),
        ours: format!("{without:.2} s"),
        beside: format!(
            "unmounted and mounted {bare:.2} s; {passes} passes in {:.0} s, {WRITES}/s written",
            copied.as_secs_f64()
        ),
        ratio: Some(without / bare),
        aim: "<= 3 s more",
    }
}

/// Overwrites the file of fio until it is dropped.
fn write(mut fio: Command) -> Writer {
    fio.args(["--rw=randwrite", "--bs=4k", "--iodepth=1", "--time_based"])
        .arg(format!("--runtime={}", LONGEST.as_secs()))
        .arg(format!("--rate={}", WRITES.0))
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    Writer(fio.spawn().expect("fio starts"))
}

/// Creates the pod that uses the volume on a node. Its controller would make it again.
async fn create_pod(client: &Client, node: &str) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let pod = json!({
        "metadata": {
            "name": NAME,
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "set", "uid": "uid-of-set",
                "controller": true,
            }],
        },
        "spec": {
            "nodeName": node,
            "containers": [{"name": "c", "image": "x"}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": NAME}}],
        },
    });
    objects::create(&pods, pod).await;
    let ready = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
    objects::write_status(&pods, NAME, ready).await;
}

/// Deletes the pod, as kubelet does when it has ended.
async fn delete(pods: &Api<Pod>) {
    let at_once = DeleteParams::default().grace_period(0);
    pods.delete(NAME, &at_once).await.expect("it was made");
    gone(pods, NAME, LONGEST).await;
}

/// Waits until the volume can be used on a node.
async fn until(volumes: &Api<PoolVolume>, node: &str) -> PoolVolume {
    eventually(
        &format!("the volume to be on {node}"),
        LONGEST,
        async || {
            let found = volumes.get(NAME).await.map_err(|error| error.to_string())?;
            let of_epoch = found
                .status
                .as_ref()
                .filter(|it| it.epoch == found.spec.epoch);
            let is_ready =
                of_epoch.is_some() && condition::holds(found.conditions(), ConditionType::Ready);
            if is_ready && found.spec.node_name == node {
                return Ok(found);
            }
            Err(format!("{:#?}", found.status))
        },
    )
    .await
}

/// Waits until the scheduler would place a pod on the second node.
async fn until_bound(client: &Client) {
    let all: Api<PersistentVolume> = Api::all(client.clone());
    eventually("the PersistentVolume to follow", LONGEST, async || {
        let found = all.get(NAME).await.map_err(|error| error.to_string())?;
        let nodes = nodes_of(&found).join(" ");
        (nodes == NODES[1]).then_some(()).ok_or(nodes)
    })
    .await;
}
