//! Unclaimed volumes and snapshots: they have an image, but no PersistentVolume or VolumeSnapshotContent.

use chrono::{DateTime, Utc};
use cistern_client::Rejection;
use cistern_crds::{
    HasImage, PoolSnapshot, PoolVolume, VolumeMove,
    unclaimed::{Claimable, GRACE, Owners, advice},
    volume::ClaimReference,
};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{ResourceExt as _, api::ListParams};
use serde::Serialize;

use super::{Error, custom_resource::CustomResource};
use crate::{
    Connection,
    arguments::Selection,
    cluster::{Cluster, contents},
};

/// Owners of volumes and snapshots. They are listed after the volumes and snapshots: otherwise the
/// owner of a new volume could be missing.
#[derive(Debug)]
pub struct OwnerIndex {
    volumes: OwnerList,
    snapshots: OwnerList,
}

/// Owners of the objects of one kind.
type OwnerList = Result<Owners, OwnersUnknown>;

/// Why the owners of a kind are not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OwnersUnknown {
    /// The kind of the owners is not installed.
    #[error("the cluster has no {owner}")]
    NotInstalled {
        /// Kind of the owners.
        owner: &'static str,
    },
    /// The user may not list the owners.
    #[error("{what}: not allowed")]
    Denied {
        /// Description of the request.
        what: String,
    },
}

/// A volume or snapshot without an owner.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UnclaimedView {
    /// `PoolVolume` or `PoolSnapshot`.
    pub kind: String,
    /// Name of the object.
    pub name: String,
    /// Name of the pool.
    pub pool: String,
    /// Name of the node.
    pub node: String,
    /// Space that the node's ledger reserves for it, in bytes.
    pub reserved_bytes: u64,
    /// Claim for which a volume was created; absent for a snapshot, and if it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim: Option<ClaimReference>,
    /// Explanation and suggested action.
    pub message: String,
}

impl OwnerIndex {
    /// Lists the owners. Records a kind that the user may not list or that is not installed. Fails
    /// on any other error of a request.
    pub async fn read(connection: &Connection) -> Result<Self, crate::Error> {
        Ok(Self {
            volumes: read::<PoolVolume>(owners_of_volumes(connection).await)?,
            snapshots: read::<PoolSnapshot>(owners_of_snapshots(connection).await)?,
        })
    }

    /// Returns the reasons why owners could not be listed. Leaves out kinds that are not installed.
    pub fn unread(&self) -> impl Iterator<Item = &OwnersUnknown> {
        [&self.volumes, &self.snapshots]
            .into_iter()
            .filter_map(|owners| owners.as_ref().err())
            .filter(|error| matches!(error, OwnersUnknown::Denied { .. }))
    }

    /// Returns the selected objects that are unclaimed.
    pub fn unclaimed(
        &self,
        cluster: &Cluster,
        only: &Selection,
        now: DateTime<Utc>,
    ) -> Vec<UnclaimedView> {
        let mut all = Vec::new();
        if let Ok(owners) = &self.volumes {
            let volumes = cluster.volumes.iter().filter(|it| is_selected(*it, only));
            let volumes = volumes.filter(|it| owners.leave_unclaimed(*it, now, GRACE));
            all.extend(volumes.map(|it| UnclaimedView {
                claim: it.spec.claim.clone(),
                ..view(it)
            }));
        }
        if let Ok(owners) = &self.snapshots {
            let snapshots = cluster.snapshots.iter().filter(|it| is_selected(*it, only));
            let snapshots = snapshots.filter(|it| owners.leave_unclaimed(*it, now, GRACE));
            all.extend(snapshots.map(view));
        }
        all
    }

    /// Returns the selected volume or snapshot with this name, regardless of its age; `None` if
    /// there is none. Fails if both a volume and a snapshot have the name, if the object is
    /// claimed, or if its owner cannot be determined.
    pub fn choose(
        &self,
        cluster: &Cluster,
        name: &str,
        only: &Selection,
    ) -> Result<Option<CustomResource>, Error> {
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
                refuse_claimed(&self.volumes, volume)?;
                Ok(Some(CustomResource::Volume(Box::new(volume.clone()))))
            }
            (None, Some(snapshot)) => {
                refuse_claimed(&self.snapshots, snapshot)?;
                Ok(Some(CustomResource::Snapshot(Box::new(snapshot.clone()))))
            }
            (None, None) => Ok(None),
        }
    }
}

fn refuse_claimed<K: Claimable>(owners: &OwnerList, object: &K) -> Result<(), Error> {
    let (kind, name) = (K::kind(&()).into_owned(), object.name_any());
    match owners {
        Ok(owners) if owners.lack(object) => Ok(()),
        Ok(_) => Err(Error::Claimed {
            kind,
            name,
            owner: K::OWNER,
        }),
        Err(why) => Err(Error::OwnerUnknown {
            kind,
            name,
            why: why.clone(),
        }),
    }
}

fn is_selected<K: HasImage>(object: &K, only: &Selection) -> bool {
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
    // Claims and VolumeMoves are listed before PersistentVolumes. If a claim is bound, or a move ends, after its list
    // request, the last list contains the PersistentVolume.
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
    match connection.own::<VolumeMove>().await {
        Ok(moves) => moves.iter().for_each(|it| owners.add_move(&it.name_any())),
        // Version 0.1 of Cistern does not have the kind.
        Err(crate::Error::NotInstalled { .. }) => {}
        Err(error) => return Err(error),
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

fn read<K: Claimable>(owners: Result<Owners, crate::Error>) -> Result<OwnerList, crate::Error> {
    match owners {
        Ok(owners) => Ok(Ok(owners)),
        Err(crate::Error::Denied { what, .. }) => Ok(Err(OwnersUnknown::Denied { what })),
        Err(error) if error.rejection() == Some(Rejection::NotFound) => {
            Ok(Err(OwnersUnknown::NotInstalled { owner: K::OWNER }))
        }
        Err(error) => Err(error),
    }
}

/// Describes an object with its pool and node.
pub fn describe(object: &CustomResource) -> String {
    let (kind, name) = (object.kind(), object.name());
    let (pool, node) = match object {
        CustomResource::Volume(volume) => (volume.pool_name(), volume.node_name()),
        CustomResource::Snapshot(snapshot) => (snapshot.pool_name(), snapshot.node_name()),
    };
    format!("{kind} {name} in pool {pool} on {node}")
}

/// Returns the volume that needs a PersistentVolume. Fails if the object is a snapshot, or if it is
/// being removed.
pub fn as_volume(object: CustomResource) -> Result<Box<PoolVolume>, Error> {
    match object {
        CustomResource::Volume(volume) if !volume.spec.deletion_requested => Ok(volume),
        CustomResource::Volume(volume) => Err(Error::Deleting {
            name: volume.name_any(),
        }),
        CustomResource::Snapshot(snapshot) => Err(Error::HasImage {
            name: snapshot.name_any(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, cluster};

    fn known(cluster: &Cluster) -> OwnerIndex {
        let mut owners = Owners::default();
        for volume in cluster.persistent_volumes.values() {
            owners.add_volume(volume);
        }
        OwnerIndex {
            volumes: Ok(owners),
            snapshots: Err(OwnersUnknown::NotInstalled {
                owner: PoolSnapshot::OWNER,
            }),
        }
    }

    #[test]
    fn an_unclaimed_object_is_listed_with_an_action_after_the_grace_period() {
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
    fn an_object_that_is_claimed_or_has_an_unknown_owner_is_refused() {
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
        assert!(matches!(refused("snap-1"), Error::OwnerUnknown { .. }));
        let unread = OwnerIndex {
            volumes: Err(OwnersUnknown::Denied {
                what: "cannot list persistentvolumes".to_owned(),
            }),
            snapshots: Err(OwnersUnknown::NotInstalled {
                owner: PoolSnapshot::OWNER,
            }),
        };
        let refused = unread.choose(&cluster, "pvc-2", &all).unwrap_err();
        assert!(matches!(refused, Error::OwnerUnknown { .. }));
        assert!(unread.unclaimed(&cluster, &all, at(900)).is_empty());
    }
}
