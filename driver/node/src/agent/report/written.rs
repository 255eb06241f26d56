//! The last written report, and the request to write again.

use cistern_crds::{NodePoolStatus, StorageNode, StorageNodeStatus};
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The last written report, and the request to write again.
#[derive(Debug)]
pub struct Report {
    pub(super) nodes: Api<StorageNode>,
    pub(super) requested: Notify,
    /// Held during a write, so that older numbers never overwrite newer ones.
    pub(super) writing: tokio::sync::Mutex<()>,
    pub(super) written: Mutex<Option<Written>>,
}

/// A report, and the StorageNode that it is for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Written {
    /// UID of the StorageNode.
    pub(super) node: String,
    /// Without conditions, which the operator writes.
    pub(super) status: StorageNodeStatus,
}

impl Report {
    pub(in crate::agent) fn new(client: &Client) -> Self {
        Self {
            nodes: Api::all(client.clone()),
            requested: Notify::new(),
            writing: tokio::sync::Mutex::default(),
            written: Mutex::default(),
        }
    }

    /// Requests an update of the status.
    pub fn request(&self) {
        self.requested.notify_one();
    }

    /// The last reported pools.
    pub fn last(&self) -> Option<Vec<NodePoolStatus>> {
        Some(self.written()?.status.pools)
    }

    /// The last written report.
    pub(super) fn written(&self) -> Option<Written> {
        self.written.lock().clone()
    }
}
