//! `doctor` on an empty and on a complete installation. The test plays kubelet and the controllers that
//! start pods.

use cistern_crds::{StorageNode, StoragePool, names};
use cistern_e2e::{
    ControlPlane,
    objects::write_status,
    process::{command, output, tool, workspace},
};
use k8s_openapi::{
    api::{
        admissionregistration::v1::ValidatingAdmissionPolicyBinding,
        apps::v1::{DaemonSet, Deployment},
        core::v1::{Node, Pod},
        rbac::v1::ClusterRoleBinding,
        storage::v1::{CSINode, StorageClass},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{Answer, Plugin, SOON, create};

const SYSTEM: &str = "cistern-system";

/// Checks that did not pass, as name and message.
fn failed(answer: &Answer) -> Vec<(String, String)> {
    let report: Value = serde_json::from_str(&answer.stdout).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let checks = report["checks"].as_array().unwrap().iter();
    checks
        .filter(|check| check["outcome"] != "ok")
        .map(|check| (text(&check["name"]), text(&check["message"])))
        .collect()
}

#[tokio::test]
async fn doctor_reports_what_an_installation_lacks_until_it_is_complete() {
    let control_plane = ControlPlane::start().await;
    let (plugin, client) = (Plugin::of(&control_plane), control_plane.client());
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let name = "poolvolumes.cistern.storage";
    definitions
        .delete(name, &DeleteParams::default())
        .await
        .unwrap();
    cistern_e2e::eventually("the kind to be gone", SOON, async || {
        let answer = plugin.run(&["status"]).await;
        if answer.stderr.contains("kubectl apply -k manifests") && answer.code == 3 {
            Ok(())
        } else {
            Err(answer.stderr)
        }
    })
    .await;
    let answer = plugin.run(&["doctor", "-o", "json"]).await;
    assert_eq!(answer.code, 2, "{}", answer.stderr);
    let messages = failed(&answer);
    for (check, words) in [
        ("definitions", "poolvolumes.cistern.storage is missing"),
        ("policies", "is missing"),
        ("driver", "there is no CSIDriver"),
        ("operator", "there is no Deployment"),
        ("accounts", "may not"),
    ] {
        let found = messages
            .iter()
            .any(|(name, message)| name == check && message.contains(words));
        assert!(found, "{check}: {messages:?}");
    }

    let mut apply = command(tool("kubectl").await);
    apply
        .arg("--kubeconfig")
        .arg(control_plane.kubeconfig())
        .args(["apply", "-k"]);
    output(
        {
            apply.arg(workspace().join("manifests"));
            apply
        },
        3 * SOON,
    )
    .await;
    control_plane.install_definitions().await;
    bring_up(&client).await;
    // The API server applies roles and policies a moment after they are stored.
    cistern_e2e::eventually("all checks to pass", SOON, async || {
        let answer = plugin.run(&["doctor", "-o", "json"]).await;
        let failed = failed(&answer);
        let is_complete = failed.is_empty() && answer.code == 0;
        is_complete
            .then_some(())
            .ok_or_else(|| format!("code {}: {failed:?}", answer.code))
    })
    .await;
    let text = plugin.text(&["doctor"]).await;
    assert!(
        text.ends_with(" checks passed.\n") && text.lines().all(|line| line.chars().count() <= 120),
        "{text}"
    );

    // A missing permission, a policy that is not enforced, a class with an unknown parameter, and an encrypted one whose
    // nodes have an older agent.
    let audited = Patch::Merge(json!({"spec": {"validationActions": ["Audit"]}}));
    Api::<ValidatingAdmissionPolicyBinding>::all(client.clone())
        .patch("nodes.cistern.storage", &PatchParams::default(), &audited)
        .await
        .unwrap();
    let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    bindings
        .delete("cistern-node", &DeleteParams::default())
        .await
        .unwrap();
    let class = json!({"metadata": {"name": "typo"}, "provisioner": names::DRIVER,
        "parameters": {"pol": "fast"}, "allowVolumeExpansion": true});
    let classes = Api::<StorageClass>::all(client);
    create(&classes, class).await;
    let class = json!({"metadata": {"name": "secret"}, "provisioner": names::DRIVER,
        "parameters": {"pool": "fast", "encryption": "luks2"}, "allowVolumeExpansion": true});
    create(&classes, class).await;
    cistern_e2e::eventually("all four to be reported", SOON, async || {
        let answer = plugin.run(&["doctor", "-o", "json"]).await;
        let messages = failed(&answer);
        let has = |words: &str| messages.iter().any(|(_, message)| message.contains(words));
        let all = [
            "cistern-node may not",
            "nodes.cistern.storage has no binding that enforces it",
            "\"pol\" is unknown",
            "secret: no volume can be on n: its agent does not report encryption support",
        ];
        if answer.code == 2 && all.into_iter().all(has) {
            Ok(())
        } else {
            Err(format!("{messages:?}"))
        }
    })
    .await;
}

/// Writes what kubelet, the controllers of Kubernetes, operator and agent would write.
async fn bring_up(client: &Client) {
    let label = json!({names::TOPOLOGY_KEY: "n"});
    create(
        &Api::<Node>::all(client.clone()),
        json!({"metadata": {"name": "n", "labels": label}}),
    )
    .await;
    let info = json!({"architecture": "amd64", "bootID": "", "containerRuntimeVersion": "",
        "kernelVersion": "6.12.41", "kubeProxyVersion": "", "kubeletVersion": "v1.33.0", "machineID": "",
        "operatingSystem": "linux", "osImage": "", "systemUUID": ""});
    write_status(
        &Api::<Node>::all(client.clone()),
        "n",
        json!({"nodeInfo": info}),
    )
    .await;
    let driver =
        json!({"name": names::DRIVER, "nodeID": "n", "topologyKeys": [names::TOPOLOGY_KEY]});
    let csi_node = json!({"metadata": {"name": "n"}, "spec": {"drivers": [driver]}});
    create(&Api::<CSINode>::all(client.clone()), csi_node).await;

    let deployments: Api<Deployment> = Api::namespaced(client.clone(), SYSTEM);
    for (name, replicas) in [("cistern-operator", 2), ("cistern-controller", 2)] {
        let ready = json!({"replicas": replicas, "readyReplicas": replicas});
        write_status(&deployments, name, ready).await;
    }
    let agents: Api<DaemonSet> = Api::namespaced(client.clone(), SYSTEM);
    let ready = json!({"desiredNumberScheduled": 1, "currentNumberScheduled": 1, "numberReady": 1,
        "numberMisscheduled": 0});
    write_status(&agents, "cistern-node", ready).await;
    let pods: Api<Pod> = Api::namespaced(client.clone(), SYSTEM);
    let pod = json!({
        "metadata": {"name": "agent", "labels": {names::COMPONENT_LABEL: names::NODE_COMPONENT}},
        "spec": {"nodeName": "n", "containers": [{"name": "driver", "image": "cistern.invalid/driver:dev"}]},
    });
    create(&pods, pod).await;

    let pool = json!({"metadata": {"name": "fast"},
        "spec": {"nodeSelector": {}, "source": {"image": {"size": "1Gi"}}}});
    create(&Api::<StoragePool>::all(client.clone()), pool).await;
    let nodes: Api<StorageNode> = Api::all(client.clone());
    let pool = json!({"name": "fast", "uid": "uid-of-fast", "source": {"image": {"size": "1Gi"}},
        "overcommitPercent": 100, "reservedPercent": 5});
    create(
        &nodes,
        json!({"metadata": {"name": "n"}, "spec": {"topology": {}, "pools": [pool]}}),
    )
    .await;
    let reporting = json!({"type": "AgentReporting", "status": "True", "reason": "Reconciled",
        "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    write_status(&nodes, "n", json!({"conditions": [reporting]})).await;
    let class = json!({"metadata": {"name": "fast"}, "provisioner": names::DRIVER,
        "parameters": {"pool": "fast"}, "allowVolumeExpansion": true});
    create(&Api::<StorageClass>::all(client.clone()), class).await;
}
