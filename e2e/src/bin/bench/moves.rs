//! A volume that moves to another node while a pod writes to it: how long the pod is without it. The bench is kubelet, the
//! scheduler and the controller of the pod; operator and agents are real.
//!
//! The pod ends as soon as it is evicted, and its successor starts as soon as the volume can be mounted on the other
//! node. So the figure is what the move adds to the stop and the start of the pod itself.

mod nodes;
pub(crate) mod passes;
mod pod;

use std::time::Instant;

use cistern_crds::{Bytes, persistent_volume::nodes_of};
use cistern_e2e::{eventually, gone, objects};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{Api, Client};
use serde_json::json;

use self::{
    nodes::{LONGEST, NAME, NODES, Nodes},
    pod::{WRITES, Writer},
};
use crate::{Figure, latency, staging};

/// Prints the figure for a volume of this many mebibytes, which is full of data.
pub(crate) async fn figures(size: u64) {
    let size = Bytes::mib(size);
    let nodes = Nodes::start(size).await;
    nodes.create_volume(nodes::volume(size)).await;
    measure(&nodes, size).await.print();
    latency::delete(&nodes.to, vec![NAME.to_owned()]).await;
    nodes.finish().await;
}

/// Moves the volume, and measures from the end of the pod to the moment when its successor has the volume.
async fn measure(nodes: &Nodes, size: Bytes) -> Figure {
    let target = staging::mount(&nodes.from, NAME).await;
    pod::create(&nodes.client, NODES[0]).await;
    let writer = Writer::start(&nodes.from, &target, size).await;
    let begun = Instant::now();
    let passes = until_evicted(nodes).await;
    let copied = begun.elapsed().as_secs_f64();
    drop(writer);
    let without = succession(nodes).await;
    let bare = own_stop_and_start(nodes).await;
    Figure {
        what: format!("a pod without its volume of {size}, which moves"),
        ours: format!("{without:.2} s"),
        beside: format!(
            "unmounted and mounted {bare:.2} s; {passes} passes in {copied:.0} s, {WRITES}/s written"
        ),
        ratio: Some(without / bare),
        aim: "<= 3 s more",
    }
}

/// Begins the move, and waits until the pod is evicted. Returns the number of passes.
async fn until_evicted(nodes: &Nodes) -> u32 {
    let (moves, pods) = (nodes.moves(), pod::all(&nodes.client));
    let spec = json!({"volumeName": NAME, "toNode": NODES[1], "cutover": "Automatic"});
    objects::create(&moves, json!({"metadata": {"name": NAME}, "spec": spec})).await;
    eventually("the pod to be evicted", LONGEST, async || {
        let pod = pods.get(NAME).await.map_err(|error| error.to_string())?;
        let is_evicted = pod.metadata.deletion_timestamp.is_some();
        is_evicted.then_some(()).ok_or_else(|| "it runs".to_owned())
    })
    .await;
    let found = moves.get(NAME).await.expect("it goes on");
    let prepared = found.status.and_then(|it| it.prepared);
    prepared.map_or(0, |pass| pass.number)
}

/// Ends the pod that is evicted, and starts its successor on the other node. Returns the seconds of both, and in between.
async fn succession(nodes: &Nodes) -> f64 {
    let stopped = Instant::now();
    staging::unmount(&nodes.from, NAME).await;
    pod::delete(&nodes.client).await;
    nodes.until_on(NODES[1]).await;
    until_bound(&nodes.client).await;
    staging::mount(&nodes.to, NAME).await;
    stopped.elapsed().as_secs_f64()
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

/// Waits until the move has ended. Returns the seconds in which a pod stops and starts again without one.
async fn own_stop_and_start(nodes: &Nodes) -> f64 {
    // The old image is removed once a pod uses the volume here.
    pod::create(&nodes.client, NODES[1]).await;
    gone(&nodes.moves(), NAME, LONGEST).await;
    let stopped = Instant::now();
    staging::unmount(&nodes.to, NAME).await;
    staging::mount(&nodes.to, NAME).await;
    let seconds = stopped.elapsed().as_secs_f64();
    staging::unmount(&nodes.to, NAME).await;
    pod::delete(&nodes.client).await;
    seconds
}
