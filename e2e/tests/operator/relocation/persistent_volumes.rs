//! The PersistentVolume of a volume that moves is replaced. The tests are kube-controller-manager.

use cistern_crds::names;
use cistern_e2e::{
    eventually,
    objects::{change, write_status},
};
use k8s_openapi::{
    api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Api, ResourceExt as _, api::PostParams};
use serde_json::json;

use super::nodes::{Nodes, SOON};
use crate::{
    cluster::Cluster,
    objects::{create, delete},
};

#[tokio::test]
async fn a_claim_that_was_lost_is_changed_once_its_new_persistent_volume_is_bound() {
    let cluster = Cluster::shared().await;
    let nodes = Nodes::start(cluster, "woken", 0).await;
    let second = nodes.names[1].clone();
    nodes.add_volume("woken-v").await;
    let (claims, persistent_volumes) = (nodes.api.claims(), nodes.persistent_volumes());
    let uid = claims.get("woken-v").await.unwrap().uid();
    let bound = json!({"spec": {"claimRef": {"uid": uid}}});
    let before = change(&persistent_volumes, "pv-of-woken-v", bound).await;
    write_status(&claims, "woken-v", json!({"phase": "Lost"})).await;
    let selected = async || {
        let claim = claims.get("woken-v").await.unwrap();
        let selected = claim.annotations().get(names::SELECTED_NODE_ANNOTATION);
        selected.cloned()
    };
    nodes
        .move_volume("woken-v", json!({"toNode": second}))
        .await;
    eventually("the move to wait until it is bound", SOON, async || {
        let says = nodes.waits("woken-v", "Moving").await;
        if says.contains("has not bound the new PersistentVolume") {
            Ok(())
        } else {
            Err(says)
        }
    })
    .await;
    let after = persistent_volumes.get("pv-of-woken-v").await.unwrap();
    assert_ne!(after.uid(), before.uid());
    assert_eq!(selected().await, None);
    let phase = json!({"phase": "Bound"});
    write_status(&persistent_volumes, "pv-of-woken-v", phase).await;
    nodes.waits("woken-v", "OldImageKept").await;
    assert_eq!(selected().await.as_ref(), Some(&second));
    nodes.end_by_use("woken-v").await;
    nodes.finish(&["woken-v"]).await;
}

fn policies(nodes: &Nodes<'_>) -> Api<ValidatingAdmissionPolicy> {
    Api::all(nodes.api.client.clone())
}

fn bindings(nodes: &Nodes<'_>) -> Api<ValidatingAdmissionPolicyBinding> {
    Api::all(nodes.api.client.clone())
}

/// Lets the API server refuse new PersistentVolumes with the label `refused`.
async fn refuse(nodes: &Nodes<'_>) {
    let policy = json!({
        "metadata": {"name": "refused"},
        "spec": {
            "matchConstraints": {
                "objectSelector": {"matchLabels": {"refused": "yes"}},
                "resourceRules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                    "resources": ["persistentvolumes"],
                }],
            },
            "validations": [{"expression": "false", "message": "the test refuses it"}],
        },
    });
    create(&policies(nodes), &policy).await;
    let binding = json!({
        "metadata": {"name": "refused"},
        "spec": {"policyName": "refused", "validationActions": ["Deny"]},
    });
    create(&bindings(nodes), &binding).await;
}

#[tokio::test]
async fn a_persistent_volume_that_the_api_server_would_not_create_again_is_not_deleted() {
    let cluster = Cluster::shared().await;
    let nodes = Nodes::start(cluster, "refused", 0).await;
    let second = nodes.names[1].clone();
    nodes.add_volume("refused-v").await;
    let persistent_volumes = nodes.persistent_volumes();
    let labelled = json!({"metadata": {"labels": {"refused": "yes"}}});
    let before = change(&persistent_volumes, "pv-of-refused-v", labelled).await;
    refuse(&nodes).await;
    let mut another = before.clone();
    another.metadata = ObjectMeta {
        name: Some("refused-another".to_owned()),
        labels: before.metadata.labels.clone(),
        ..ObjectMeta::default()
    };
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    eventually(
        "the policy to be enforced",
        SOON,
        async || match persistent_volumes.create(&dry_run, &another).await {
            Err(error) if error.to_string().contains("the test refuses it") => Ok(()),
            answer => Err(format!("{answer:?}")),
        },
    )
    .await;

    nodes
        .move_volume("refused-v", json!({"toNode": second}))
        .await;
    let says = nodes.waits("refused-v", "PersistentVolumeConflict").await;
    assert!(says.contains("the test refuses it"), "{says}");
    let found = persistent_volumes.get("pv-of-refused-v").await.unwrap();
    assert_eq!(found.metadata.deletion_timestamp, None);
    assert_eq!((found.uid(), found.spec), (before.uid(), before.spec));
    delete(&bindings(&nodes), "refused").await;
    delete(&policies(&nodes), "refused").await;
    nodes.waits("refused-v", "OldImageKept").await;
    assert_eq!(nodes.bound_to("refused-v").await, [second.as_str()]);
    nodes.end_by_use("refused-v").await;
    nodes.finish(&["refused-v"]).await;
}
