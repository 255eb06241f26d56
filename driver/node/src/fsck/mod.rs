//! `cistern-driver fsck`: does what is on this node agree with the custom resources?
//!
//! One checker for people and for tests. It looks and changes nothing, and asks neither the agent
//! nor kubelet. What is under way while it looks may show as a finding: look again.

pub mod findings;

use std::{fmt, io};

use cistern_crds::{PoolSnapshot, PoolSnapshotGroup, PoolVolume, StorageNode};
use cistern_host::Root;
use kube::{Api, Client, api::ListParams};
use serde::Serialize;

use self::findings::{Finding, View, findings};
use crate::agent::blocking::{self, on_host};

/// Why nothing could be said.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server.
    #[error("cannot read the custom resources of node {node}")]
    Api {
        /// The node.
        node: String,
        /// What it said.
        #[source]
        source: Box<kube::Error>,
    },
    /// The host.
    #[error("cannot look at the node")]
    Host(#[source] io::Error),
    /// The look ended in a panic.
    #[error("the look at the node broke off")]
    Broken(#[source] blocking::Broken),
}

/// What was found.
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
}

impl Report {
    /// Whether all agrees.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }
}

/// Looks at the node and at its custom resources.
pub async fn look(client: Client, node: &str, root: Root) -> Result<Report, Error> {
    let failed = |source| Error::Api {
        node: node.to_owned(),
        source: Box::new(source),
    };
    // The disk first: what is made meanwhile has its custom resource already.
    let inventory = on_host((), move || root.inventory())
        .await
        .map_err(Error::Broken)?
        .map_err(Error::Host)?;
    let nodes: Api<StorageNode> = Api::all(client.clone());
    let volumes: Api<PoolVolume> = Api::all(client.clone());
    let snapshots: Api<PoolSnapshot> = Api::all(client.clone());
    let groups: Api<PoolSnapshotGroup> = Api::all(client);
    let ours = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let view = View {
        node: nodes.get_opt(node).await.map_err(failed)?,
        volumes: volumes.list(&ours).await.map_err(failed)?.items,
        snapshots: snapshots.list(&ours).await.map_err(failed)?.items,
        groups: groups.list(&ours).await.map_err(failed)?.items,
        inventory,
    };
    Ok(Report {
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
        findings: findings(&view),
    })
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
            return writeln!(f, "clean: all of them belong together");
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
