//! The contents of a capacity object and its writes, for nodes of the cluster and for new nodes.
//!
//! *Invariant:* every object has the operator's label, and every write is guarded and recorded
//! until the watch has delivered it.

use std::sync::Arc;

use cistern_client::{
    own_writes::Stale,
    writes::{delete_exactly, patch_guarded},
};
use cistern_crds::{Bytes, names};
use k8s_openapi::{
    api::storage::v1::CSIStorageCapacity,
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference},
    },
};
use kube::{Api, ResourceExt as _};
use serde_json::Value;

use super::Error;
use crate::{Context, creation, identity};

/// Contents of a capacity object.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Published {
    pub(crate) capacity: Bytes,
    pub(crate) maximum: Bytes,
    /// At most one: the garbage collector keeps an object as long as one of its owners exists.
    pub(crate) owner: Option<OwnerReference>,
}

impl Published {
    /// Parses an object; `None` if the operator would not write it in this form. The API server may
    /// format a quantity differently.
    pub(crate) fn of(object: &CSIStorageCapacity) -> Option<Self> {
        let bytes = |quantity: &Option<Quantity>| quantity.as_ref()?.0.parse().ok();
        let owners = object.owner_references();
        if owners.len() > 1 {
            return None;
        }
        Some(Self {
            capacity: bytes(&object.capacity)?,
            maximum: bytes(&object.maximum_volume_size)?,
            owner: owners.first().cloned(),
        })
    }

    /// The object with these contents, for a class on the nodes that a selector matches.
    pub(crate) fn object(
        self,
        name: String,
        class: &str,
        nodes: LabelSelector,
    ) -> CSIStorageCapacity {
        let label = (
            names::MANAGED_BY_LABEL.to_owned(),
            names::OPERATOR_MANAGER.to_owned(),
        );
        CSIStorageCapacity {
            metadata: ObjectMeta {
                name: Some(name),
                labels: Some([label].into()),
                owner_references: self.owner.map(|owner| vec![owner]),
                ..ObjectMeta::default()
            },
            storage_class_name: class.to_owned(),
            node_topology: Some(nodes),
            capacity: Some(Quantity(self.capacity.to_string())),
            maximum_volume_size: Some(Quantity(self.maximum.to_string())),
        }
    }
}

/// The cached object with this name. Fails if the cache lacks a write of the operator.
pub(crate) fn current(
    context: &Context,
    name: &str,
) -> Result<Option<Arc<CSIStorageCapacity>>, Stale> {
    let (cluster, namespace) = (&context.cluster, Some(context.namespace.as_str()));
    let copy = || cluster.capacities.get(&identity::key(namespace, name));
    cluster.own_writes.read_or_created(namespace, name, copy)
}

/// A write of one capacity object.
#[derive(Debug)]
pub(crate) enum Write<'a> {
    Create(Box<CSIStorageCapacity>),
    /// Merges a patch into the object that was read.
    Update(&'a CSIStorageCapacity, Value),
    Delete(&'a CSIStorageCapacity),
}

impl Write<'_> {
    /// Writes the object of a class; `segment` names its nodes in the error. Fails if the object
    /// has changed, or if the API server rejects the write or does not answer.
    pub(crate) async fn execute(
        self,
        context: &Context,
        class: &str,
        segment: &str,
    ) -> Result<(), Error> {
        let api = Api::<CSIStorageCapacity>::namespaced(context.client.clone(), &context.namespace);
        let cluster = &context.cluster;
        let copy = |object: &CSIStorageCapacity| cluster.capacities.get(&identity::key_of(object));
        let (verb, result) = match self {
            Self::Create(object) => {
                let created = api.create(&creation::parameters(), &object).await;
                let created = created.map(|it| cluster.own_writes.created(&it, || copy(&it)));
                ("create", created)
            }
            Self::Update(seen, change) => {
                let written = patch_guarded(&api, seen, names::OPERATOR_MANAGER, change).await;
                let written = written.map(|it| cluster.own_writes.wrote(&it, || copy(seen)));
                ("update", written)
            }
            Self::Delete(seen) => ("delete", delete_exactly(&api, seen).await.map(drop)),
        };
        result.map_err(|source| Error::Write {
            verb,
            class: class.to_owned(),
            segment: segment.to_owned(),
            source,
        })
    }
}
