//! The user as whom the tests run the program: it has the permissions that `doctor` reviews, and no other.
//!
//! *Invariant:* a command that needs a permission that `doctor` does not review fails its own test.

use std::path::{Path, PathBuf};

use cistern_e2e::{ControlPlane, eventually};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::{Plugin, SOON, create};

const USER: &str = "user-of-the-plugin";
const CHECK: &str = "your rights";

/// Returns a kubeconfig for that user in the control plane that the tests share.
pub(crate) async fn kubeconfig(control_plane: &ControlPlane) -> &'static Path {
    static MADE: OnceCell<PathBuf> = OnceCell::const_new();
    MADE.get_or_init(async || make(control_plane).await).await
}

async fn make(control_plane: &ControlPlane) -> PathBuf {
    let admin = Plugin::of(control_plane);
    let (outcome, message) = rights(&admin, &["--as", "stranger"]).await;
    assert_eq!(outcome, "warn", "{message}");
    let rules: Vec<Value> = refused(&message).iter().map(|it| rule(it)).collect();
    grant(control_plane.client(), USER, &rules).await;

    let content = std::fs::read_to_string(control_plane.kubeconfig()).unwrap();
    let mut content: Value = serde_json::from_str(&content).unwrap();
    content["users"][0]["user"]["as"] = json!(USER);
    let kubeconfig = control_plane.folder().join("kubeconfig-of-the-plugin");
    std::fs::write(&kubeconfig, content.to_string()).unwrap();
    let plugin = Plugin::with(&kubeconfig);
    eventually(
        "the permissions to be in force",
        SOON,
        async || match rights(&plugin, &[]).await {
            (outcome, _) if outcome == "ok" => Ok(()),
            other => Err(format!("{other:?}")),
        },
    )
    .await;
    kubeconfig
}

/// Grants rules to a user, by a ClusterRole and a binding that have the user's name.
pub(crate) async fn grant(client: Client, user: &str, rules: &[Value]) {
    let group = "rbac.authorization.k8s.io";
    let role = json!({"metadata": {"name": user}, "rules": rules});
    create(&Api::<ClusterRole>::all(client.clone()), role).await;
    let binding = json!({
        "metadata": {"name": user},
        "roleRef": {"kind": "ClusterRole", "name": user, "apiGroup": group},
        "subjects": [{"kind": "User", "name": user, "apiGroup": group}],
    });
    create(&Api::<ClusterRoleBinding>::all(client), binding).await;
}

/// Returns outcome and message of the review of the user's permissions.
async fn rights(plugin: &Plugin, flags: &[&str]) -> (String, String) {
    let answer = plugin
        .run(&[&["doctor", "-o", "json"], flags].concat())
        .await;
    let report: Value = serde_json::from_str(&answer.stdout).unwrap();
    let mut checks = report["checks"].as_array().unwrap().iter();
    let check = checks.find(|check| check["name"] == CHECK).unwrap();
    let text = |field: &str| check[field].as_str().unwrap().to_owned();
    (text("outcome"), text("message"))
}

/// Returns the permissions that a message names, as `VERB RESOURCE.GROUP`.
fn refused(message: &str) -> Vec<&str> {
    let (_, refused) = message.split_once("you may not ").unwrap();
    refused.split(", ").collect()
}

fn rule(permission: &str) -> Value {
    let (verb, kind) = permission.split_once(' ').unwrap();
    let (resource, group) = kind.split_once('.').unwrap_or((kind, ""));
    json!({"apiGroups": [group], "resources": [resource], "verbs": [verb]})
}

#[tokio::test]
async fn doctor_reviews_the_permissions_of_every_command() {
    let plugin = Plugin::of(ControlPlane::shared().await);
    let (_, message) = rights(&plugin, &["--as", "stranger"]).await;
    let reviewed = refused(&message);
    for used in [
        "patch storagepools.cistern.storage",
        "get pods/proxy",
        "get pods/log",
        "create poolsnapshots.cistern.storage",
        "create persistentvolumes",
    ] {
        assert!(reviewed.contains(&used), "{used}: {message}");
    }
    for unused in ["secrets", "pods/exec"] {
        assert!(
            !message.contains(unused),
            "nothing uses {unused}: {message}"
        );
    }
    let with_all = Plugin::with(kubeconfig(ControlPlane::shared().await).await);
    let (outcome, message) = rights(&with_all, &[]).await;
    assert_eq!(outcome, "ok", "{message}");
}
