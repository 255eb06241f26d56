//! `cistern-driver fsck`: compares this node with the custom resources.
//!
//! Users and tests use the same checker. It changes nothing and uses neither the agent nor kubelet. `/fsck` of the node
//! plugin makes the same comparison with what the watches of the agent show, so that a call costs the API server
//! nothing. Work in progress may appear as a finding that is gone in the next run.

use std::{fmt, io};

use cistern_client::Rejection;
use cistern_crds::{
    PoolReplica, PoolSnapshot, PoolSnapshotGroup, PoolVolume, StorageNode, is_zero,
};
use cistern_host::{Inventory, Root, Uid};
use kube::{
    Api, Client, Resource, api::ListParams, core::DeserializeGuard,
    runtime::reflector::store::WriterDropped,
};
use serde::Serialize;

use crate::{
    agent::{Agent, desired::readable},
    blocking::{self, on_host},
    findings::{self, Finding, Unreadable, View, findings},
};

/// Why the check failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server returned an error.
    #[error("cannot read the custom resources of node {node}")]
    Api {
        /// Name of the node.
        node: String,
        /// Error of the request.
        #[source]
        source: Box<kube::Error>,
    },
    /// The watches of the custom resources have ended.
    #[error("the custom resources of node {node} are not watched any more")]
    Unwatched {
        /// Name of the node.
        node: String,
        /// Error of the watch.
        #[source]
        source: WriterDropped,
    },
    /// This version cannot read one of the custom resources, which may claim any image.
    #[error("cannot read a custom resource of node {node}: was it written by a later version")]
    Unreadable {
        /// Name of the node.
        node: String,
    },
    /// The host cannot be inspected.
    #[error("cannot inspect the node")]
    Host(#[source] io::Error),
    /// The inspection panicked.
    #[error("the inspection of the node panicked")]
    Broken(#[source] blocking::Broken),
}

/// The result of a check.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    node: String,
    pools: usize,
    volumes: usize,
    snapshots: usize,
    images: usize,
    loops: usize,
    mounts: usize,
    findings: Vec<Finding>,
    /// Number of further findings.
    #[serde(skip_serializing_if = "is_zero")]
    unlisted: usize,
}

impl Report {
    /// Keeps the first `limit` findings and counts the others.
    pub fn shorten(&mut self, limit: usize) {
        self.unlisted = self.findings.len().saturating_sub(limit);
        self.findings.truncate(limit);
    }

    /// Whether there are no findings.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }
}

/// Compares the node with its custom resources. One that this version cannot read is a finding. Fails if the host cannot be
/// inspected, or if the API server returns an error.
pub async fn check(client: Client, node: &str, root: Root) -> Result<Report, Error> {
    let failed = |source| Error::Api {
        node: node.to_owned(),
        source: Box::new(source),
    };
    let nodes: Api<DeserializeGuard<StorageNode>> = Api::all(client.clone());
    let groups = nodes.get_opt(node).await.map_err(failed)?;
    let groups = groups.and_then(|node| node.0.ok());
    let groups = groups.map_or_else(Vec::new, |node| findings::groups(&node.spec));
    // Reads the disk first: images made afterwards have their custom resource already.
    let inventory = inventory(root, groups).await?;
    let volumes: Api<DeserializeGuard<PoolVolume>> = Api::all(client.clone());
    let snapshots: Api<DeserializeGuard<PoolSnapshot>> = Api::all(client.clone());
    let groups: Api<DeserializeGuard<PoolSnapshotGroup>> = Api::all(client.clone());
    let replicas: Api<DeserializeGuard<PoolReplica>> = Api::all(client);
    let ours = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let listed = Listed {
        node: nodes.get_opt(node).await.map_err(failed)?,
        volumes: volumes.list(&ours).await.map_err(failed)?.items,
        snapshots: snapshots.list(&ours).await.map_err(failed)?.items,
        groups: groups.list(&ours).await.map_err(failed)?.items,
        replicas: match replicas.list(&ours).await {
            // An upgrade may apply the definitions last.
            Err(error) if Rejection::from(&error) == Rejection::NotFound => Vec::new(),
            listed => listed.map_err(failed)?.items,
        },
    };
    Ok(report(node, &listed.beside(inventory)))
}

/// The custom resources of a node, readable by this version or not.
#[derive(Debug, Default)]
struct Listed {
    node: Option<DeserializeGuard<StorageNode>>,
    volumes: Vec<DeserializeGuard<PoolVolume>>,
    snapshots: Vec<DeserializeGuard<PoolSnapshot>>,
    groups: Vec<DeserializeGuard<PoolSnapshotGroup>>,
    replicas: Vec<DeserializeGuard<PoolReplica>>,
}

impl Listed {
    /// Both sides of the comparison.
    fn beside(self, inventory: Inventory) -> View {
        let mut unreadable = Vec::new();
        View {
            node: sort_out(self.node, &mut unreadable).pop(),
            volumes: sort_out(self.volumes, &mut unreadable),
            snapshots: sort_out(self.snapshots, &mut unreadable),
            groups: sort_out(self.groups, &mut unreadable),
            replicas: sort_out(self.replicas, &mut unreadable),
            unreadable,
            inventory,
        }
    }
}

/// Returns the objects that this version can read, and adds the others to `unreadable`.
fn sort_out<K>(
    objects: impl IntoIterator<Item = DeserializeGuard<K>>,
    unreadable: &mut Vec<Unreadable>,
) -> Vec<K>
where
    K: Resource<DynamicType = ()>,
{
    let mut found = Vec::new();
    for object in objects {
        match object.0 {
            Ok(object) => found.push(object),
            Err(invalid) => unreadable.push(Unreadable {
                object: format!(
                    "{} {}",
                    K::kind(&()),
                    invalid.metadata.name.unwrap_or_default()
                ),
                error: invalid.error,
            }),
        }
    }
    found
}

/// Compares the node of an agent with its custom resources as the watches show them, once the first lists have arrived.
/// Fails if the host cannot be inspected, if a watch has ended, or if this version cannot read a custom resource.
pub async fn check_watched(agent: &Agent) -> Result<Report, Error> {
    let (name, desired) = (&agent.node.name, &agent.desired);
    let complete = desired.complete().await;
    complete.map_err(|source| Error::Unwatched {
        node: name.clone(),
        source,
    })?;
    let unreadable = || Error::Unreadable { node: name.clone() };
    let node = || match desired.node() {
        Some(object) => readable(&object).cloned().ok_or_else(unreadable).map(Some),
        None => Ok(None),
    };
    let groups = node()?.map_or_else(Vec::new, |node| findings::groups(&node.spec));
    // Reads the disk first: images made afterwards have their custom resource already.
    let inventory = inventory(agent.node.root.clone(), groups).await?;
    let (volumes, snapshots, groups, replicas) = desired.everything().ok_or_else(unreadable)?;
    let view = View {
        node: node()?,
        volumes,
        snapshots,
        groups,
        replicas,
        unreadable: Vec::new(),
        inventory,
    };
    Ok(report(name, &view))
}

/// Reads what the node has.
async fn inventory(root: Root, groups: Vec<(Uid, Option<String>)>) -> Result<Inventory, Error> {
    let read = on_host((), move || root.inventory(&groups)).await;
    read.map_err(Error::Broken)?.map_err(Error::Host)
}

fn report(node: &str, view: &View) -> Report {
    Report {
        node: node.to_owned(),
        pools: view.inventory.pools.len(),
        volumes: view.volumes.len(),
        snapshots: view.snapshots.len(),
        images: view
            .inventory
            .pools
            .iter()
            .map(|pool| pool.images.len() + pool.discarded.len())
            .sum(),
        loops: view.inventory.loops.len(),
        mounts: view.inventory.mounts.len(),
        findings: findings(view),
        unlisted: 0,
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, findings, .. } = self;
        writeln!(
            f,
            "node {node}: {}, {}, {}, {}, {}, {}",
            count(self.pools, "pool"),
            count(self.volumes, "volume"),
            count(self.snapshots, "snapshot"),
            count(self.images, "image"),
            count(self.loops, "loop device"),
            count(self.mounts, "mount"),
        )?;
        if findings.is_empty() {
            return writeln!(f, "clean: no findings");
        }
        for finding in findings {
            writeln!(f, "\n{}\n    {}", finding.kind, finding.object)?;
            writeln!(f, "    {}", finding.message)?;
        }
        writeln!(f, "\n{}", count(findings.len(), "finding"))
    }
}

fn count(number: usize, thing: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{s}")
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt;
    use serde_json::{Value, from_value, json};

    use super::*;
    use crate::{
        findings::FindingKind,
        testing::{ready_snapshot, ready_volume},
    };

    /// The object with a size that Cistern does not read.
    fn strange(object: &impl Serialize) -> Value {
        let mut object = json!(object);
        object["metadata"]["name"] = json!("strange");
        object["spec"]["size"] = json!("1e12");
        object
    }

    #[test]
    fn r22_an_object_that_cannot_be_read_is_named_and_hides_no_other() {
        let mut strange_snapshot = strange(&ready_snapshot());
        strange_snapshot["spec"]["takenAt"] = json!([]);
        let strange_node = json!({"metadata": {"name": "n"}, "spec": {"pools": 1}});
        let listed = Listed {
            node: Some(from_value(strange_node).unwrap()),
            volumes: vec![
                from_value(strange(&ready_volume())).unwrap(),
                DeserializeGuard(Ok(ready_volume())),
            ],
            snapshots: vec![from_value(strange_snapshot).unwrap()],
            ..Listed::default()
        };
        let view = listed.beside(Inventory::default());
        assert_eq!(view.node, None);
        let volumes = view.volumes.iter().map(ResourceExt::name_any);
        assert_eq!(volumes.collect::<Vec<_>>(), [ready_volume().name_any()]);
        let report = report("n", &view);
        assert_eq!((report.volumes, report.snapshots), (1, 0));
        let mut named = Vec::new();
        for finding in &report.findings {
            assert_eq!(finding.kind, FindingKind::ObjectUnreadable, "{finding:?}");
            named.push(finding.object.as_str());
        }
        let expected = [
            "StorageNode n",
            "PoolVolume strange",
            "PoolSnapshot strange",
        ];
        assert_eq!(named, expected);
        let of_volume = &report.findings[1].message;
        assert!(of_volume.contains("1e12"), "{of_volume}");
    }
}
