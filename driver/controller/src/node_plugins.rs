//! Connects to node plugins, by the address and the key that their StorageNodes have.

use std::{fmt, sync::Arc};

use cistern_crds::StorageNode;
use cistern_transfer::{KeyPair, PublicKey, connect};
use tonic::transport::Channel;

use crate::objects::nodes::Nodes;

/// Connects to node plugins with the key of this controller, which is published.
#[derive(Clone)]
pub struct NodePlugins {
    nodes: Arc<Nodes>,
    own: KeyPair,
}

/// Why a node plugin cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The node plugin cannot be found.
    #[error("node {node} cannot be asked now: {why}; try again")]
    Unknown {
        /// Name of its node.
        node: String,
        /// What is missing.
        why: &'static str,
    },
    /// The node plugin cannot be reached.
    #[error("node {node} cannot be reached; try again")]
    Unreachable {
        /// Name of its node.
        node: String,
        /// Why.
        #[source]
        source: cistern_transfer::Error,
    },
}

impl NodePlugins {
    /// Connects with a key that is published.
    pub fn new(nodes: Arc<Nodes>, own: KeyPair) -> Self {
        Self { nodes, own }
    }

    /// Connects to the node plugin of a node. Fails if it is not known or does not answer.
    pub async fn connect(&self, node: &str) -> Result<Channel, Error> {
        let unknown = |why| Error::Unknown {
            node: node.to_owned(),
            why,
        };
        let peer = self.nodes.inspect(node, |node| {
            node.map(StorageNode::transfer_peer::<PublicKey>)
        });
        let peer = peer.ok_or_else(|| unknown("the StorageNodes have not been listed yet"))?;
        let peer = peer.ok_or_else(|| unknown("it has no StorageNode"))?;
        let peer = peer.map_err(unknown)?;
        let connected = connect(&self.own, peer).await;
        connected.map_err(|source| Error::Unreachable {
            node: node.to_owned(),
            source,
        })
    }
}

impl fmt::Debug for NodePlugins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodePlugins")
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
