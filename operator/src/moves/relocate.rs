//! Carries out a move whose data is copied: reads what `actions` decides from, and writes what it decides.
//!
//! *Invariant:* what a decision rests on is read from the API server, not from a cache, and each write names the
//! version that was read.

use std::time::Duration;

use cistern_client::writes::{delete_exactly, patch_guarded};
use cistern_crds::{
    Explanation, HasImage as _, MovePlan, MoveTarget, PoolReplica, PoolReplicaSpec, PoolVolume,
    Reason, ReplicaPurpose, VolumeMove, names,
};
use kube::Api;
use serde_json::json;

use super::{
    Error,
    actions::{self, Action, Seen, room_for},
    advance::{AT_ONCE, Move, WAIT},
    passes, removal,
    steps::Step,
    together::Companion,
    users::Eviction,
    volume,
};
use crate::controller::Next;

/// The replicas of a move.
struct Replicas {
    retained: Option<PoolReplica>,
    incoming: Option<PoolReplica>,
}

impl Replicas {
    const fn of(&self, purpose: ReplicaPurpose) -> Option<&PoolReplica> {
        match purpose {
            ReplicaPurpose::Retained => self.retained.as_ref(),
            ReplicaPurpose::Incoming => self.incoming.as_ref(),
        }
    }
}

impl Move<'_> {
    /// Takes the next step of a move whose data is copied. `follow` is the next step with the PersistentVolume.
    pub(super) async fn relocate(&self, plan: &MovePlan, follow: Step) -> Result<Next, Error> {
        let (replicas, users) = (self.replicas(plan).await?, self.users().await?);
        let companions = self.companions(plan).await?;
        let snapshots = self.snapshots().await?;
        let (lost, unavailable) = (self.is_lost(plan), self.unavailable(plan));
        let disk_at = self.disk_at(plan);
        let action = actions::next(&Seen {
            object: &self.object,
            plan,
            volume: self.volume.as_ref(),
            retained: replicas.retained.as_ref(),
            incoming: replicas.incoming.as_ref(),
            snapshots: [snapshots[0].as_ref(), snapshots[1].as_ref()],
            is_fragmented: self.is_fragmented(),
            users: &users,
            companions: &companions,
            lost: lost.as_deref(),
            unavailable: unavailable.as_deref(),
            disk_at: disk_at.as_deref(),
            source: self.source(plan, replicas.retained.as_ref()).await?,
            is_claimed: self.is_claimed().await?,
            is_to_follow: follow != Step::End,
            now: (self.context.now)(),
        });
        tracing::debug!(volume = self.name(), ?action, "moving");
        self.carry_out(action, plan, &replicas, follow).await
    }

    /// Carries out what was decided.
    async fn carry_out(
        &self,
        action: Action,
        plan: &MovePlan,
        replicas: &Replicas,
        follow: Step,
    ) -> Result<Next, Error> {
        match action {
            Action::Follow => return self.take(follow).await,
            Action::Wait(why) => return self.wait(why).await,
            Action::Rest(message) => return self.rest(message).await,
            Action::End => return self.end().await,
            Action::CutOver(pods) => {
                if let Some(why) = self.evict(&pods, Eviction::DryRun).await? {
                    return self.wait(why).await;
                }
                self.write_volume(plan, &Action::Declare).await?;
            }
            Action::Evict(pods) => {
                if let Some(why) = self.evict(&pods, Eviction::Real).await? {
                    return self.wait(why).await;
                }
                return Ok(Next::After(WAIT));
            }
            Action::Record(passes) => self.write_status("update", passes.change()).await?,
            Action::RecordPromotion(taken) => {
                let (volume, to) = (self.name(), &plan.to_node);
                tracing::warn!(volume, to, %taken, "promoting the standby copy");
                let promoted = json!({"promoted": taken});
                self.write_status("update", promoted).await?;
            }
            Action::GiveUp => self.give_up().await?,
            Action::KeepCopy => {
                let kept = json!({"copyKept": true});
                self.write_status("update", kept).await?;
            }
            Action::TakeSnapshot => self.take_snapshot().await?,
            Action::RemoveSnapshot(name) => self.remove_snapshot(&name).await?,
            Action::ReleaseSnapshot(name) => {
                if let Some(why) = self.release_snapshot(&name).await? {
                    return self.wait(why).await;
                }
            }
            Action::DeletePods(pods) => self.delete_pods(&pods).await?,
            Action::Create(purpose) => self.create_replica(plan, purpose).await?,
            Action::Grow(purpose) => self.grow_replica(replicas.of(purpose)).await?,
            Action::Remove(purpose) => self.remove_image(replicas.of(purpose)).await?,
            Action::Release(purpose) => {
                let replica = replicas.of(purpose);
                if let Some(why) = replica.and_then(removal::held) {
                    return self.wait(why).await;
                }
                self.release(replica).await?;
            }
            action @ (Action::Declare | Action::Cancel | Action::Undo | Action::Commit) => {
                self.write_volume(plan, &action).await?;
            }
        }
        Ok(Next::After(AT_ONCE))
    }

    /// Reports why the move waits.
    async fn wait(&self, why: Explanation) -> Result<Next, Error> {
        let is_arrived = why.reason == Reason::OldImageKept;
        if self.report(why).await? && is_arrived {
            self.announce().await?;
        }
        Ok(Next::After(self.until_due().unwrap_or(WAIT).min(WAIT)))
    }

    /// Reports that a standby copy is as new as it is to be.
    async fn rest(&self, message: String) -> Result<Next, Error> {
        self.report_ready(message).await?;
        Ok(Next::After(self.until_due().unwrap_or(WAIT)))
    }

    /// How long until the next pass begins. None while a pass goes on, and once the next one is due.
    fn until_due(&self) -> Option<Duration> {
        let due = passes::next_look(&self.object, self.volume.as_ref()?)?;
        (due - (self.context.now)()).to_std().ok()
    }

    /// Whether the volume has a PersistentVolume. All are listed only if there is no PoolVolume, and the cache shows
    /// none either.
    async fn is_claimed(&self) -> Result<bool, Error> {
        if self.volume.is_some() || self.persistent_volume.is_some() {
            return Ok(true);
        }
        let found = volume::is_claimed(self.context, &self.object.spec.volume_name).await;
        found.map_err(|error| self.failed_with("list", "the PersistentVolumes", error))
    }

    /// Deletes the VolumeMove, whose finalizer stays until its end.
    async fn give_up(&self) -> Result<(), Error> {
        let deleted = delete_exactly(&self.moves(), &self.object).await;
        let object = format!("VolumeMove {}", self.name());
        deleted.map_err(|error| self.failed_with("delete", &object, error))?;
        tracing::info!(
            volume = self.name(),
            "deleted the VolumeMove, because the deletion of its volume is requested"
        );
        Ok(())
    }

    /// Changes the location of the volume. The schema has the last word.
    async fn write_volume(&self, plan: &MovePlan, action: &Action) -> Result<(), Error> {
        let Some(volume) = &self.volume else {
            return Ok(());
        };
        let move_uid = self.object.move_uid();
        let next = volume.spec.epoch.saturating_add(1);
        let (what, change) = match action {
            Action::Declare => {
                let node_name = plan.to_node.clone();
                let target = MoveTarget {
                    node_name,
                    move_uid,
                };
                (
                    "declared the node that it moves to",
                    json!({"target": target}),
                )
            }
            Action::Cancel => ("gave up its move", json!({"cancelledMoveUID": move_uid})),
            Action::Undo => {
                let cancelled = volume.spec.target.as_ref().map(|it| &it.move_uid);
                (
                    "undid its move",
                    json!({"target": null, "cancelledMoveUID": cancelled, "epoch": next}),
                )
            }
            _ => {
                // The volume is in the pool of the new node from now on.
                let takeovers = self.takeovers_on(&plan.to_node);
                let change = json!({
                    "nodeName": plan.to_node, "target": null, "epoch": next,
                    "takeovers": takeovers.unwrap_or_default(),
                    "promotedMoveUID": self.object.is_promoted().then_some(move_uid),
                });
                ("moved it to another node", change)
            }
        };
        let api = Api::<PoolVolume>::all(self.context.client.clone());
        let change = json!({"spec": change});
        let written = patch_guarded(&api, volume, names::OPERATOR_MANAGER, change).await;
        written.map_err(|error| self.failed_with("update", "the PoolVolume", error))?;
        let (from, to) = (&plan.from_node, &plan.to_node);
        tracing::info!(volume = self.name(), from, to, "{what}");
        Ok(())
    }

    /// Whether the volume has half of the extents with which a snapshot of it is refused.
    fn is_fragmented(&self) -> bool {
        let Some(volume) = &self.volume else {
            return false;
        };
        let pool = self.context.cluster.pool(&volume.spec.pool_name);
        let pool = pool.as_deref().and_then(|guard| guard.0.as_ref().ok());
        let extents = volume.status.as_ref().and_then(|it| it.extents);
        extents
            .zip(pool)
            .is_some_and(|(extents, pool)| extents > pool.spec.limits.maximum_extents / 2)
    }

    async fn replicas(&self, plan: &MovePlan) -> Result<Replicas, Error> {
        let volume = self.name();
        Ok(Replicas {
            retained: self.replica(volume, plan.epoch.saturating_sub(1)).await?,
            incoming: self.replica(volume, plan.epoch).await?,
        })
    }

    async fn replica(&self, volume: &str, epoch: u32) -> Result<Option<PoolReplica>, Error> {
        let api = Api::<PoolReplica>::all(self.context.client.clone());
        let found = api.get_opt(&PoolReplica::name_of(volume, epoch)).await;
        found.map_err(|error| self.failed_with("get", "a PoolReplica", error))
    }

    /// The volumes that move together with this one. They matter until this one has moved.
    async fn companions(&self, plan: &MovePlan) -> Result<Vec<Companion>, Error> {
        let is_before = self
            .volume
            .as_ref()
            .is_some_and(|it| it.spec.epoch < plan.epoch);
        let mut companions = Vec::new();
        for name in plan.together_with.iter().filter(|_| is_before) {
            let failed = |error| self.failed_with("get", "a volume that moves with it", error);
            let volumes = Api::<PoolVolume>::all(self.context.client.clone());
            let volume = volumes.get_opt(name).await.map_err(failed)?;
            let object = self.moves().get_opt(name).await.map_err(failed)?;
            let mut replicas = [None, None];
            if let Some(its_plan) = object.as_ref().and_then(VolumeMove::plan) {
                let epoch = its_plan.epoch;
                replicas = [
                    self.replica(name, epoch.saturating_sub(1)).await?,
                    self.replica(name, epoch).await?,
                ];
            }
            let replicas = [replicas[0].as_ref(), replicas[1].as_ref()];
            let (object, volume) = (object.as_ref(), volume.as_ref());
            companions.push(Companion::of(name, plan, object, volume, replicas));
        }
        Ok(companions)
    }

    async fn create_replica(&self, plan: &MovePlan, purpose: ReplicaPurpose) -> Result<(), Error> {
        let Some(volume) = &self.volume else {
            return Ok(());
        };
        let Some(image) = volume.image().map(|image| image.uid.clone()) else {
            return Ok(());
        };
        let spec = &volume.spec;
        let (node_name, epoch) = match purpose {
            ReplicaPurpose::Retained => (plan.from_node.clone(), plan.epoch.saturating_sub(1)),
            ReplicaPurpose::Incoming => (plan.to_node.clone(), plan.epoch),
        };
        let replica = PoolReplica::desired(PoolReplicaSpec {
            volume_name: self.name().to_owned(),
            image,
            node_name,
            pool_name: spec.pool_name.clone(),
            epoch,
            purpose,
            move_uid: self.object.move_uid(),
            size: room_for(&self.object, volume, purpose),
            provisioning: volume.admitted_attributes().provisioning,
            extent_size: spec.extent_size,
            deletion_requested: false,
        });
        self.create(&replica, "a PoolReplica").await
    }

    /// Raises the size of a replica to what the volume needs now.
    async fn grow_replica(&self, replica: Option<&PoolReplica>) -> Result<(), Error> {
        let (Some(replica), Some(volume)) = (replica, &self.volume) else {
            return Ok(());
        };
        let size = room_for(&self.object, volume, replica.spec.purpose);
        let change = json!({"spec": {"size": size}});
        let api = Api::<PoolReplica>::all(self.context.client.clone());
        let written = patch_guarded(&api, replica, names::OPERATOR_MANAGER, change).await;
        let failed = |error| self.failed_with("update", "a PoolReplica", error);
        written.map(drop).map_err(failed)
    }

    /// Requests that the agent removes the image of a replica.
    async fn remove_image(&self, replica: Option<&PoolReplica>) -> Result<(), Error> {
        let Some(replica) = replica else {
            return Ok(());
        };
        let requested = removal::request(self.context, replica).await;
        requested.map_err(|error| self.failed_with("update", "a PoolReplica", error))?;
        if replica.spec.purpose == ReplicaPurpose::Retained {
            self.announce().await?;
        }
        Ok(())
    }

    /// Removes a replica. Its image is gone, or the volume's own.
    async fn release(&self, replica: Option<&PoolReplica>) -> Result<(), Error> {
        let Some(replica) = replica else {
            return Ok(());
        };
        let released = removal::release(self.context, replica).await;
        released.map_err(|error| self.failed_with("delete", "a PoolReplica", error))
    }
}
