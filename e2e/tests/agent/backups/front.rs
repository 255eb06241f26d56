//! Kubernetes' way to ask for changed blocks (KEP-3314): csi-snapshot-metadata beside the controller, with the permissions that its
//! component gives it, and a backup program with a token of its service account.

use std::{fs, net::TcpListener, path::Path};

use cistern_crds::{PoolSnapshot, names};
use cistern_e2e::{
    ControlPlane, Folder, Process,
    control_plane::free_addresses,
    eventually,
    process::{dying_with_us, tool, workspace},
};
use cistern_proto::csi::v1::{
    BlockMetadata, GetMetadataAllocatedResponse, GetMetadataDeltaResponse,
};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{Api, Client, ResourceExt as _, api::DeleteParams};
use serde_json::{Value, json};
use tonic::{
    Status,
    client::Grpc,
    codegen::http::uri::PathAndQuery,
    transport::{Certificate, Channel, ClientTlsConfig},
};
use tonic_prost::ProstCodec;

use super::objects::{allow_program, apply, define, documents};
use crate::{Fixture, SOON};

/// The audience that the SnapshotMetadataService demands of tokens.
pub(super) const AUDIENCE: &str = "cistern-backup";
/// The service account of the backup program, in namespace default.
pub(super) const PROGRAM: &str = "backup-program";

const CLASS: &str = "class";
pub(super) const SNAPSHOTS: &str = "snapshot.storage.k8s.io";
const BLOCKS: &str = "cbt.storage.k8s.io";

/// Asks where a snapshot holds data.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Allocated {
    #[prost(string, tag = "1")]
    pub(super) token: String,
    #[prost(string, tag = "2")]
    pub(super) namespace: String,
    #[prost(string, tag = "3")]
    pub(super) snapshot: String,
    #[prost(int64, tag = "4")]
    pub(super) offset: i64,
    #[prost(int32, tag = "5")]
    pub(super) most: i32,
}

/// Asks where a snapshot differs from an earlier one, which is named by its handle.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Delta {
    #[prost(string, tag = "1")]
    pub(super) token: String,
    #[prost(string, tag = "2")]
    pub(super) namespace: String,
    #[prost(string, tag = "3")]
    pub(super) base: String,
    #[prost(string, tag = "4")]
    pub(super) snapshot: String,
    #[prost(int64, tag = "5")]
    pub(super) offset: i64,
    #[prost(int32, tag = "6")]
    pub(super) most: i32,
}

/// What VolumeSnapshot and VolumeSnapshotContent say.
#[derive(Clone, Copy)]
pub(super) struct Published<'a> {
    pub(super) class: Option<&'a str>,
    pub(super) driver: &'a str,
    pub(super) handle: &'a str,
    pub(super) ready: bool,
}

impl<'a> Published<'a> {
    /// A snapshot of Cistern without a class.
    pub(super) fn of(handle: &'a str) -> Self {
        Self {
            class: None,
            driver: names::DRIVER,
            handle,
            ready: true,
        }
    }
}

/// The sidecar, and what a cluster with it has.
pub(super) struct Front {
    client: Client,
    /// Its address. It serves with the certificate of the API server, which is for this IP address.
    address: String,
    /// The certificate of the sidecar, which signs itself.
    certificate: String,
    // Keeps it alive.
    _sidecar: Process,
    _folder: Folder,
}

impl Front {
    /// Starts the sidecar, as its component does.
    pub(super) async fn start(control_plane: &ControlPlane, node: &Fixture) -> Self {
        let client = control_plane.client();
        for (group, version, kind, scope) in [
            (SNAPSHOTS, "v1", "VolumeSnapshot", "Namespaced"),
            (SNAPSHOTS, "v1", "VolumeSnapshotContent", "Cluster"),
            (SNAPSHOTS, "v1", "VolumeSnapshotClass", "Cluster"),
            (BLOCKS, "v1beta1", "SnapshotMetadataService", "Cluster"),
        ] {
            define(&client, group, version, kind, scope).await;
        }
        let component = workspace().join("manifests/components/snapshot-metadata");
        for object in documents(&component.join("rbac.yaml")) {
            apply(&client, object).await;
        }
        for account in [PROGRAM, "somebody"] {
            let metadata = json!({"name": account, "namespace": "default"});
            let account =
                json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata});
            apply(&client, account).await;
        }
        allow_program(&client).await;

        let certificates = control_plane.folder().join("certificates");
        let [certificate, key] = ["apiserver.crt", "apiserver.key"].map(|it| certificates.join(it));
        let folder = Folder::new();
        let (port, [http]) = (free_port(), free_addresses());
        let mut command = dying_with_us(tool("csi-snapshot-metadata").await);
        let option = |name: &str, path: &Path| format!("--{name}={}", path.display());
        command
            .arg(option("kubeconfig", &kubeconfig(control_plane, &folder)))
            .arg(option("csi-address", node.driver.controller_socket()))
            .arg(option("tls-cert", &certificate))
            .arg(option("tls-key", &key))
            .arg(format!("--port={port}"))
            .arg(format!("--http-endpoint={http}"));
        let log = folder.join("csi-snapshot-metadata.log");
        let this = Self {
            client,
            address: format!("{}:{port}", host(control_plane)),
            certificate: fs::read_to_string(certificate).unwrap(),
            _sidecar: Process::start("csi-snapshot-metadata", &log, command),
            _folder: folder,
        };
        this.advertise().await;
        this.add_class().await;
        eventually("csi-snapshot-metadata to serve", SOON, async || {
            let channel = this.channel().await;
            channel.map(drop).map_err(|error| format!("{error:?}"))
        })
        .await;
        this
    }

    /// Publishes address, audience and certificate for backup programs.
    async fn advertise(&self) {
        let bytes = json!(k8s_openapi::ByteString(
            self.certificate.clone().into_bytes()
        ));
        let spec = json!({"address": self.address, "audience": AUDIENCE, "caCert": bytes});
        let service = json!({
            "apiVersion": format!("{BLOCKS}/v1beta1"),
            "kind": "SnapshotMetadataService",
            "metadata": {"name": names::DRIVER},
            "spec": spec,
        });
        apply(&self.client, service).await;
    }

    /// Creates the class of all snapshots, which is the default one.
    async fn add_class(&self) {
        let annotation = "snapshot.storage.kubernetes.io/is-default-class";
        let class = json!({
            "apiVersion": format!("{SNAPSHOTS}/v1"),
            "kind": "VolumeSnapshotClass",
            "metadata": {"name": CLASS, "annotations": {annotation: "true"}},
            "driver": names::DRIVER,
            "deletionPolicy": "Delete",
        });
        apply(&self.client, class).await;
    }

    /// Creates a VolumeSnapshot of a class in namespace default and its content, as snapshot-controller does.
    pub(super) async fn publish(&self, name: &str, of: Published<'_>) {
        let Published {
            class,
            driver,
            handle,
            ready,
        } = of;
        let content = json!({
            "apiVersion": format!("{SNAPSHOTS}/v1"),
            "kind": "VolumeSnapshotContent",
            "metadata": {"name": name},
            "spec": {"driver": driver},
            "status": {"snapshotHandle": handle, "readyToUse": ready},
        });
        apply(&self.client, content).await;
        let snapshot = json!({
            "apiVersion": format!("{SNAPSHOTS}/v1"),
            "kind": "VolumeSnapshot",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"source": {"persistentVolumeClaimName": "claim"}, "volumeSnapshotClassName": class},
            "status": {"boundVolumeSnapshotContentName": name, "readyToUse": ready},
        });
        apply(&self.client, snapshot).await;
    }

    /// Publishes a snapshot under its own name.
    pub(super) async fn publish_ready(&self, snapshot: &PoolSnapshot) {
        let name = snapshot.name_any();
        let class = Some(CLASS);
        let of = Published {
            class,
            ..Published::of(&name)
        };
        self.publish(&name, of).await;
    }

    /// A token of a service account for an audience; for the API server's if none is given.
    pub(super) async fn token(&self, account: &str, audience: Option<&str>) -> String {
        let audiences = audience.map(|it| [it]);
        let body = json!({"spec": {"audiences": audiences.as_ref().map(|it| &it[..]).unwrap_or_default()}});
        let path = format!("/api/v1/namespaces/default/serviceaccounts/{account}/token");
        let request = http::Request::post(path)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(body.to_string().into_bytes())
            .unwrap();
        let answer: Value = self.client.request(request).await.unwrap();
        answer["status"]["token"].as_str().unwrap().to_owned()
    }

    /// A token of a service account that was deleted since.
    pub(super) async fn token_of_deleted_account(&self) -> String {
        let token = self.token("somebody", Some(AUDIENCE)).await;
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), "default");
        let deleted = accounts.delete("somebody", &DeleteParams::default()).await;
        deleted.unwrap();
        token
    }

    /// A connection whose certificate has been verified.
    async fn channel(&self) -> Result<Channel, tonic::transport::Error> {
        let certificate = Certificate::from_pem(&self.certificate);
        let tls = ClientTlsConfig::new().ca_certificate(certificate);
        let endpoint = Channel::from_shared(format!("https://{}", self.address)).unwrap();
        endpoint.tls_config(tls)?.connect().await
    }

    /// The ranges of a snapshot that hold data.
    pub(super) async fn allocated(&self, ask: Allocated) -> Result<Vec<BlockMetadata>, Status> {
        let messages = self.ask(ask, "GetMetadataAllocated");
        let messages: Vec<GetMetadataAllocatedResponse> = messages.await?;
        Ok(messages
            .into_iter()
            .flat_map(|it| it.block_metadata)
            .collect())
    }

    /// The ranges in which a snapshot differs from an earlier one.
    pub(super) async fn changed(&self, ask: Delta) -> Result<Vec<BlockMetadata>, Status> {
        let messages: Vec<GetMetadataDeltaResponse> = self.ask(ask, "GetMetadataDelta").await?;
        Ok(messages
            .into_iter()
            .flat_map(|it| it.block_metadata)
            .collect())
    }

    async fn ask<Q, A>(&self, question: Q, method: &str) -> Result<Vec<A>, Status>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let mut client = Grpc::new(self.channel().await.unwrap());
        client.ready().await.unwrap();
        let path = format!("/snapshotmetadata.SnapshotMetadata/{method}");
        let path = PathAndQuery::try_from(path).unwrap();
        let codec = ProstCodec::<Q, A>::default();
        let request = tonic::Request::new(question);
        let answer = client.server_streaming(request, path, codec).await?;
        let mut messages = answer.into_inner();
        let mut all = Vec::new();
        while let Some(message) = messages.message().await? {
            all.push(message);
        }
        Ok(all)
    }
}

/// A port that is free on all addresses: the sidecar accepts no address, only a port.
fn free_port() -> u16 {
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// The IP address of the API server.
fn host(control_plane: &ControlPlane) -> String {
    let url = control_plane.config().cluster_url;
    url.host().unwrap().to_owned()
}

/// Writes a kubeconfig with the rights of the controller's service account.
fn kubeconfig(control_plane: &ControlPlane, folder: &Folder) -> std::path::PathBuf {
    let text = fs::read_to_string(control_plane.kubeconfig()).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    config["users"][0]["user"]["as"] =
        json!("system:serviceaccount:cistern-system:cistern-controller");
    let path = folder.join("kubeconfig");
    fs::write(&path, config.to_string()).unwrap();
    path
}
