//! The custom resources that orphaned images name, whichever node they are on.
//!
//! The agent watches the objects of its own node only. After a node is renamed, or a disk is moved,
//! the objects of the images in a pool still name another node: the images are orphans here, and
//! belong there.
//!
//! *Invariant:* whatever is not known for certain is an error, and then nothing is done to an image.

use std::{collections::BTreeMap, time::Duration};

use cistern_crds::{
    StorageNodeStatus, Stored,
    health::{LISTED, Orphan, OrphanIdentity},
    volume::SourceKind,
};
use kube::Api;
use tokio::time::timeout;

use crate::agent::{
    Agent,
    desired::{Guarded, readable},
    work::Kind,
};

/// How long the API server may take for an answer.
const DEADLINE: Duration = Duration::from_secs(30);
/// The node of an object that this version cannot read.
const UNKNOWN: &str = "unknown";

/// It is not known whether an object exists.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The API server refused the request.
    #[error("cannot read {object}, which an image names")]
    Api {
        /// Kind and name.
        object: String,
        /// Its answer.
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

/// Sets the node that each orphan belongs to, where it is another one; of as many as a status lists,
/// which are the oldest.
pub(super) async fn mark(
    agent: &Agent,
    told: &StorageNodeStatus,
    orphans: &mut BTreeMap<String, Vec<Orphan>>,
) -> Result<(), Error> {
    for (pool_uid, orphans) in orphans {
        let since = agent.drift.since(told, pool_uid);
        let age = |it: &Orphan| since.get(&it.image).copied().unwrap_or(it.since);
        orphans.sort_by(|a, b| (age(a), &a.image).cmp(&(age(b), &b.image)));
        for orphan in orphans.iter_mut().take(LISTED) {
            if let Some(identity) = &orphan.identity {
                let node = node_of(agent, identity).await?;
                orphan.belongs_to = node.filter(|node| *node != agent.node_name);
            }
        }
    }
    Ok(())
}

/// The node of the custom resource that an image says it was made for; none where there is no such
/// object. The API server is asked.
pub(super) async fn node_of(
    agent: &Agent,
    identity: &OrphanIdentity,
) -> Result<Option<String>, Error> {
    match identity.kind {
        SourceKind::Volume => ask(&agent.volumes.api, &identity.name).await,
        SourceKind::Snapshot => ask(&agent.snapshots.api, &identity.name).await,
    }
}

async fn ask<K: Kind + Stored>(api: &Api<K>, name: &str) -> Result<Option<String>, Error> {
    if !is_object_name(name) {
        return Ok(None);
    }
    let object = || format!("{} {name}", K::kind(&()));
    // An object that this version cannot read exists all the same.
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

/// Whether an object can have this name. It comes from a disk, and becomes part of a request's path.
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
