//! Where a snapshot holds data: only its node can tell. This finds the node, and connects to its node plugin by the key
//! that it has published.

mod keys;

use std::{fmt, time::Duration};

use cistern_crds::{PoolSnapshot, names};
use kube::{Api, Client};
use tokio::time::timeout;
use tonic::transport::Channel;

pub use self::keys::publish;
use crate::node_plugins::{self, NodePlugins};

/// How long the API server may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Connects to the node plugins that have snapshots.
#[derive(Clone)]
pub struct Relay {
    snapshots: Api<PoolSnapshot>,
    plugins: NodePlugins,
}

/// The node plugin that has a snapshot.
#[derive(Clone, Debug)]
pub struct NodePlugin {
    /// Name of its node.
    pub node: String,
    /// A connection to it.
    pub channel: Channel,
}

/// Why a node plugin cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such snapshot.
    #[error("there is no snapshot {snapshot}")]
    NotFound {
        /// The requested id.
        snapshot: String,
    },
    /// The API server did not answer, or answered with an error.
    #[error("cannot read PoolSnapshot {snapshot}")]
    Api {
        /// Id of the snapshot.
        snapshot: String,
        /// The error of the API server, or a timeout.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The node plugin cannot be found or reached.
    #[error("cannot read where snapshot {snapshot} has data")]
    NodePlugin {
        /// Id of the snapshot.
        snapshot: String,
        /// The node, and why.
        #[source]
        source: node_plugins::Error,
    },
}

impl Relay {
    /// Finds snapshots and connects to their nodes.
    pub fn new(client: Client, plugins: NodePlugins) -> Self {
        Self {
            snapshots: Api::all(client),
            plugins,
        }
    }

    /// Connects to the node plugin that has a snapshot. Fails if there is no such snapshot, or if the API server or the
    /// node plugin does not answer.
    pub async fn node_of(&self, snapshot: &str) -> Result<NodePlugin, Error> {
        let node = self.find(snapshot).await?;
        let channel = self.plugins.connect(&node).await;
        let channel = channel.map_err(|source| Error::NodePlugin {
            snapshot: snapshot.to_owned(),
            source,
        })?;
        Ok(NodePlugin { node, channel })
    }

    /// The node of a snapshot.
    async fn find(&self, snapshot: &str) -> Result<String, Error> {
        let silent = |source: Box<dyn std::error::Error + Send + Sync>| Error::Api {
            snapshot: snapshot.to_owned(),
            source,
        };
        let not_found = || Error::NotFound {
            snapshot: snapshot.to_owned(),
        };
        if !names::is_id(snapshot) {
            return Err(not_found());
        }
        let found = timeout(PATIENCE, self.snapshots.get_opt(snapshot)).await;
        let found = found
            .map_err(|elapsed| silent(elapsed.into()))?
            .map_err(|error| silent(error.into()))?;
        // What is kept as a base is compared with others only.
        let found = found.filter(|found| !found.spec.is_kept_as_base());
        Ok(found.ok_or_else(not_found)?.spec.node_name)
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay")
            .field("plugins", &self.plugins)
            .finish_non_exhaustive()
    }
}
