//! Lets copies begin as soon as they are permitted: enqueues what waits for an ImageTransfer that has changed.
//!
//! The reconcile reads the ImageTransfer itself, and repeats that after a while. So nothing depends on this watch, which
//! an API server refuses whose definition of the kind is older.

use cistern_client::watches;
use cistern_crds::ImageTransfer;
use futures::StreamExt as _;
use kube::{ResourceExt as _, api::PartialObjectMeta};

use super::{
    Agent,
    desired::{Changes, Desired},
    work::WorkQueues,
};

/// Enqueues what waits for the ImageTransfers whose target is this node, until dropped.
pub(super) async fn run(agent: &Agent, mut changes: Changes<PartialObjectMeta<ImageTransfer>>) {
    let mut has_failed = false;
    while let Some(change) = changes.next().await {
        match &change {
            Ok(transfer) => enqueue(&agent.desired, &agent.work, &transfer.name_any()),
            // Each attempt fails as the first does.
            Err(_) if has_failed => {}
            Err(error) => {
                let error = watches::explain::<ImageTransfer>(error);
                tracing::warn!(
                    error,
                    "permissions of copies are seen late: their watch failed, retrying"
                );
            }
        }
        has_failed = change.is_err();
    }
}

/// Enqueues the volume that is made from a copy, and the replica of the volume that moves here.
fn enqueue(desired: &Desired, work: &WorkQueues, volume: &str) {
    if desired.volume(volume).is_some() {
        work.volumes.enqueue(volume);
    }
    for replica in desired.replicas_of(volume) {
        work.replicas.enqueue(&replica);
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, future::pending};

    use http::{Request, Response};
    use kube::{Client, client::Body};
    use serde_json::{Value, json};
    use tower::service_fn;

    use super::*;
    use crate::{agent::desired, testing::replica};

    /// An API server that has a replica on node-2, and permits the copy of its volume. Nothing changes.
    async fn answer(request: Request<Body>) -> Result<Response<Body>, Infallible> {
        let uri = request.uri().to_string();
        if uri.contains("watch=") {
            pending::<()>().await;
        }
        let items = match uri.as_str() {
            uri if uri.contains("/poolreplicas?") => vec![json!(replica("pvc-1", 1))],
            uri if uri.contains("spec.targetNode%3Dnode-2") => vec![metadata("pvc-1")],
            _ => Vec::new(),
        };
        let list = json!({"metadata": {"resourceVersion": "1"}, "items": items});
        Ok(Response::new(list.to_string().into_bytes().into()))
    }

    fn metadata(name: &str) -> Value {
        json!({"metadata": {"name": name, "resourceVersion": "1"}})
    }

    #[tokio::test]
    async fn a_replica_is_reconciled_when_the_copy_of_its_volume_is_permitted() {
        let client = Client::new(service_fn(answer), "default");
        let (desired, mut watches) = desired::watch(&client, "node-2");
        let work = WorkQueues::new(&client, &desired);
        tokio::select! {
            _ = watches.replicas.count() => panic!("a watch does not end"),
            listed = desired.replicas.wait_until_ready() => listed.unwrap(),
        }
        let permitted = watches.permissions.next().await.unwrap().unwrap();
        enqueue(&desired, &work, &permitted.name_any());
        let enqueued = work.replicas.queued.lock().await.recv().await;
        assert_eq!(enqueued, Some(replica("pvc-1", 1).name_any()));
    }
}
