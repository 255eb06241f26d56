//! `kubectl cistern discover`.

use cistern_crds::{StorageNode, StoragePool};
use cistern_e2e::ControlPlane;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{Plugin, create};

/// Creates a Node with the label `discover=yes` whose agent reports these disks.
async fn node_with(client: &Client, name: &str, disks: &Value) {
    let labels = json!({"discover": "yes", "kubernetes.io/hostname": format!("host-of-{name}")});
    let node = json!({"metadata": {"name": name, "labels": labels}});
    create(&Api::<Node>::all(client.clone()), node).await;
    let nodes: Api<StorageNode> = Api::all(client.clone());
    let spec = json!({"topology": {}, "pools": []});
    create(&nodes, json!({"metadata": {"name": name}, "spec": spec})).await;
    let patch = Patch::Merge(json!({"status": {"disks": disks}}));
    let parameters = PatchParams::default();
    let patched = nodes.patch_status(name, &parameters, &patch).await;
    patched.unwrap();
}

#[tokio::test]
async fn blank_disks_become_a_pool_that_the_api_server_accepts() {
    let control_plane = ControlPlane::shared().await;
    let (client, plugin) = (
        control_plane.client(),
        Plugin::with(crate::rights::kubeconfig(control_plane).await),
    );
    let blank = |path: &str| {
        json!({"name": "sdb", "path": path, "model": "Fast 980", "serial": "S1", "size": "1Ti",
            "rotational": false})
    };
    let system =
        json!({"name": "sda", "size": "4Ti", "rotational": true, "unusable": "it has partitions"});
    let (one, two) = ("/dev/disk/by-id/wwn-1", "/dev/disk/by-id/wwn-2");
    node_with(&client, "discover-1", &json!([blank(one), system])).await;
    node_with(&client, "discover-2", &json!([blank(two)])).await;
    node_with(&client, "discover-3", &json!([system])).await;

    let labelled = ["discover", "-l", "discover=yes"];
    let table = plugin
        .text(&[&labelled[..], &["--no-headers"]].concat())
        .await;
    let lines: Vec<Vec<&str>> = table
        .lines()
        .map(|line| {
            line.split("   ")
                .map(str::trim)
                .filter(|it| !it.is_empty())
                .collect()
        })
        .collect();
    assert_eq!(
        lines,
        [
            vec!["discover-1", one, "1Ti", "Fast 980", "S1", "no", "yes"],
            vec![
                "discover-1",
                "/dev/sda",
                "4Ti",
                "-",
                "-",
                "yes",
                "no: it has partitions"
            ],
            vec!["discover-2", two, "1Ti", "Fast 980", "S1", "no", "yes"],
            vec![
                "discover-3",
                "/dev/sda",
                "4Ti",
                "-",
                "-",
                "yes",
                "no: it has partitions"
            ],
        ]
    );
    let only = plugin.json(&["discover", "--node", "discover-2"]).await;
    assert_eq!(only["kind"], "DiskList");
    assert_eq!(only["items"].as_array().unwrap().len(), 1);
    assert_eq!(only["items"][0]["usable"], true);

    let labelled = [&labelled[..], &["--pool", "discovered"]].concat();
    let by_label = plugin.json(&labelled).await;
    let selector = &by_label["spec"]["nodeSelector"];
    assert_eq!(*selector, json!({"matchLabels": {"discover": "yes"}}));
    assert_eq!(
        by_label["spec"]["source"]["device"]["paths"],
        json!([one, two])
    );
    let in_group = [&labelled[..], &["--engine", "logical-volume"]].concat();
    let in_group = plugin.json(&in_group).await;
    let expected = json!({"paths": [one, two], "engine": "LogicalVolume"});
    assert_eq!(in_group["spec"]["source"]["device"], expected);
    // YAML is the default, and what the API server accepts.
    let yaml = plugin
        .text(&["discover", "--node", "discover-1", "--pool", "discovered"])
        .await;
    let manifest: Value = serde_saphyr::from_str(&yaml).unwrap();
    let pool = create(&Api::<StoragePool>::all(client.clone()), manifest).await;
    assert_eq!(pool.spec.source.device.unwrap().paths, [one]);
    let requirements = pool.spec.node_selector.match_expressions.unwrap();
    assert_eq!(
        requirements[0].values,
        Some(vec!["host-of-discover-1".to_owned()])
    );

    let nothing = plugin
        .run(&["discover", "--node", "discover-3", "--pool", "x"])
        .await;
    assert_eq!(nothing.code, 3);
    assert!(
        nothing
            .stderr
            .contains("none of the listed disks is usable"),
        "{}",
        nothing.stderr
    );

    for name in ["discover-1", "discover-2", "discover-3"] {
        let now = DeleteParams::default();
        let deleted = Api::<Node>::all(client.clone()).delete(name, &now).await;
        deleted.unwrap();
        let nodes: Api<StorageNode> = Api::all(client.clone());
        nodes.delete(name, &now).await.unwrap();
    }
}

#[tokio::test]
async fn a_device_is_either_listed_or_selected_by_at_least_one_requirement() {
    let client = ControlPlane::shared().await.client();
    let pools: Api<StoragePool> = Api::all(client);
    let of = |device: Value| {
        let source = json!({"device": device});
        let spec = json!({"nodeSelector": {"matchLabels": {"a": "b"}}, "source": source});
        json!({"metadata": {"name": "select"}, "spec": spec})
    };
    let path = "/dev/disk/by-id/wwn-1";
    for (device, expected) in [
        (json!({}), "exactly one of paths and selector"),
        (
            json!({"paths": [path], "selector": {"rotational": true}}),
            "exactly one of paths and selector",
        ),
        (json!({"selector": {}}), "at least one requirement"),
        (json!({"selector": {"model": ""}}), "model"),
    ] {
        let pool = serde_json::from_value(of(device.clone())).unwrap();
        let refused = pools.create(&PostParams::default(), &pool).await;
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains(expected), "{device}: {refused}");
    }
    let selector =
        json!({"minimumSize": "1Gi", "maximumSize": "2Ti", "model": "Fast*", "rotational": false});
    create(&pools, of(json!({"selector": selector}))).await;
    // The selector and the list can be exchanged for each other.
    let listed = json!({"spec": {"source": {"device": {"selector": null, "paths": [path]}}}});
    let parameters = PatchParams::default();
    let changed = pools
        .patch("select", &parameters, &Patch::Merge(&listed))
        .await;
    assert_eq!(changed.unwrap().spec.source.device.unwrap().paths, [path]);
    let deleted = pools.delete("select", &DeleteParams::default()).await;
    deleted.unwrap();
}
