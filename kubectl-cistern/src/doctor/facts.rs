//! The objects that the checks examine, at the time of the list requests.

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
    core::DeserializeGuard,
};
use serde::de::DeserializeOwned;

use crate::{Connection, Error};

/// Why a list could not be read. The other checks are not affected.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// The user may not list this kind.
    #[error("{what}: not allowed")]
    Denied {
        /// Description of the request.
        what: String,
    },
    /// The API server returned an error, or an object that this version cannot parse.
    #[error("{what}")]
    Api {
        /// Description of the request.
        what: String,
        /// Underlying error.
        #[source]
        source: Box<kube::Error>,
    },
}

/// A list, or why it could not be read.
pub type ListResult<K> = Result<Vec<K>, ListError>;

/// All objects that the checks examine, except access reviews and owners of volumes and snapshots.
#[derive(Debug)]
pub struct Facts {
    /// Version of the API server, its `gitVersion`, such as `v1.33.2`.
    pub server_version: String,
    /// Namespace in which Cistern is expected.
    pub namespace: String,
    /// All CustomResourceDefinitions.
    pub definitions: ListResult<CustomResourceDefinition>,
    /// All ValidatingAdmissionPolicies.
    pub policies: ListResult<ValidatingAdmissionPolicy>,
    /// All ValidatingAdmissionPolicyBindings.
    pub policy_bindings: ListResult<ValidatingAdmissionPolicyBinding>,
    /// All CSIDrivers.
    pub drivers: ListResult<CSIDriver>,
    /// All CSINodes.
    pub csi_nodes: ListResult<CSINode>,
    /// All Nodes.
    pub nodes: ListResult<Node>,
    /// Deployments in all namespaces, because snapshot-controller may run in any.
    pub deployments: ListResult<Deployment>,
    /// DaemonSets in Cistern's namespace.
    pub daemon_sets: ListResult<DaemonSet>,
    /// Pods in Cistern's namespace.
    pub pods: ListResult<Pod>,
    /// All StorageClasses.
    pub classes: ListResult<StorageClass>,
    /// All VolumeSnapshotClasses; empty if the kind is not installed.
    pub snapshot_classes: ListResult<DynamicObject>,
    /// All StoragePools, also those that cannot be parsed; empty if the kind is not installed.
    pub pools: ListResult<DeserializeGuard<StoragePool>>,
    /// All StorageNodes, also those that cannot be parsed; empty if the kind is not installed.
    pub storage_nodes: ListResult<DeserializeGuard<StorageNode>>,
}

impl Facts {
    /// Lists all objects. If a list is denied or the API server returns an error for it, records
    /// the error instead of the list. Fails if the API server does not answer, or does not report
    /// its version.
    pub async fn read(connection: &Connection) -> Result<Self, Error> {
        let client = connection.client();
        let version = client.apiserver_version();
        // This request runs first and alone, so that an unreachable API server causes only one error.
        let version = connection
            .ask("cannot read the version of the API server", version)
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

async fn everywhere<K>(connection: &Connection) -> Result<ListResult<K>, Error>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    read(connection, connection.everywhere()).await
}

async fn read<K>(connection: &Connection, api: Api<K>) -> Result<ListResult<K>, Error>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    tolerated(connection.list(api, ListParams::default()).await)
}

/// Converts an unknown kind to an empty list, and a denied or unreadable list to a [`ListError`].
fn tolerated<K>(list: Result<Vec<K>, Error>) -> Result<ListResult<K>, Error> {
    match list {
        Ok(list) => Ok(Ok(list)),
        Err(Error::Denied { what, .. }) => Ok(Err(ListError::Denied { what })),
        Err(Error::Api { source, .. }) if Rejection::from(&*source) == Rejection::NotFound => {
            Ok(Ok(Vec::new()))
        }
        // An object that this version cannot parse must not prevent the other checks.
        Err(Error::Api { what, source }) => Ok(Err(ListError::Api { what, source })),
        Err(error) => Err(error),
    }
}
