//! An API server with Cistern's manifests, and clients with different accounts.

use std::{path::Path, time::Duration};

use cistern_e2e::{
    ControlPlane,
    kustomize::overlay,
    process::{command, output, tool, workspace},
};
use kube::{Client, core::response::Status};
use serde_json::{Value, json};

const OURS: &str = "/apis/cistern.storage/v1alpha1";
/// The namespace of the manifests.
const NAMESPACE: &str = "cistern-system";

/// An API server with Cistern's manifests including those for snapshots, a pool, two nodes, and a
/// volume, a snapshot and a group on each node.
pub(crate) struct Installed {
    control_plane: ControlPlane,
    namespace: String,
}

impl Installed {
    /// Starts one with the manifests in their default namespace.
    pub(crate) async fn start() -> Self {
        let folder = workspace().join("manifests/snapshots");
        Self::with(&folder, NAMESPACE).await
    }

    /// Starts one with the manifests in another namespace, set by kustomize, and with the network
    /// policy.
    pub(crate) async fn start_in(namespace: &str) -> Self {
        let folder = overlay(json!({
            "namespace": namespace,
            "resources": ["snapshots"],
            "components": ["components/network-policy"],
        }));
        Self::with(folder.path(), namespace).await
    }

    async fn with(manifests: &Path, namespace: &str) -> Self {
        let control_plane = ControlPlane::start().await;
        for folder in [&workspace().join("manifests/crds"), manifests] {
            let mut apply = command(tool("kubectl").await);
            apply
                .arg("--kubeconfig")
                .arg(control_plane.kubeconfig())
                .args(["apply", "-k"])
                .arg(folder);
            output(apply, Duration::from_mins(5)).await;
        }
        let this = Self {
            control_plane,
            namespace: namespace.to_owned(),
        };
        this.make("storagepools", &pool("p")).await;
        for name in ["a", "b"] {
            this.make("/api/v1/nodes", &json!({"metadata": {"name": name}}))
                .await;
            this.make("storagenodes", &node(name)).await;
            let stored = format!("on-{name}");
            this.make("poolvolumes", &volume(&stored, name)).await;
            this.make("poolsnapshots", &snapshot(&stored, name)).await;
            this.make("poolsnapshotgroups", &group(&stored, name)).await;
        }
        this
    }

    /// Returns a client with all permissions.
    pub(crate) fn admin(&self) -> Client {
        self.control_plane.client()
    }

    /// Returns the namespace of Cistern's workloads.
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns a client that impersonates a user.
    pub(crate) fn user(&self, name: &str) -> Client {
        let mut config = self.control_plane.config();
        config.auth_info.impersonate = Some(name.to_owned());
        Client::try_from(config).unwrap()
    }

    /// Binds a ClusterRole to a subject.
    pub(crate) async fn bind(&self, role: &str, subject: &Value) {
        let binding = json!({
            "metadata": {"name": format!("test-{role}")},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [subject],
        });
        let path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
        self.make(path, &binding).await;
    }

    /// Returns a client with a pod-bound token of the node plugin, as kubelet requests it.
    pub(crate) async fn agent_on(&self, node: &str) -> Client {
        let name = format!("agent-on-{node}");
        let pod = json!({
            "metadata": {"name": name},
            "spec": {
                "nodeName": node,
                "serviceAccountName": "cistern-node",
                "containers": [{"name": "driver", "image": "x"}],
            },
        });
        let pod = self.make(&format!("{}/pods", self.system()), &pod).await;
        let uid = &pod["metadata"]["uid"];
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid});
        self.agent_with_token(&json!({"spec": {"boundObjectRef": pod}}))
            .await
    }

    /// Returns a client with a token of the node plugin's account that is bound to no pod.
    pub(crate) async fn agent_nowhere(&self) -> Client {
        self.agent_with_token(&json!({})).await
    }

    async fn agent_with_token(&self, request: &Value) -> Client {
        let path = format!("{}/serviceaccounts/cistern-node/token", self.system());
        let answer = self.make(&path, request).await;
        let auth_info = json!({"token": answer["status"]["token"]});
        let mut config = self.control_plane.config();
        config.auth_info = serde_json::from_value(auth_info).unwrap();
        Client::try_from(config).unwrap()
    }

    fn system(&self) -> String {
        format!("/api/v1/namespaces/{}", self.namespace)
    }

    async fn make(&self, path: &str, body: &Value) -> Value {
        ask(&self.admin(), "POST", path, body).await.unwrap()
    }
}

/// Sends a request. A path without a leading slash is relative to Cistern's API group; `APPLY` is a
/// server-side apply, and `APPLY as NAME` sets its field manager.
pub(crate) async fn ask(
    client: &Client,
    method: &str,
    path: &str,
    body: &Value,
) -> Result<Value, Box<Status>> {
    let mut path = path.to_owned();
    if !path.starts_with('/') {
        path = format!("{OURS}/{path}");
    }
    let (mut method, mut body) = (method, body.clone());
    let content = match method {
        "PATCH" => "application/merge-patch+json",
        apply if apply.starts_with("APPLY") => {
            let manager = apply.strip_prefix("APPLY as ").unwrap_or("test");
            let kind = match path.split('/').nth_back(2) {
                Some("poolvolumes") => "PoolVolume",
                Some("poolsnapshots") => "PoolSnapshot",
                Some("poolsnapshotgroups") => "PoolSnapshotGroup",
                _ => "StorageNode",
            };
            body["apiVersion"] = "cistern.storage/v1alpha1".into();
            body["kind"] = kind.into();
            path = format!("{path}?fieldManager={manager}&force=true");
            method = "PATCH";
            "application/apply-patch+yaml"
        }
        _ => "application/json",
    };
    let body = if body.is_null() {
        Vec::new()
    } else {
        body.to_string().into_bytes()
    };
    let request = http::Request::builder().method(method).uri(path);
    let request = request
        .header(http::header::CONTENT_TYPE, content)
        .body(body)
        .unwrap();
    match client.request(request).await {
        Ok(answer) => Ok(answer),
        Err(kube::Error::Api(status)) => Err(status),
        Err(error) => panic!("{error}"),
    }
}

/// Returns a volume of 1 GiB in pool `p`.
pub(crate) fn volume(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "cistern.storage/v1alpha1",
        "kind": "PoolVolume",
        "metadata": {"name": name},
        "spec": {
            "requestedName": name,
            "nodeName": node,
            "poolName": "p",
            "size": "1Gi",
            "accessType": "Filesystem",
            "filesystem": "ext4",
            "accessModes": ["SingleNodeWriter"],
            "attributes": {"provisioning": "Thin"},
        },
    })
}

/// Returns a snapshot of the volume `on-{node}`.
pub(crate) fn snapshot(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "cistern.storage/v1alpha1",
        "kind": "PoolSnapshot",
        "metadata": {"name": name},
        "spec": {
            "requestedName": name,
            "nodeName": node,
            "poolName": "p",
            "sourceVolume": format!("on-{node}"),
            "sourceImage": "6b3f1a52-0000-4000-8000-000000000001",
            "accessType": "Filesystem",
            "filesystem": "ext4",
            "provisioning": "Thin",
        },
    })
}

/// Returns a group of one snapshot.
pub(crate) fn group(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "cistern.storage/v1alpha1",
        "kind": "PoolSnapshotGroup",
        "metadata": {"name": name},
        "spec": {
            "requestedName": name,
            "nodeName": node,
            "members": [{"volume": format!("on-{node}"), "snapshot": format!("on-{node}")}],
        },
    })
}

/// Returns a StorageNode that carries the pools `p` and `q`.
pub(crate) fn node(name: &str) -> Value {
    let pool = |name: &str| {
        json!({"name": name, "uid": "u", "overcommitPercent": 100, "reservedPercent": 5,
            "source": {"image": {"size": "1Gi"}}})
    };
    json!({
        "apiVersion": "cistern.storage/v1alpha1",
        "kind": "StorageNode",
        "metadata": {"name": name},
        "spec": {
            "topology": {"topology.cistern.storage/node": name},
            "pools": [pool("p"), pool("q")],
        },
    })
}

/// Returns a pool of 1 GiB on all nodes.
pub(crate) fn pool(name: &str) -> Value {
    json!({
        "apiVersion": "cistern.storage/v1alpha1",
        "kind": "StoragePool",
        "metadata": {"name": name},
        "spec": {"nodeSelector": {}, "source": {"image": {"size": "1Gi"}}},
    })
}
