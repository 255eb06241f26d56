//! How much of the API server's memory and disk a volume takes.

use cistern_crds::Bytes;
use kube::ResourceExt as _;
use serde_json::json;

use crate::Fixture;

/// Bytes of a ready volume as JSON, which is how the API server stores it.
const MOST: usize = 3300;

#[tokio::test]
async fn the_object_of_a_volume_stays_small() {
    let node = Fixture::start("agent-size").await;
    let name = node.volume("one", Bytes::mib(64)).await.name_any();
    // The controller writes the spec of an object that the agent has written.
    node.patch(&name, json!({"spec": {"size": "128Mi"}})).await;
    let object = node
        .until(&name, "to grow", |object| {
            let status = object.status.as_ref();
            status.and_then(|status| status.size) == Some(Bytes::mib(128))
        })
        .await;
    let text = serde_json::to_string(&object).unwrap();
    assert!(text.len() <= MOST, "{} bytes: {text}", text.len());
    node.finish().await;
}
