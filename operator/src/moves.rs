//! Runs VolumeMoves: moves, standby copies and promotions. At the end the PersistentVolume follows: its node affinity
//! names the new node.
//!
//! ```text
//! VolumeMove ─▶ the PoolVolume names the new node
//!   ─▶ the affinity can be changed (MutablePVNodeAffinity): patched
//!   ─▶ else: saved in the VolumeMove ─▶ Retain, annotation ─▶ deleted ─▶ finalizers removed ─▶ created again
//!     ─▶ bound ─▶ its claim is changed, so that kube-controller-manager looks at it
//!   ─▶ the VolumeMove is deleted
//! ```
//!
//! What is found decides the next step (`steps`), so an operator that ends in between is continued by the
//! next one. `docs/design-moving.md` has the reasons, and the crate `model` checks them.
//!
//! *Invariants:* the PersistentVolume is saved in the API server before it is deleted, and a VolumeMove with
//! a saved one is not deleted before it exists again. It keeps its name, its claim with the claim's UID, and
//! its reclaim policy: while it is `Retain`, its deletion deletes no data. It is not deleted while a pod that
//! uses it is bound to another node that exists.

mod abandoned;
mod actions;
mod advance;
mod decide;
mod destination;
mod nodes;
mod passes;
mod pods;
mod relocate;
mod removal;
mod replacement;
mod scheduling;
mod snapshots;
mod steps;
mod target;
#[cfg(test)]
mod testing;
mod together;
mod users;
mod volume;

use cistern_client::{Rejection, writes::patch_guarded};
use cistern_crds::{MoveTakeover, PoolVolume, VolumeMove, VolumeMoveSpec, names};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use self::advance::Move;
use crate::{
    Context,
    change::Change,
    cluster_state::ClusterState,
    controller::{Controller, Next},
    creation, events, taken_over,
};

/// Why a move does not advance.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused a request.
    #[error("cannot {verb} {object}, for the move of volume {volume}")]
    Api {
        /// The attempted action, as a verb.
        verb: &'static str,
        /// Kind and name.
        object: String,
        /// Name of the PoolVolume.
        volume: String,
        /// The error of the API server or of the connection.
        #[source]
        source: kube::Error,
    },
    /// The API server refused an event.
    #[error(transparent)]
    Event(#[from] events::Error),
}

/// Lets PersistentVolumes follow their volumes.
#[derive(Debug)]
pub struct MovesController;

impl Controller for MovesController {
    type Key = String;
    type Error = Error;
    const NAME: &'static str = "moves";

    fn keys(&self, context: &Context, change: &Change) -> Vec<String> {
        concerned(&context.cluster, change)
    }

    async fn reconcile(&self, context: &Context, name: &String) -> Result<Next, Error> {
        match Move::read(context, name).await? {
            Some(it) => it.advance().await,
            None => abandoned::undo(context, name).await,
        }
    }
}

/// The volumes whose moves a change concerns.
fn concerned(cluster: &ClusterState, change: &Change) -> Vec<String> {
    let (moves, volumes) = (&cluster.moves, &cluster.volumes);
    let is_moving = |name: &str| volumes.get(name).is_some_and(|it| it.moves.is_some());
    match change {
        Change::Everything => {
            let mut names = moves.keys(|_| true);
            names.extend(volumes.keys(|volume| volume.moves.is_some()));
            // Its VolumeMove may be gone.
            let left = cluster.snapshots.filter(|it| it.of_move.is_some());
            let left = left.iter().flat_map(|it| &it.of_move);
            names.extend(left.map(|it| it.volume.to_string()));
            names
        }
        Change::Move(name) => together(cluster, name),
        // Volumes follow their disk, and their moves are given up before that.
        Change::StorageNode(node) if taken_over::has_taken_over(cluster, node) => {
            moves.keys(|it| it.spec.takeover.is_none())
        }
        Change::Volume { name, .. }
        | Change::Replica(name)
        | Change::Snapshot {
            moves: Some(name), ..
        } if moves.contains(name) || is_moving(name) => together(cluster, name),
        // Nothing else asks for what is left of a volume that is gone.
        Change::Replica(name) if !volumes.contains(name) => vec![name.clone()],
        _ => Vec::new(),
    }
}

/// A volume that moves, and those that move together with it: each waits for the others.
fn together(cluster: &ClusterState, name: &str) -> Vec<String> {
    let found = cluster.moves.get(name);
    let plan = found.and_then(|found| found.plan());
    let mut names = plan.map_or_else(Vec::new, |plan| plan.together_with);
    names.push(name.to_owned());
    names
}

/// Creates the VolumeMove of a volume that is about to name `node`, which has its disk. One for another takeover is
/// changed: the node of the volume decides where its PersistentVolume goes. Returns false while the volume still
/// moves otherwise. Fails if the API server refuses it.
pub async fn begin(context: &Context, volume: &PoolVolume, node: &str) -> Result<bool, Error> {
    let api = Api::<VolumeMove>::all(context.client.clone());
    let name = volume.name_any();
    let spec = VolumeMoveSpec {
        volume_name: name.clone(),
        to_node: Some(node.to_owned()),
        takeover: Some(MoveTakeover {
            from_node: volume.spec.node_name.clone(),
            epoch: volume.spec.epoch.saturating_add(1),
        }),
        ..VolumeMoveSpec::default()
    };
    let failed = |verb, source| Error::Api {
        verb,
        object: format!("VolumeMove {name}"),
        volume: name.clone(),
        source,
    };
    let mut object = VolumeMove::new(&name, spec.clone());
    object.metadata.finalizers = Some(vec![names::FINALIZER.to_owned()]);
    match api.create(&creation::parameters(), &object).await {
        Ok(_) => Ok(true),
        Err(error) if Rejection::from(&error) == Rejection::AlreadyExists => {
            let found = api.get(&name).await.map_err(|it| failed("get", it))?;
            if found.spec == spec || found.spec.takeover.is_none() {
                return Ok(found.spec == spec);
            }
            let change = json!({"spec": spec});
            let written = patch_guarded(&api, &found, names::OPERATOR_MANAGER, change).await;
            written.map_err(|it| failed("update", it))?;
            Ok(true)
        }
        Err(error) => Err(failed("create", error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Writer;

    #[test]
    fn a_move_goes_on_when_an_object_changes_that_it_or_a_volume_with_the_same_pods_needs() {
        let cluster = ClusterState::unwatched();
        let mut object = testing::Case::decided().object;
        let plan = object.status.as_mut().and_then(|it| it.plan.as_mut());
        plan.unwrap().together_with = vec!["pvc-2".to_owned()];
        Writer::new(&cluster.moves).replace("pvc-1", Some(object));
        let location = || ("fast".to_owned(), "w1".to_owned());
        let volume = |name: &str| Change::Volume {
            name: name.to_owned(),
            pool: location().0,
            node: location().1,
        };
        let snapshot = |moves: Option<&str>| Change::Snapshot {
            name: "snap-1".to_owned(),
            pool: location().0,
            node: location().1,
            moves: moves.map(ToOwned::to_owned),
        };
        let concerned = |change| concerned(&cluster, &change);
        for change in [
            Change::Move("pvc-1".to_owned()),
            Change::Replica("pvc-1".to_owned()),
            volume("pvc-1"),
            snapshot(Some("pvc-1")),
        ] {
            assert_eq!(concerned(change.clone()), ["pvc-2", "pvc-1"], "{change:?}");
        }
        for change in [
            Change::StorageNode("w1".to_owned()),
            volume("pvc-3"),
            snapshot(None),
        ] {
            assert!(concerned(change.clone()).is_empty(), "{change:?}");
        }
        let left = Change::Replica("pvc-3".to_owned());
        assert_eq!(concerned(left), ["pvc-3"], "its volume is gone");
    }
}
