//! What other nodes may read: the ImageTransfers whose source is this node, and the keys of their targets.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use cistern_client::Chain;
use cistern_crds::{ImageTransfer, ImageTransferSpec, StorageNode};
use cistern_transfer::PublicKey;
use futures::StreamExt as _;
use kube::{Api, ResourceExt as _};
use parking_lot::RwLock;
use tokio::time::{sleep, timeout};

use crate::agent::{
    Agent,
    desired::{Changes, Guarded, readable},
};

/// How often the keys of the targets are read again: an agent that starts again has another key. A new list of the
/// ImageTransfers counts from then on, too, because its end is no change of an object.
const KEYS: Duration = Duration::from_secs(5);
/// How long a read of a StorageNode may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is granted, by name of the ImageTransfer.
#[derive(Debug, Default)]
pub struct Grants(RwLock<HashMap<String, Grant>>);

/// A snapshot that the node with this key may read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Key of the target.
    pub key: PublicKey,
    /// What it may read.
    pub spec: ImageTransferSpec,
}

impl Grants {
    /// Whether anything is granted to a key.
    pub fn admit(&self, key: &PublicKey) -> bool {
        self.0.read().values().any(|grant| grant.key == *key)
    }

    /// What a transfer grants; None if there is no such transfer.
    pub fn get(&self, transfer: &str) -> Option<Grant> {
        self.0.read().get(transfer).cloned()
    }

    /// Replaces everything that is granted. A target whose key is unknown gets nothing.
    fn replace(&self, transfers: &[ImageTransfer], keys: &BTreeMap<String, PublicKey>) {
        let grant = |transfer: &ImageTransfer| {
            let spec = transfer.spec.clone();
            let key = *keys.get(&spec.target_node)?;
            Some((transfer.name_any(), Grant { key, spec }))
        };
        *self.0.write() = transfers.iter().filter_map(grant).collect();
    }
}

/// Keeps the grants up to date until dropped.
pub(crate) async fn run(agent: &Arc<Agent>, mut changes: Changes<Guarded<ImageTransfer>>) {
    let nodes = Api::<StorageNode>::all(agent.transfers.client.clone());
    let mut keys = BTreeMap::new();
    loop {
        let transfers = granted_by(agent);
        // What is no longer granted ends before anything is asked.
        agent.transfers.grants.replace(&transfers, &keys);
        keys = keys_of(&nodes, &transfers, keys).await;
        // Read again: the answers may have taken long.
        let transfers = granted_by(agent);
        agent.transfers.grants.replace(&transfers, &keys);
        tokio::select! {
            change = changes.next() => if change.is_none() { return },
            () = sleep(KEYS) => {}
        }
    }
}

/// The ImageTransfers whose source is this node.
fn granted_by(agent: &Agent) -> Vec<ImageTransfer> {
    let all = agent.desired.transfers();
    let readable = all.iter().filter_map(|transfer| readable(transfer));
    let ours = readable.filter(|it| it.spec.source_node == agent.node.name);
    ours.filter(|it| it.metadata.deletion_timestamp.is_none())
        .cloned()
        .collect()
}

/// The keys of the targets. While the API server does not answer, the known ones remain.
async fn keys_of(
    nodes: &Api<StorageNode>,
    transfers: &[ImageTransfer],
    known: BTreeMap<String, PublicKey>,
) -> BTreeMap<String, PublicKey> {
    let mut keys = BTreeMap::new();
    for transfer in transfers {
        let node = &transfer.spec.target_node;
        if keys.contains_key(node) {
            continue;
        }
        let found = match timeout(PATIENCE, nodes.get_opt(node)).await {
            Ok(Ok(found)) => found.and_then(|it| it.transfer_key()),
            Ok(Err(error)) => {
                tracing::warn!(node, error = %Chain(&error), "cannot read the key of a node");
                known.get(node).copied()
            }
            Err(_) => known.get(node).copied(),
        };
        keys.extend(found.map(|key| (node.clone(), key)));
    }
    keys
}

#[cfg(test)]
mod tests {
    use cistern_crds::TransferPurpose;
    use cistern_transfer::KeyPair;

    use super::*;

    fn transfer(name: &str, target: &str) -> ImageTransfer {
        ImageTransfer::new(
            name,
            ImageTransferSpec {
                source_node: "w1".to_owned(),
                target_node: target.to_owned(),
                snapshot_name: Some("s".to_owned()),
                move_uid: None,
                image: "u".to_owned(),
                base_image: None,
                volume_name: name.to_owned(),
                purpose: TransferPurpose::Restore,
            },
        )
    }

    #[test]
    fn each_key_is_granted_the_transfers_of_its_node_and_nothing_once_they_are_gone() {
        let key = || KeyPair::generate().unwrap().public();
        let (two, three, stranger) = (key(), key(), key());
        let keys = BTreeMap::from([("w2".to_owned(), two), ("w3".to_owned(), three)]);
        let grants = Grants::default();
        let all = [
            transfer("a", "w2"),
            transfer("b", "w3"),
            transfer("c", "w4"),
        ];
        grants.replace(&all, &keys);
        assert!(grants.admit(&two) && grants.admit(&three) && !grants.admit(&stranger));
        assert_eq!(grants.get("a").unwrap().key, two);
        assert_eq!(grants.get("b").unwrap().key, three);
        assert_eq!(grants.get("c"), None, "its node has published no key");
        grants.replace(&all[1..], &keys);
        assert!(!grants.admit(&two));
        assert_eq!(grants.get("a"), None);
    }
}
