//! Where a snapshot holds data: only its node can tell. This finds the node, and connects to its node plugin by the key that it
//! has published.

mod keys;

use std::{fmt, sync::Arc, time::Duration};

use cistern_crds::{PoolSnapshot, StorageNode, names};
use cistern_transfer::{KeyPair, PublicKey, connect};
use kube::{Api, Client};
use tokio::time::timeout;
use tonic::transport::Channel;

pub use self::keys::publish;
use crate::objects::nodes::Nodes;

/// How long the API server may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Connects to the node plugins that have snapshots.
#[derive(Clone)]
pub struct Relay {
    snapshots: Api<PoolSnapshot>,
    nodes: Arc<Nodes>,
    own: KeyPair,
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
    /// The node plugin cannot be found.
    #[error("snapshot {snapshot} is on node {node}, which cannot be asked now: {why}; try again")]
    Unknown {
        /// Id of the snapshot.
        snapshot: String,
        /// Name of its node.
        node: String,
        /// What is missing.
        why: &'static str,
    },
    /// The node plugin cannot be reached.
    #[error("snapshot {snapshot} is on node {node}, which cannot be reached; try again")]
    Unreachable {
        /// Id of the snapshot.
        snapshot: String,
        /// Name of its node.
        node: String,
        /// Why.
        #[source]
        source: cistern_transfer::Error,
    },
}

impl Relay {
    /// Connects with a key that is published.
    pub fn new(client: Client, nodes: Arc<Nodes>, own: KeyPair) -> Self {
        Self {
            snapshots: Api::all(client),
            nodes,
            own,
        }
    }

    /// Connects to the node plugin that has a snapshot. Fails if there is no such snapshot, or if the API server or the
    /// node plugin does not answer.
    pub async fn node_of(&self, snapshot: &str) -> Result<NodePlugin, Error> {
        let node = self.find(snapshot).await?;
        let unknown = |why| Error::Unknown {
            snapshot: snapshot.to_owned(),
            node: node.clone(),
            why,
        };
        let peer = self.nodes.inspect(&node, |node| {
            node.map(StorageNode::transfer_peer::<PublicKey>)
        });
        let peer = peer.ok_or_else(|| unknown("the StorageNodes have not been listed yet"))?;
        let peer = peer.ok_or_else(|| unknown("it has no StorageNode"))?;
        let peer = peer.map_err(unknown)?;
        match connect(&self.own, peer).await {
            Ok(channel) => Ok(NodePlugin { node, channel }),
            Err(source) => Err(Error::Unreachable {
                snapshot: snapshot.to_owned(),
                node,
                source,
            }),
        }
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
        Ok(found.ok_or_else(not_found)?.spec.node_name)
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay")
            .field("own", &self.own)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_plugin_is_known_by_its_address_and_its_key() {
        let key = KeyPair::generate().unwrap().public();
        let node = |address: Option<&str>, key: Option<String>| {
            let mut node = StorageNode::new("w1", cistern_crds::StorageNodeSpec::default());
            node.spec.transfer_endpoint = address.map(str::to_owned);
            node.status.get_or_insert_default().transfer_key = key;
            node
        };
        let address = "10.0.0.1:9812";
        let found = node(Some(address), Some(key.to_string())).transfer_peer();
        assert_eq!(found, Ok((address.parse().unwrap(), key)));
        for (address, key, why) in [
            (None, Some(key.to_string()), "no address"),
            (Some("w1"), Some(key.to_string()), "no address"),
            (Some(address), None, "no key"),
            (Some(address), Some("?".to_owned()), "no key"),
        ] {
            let error = node(address, key).transfer_peer::<PublicKey>().unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
