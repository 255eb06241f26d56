//! Objects that another version of the schema has accepted and the plugin cannot parse.

use cistern_crds::{PoolVolume, StorageNode, StoragePool, names, testing::volume_spec};
use cistern_e2e::{
    ControlPlane,
    control_plane::UNREADABLE_SIZE,
    objects::{accepted, change},
};
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::{
    Api, Client, Resource,
    api::{ApiResource, DynamicObject, PostParams},
};
use serde_json::{Value, json};

use crate::{Plugin, create};

const NODE: &str = "n";

/// The objects of a kind, of which this test can write what the type does not allow.
fn raw<K: Resource<DynamicType = ()>>(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &ApiResource::erase::<K>(&()))
}

fn pool(name: &str, size: &str) -> Value {
    json!({"apiVersion": "cistern.storage/v1alpha1", "kind": "StoragePool", "metadata": {"name": name},
        "spec": {"nodeSelector": {}, "source": {"image": {"size": size}}}})
}

/// Creates an object that only a changed definition accepts.
async fn create_strange(api: &Api<DynamicObject>, object: Value) {
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    let parameters = PostParams::default();
    accepted(async || api.create(&parameters, &object).await).await;
}

#[tokio::test]
async fn an_object_that_cannot_be_parsed_is_named_and_hides_no_other() {
    // Its own control plane: what is unreadable there would be named in the other tests, too.
    let control_plane = ControlPlane::start().await;
    let (plugin, client) = (Plugin::of(&control_plane), control_plane.client());
    let pools = raw::<StoragePool>(&client);
    create(&pools, pool("well", "1Gi")).await;
    control_plane.accept_each_size::<StoragePool>().await;
    create_strange(&pools, pool("strange", UNREADABLE_SIZE)).await;
    let carried = |name: &str| {
        json!({"name": name, "uid": name, "source": {"image": {"size": "1Gi"}},
            "overcommitPercent": 100, "reservedPercent": 5})
    };
    let spec = json!({"topology": {}, "pools": [carried("well"), carried("strange")]});
    let node = json!({"metadata": {"name": NODE}, "spec": spec});
    create(&Api::<StorageNode>::all(client.clone()), node).await;

    let words = "StoragePool strange cannot be read: ";
    for list in ["pools", "volumes", "snapshots", "discover", "orphans"] {
        let answer = plugin.run(&[list]).await;
        assert_eq!(answer.code, 0, "{list}: {}", answer.stderr);
        let is_warned = answer.stderr.contains(&format!("warning: {words}"));
        // The disks are those of StorageNodes, all of which can be parsed.
        assert_eq!(is_warned, list != "discover", "{list}: {}", answer.stderr);
    }
    let listed = plugin.text(&["pools"]).await;
    assert!(
        listed.contains("well") && !listed.contains("strange"),
        "{listed}"
    );
    let wrong = plugin.json(&["status"]).await["wrong"].clone();
    let is_it = |it: &&Value| it["name"] == "strange";
    let issue = wrong.as_array().unwrap().iter().find(is_it).unwrap();
    assert_eq!(
        (&issue["kind"], &issue["reason"]),
        (&json!("StoragePool"), &json!("Unreadable"))
    );
    let message = issue["message"].as_str().unwrap();
    assert!(message.contains(UNREADABLE_SIZE), "{issue}");
    let report = plugin.run(&["doctor"]).await.stdout;
    assert!(
        report.contains(&format!("warn  objects             {words}")),
        "{report}"
    );
    for about_it in [
        &["pools", "--pool", "strange"][..],
        &["cordon", "strange", NODE],
    ] {
        let answer = plugin.run(about_it).await;
        assert_eq!(answer.code, 3, "{}", answer.stdout);
        assert!(
            answer.stderr.contains(&format!("error: {words}")),
            "{}",
            answer.stderr
        );
    }

    // A command that gives up data must know all of it.
    let volumes = raw::<PoolVolume>(&client);
    control_plane.accept_each_size::<PoolVolume>().await;
    let volume = PoolVolume::desired("odd", volume_spec("odd", NODE, "well"));
    let mut volume = json!(volume);
    volume["spec"]["size"] = json!(UNREADABLE_SIZE);
    create_strange(&volumes, volume).await;
    let labels = json!({names::COMPONENT_LABEL: names::NODE_COMPONENT});
    let containers = json!([{"name": "node", "image": "image"}]);
    let agents = json!({"metadata": {"name": "cistern-node", "labels": labels}, "spec": {
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}},
    }});
    create(
        &Api::<DaemonSet>::default_namespaced(client.clone()),
        agents,
    )
    .await;
    let forget = ["forget-node", NODE, "--system-namespace", "default"];
    let answer = plugin.run(&forget).await;
    assert_eq!(answer.code, 3, "{}", answer.stdout);
    let refused = "nothing was changed: PoolVolume odd cannot be read: ";
    assert!(answer.stderr.contains(refused), "{}", answer.stderr);

    change(
        &pools,
        "strange",
        json!({"spec": {"source": {"image": {"size": "2Gi"}}}}),
    )
    .await;
    let answer = plugin.run(&["pools"]).await;
    assert!(answer.stdout.contains("strange"), "{}", answer.stdout);
    assert!(!answer.stderr.contains("StoragePool"), "{}", answer.stderr);
}
