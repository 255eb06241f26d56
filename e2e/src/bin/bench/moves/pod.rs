//! The pod that uses the volume: its object, and what it writes.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
};

use cistern_crds::Bytes;
use cistern_e2e::{Driver, gone, objects, process::output};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, api::DeleteParams};
use serde_json::json;

use super::nodes::{LONGEST, NAME, NAMESPACE};

/// What the pod writes per second, in blocks of 4 KiB at random places.
pub(super) const WRITES: Bytes = Bytes::mib(8);

/// A pod that writes steadily. It ends when this is dropped.
pub(super) struct Writer(Child);

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.kill().expect("it runs until it is killed");
        self.0.wait().expect("it was killed");
    }
}

impl Writer {
    /// Fills a volume that is mounted there, and then begins to overwrite its data.
    pub(super) async fn start(node: &Driver, target: &Path, volume: Bytes) -> Self {
        let file = target.join("data");
        let mut all = fio(node, &file, volume);
        all.args(["--rw=write", "--bs=1M", "--iodepth=8", "--end_fsync=1"]);
        output(all, LONGEST).await;
        let mut some = fio(node, &file, volume);
        some.args(["--rw=randwrite", "--bs=4k", "--iodepth=1", "--time_based"])
            .arg(format!("--runtime={}", LONGEST.as_secs()))
            .arg(format!("--rate={}", WRITES.0))
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        Self(some.spawn().expect("fio starts"))
    }
}

fn fio(node: &Driver, file: &Path, volume: Bytes) -> Command {
    let mut fio = node.command_on_node("fio");
    fio.args(["--name=data", "--direct=1", "--ioengine=libaio", "--thread"])
        .arg(format!("--filename={}", file.display()))
        // The rest is for the metadata of the filesystem.
        .arg(format!("--size={}", volume.percent(90).0));
    fio
}

/// The pods in the namespace of the claim.
pub(super) fn all(client: &Client) -> Api<Pod> {
    Api::namespaced(client.clone(), NAMESPACE)
}

/// Creates the pod that uses the volume on a node. Its controller would make it again.
pub(super) async fn create(client: &Client, node: &str) {
    let pods = all(client);
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
pub(super) async fn delete(client: &Client) {
    let (pods, at_once) = (all(client), DeleteParams::default().grace_period(0));
    pods.delete(NAME, &at_once).await.expect("it was made");
    gone(&pods, NAME, LONGEST).await;
}
