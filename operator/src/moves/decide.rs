//! Decides where a volume moves, before anything is changed.

use std::{collections::BTreeSet, time::Duration};

use cistern_client::writes::patch_guarded;
use cistern_crds::{
    Explanation, MovePlan, PoolVolume, Reason, names, unclaimed::Owner,
    volume_move::MAXIMUM_TOGETHER,
};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use super::{Error, abandoned, actions::is_movable, advance::Move};
use crate::{controller::Next, pods::claims_beside};

/// When to look again at a volume that cannot move yet.
const WAIT: Duration = Duration::from_secs(5);
/// After the decision.
const AT_ONCE: Duration = Duration::from_millis(10);

impl Move<'_> {
    /// Decides where the volume moves, or reports why it cannot.
    pub(super) async fn decide(&self) -> Result<Next, Error> {
        if self.object.metadata.deletion_timestamp.is_some() {
            return self.end().await;
        }
        // It has a VolumeMove of its own for that.
        if let Some(node) = self.disk_is_taken_over() {
            let volume = self.name();
            tracing::info!(
                volume,
                node,
                "gave up the move, because the volume follows its disk"
            );
            return self.end().await;
        }
        if !self
            .object
            .finalizers()
            .iter()
            .any(|it| it == names::FINALIZER)
        {
            let finalizers = [self.object.finalizers(), &[names::FINALIZER.to_owned()]].concat();
            let change = json!({"metadata": {"finalizers": finalizers}});
            let api = self.moves();
            let written = patch_guarded(&api, &self.object, names::OPERATOR_MANAGER, change).await;
            written.map_err(|error| self.failed_with("update", "the VolumeMove", error))?;
            return Ok(Next::After(AT_ONCE));
        }
        // What an earlier move has left takes the room that this one needs.
        if let Next::After(pause) = abandoned::undo(self.context, self.name()).await? {
            let message = "what an earlier move of the volume has left is removed first";
            self.report(Explanation::new(Reason::RemovingImage, message))
                .await?;
            return Ok(Next::After(pause));
        }
        match self.plan().await? {
            Ok(plan) => {
                let (from, to) = (&plan.from_node, &plan.to_node);
                tracing::info!(volume = self.name(), from, to, "planned the move");
                self.write_status("update", json!({"plan": plan})).await?;
                Ok(Next::After(AT_ONCE))
            }
            Err(why) => {
                self.report(why).await?;
                Ok(Next::After(WAIT))
            }
        }
    }

    async fn plan(&self) -> Result<Result<MovePlan, Explanation>, Error> {
        let Some(volume) = &self.volume else {
            let message = format!("there is no PoolVolume {}", self.name());
            return Ok(Err(Explanation::new(Reason::NotMovable, message)));
        };
        if let Err(why) = is_movable(volume) {
            return Ok(Err(why));
        }
        let pods = self.pods_of_namespace().await?;
        let together_with = self.together_with(volume, &pods).await?;
        if together_with.len() > MAXIMUM_TOGETHER as usize {
            let message =
                format!("more than {MAXIMUM_TOGETHER} other volumes would have to move with it");
            return Ok(Err(Explanation::new(Reason::NotMovable, message)));
        }
        let to_node = self.to_node(volume, &together_with, pods).await?;
        Ok(to_node.map(|to_node| MovePlan {
            from_node: volume.spec.node_name.clone(),
            to_node,
            epoch: volume.spec.epoch.saturating_add(1),
            together_with,
        }))
    }

    /// The volumes of the same node that pods use together with this one, directly or through others, and those that
    /// the spec names.
    async fn together_with(&self, volume: &PoolVolume, pods: &[Pod]) -> Result<Vec<String>, Error> {
        let mut names: BTreeSet<String> = self.object.spec.together_with.iter().cloned().collect();
        let own = self.claim().and_then(|claim| claim.name.clone());
        let mut linked: BTreeSet<String> = own.into_iter().collect();
        let mut seen = linked.clone();
        loop {
            let beside = claims_beside(pods, &linked);
            let more: Vec<String> = beside.difference(&seen).cloned().collect();
            if more.is_empty() {
                break;
            }
            for claim in more {
                // A claim of another driver, or of another node, links no volumes.
                if let Some(name) = self.volume_on(&volume.spec.node_name, &claim).await? {
                    names.insert(name);
                    linked.insert(claim.clone());
                }
                seen.insert(claim);
            }
        }
        names.remove(self.name());
        Ok(names.into_iter().collect())
    }

    /// Name of the volume of a claim in the namespace of the own one. None if it is not on the node.
    async fn volume_on(&self, node: &str, claim: &str) -> Result<Option<String>, Error> {
        let namespace = self.claim().and_then(|own| own.namespace.as_deref());
        let client = self.context.client.clone();
        let api = Api::<PersistentVolumeClaim>::namespaced(client, namespace.unwrap_or_default());
        let found = api.get_opt(claim).await;
        let found = found.map_err(|error| self.failed_with("get", "a claim", error))?;
        let bound = found.and_then(|claim| claim.spec?.volume_name);
        let owner = bound.and_then(|name| self.context.cluster.volume_owners.get(&name));
        let Some(Owner::Handle(handle)) = owner.as_deref() else {
            return Ok(None);
        };
        let volume = self.pool_volume(handle).await?;
        let is_there = |it: &PoolVolume| it.spec.node_name == node;
        Ok(volume.filter(is_there).map(|it| it.name_any()))
    }

    pub(super) async fn pool_volume(&self, name: &str) -> Result<Option<PoolVolume>, Error> {
        let api = Api::<PoolVolume>::all(self.context.client.clone());
        let found = api.get_opt(name).await;
        found.map_err(|error| self.failed_with("get", "a volume that moves with it", error))
    }
}
