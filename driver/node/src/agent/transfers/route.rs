//! Where an image is copied from, by the objects in the API server.

use std::{net::SocketAddr, time::Duration};

use cistern_client::Chain;
use cistern_crds::{
    Explanation, HasImage as _, ImageTransfer, ImageTransferSpec, PoolSnapshot, Reason, StorageNode,
};
use cistern_host::image;
use cistern_transfer::PublicKey;
use kube::Api;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::wanted::{Origin, Wanted};
use crate::agent::Agent;

/// How long a read from the API server may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why there is no complete copy. The explanation is for the condition `Ready`.
#[derive(Debug)]
pub enum NotCopied {
    /// The snapshot is gone: it cannot be copied any more.
    Gone(Explanation),
    /// The pool lacks the space for the copy, although its bytes are reserved.
    Full(Explanation),
    /// A later attempt goes on.
    Later(Explanation),
}

/// Where an image is copied from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Route {
    /// Name of the node.
    pub(super) node: String,
    /// Its address.
    pub(super) address: SocketAddr,
    /// Its key.
    pub(super) key: PublicKey,
    /// What it may send.
    pub(super) transfer: ImageTransferSpec,
}

/// Where an image is copied from; None if the snapshot is on this node meanwhile. Fails while the copy is not
/// permitted, or the node cannot be reached.
pub(super) async fn route(agent: &Agent, wanted: &Wanted) -> Result<Option<Route>, NotCopied> {
    let (client, here) = (&agent.transfers.client, &agent.node.name);
    let home = match &wanted.origin {
        Origin::Snapshot { name, .. } => Some(node_of(client, name, wanted).await?),
        Origin::Move { .. } | Origin::Pass { .. } => None,
    };
    if home.as_ref() == Some(here) {
        return Ok(None);
    }
    let transfer = get::<ImageTransfer>(client, &wanted.volume).await?;
    let permits = |it: &ImageTransfer| {
        let is_home = home
            .as_ref()
            .is_none_or(|home| it.spec.source_node == *home);
        is_home && wanted.is_permitted(&it.spec, here)
    };
    let Some(transfer) = transfer.filter(permits) else {
        let from = home.map_or_else(String::new, |node| format!(" from node {node}"));
        let message = format!(
            "the operator has not permitted yet that {} is copied{from}",
            wanted.name()
        );
        return Err(NotCopied::Later(Explanation::new(Reason::Copying, message)));
    };
    let transfer = transfer.spec;
    let node = transfer.source_node.clone();
    let unreachable = |why: &str| unreachable(&node, wanted, why);
    let Some(peer) = get::<StorageNode>(client, &node).await? else {
        return Err(unreachable("it has no StorageNode"));
    };
    let (address, key) = peer.transfer_peer().map_err(unreachable)?;
    Ok(Some(Route {
        node,
        address,
        key,
        transfer,
    }))
}

/// The node that has a snapshot. Fails if the snapshot is gone, or is another one of this name.
async fn node_of(
    client: &kube::Client,
    snapshot: &str,
    wanted: &Wanted,
) -> Result<String, NotCopied> {
    let stays = |it: &PoolSnapshot| {
        let is_it = it
            .image()
            .is_some_and(|found| found.uid == wanted.image.as_str());
        is_it && !it.spec.deletion_requested
    };
    let found = get::<PoolSnapshot>(client, snapshot).await?;
    let found = found.filter(stays).ok_or_else(|| {
        let message = format!("snapshot {snapshot} is gone");
        NotCopied::Gone(Explanation::new(Reason::SourceMissing, message))
    })?;
    Ok(found.spec.node_name)
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

pub(super) fn unreachable(node: &str, wanted: &Wanted, why: &str) -> NotCopied {
    let what = wanted.name();
    let message =
        format!("node {node} cannot send {what} now: {why}. The copy goes on when it can");
    NotCopied::Later(Explanation::new(Reason::SourceUnreachable, message))
}

pub(super) fn failed(error: &(dyn std::error::Error + 'static)) -> NotCopied {
    let message = Chain(error).to_string();
    NotCopied::Later(Explanation::new(Reason::ProvisioningFailed, message))
}

/// Why a copy ended at a step in the pool.
pub(super) fn not_written(error: &image::Error) -> NotCopied {
    if matches!(error, image::Error::NoSpace { .. }) {
        let message = Chain(error).to_string();
        return NotCopied::Full(Explanation::new(Reason::NoSpace, message));
    }
    failed(error)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_copy_that_the_pool_has_no_space_for_ends_and_one_that_fails_otherwise_goes_on_later() {
        let uid = || "uid-1".parse::<cistern_host::Uid>().unwrap();
        let full = not_written(&image::Error::NoSpace {
            uid: uid(),
            pool: "fast".to_owned(),
            source: io::Error::from(io::ErrorKind::StorageFull).into(),
        });
        let NotCopied::Full(why) = &full else {
            panic!("{full:?}");
        };
        assert_eq!(why.reason, Reason::NoSpace);
        assert!(why.message.contains("no space left"), "{why}");
        let broken = not_written(&image::Error::Missing {
            uid: uid(),
            pool: "fast".to_owned(),
        });
        let NotCopied::Later(why) = &broken else {
            panic!("{broken:?}");
        };
        assert_eq!(why.reason, Reason::ProvisioningFailed);
    }
}
