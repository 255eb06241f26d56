//! What the checks are about, as it was at one moment.

use std::fmt::Debug;

use cistern_client::Rejection;
use cistern_crds::{StorageNode, StoragePool};
use k8s_openapi::{
    api::{
        admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
        apps::v1::{DaemonSet, Deployment},
        core::v1::{Node, Pod},
        storage::v1::{CSIDriver, CSINode, StorageClass},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Resource,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams},
};
use serde::de::DeserializeOwned;

use crate::{Connection, Error};

/// A list, or why it could not be read.
pub type Read<K> = Result<Vec<K>, String>;

/// All that is looked at, but rights.
#[derive(Debug)]
pub struct Facts {
    /// Version of the API server, as it says itself.
    pub server_version: String,
    /// Where Cistern is to be.
    pub namespace: String,
    /// Every definition.
    pub definitions: Read<CustomResourceDefinition>,
    /// Every policy.
    pub policies: Read<ValidatingAdmissionPolicy>,
    /// What each policy applies to.
    pub policy_bindings: Read<ValidatingAdmissionPolicyBinding>,
    /// Every driver that is announced.
    pub drivers: Read<CSIDriver>,
    /// Every node's drivers.
    pub csi_nodes: Read<CSINode>,
    /// Every node.
    pub nodes: Read<Node>,
    /// Deployments everywhere: snapshot-controller may be anywhere.
    pub deployments: Read<Deployment>,
    /// DaemonSets of Cistern's namespace.
    pub daemon_sets: Read<DaemonSet>,
    /// Pods of Cistern's namespace.
    pub pods: Read<Pod>,
    /// Every StorageClass.
    pub classes: Read<StorageClass>,
    /// Every VolumeSnapshotClass; none where the kind is unknown.
    pub snapshot_classes: Read<DynamicObject>,
    /// Every StoragePool; none where the kind is unknown.
    pub pools: Read<StoragePool>,
    /// Every StorageNode; none where the kind is unknown.
    pub storage_nodes: Read<StorageNode>,
}

impl Facts {
    /// Reads them. What may not be read is no error.
    pub async fn read(connection: &Connection) -> Result<Self, Error> {
        let client = connection.client();
        let version = client.apiserver_version();
        // First by itself: where there is no API server, one error is enough.
        let version = connection
            .ask("cannot ask for the version", version)
            .await?;
        let kind = GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", "VolumeSnapshotClass");
        let resource = ApiResource::from_gvk_with_plural(&kind, "volumesnapshotclasses");
        let snapshot_classes: Api<DynamicObject> = Api::all_with(client, &resource);
        let (definitions, policies, policy_bindings, drivers, csi_nodes, nodes) = tokio::try_join!(
            everywhere(connection),
            everywhere(connection),
            everywhere(connection),
            everywhere(connection),
            everywhere(connection),
            everywhere(connection),
        )?;
        let (deployments, daemon_sets, pods, classes, pools, storage_nodes) = tokio::try_join!(
            everywhere(connection),
            read(connection, connection.in_system()),
            read(connection, connection.in_system()),
            everywhere(connection),
            everywhere(connection),
            everywhere(connection),
        )?;
        let all = ListParams::default();
        let list = snapshot_classes.list(&all);
        let list = connection
            .ask("cannot list volumesnapshotclasses", list)
            .await;
        Ok(Self {
            server_version: version.git_version,
            namespace: connection.system_namespace.clone(),
            definitions,
            policies,
            policy_bindings,
            drivers,
            csi_nodes,
            nodes,
            deployments,
            daemon_sets,
            pods,
            classes,
            snapshot_classes: tolerated(list.map(|list| list.items))?,
            pools,
            storage_nodes,
        })
    }
}

async fn everywhere<K>(connection: &Connection) -> Result<Read<K>, Error>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    read(connection, connection.everywhere()).await
}

async fn read<K>(connection: &Connection, api: Api<K>) -> Result<Read<K>, Error>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    tolerated(connection.list(api, ListParams::default()).await)
}

/// A kind that nobody knows has no objects, and one that may not be read is told of.
fn tolerated<K>(list: Result<Vec<K>, Error>) -> Result<Read<K>, Error> {
    match list {
        Ok(list) => Ok(Ok(list)),
        Err(Error::Denied { what, .. }) => Ok(Err(format!("{what}: not allowed"))),
        Err(Error::Api { source, .. }) if Rejection::from(&*source) == Rejection::NotFound => {
            Ok(Ok(Vec::new()))
        }
        // An object that this version cannot read is no reason to look at nothing else.
        Err(Error::Api { what, source }) => Ok(Err(format!("{what}: {source}"))),
        Err(error) => Err(error),
    }
}
