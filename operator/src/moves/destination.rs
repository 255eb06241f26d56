//! Chooses the node that a volume moves to, before anything is changed.

use cistern_crds::{Explanation, PoolVolume, Reason, VolumeMove};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, Pod};
use kube::{Api, ResourceExt as _};

use super::{Error, advance::Move, scheduling::Workload, target, volume};

impl Move<'_> {
    /// The node for the volume. Of the volumes that move together, the one whose name is first decides for all.
    pub(super) async fn to_node(
        &self,
        volume: &PoolVolume,
        together_with: &[String],
        pods: Vec<Pod>,
    ) -> Result<Result<String, Explanation>, Error> {
        let mut volumes = vec![volume.clone()];
        for name in together_with {
            volumes.extend(self.pool_volume(name).await?);
        }
        if let Err(why) = target::are_movable(&self.context.cluster, &volumes) {
            return Ok(Err(why));
        }
        let workload = Box::pin(self.workload(&volumes, pods)).await?;
        if let Some(node) = &self.object.spec.to_node {
            return match target::takes(&self.context.cluster, node, &volumes) {
                Ok(_) => self.suitable(node, &workload).await,
                Err(why) => Ok(Err(why)),
            };
        }
        let first = together_with.first();
        if let Some(first) = first.filter(|first| first.as_str() < self.name()) {
            let its_move = self.moves().get_opt(first).await;
            let its_move =
                its_move.map_err(|error| self.failed_with("get", "a VolumeMove", error))?;
            let Some(plan) = its_move.as_ref().and_then(VolumeMove::plan) else {
                let message = format!(
                    "pods use volume {first} together with this one, and it has no VolumeMove that names a node"
                );
                return Ok(Err(Explanation::new(Reason::WaitingForOthers, message)));
            };
            return self.suitable(&plan.to_node, &workload).await;
        }
        self.choose(&volumes, &workload).await
    }

    /// The PersistentVolumes of volumes that move together, and the pods that use them. No pod of another namespace
    /// uses the volume of this move.
    async fn workload(&self, volumes: &[PoolVolume], pods: Vec<Pod>) -> Result<Workload, Error> {
        let api = Api::<PersistentVolume>::all(self.context.client.clone());
        let mut persistent_volumes = Vec::new();
        for volume in volumes {
            let Some(name) = volume::of_volume(self.context, &volume.name_any()) else {
                continue;
            };
            let found = api.get_opt(&name).await;
            let failed = |error| self.failed_with("get", "a PersistentVolume", error);
            persistent_volumes.extend(found.map_err(failed)?);
        }
        Ok(Workload::new(persistent_volumes, pods))
    }

    /// A node that is given. Fails with the requirement that it does not meet.
    async fn suitable(
        &self,
        name: &str,
        workload: &Workload,
    ) -> Result<Result<String, Explanation>, Error> {
        let node = self.node(name).await?;
        Ok(match refusal(name, node.as_ref(), workload) {
            None => Ok(name.to_owned()),
            Some(why) => Err(Explanation::new(Reason::NotMovable, why)),
        })
    }

    /// The node with the most room of those on which the pods can be scheduled.
    async fn choose(
        &self,
        volumes: &[PoolVolume],
        workload: &Workload,
    ) -> Result<Result<String, Explanation>, Error> {
        let candidates = match target::candidates(&self.context.cluster, volumes) {
            Ok(candidates) => candidates,
            Err(why) => return Ok(Err(why)),
        };
        let (mut refused, mut hint) = (Vec::new(), "");
        for name in candidates {
            let node = self.node(&name).await?;
            if let Some(why) = refusal(&name, node.as_ref(), workload) {
                refused.push(why);
            } else if let Some(why) = node.and_then(|node| workload.closed_on(&node)) {
                refused.push(format!("node {name} {why}"));
                hint = "; spec.toNode can name a node that is cordoned, not ready or tainted";
            } else {
                return Ok(Ok(name));
            }
        }
        let refused = refused.join("; ");
        let message = format!(
            "pods cannot be scheduled on the nodes that could take the volume: {refused}{hint}"
        );
        Ok(Err(Explanation::new(Reason::NotMovable, message)))
    }

    async fn node(&self, name: &str) -> Result<Option<Node>, Error> {
        let api = Api::<Node>::all(self.context.client.clone());
        let found = api.get_opt(name).await;
        found.map_err(|error| self.failed_with("get", "a Node", error))
    }
}

/// Why volumes cannot move to a node at all. None if they can.
fn refusal(name: &str, node: Option<&Node>, workload: &Workload) -> Option<String> {
    match node {
        Some(node) => workload
            .unmet_on(node)
            .map(|why| format!("node {name} {why}")),
        None => Some(format!("there is no Node {name}")),
    }
}
