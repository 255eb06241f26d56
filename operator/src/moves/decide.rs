//! Decides where a volume moves, before anything is changed.

use std::{collections::BTreeSet, time::Duration};

use cistern_client::writes::patch_guarded;
use cistern_crds::{
    Explanation, MovePlan, PoolVolume, Reason, VolumeMove, names, unclaimed::Owner,
    volume_move::MAXIMUM_TOGETHER,
};
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use super::{Error, abandoned, actions::is_movable, advance::Move, target};
use crate::controller::Next;

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
                tracing::info!(volume = self.name(), from, to, "the volume is to move");
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
        let together_with = self.together_with(volume).await?;
        if together_with.len() > MAXIMUM_TOGETHER as usize {
            let message =
                format!("more than {MAXIMUM_TOGETHER} other volumes would have to move with it");
            return Ok(Err(Explanation::new(Reason::NotMovable, message)));
        }
        let to_node = self.to_node(volume, &together_with).await?;
        Ok(to_node.map(|to_node| MovePlan {
            from_node: volume.spec.node_name.clone(),
            to_node,
            epoch: volume.spec.epoch.saturating_add(1),
            together_with,
        }))
    }

    /// The volumes of the same node that pods use together with this one, and those that the spec names.
    async fn together_with(&self, volume: &PoolVolume) -> Result<Vec<String>, Error> {
        let mut names: BTreeSet<String> = self.object.spec.together_with.iter().cloned().collect();
        for pod in self.pods().await? {
            for handle in self.handles(&pod).await? {
                let other = self.pool_volume(&handle).await?;
                if other.is_some_and(|it| it.spec.node_name == volume.spec.node_name) {
                    names.insert(handle);
                }
            }
        }
        names.remove(self.name());
        Ok(names.into_iter().collect())
    }

    /// The volumes of this driver that a pod uses.
    async fn handles(&self, pod: &Pod) -> Result<Vec<String>, Error> {
        let namespace = pod.namespace().unwrap_or_default();
        let api = Api::<PersistentVolumeClaim>::namespaced(self.context.client.clone(), &namespace);
        let mut handles = Vec::new();
        for claim in crate::pods::claims(pod) {
            let found = api.get_opt(&claim).await;
            let found = found.map_err(|error| self.failed_with("get", "a claim", error))?;
            let bound = found.and_then(|claim| claim.spec?.volume_name);
            let owner = bound.and_then(|name| self.context.cluster.volume_owners.get(&name));
            if let Some(Owner::Handle(handle)) = owner.as_deref() {
                handles.push(handle.to_string());
            }
        }
        Ok(handles)
    }

    /// The node for the volume. Of the volumes that move together, the one whose name is first decides for all.
    async fn to_node(
        &self,
        volume: &PoolVolume,
        together_with: &[String],
    ) -> Result<Result<String, Explanation>, Error> {
        let mut volumes = vec![volume.clone()];
        for name in together_with {
            volumes.extend(self.pool_volume(name).await?);
        }
        if let Err(why) = target::are_movable(&self.context.cluster, &volumes) {
            return Ok(Err(why));
        }
        if let Some(node) = &self.object.spec.to_node {
            let taken = target::takes(&self.context.cluster, node, &volumes);
            return Ok(taken.map(|_| node.clone()));
        }
        if let Some(first) = together_with
            .first()
            .filter(|first| first.as_str() < self.name())
        {
            let its_move = self.moves().get_opt(first).await;
            let its_move =
                its_move.map_err(|error| self.failed_with("get", "a VolumeMove", error))?;
            return Ok(its_move.as_ref().and_then(VolumeMove::plan).map_or_else(
                || {
                    let message = format!(
                        "pods use volume {first} together with this one, and it has no VolumeMove that names a node"
                    );
                    Err(Explanation::new(Reason::WaitingForOthers, message))
                },
                |plan| Ok(plan.to_node),
            ));
        }
        let candidates = match target::candidates(&self.context.cluster, &volumes) {
            Ok(candidates) => candidates,
            Err(why) => return Ok(Err(why)),
        };
        let api = Api::<Node>::all(self.context.client.clone());
        let mut closed = Vec::new();
        for name in candidates {
            let node = api.get_opt(&name).await;
            let node = node.map_err(|error| self.failed_with("get", "a Node", error))?;
            match node.map(|node| target::closed_to_pods(&node)) {
                Some(None) => return Ok(Ok(name)),
                Some(Some(why)) => closed.push(format!("node {name} {why}")),
                None => closed.push(format!("there is no Node {name}")),
            }
        }
        let message = format!(
            "pods cannot be scheduled on the nodes that could take the volume: {}; name one of them in spec.toNode to \
            move the volume there in spite of that",
            closed.join("; ")
        );
        Ok(Err(Explanation::new(Reason::NotMovable, message)))
    }

    async fn pool_volume(&self, name: &str) -> Result<Option<PoolVolume>, Error> {
        let api = Api::<PoolVolume>::all(self.context.client.clone());
        let found = api.get_opt(name).await;
        found.map_err(|error| self.failed_with("get", "a volume that moves with it", error))
    }
}
