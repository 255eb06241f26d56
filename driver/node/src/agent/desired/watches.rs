//! The watches that keep the desired state up to date.

use std::{fmt, pin::Pin, sync::Arc};

use cistern_client::{
    own_writes::{OwnWrites, versions},
    watches,
};
use cistern_crds::{
    ImageTransfer, PoolReplica, PoolSnapshot, PoolSnapshotGroup, PoolVolume, StorageNode,
};
use futures::{Stream, StreamExt as _, TryStreamExt as _, stream};
use kube::{
    Api, Client,
    api::{ObjectMeta, PartialObjectMeta},
    runtime::{
        WatchStreamExt as _,
        reflector::{self, Store},
        watcher,
    },
};
use serde::de::DeserializeOwned;

use super::{Desired, Guarded};

/// Changed objects of a watch. Errors are transient: the watch continues.
pub type Changes<K> = Pin<Box<dyn Stream<Item = Result<K, watcher::Error>> + Send>>;

/// The watches of [`Desired`], which is up to date only while all of them are polled.
#[expect(missing_debug_implementations, reason = "streams have nothing to show")]
pub struct Watches {
    /// The watch of this node's StorageNode.
    pub node: Changes<Guarded<StorageNode>>,
    /// The watch of its PoolVolumes.
    pub volumes: Changes<Guarded<PoolVolume>>,
    /// The watch of its PoolSnapshots.
    pub snapshots: Changes<Guarded<PoolSnapshot>>,
    /// The watch of its PoolSnapshotGroups.
    pub groups: Changes<Guarded<PoolSnapshotGroup>>,
    /// The watch of its PoolReplicas.
    pub replicas: Changes<Guarded<PoolReplica>>,
    /// The watch of the ImageTransfers whose source is this node.
    pub transfers: Changes<Guarded<ImageTransfer>>,
    /// The watch of those whose target it is, which no part of [`Desired`] needs.
    pub permissions: Changes<PartialObjectMeta<ImageTransfer>>,
}

/// Starts to watch the objects of this node.
pub fn watch(client: &Client, node_name: &str) -> (Desired, Watches) {
    let own_writes = Arc::<OwnWrites>::default();
    let this = format!("metadata.name={node_name}");
    let (node, node_changes) = observe(client, &this, Definition::Required, &own_writes);
    let ours = format!("spec.nodeName={node_name}");
    let (volumes, volume_changes) = observe(client, &ours, Definition::Required, &own_writes);
    // An installation of an older version lacks these kinds, and its volumes must work.
    let (snapshots, snapshot_changes) = observe(client, &ours, Definition::Optional, &own_writes);
    let (groups, group_changes) = observe(client, &ours, Definition::Optional, &own_writes);
    let (replicas, replica_changes) = observe(client, &ours, Definition::Optional, &own_writes);
    let sent = format!("spec.sourceNode={node_name}");
    let (transfers, transfer_changes) = observe(client, &sent, Definition::Optional, &own_writes);
    let desired = Desired {
        node_name: node_name.into(),
        node,
        volumes,
        snapshots,
        groups,
        replicas,
        transfers,
        own_writes,
    };
    let watches = Watches {
        node: node_changes,
        volumes: volume_changes,
        snapshots: snapshot_changes,
        groups: group_changes,
        replicas: replica_changes,
        transfers: transfer_changes,
        permissions: permissions(client, node_name),
    };
    (desired, watches)
}

/// Whether the agent can work without the definition of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Definition {
    /// The agent waits for it.
    Required,
    /// Without it, the kind has no objects.
    Optional,
}

/// Watches the objects of a kind that a field selector chooses.
fn observe<K>(
    client: &Client,
    fields: &str,
    definition: Definition,
    own_writes: &Arc<OwnWrites>,
) -> (Store<Guarded<K>>, Changes<Guarded<K>>)
where
    K: kube::Resource<DynamicType = ()>
        + DeserializeOwned
        + Clone
        + fmt::Debug
        + Send
        + Sync
        + 'static,
{
    let (store, writer) = reflector::store();
    let chosen = watcher::Config::default().fields(fields);
    let events = watches::events(Api::<Guarded<K>>::all(client.clone()), chosen);
    let own_writes = Arc::clone(own_writes);
    let changes = or_none(events, K::kind(&()).into_owned(), definition)
        .modify(prune)
        .reflect(writer)
        .inspect_ok(move |event| _ = own_writes.saw::<Guarded<K>>(&versions(event)))
        .touched_objects()
        .boxed();
    (store, changes)
}

/// Watches the ImageTransfers whose target is this node. Their names say all: an ImageTransfer is named after the volume.
fn permissions(client: &Client, node_name: &str) -> Changes<PartialObjectMeta<ImageTransfer>> {
    let fields = format!("spec.targetNode={node_name}");
    let received = watcher::Config::default().fields(&fields);
    watches::events(Api::all(client.clone()), received)
        .touched_objects()
        .boxed()
}

/// Replaces the first list with an empty one if the kind is not defined. The watch continues to
/// list, and sees the objects once the kind is defined.
fn or_none<K: Send + 'static>(
    events: impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send,
    kind: String,
    definition: Definition,
) -> impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send {
    let mut was_listed = definition == Definition::Required;
    events.flat_map(move |event| {
        let is_undefined = match &event {
            Ok(watcher::Event::InitDone) => {
                was_listed = true;
                false
            }
            Ok(_) => false,
            Err(error) => watches::is_not_installed(error),
        };
        if is_undefined && !was_listed {
            was_listed = true;
            tracing::warn!(
                kind,
                "the kind is not defined: apply the CustomResourceDefinitions of this version"
            );
            stream::iter([Ok(watcher::Event::Init), Ok(watcher::Event::InitDone)]).left_stream()
        } else {
            stream::iter([event]).right_stream()
        }
    })
}

/// Drops the metadata that the agent does not need.
fn prune<K: kube::Resource<DynamicType = ()>>(object: &mut Guarded<K>) {
    let metadata: &mut ObjectMeta = match &mut object.0 {
        Ok(object) => object.meta_mut(),
        Err(invalid) => &mut invalid.metadata,
    };
    metadata.managed_fields = None;
    metadata.annotations = None;
    metadata.labels = None;
    metadata.owner_references = None;
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use watcher::{Error::InitialListFailed, Event};

    use super::*;

    /// The events of a watch whose first lists are answered with this code.
    async fn reported(definition: Definition, code: u16) -> Vec<&'static str> {
        let status = Status::failure("no", "NotFound").with_code(code);
        let failure = || {
            Err(InitialListFailed(kube::Error::Api(Box::new(
                status.clone(),
            ))))
        };
        let events = [
            failure(),
            failure(),
            Ok(Event::Init),
            Ok(Event::InitApply(())),
            Ok(Event::InitDone),
        ];
        let events = or_none(stream::iter(events), "Kind".to_owned(), definition);
        let words = events.map(|event| match event {
            Ok(Event::Init) => "init",
            Ok(Event::InitDone) => "done",
            Ok(Event::InitApply(()) | Event::Apply(()) | Event::Delete(())) => "object",
            Err(_) => "error",
        });
        words.collect().await
    }

    #[tokio::test]
    async fn a_kind_that_is_not_defined_has_no_objects_until_it_is() {
        let listed = ["init", "object", "done"];
        let missing = [&["init", "done", "error"][..], &listed].concat();
        assert_eq!(reported(Definition::Optional, 404).await, missing);
        let waited_for = [&["error", "error"][..], &listed].concat();
        assert_eq!(reported(Definition::Optional, 403).await, waited_for);
        assert_eq!(reported(Definition::Required, 404).await, waited_for);
    }
}
