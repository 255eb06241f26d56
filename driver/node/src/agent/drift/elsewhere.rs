//! Looks up the custom resources that orphaned images name, on all nodes.
//!
//! The agent watches the objects of its own node only. After a node is renamed or a disk is moved, the
//! objects of the images in a pool still name the other node. The images are orphans here, but belong
//! to that node.
//!
//! *Invariant:* if it is not certain whether an object exists, the lookup fails and no image is changed.

use std::{collections::BTreeMap, time::Duration};

use cistern_crds::{
    HasImage, StorageNodeStatus,
    drift::{LISTED, Orphan, OrphanIdentity},
    volume::SourceKind,
};
use kube::Api;
use tokio::time::timeout;

use crate::agent::{
    Agent,
    desired::{Guarded, readable},
    kind::Kind,
};

/// Deadline for a response of the API server.
const DEADLINE: Duration = Duration::from_secs(30);
/// The node of an object that this version cannot read.
const UNKNOWN: &str = "unknown";

/// The reason why it is not known whether an object exists.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The API server refused the request.
    #[error("cannot read {object}, which an image names")]
    Api {
        /// Kind and name.
        object: String,
        /// Error of the request.
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server did not answer.
    #[error("the API server does not answer to a request for {object}, which an image names")]
    Silent {
        /// Kind and name.
        object: String,
    },
}

/// Sets the node that each orphan belongs to, if it is another node. Handles only the oldest orphans,
/// as many as a status lists.
pub(super) async fn mark(
    agent: &Agent,
    reported: &StorageNodeStatus,
    orphans: &mut BTreeMap<String, Vec<Orphan>>,
) -> Result<(), Error> {
    for (pool_uid, orphans) in orphans {
        let since = agent.drift.since(reported, pool_uid);
        let age = |it: &Orphan| since.get(&it.image).copied().unwrap_or(it.since);
        orphans.sort_by(|a, b| (age(a), &a.image).cmp(&(age(b), &b.image)));
        for orphan in orphans.iter_mut().take(LISTED) {
            if let Some(identity) = &orphan.identity {
                let node = node_of(agent, identity).await?;
                orphan.belongs_to = node.filter(|node| *node != agent.node.name);
            }
        }
    }
    Ok(())
}

/// Asks the API server for the node of the custom resource that an image names; None if there is no
/// such object.
pub(super) async fn node_of(
    agent: &Agent,
    identity: &OrphanIdentity,
) -> Result<Option<String>, Error> {
    match identity.kind {
        SourceKind::Volume => ask(&agent.work.volumes.api, &identity.name).await,
        SourceKind::Snapshot => ask(&agent.work.snapshots.api, &identity.name).await,
    }
}

async fn ask<K: Kind + HasImage>(api: &Api<K>, name: &str) -> Result<Option<String>, Error> {
    if !is_object_name(name) {
        return Ok(None);
    }
    let object = || format!("{} {name}", K::kind(&()));
    // An object that this version cannot read exists, too.
    let api = Api::<Guarded<K>>::all(api.clone().into_client());
    match timeout(DEADLINE, api.get_opt(name)).await {
        Ok(Ok(found)) => Ok(found.map(|found| match readable(&found) {
            Some(found) => found.node_name().to_owned(),
            None => UNKNOWN.to_owned(),
        })),
        Ok(Err(source)) => Err(Error::Api {
            object: object(),
            source: Box::new(source),
        }),
        Err(_) => Err(Error::Silent { object: object() }),
    }
}

/// Whether an object can have this name. The name is read from a disk and becomes part of a URL.
fn is_object_name(name: &str) -> bool {
    let is_alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = [name.bytes().next(), name.bytes().last()];
    let mut bytes = name.bytes();
    name.len() <= 253
        && ends
            .into_iter()
            .all(|byte| byte.is_some_and(is_alphanumeric))
        && bytes.all(|byte| is_alphanumeric(byte) || matches!(byte, b'-' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_from_a_disk_changes_the_path_of_a_request() {
        assert!(is_object_name("pvc-1") && is_object_name("a.b"));
        let long = "a".repeat(254);
        for odd in ["", ".", "..", "a/b", "a/../b", "-a", "a?b", "A", "ä", &long] {
            assert!(!is_object_name(odd), "{odd:?}");
        }
    }
}
