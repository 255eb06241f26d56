//! Where a snapshot is copied from, by the objects in the API server.

use std::{net::SocketAddr, time::Duration};

use cistern_client::Chain;
use cistern_crds::{
    Explanation, HasImage as _, ImageTransfer, PoolSnapshot, PoolVolume, Reason, StorageNode,
};
use cistern_transfer::PublicKey;
use kube::{Api, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::grants::key_of;
use crate::agent::Agent;

/// How long a read from the API server may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why there is no complete copy. The explanation is for the condition `Ready`.
#[derive(Debug)]
pub enum NotCopied {
    /// The snapshot is gone: it cannot be copied any more.
    Gone(Explanation),
    /// A later attempt goes on.
    Later(Explanation),
}

/// Where a snapshot is copied from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Route {
    /// Name of the node.
    pub(super) node: String,
    /// Its address.
    pub(super) address: SocketAddr,
    /// Its key.
    pub(super) key: PublicKey,
}

/// Where a snapshot is copied from; None if it is on this node meanwhile. Fails while the copy is not permitted, or
/// the node cannot be reached.
pub(super) async fn route(
    agent: &Agent,
    volume: &PoolVolume,
    image: &str,
    snapshot_name: &str,
) -> Result<Option<Route>, NotCopied> {
    let client = &agent.transfers.client;
    let snapshot = get::<PoolSnapshot>(client, snapshot_name).await?;
    let stays = |it: &PoolSnapshot| {
        let is_it = it.image().is_some_and(|found| found.uid == image);
        is_it && !it.spec.deletion_requested
    };
    let Some(snapshot) = snapshot.filter(stays) else {
        let message = format!("snapshot {snapshot_name} is gone");
        return Err(NotCopied::Gone(Explanation::new(
            Reason::SourceMissing,
            message,
        )));
    };
    let node = snapshot.spec.node_name;
    if node == agent.node.name {
        return Ok(None);
    }
    let transfer = get::<ImageTransfer>(client, &volume.name_any()).await?;
    let permits = |it: &ImageTransfer| {
        let spec = &it.spec;
        (&spec.source_node, &spec.target_node) == (&node, &agent.node.name)
            && (spec.snapshot_name.as_deref(), &*spec.image) == (Some(snapshot_name), image)
    };
    if !transfer.as_ref().is_some_and(permits) {
        let message = format!(
            "the operator has not permitted yet that snapshot {snapshot_name} is copied from node {node}"
        );
        return Err(NotCopied::Later(Explanation::new(Reason::Copying, message)));
    }
    let unreachable = |why: &str| unreachable(&node, snapshot_name, why);
    let Some(peer) = get::<StorageNode>(client, &node).await? else {
        return Err(unreachable("it has no StorageNode"));
    };
    let address = peer.spec.transfer_endpoint.as_ref();
    let address = address.and_then(|address| address.parse().ok());
    let address = address.ok_or_else(|| unreachable("its node plugin has no address"))?;
    let key = key_of(&peer).ok_or_else(|| unreachable("its node plugin has published no key"))?;
    Ok(Some(Route { node, address, key }))
}

async fn get<K>(client: &kube::Client, name: &str) -> Result<Option<K>, NotCopied>
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let api = Api::<K>::all(client.clone());
    let failed = |why: String| {
        let message = format!("cannot read {} {name}: {why}", K::kind(&()));
        NotCopied::Later(Explanation::new(Reason::ProvisioningFailed, message))
    };
    match timeout(PATIENCE, api.get_opt(name)).await {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(error)) => Err(failed(Chain(&error).to_string())),
        Err(_) => Err(failed("the API server does not answer".to_owned())),
    }
}

pub(super) fn unreachable(node: &str, snapshot: &str, why: &str) -> NotCopied {
    let message = format!(
        "node {node} cannot send snapshot {snapshot} now: {why}. The copy goes on when it can"
    );
    NotCopied::Later(Explanation::new(Reason::SourceUnreachable, message))
}

pub(super) fn explanation(error: &(dyn std::error::Error + 'static)) -> Explanation {
    Explanation::new(Reason::ProvisioningFailed, Chain(error).to_string())
}

pub(super) fn failed(error: &(dyn std::error::Error + 'static)) -> NotCopied {
    NotCopied::Later(explanation(error))
}
