//! Volumes and snapshots that nobody claims: they have their image, and nothing of Kubernetes stands
//! for them.

use chrono::{DateTime, Utc};
use cistern_client::Rejection;
use cistern_crds::{
    PoolVolume, Stored,
    unclaimed::{Claimable, GRACE, Owners, advice},
    volume::ClaimReference,
};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{ResourceExt as _, api::ListParams};
use serde::Serialize;

use super::{Error, wish::Wish};
use crate::{
    Connection,
    arguments::Selection,
    cluster::{Cluster, contents},
};

/// What stands for volumes and for snapshots, as it was read after them.
#[derive(Debug)]
pub struct Known {
    volumes: Read,
    snapshots: Read,
}

/// What stands for objects of a kind.
#[derive(Debug)]
enum Read {
    Owners(Owners),
    /// The kind that would stand for them is not installed.
    NotInstalled,
    /// It could not be read: why.
    Unread(String),
}

/// A volume or snapshot that nobody claims.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UnclaimedView {
    /// `PoolVolume` or `PoolSnapshot`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its pool.
    pub pool: String,
    /// Its node.
    pub node: String,
    /// What the ledger of the node holds for it.
    pub reserved_bytes: u64,
    /// The claim that a volume was made for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim: Option<ClaimReference>,
    /// What is known of it, and what to do.
    pub message: String,
}

impl Known {
    /// Reads it. What may not be read, or is not installed, is no error.
    pub async fn read(connection: &Connection) -> Result<Self, crate::Error> {
        Ok(Self {
            volumes: read(owners_of_volumes(connection).await)?,
            snapshots: read(owners_of_snapshots(connection).await)?,
        })
    }

    /// Why nothing is known, where that is so.
    pub fn unread(&self) -> impl Iterator<Item = &str> {
        [&self.volumes, &self.snapshots]
            .into_iter()
            .filter_map(|read| match read {
                Read::Unread(why) => Some(why.as_str()),
                Read::Owners(_) | Read::NotInstalled => None,
            })
    }

    /// Everything that is selected and nobody claims.
    pub fn unclaimed(
        &self,
        cluster: &Cluster,
        only: &Selection,
        now: DateTime<Utc>,
    ) -> Vec<UnclaimedView> {
        let mut all = Vec::new();
        if let Read::Owners(owners) = &self.volumes {
            let volumes = cluster.volumes.iter().filter(|it| is_selected(*it, only));
            let volumes = volumes.filter(|it| owners.leave_unclaimed(*it, now, GRACE));
            all.extend(volumes.map(|it| UnclaimedView {
                claim: it.spec.claim.clone(),
                ..view(it)
            }));
        }
        if let Read::Owners(owners) = &self.snapshots {
            let snapshots = cluster.snapshots.iter().filter(|it| is_selected(*it, only));
            let snapshots = snapshots.filter(|it| owners.leave_unclaimed(*it, now, GRACE));
            all.extend(snapshots.map(view));
        }
        all
    }

    /// The volume or snapshot of a name, if there is one and it is certain that nobody claims it,
    /// whatever its age.
    pub fn choose(
        &self,
        cluster: &Cluster,
        name: &str,
        only: &Selection,
    ) -> Result<Option<Wish>, Error> {
        let mut volumes = cluster.volumes.iter();
        let volume = volumes.find(|it| it.name_any() == name && is_selected(*it, only));
        let mut snapshots = cluster.snapshots.iter();
        let snapshot = snapshots.find(|it| it.name_any() == name && is_selected(*it, only));
        match (volume, snapshot) {
            (Some(_), Some(_)) => Err(Error::Ambiguous {
                name: name.to_owned(),
                count: 2,
            }),
            (Some(volume), None) => {
                self.volumes.refuse_claimed(volume)?;
                Ok(Some(Wish::Volume(Box::new(volume.clone()))))
            }
            (None, Some(snapshot)) => {
                self.snapshots.refuse_claimed(snapshot)?;
                Ok(Some(Wish::Snapshot(Box::new(snapshot.clone()))))
            }
            (None, None) => Ok(None),
        }
    }
}

impl Read {
    fn refuse_claimed<K: Claimable>(&self, object: &K) -> Result<(), Error> {
        let (kind, name) = (K::kind(&()).into_owned(), object.name_any());
        let owner = K::OWNER;
        match self {
            Self::Owners(owners) if owners.lack(object) => Ok(()),
            Self::Owners(_) => Err(Error::Claimed { kind, name, owner }),
            Self::NotInstalled => Err(Error::NotKnown {
                kind,
                name,
                why: format!("the cluster has no {owner}"),
            }),
            Self::Unread(why) => Err(Error::NotKnown {
                kind,
                name,
                why: why.clone(),
            }),
        }
    }
}

fn is_selected<K: Stored>(object: &K, only: &Selection) -> bool {
    let is = |wanted: &Option<String>, found: &str| wanted.as_ref().is_none_or(|it| it == found);
    is(&only.pool, object.pool_name()) && is(&only.node, object.node_name())
}

fn view<K: Claimable>(object: &K) -> UnclaimedView {
    UnclaimedView {
        kind: K::kind(&()).into_owned(),
        name: object.name_any(),
        pool: object.pool_name().to_owned(),
        node: object.node_name().to_owned(),
        reserved_bytes: object.reserved().unwrap_or_default().0,
        claim: None,
        message: advice(object),
    }
}

async fn owners_of_volumes(connection: &Connection) -> Result<Owners, crate::Error> {
    let mut owners = Owners::default();
    let all = ListParams::default;
    // In this order: a volume that is bound meanwhile is found by its PersistentVolume.
    let claims = connection.everywhere::<PersistentVolumeClaim>();
    for claim in connection.list(claims, all()).await? {
        let bound = claim
            .spec
            .as_ref()
            .and_then(|spec| spec.volume_name.as_deref());
        if bound.unwrap_or_default().is_empty() {
            owners.add_waiting(&claim.uid().unwrap_or_default());
        }
    }
    let volumes = connection.everywhere::<PersistentVolume>();
    for volume in connection.list(volumes, all()).await? {
        owners.add_volume(&volume);
    }
    Ok(owners)
}

async fn owners_of_snapshots(connection: &Connection) -> Result<Owners, crate::Error> {
    let mut owners = Owners::default();
    for content in contents(connection).await? {
        owners.add_content(&content.data);
    }
    Ok(owners)
}

fn read(owners: Result<Owners, crate::Error>) -> Result<Read, crate::Error> {
    match owners {
        Ok(owners) => Ok(Read::Owners(owners)),
        Err(crate::Error::Denied { what, .. }) => Ok(Read::Unread(format!("{what}: not allowed"))),
        Err(error) if error.rejection() == Some(Rejection::NotFound) => Ok(Read::NotInstalled),
        Err(error) => Err(error),
    }
}

/// Where an object is, for people.
pub fn describe(object: &Wish) -> String {
    let (kind, name) = (object.kind(), object.name());
    let (pool, node) = match object {
        Wish::Volume(volume) => (volume.pool_name(), volume.node_name()),
        Wish::Snapshot(snapshot) => (snapshot.pool_name(), snapshot.node_name()),
    };
    format!("{kind} {name} in pool {pool} on {node}")
}

/// A volume that has its image already, and lacks a PersistentVolume.
pub fn as_volume(object: Wish) -> Result<Box<PoolVolume>, Error> {
    match object {
        Wish::Volume(volume) if !volume.spec.deletion_requested => Ok(volume),
        Wish::Volume(volume) => Err(Error::Leaving {
            name: volume.name_any(),
        }),
        Wish::Snapshot(snapshot) => Err(Error::HasImage {
            name: snapshot.name_any(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, cluster};

    fn known(cluster: &Cluster) -> Known {
        let mut owners = Owners::default();
        for volume in &cluster.persistent_volumes {
            owners.add_volume(volume);
        }
        Known {
            volumes: Read::Owners(owners),
            snapshots: Read::NotInstalled,
        }
    }

    #[test]
    fn what_nothing_of_kubernetes_stands_for_is_listed_with_what_to_do_once_it_is_old() {
        let (cluster, all) = (cluster(), Selection::default());
        let known = known(&cluster);
        assert!(known.unclaimed(&cluster, &all, at(600)).is_empty());
        let unclaimed = known.unclaimed(&cluster, &all, at(900));
        let names: Vec<&str> = unclaimed.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["pvc-2"]);
        let message = &unclaimed[0].message;
        assert!(
            message.contains("kubectl cistern orphans reclaim pvc-2"),
            "{message}"
        );
        let elsewhere = Selection {
            node: Some("worker-2".to_owned()),
            pool: None,
        };
        assert!(known.unclaimed(&cluster, &elsewhere, at(900)).is_empty());
    }

    #[test]
    fn nothing_is_chosen_that_is_claimed_or_of_which_nobody_knows() {
        let (cluster, all) = (cluster(), Selection::default());
        let known = known(&cluster);
        let chosen = known.choose(&cluster, "pvc-2", &all).unwrap().unwrap();
        assert_eq!(
            describe(&chosen),
            "PoolVolume pvc-2 in pool fast on worker-1"
        );
        assert!(known.choose(&cluster, "pvc-9", &all).unwrap().is_none());
        let refused = |name: &str| known.choose(&cluster, name, &all).unwrap_err();
        assert!(matches!(refused("pvc-1"), Error::Claimed { .. }));
        assert!(matches!(refused("snap-1"), Error::NotKnown { .. }));
        let unread = Known {
            volumes: Read::Unread("cannot list persistentvolumes: not allowed".to_owned()),
            snapshots: Read::NotInstalled,
        };
        let refused = unread.choose(&cluster, "pvc-2", &all).unwrap_err();
        assert!(matches!(refused, Error::NotKnown { .. }));
        assert!(unread.unclaimed(&cluster, &all, at(900)).is_empty());
    }
}
