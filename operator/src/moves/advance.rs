//! Reads a move and takes its next step.

use std::{fmt::Debug, time::Duration};

use cistern_client::{Rejection, writes::patch_status_guarded};
use cistern_crds::{
    ConditionType, EventReason, Explanation, MovePlan, PoolVolume, Reason, VolumeMove,
    condition::{self, ConditionUpdate},
    names, time,
};
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume};
use kube::{Api, Resource};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{Error, removal, volume};
use crate::{
    Context,
    controller::Next,
    creation,
    events::{EventContent, publish_once},
};

/// When to look again at a move that waits for pods, or for an object whose change was not seen.
pub(super) const WAIT: Duration = Duration::from_secs(5);
/// Between two steps.
pub(super) const AT_ONCE: Duration = Duration::from_millis(10);
/// Action of the event at the end of a move.
const ACTION: &str = "Moving";

/// A move, with what the API server has of it.
pub(super) struct Move<'a> {
    pub(super) context: &'a Context,
    pub(super) object: VolumeMove,
    pub(super) volume: Option<PoolVolume>,
    pub(super) persistent_volume: Option<PersistentVolume>,
}

impl<'a> Move<'a> {
    /// Reads a move; None if there is none.
    pub(super) async fn read(context: &'a Context, name: &str) -> Result<Option<Self>, Error> {
        let failed = |object: &str| {
            let object = object.to_owned();
            move |source| Error::Api {
                verb: "get",
                object,
                volume: name.to_owned(),
                source,
            }
        };
        let client = &context.client;
        let moves = Api::<VolumeMove>::all(client.clone());
        let Some(object) = moves
            .get_opt(name)
            .await
            .map_err(failed("its VolumeMove"))?
        else {
            return Ok(None);
        };
        let volumes = Api::<PoolVolume>::all(client.clone());
        let volume = volumes.get_opt(&object.spec.volume_name);
        let volume = volume.await.map_err(failed("the PoolVolume"))?;
        let persistent_volumes = Api::<PersistentVolume>::all(client.clone());
        let persistent_volume = match volume::name(context, &object) {
            Some(name) => persistent_volumes.get_opt(&name).await,
            None => Ok(None),
        };
        let persistent_volume = persistent_volume.map_err(failed("its PersistentVolume"))?;
        Ok(Some(Self {
            context,
            object,
            volume,
            persistent_volume,
        }))
    }

    /// Takes the next step.
    pub(super) async fn advance(&self) -> Result<Next, Error> {
        let Some(plan) = self.object.plan() else {
            return self.decide().await;
        };
        let step = self.next_step(&plan).await?;
        if self.is_takeover() {
            return self.take(step).await;
        }
        Box::pin(self.relocate(&plan, step)).await
    }

    /// Writes why the move waits. Returns whether that is new.
    pub(super) async fn report(&self, why: Explanation) -> Result<bool, Error> {
        self.write_ready(false, why).await
    }

    /// Writes that a standby copy is as new as it is to be.
    pub(super) async fn report_ready(&self, message: String) -> Result<(), Error> {
        let why = Explanation::new(Reason::Standby, message);
        self.write_ready(true, why).await.map(drop)
    }

    async fn write_ready(&self, is_ready: bool, why: Explanation) -> Result<bool, Error> {
        let before = self.object.status.clone().unwrap_or_default();
        let mut conditions = before.conditions.clone();
        let update = ConditionUpdate::new(ConditionType::Ready, is_ready, why.reason, why.message);
        let generation = self.object.metadata.generation;
        condition::set(&mut conditions, &update, generation, (self.context.now)());
        let plan = self.object.plan();
        if conditions == before.conditions && plan == before.plan {
            return Ok(false);
        }
        let change = json!({"conditions": conditions, "plan": plan});
        self.write_status("update", change).await?;
        Ok(true)
    }

    /// Writes a part of the status of the VolumeMove.
    pub(super) async fn write_status(
        &self,
        verb: &'static str,
        change: Value,
    ) -> Result<(), Error> {
        let (api, manager) = (self.moves(), names::OPERATOR_MANAGER);
        let written = patch_status_guarded(&api, &self.object, manager, change).await;
        let object = format!("VolumeMove {}", self.name());
        written
            .map(drop)
            .map_err(|error| self.failed_with(verb, &object, error))
    }

    /// Creates an object, unless it exists. `what` is what messages call it.
    pub(super) async fn create<K>(&self, object: &K, what: &str) -> Result<(), Error>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize,
    {
        let api = Api::<K>::all(self.context.client.clone());
        match api.create(&creation::parameters(), object).await {
            Err(error) if Rejection::from(&error) == Rejection::AlreadyExists => Ok(()),
            created => created
                .map(drop)
                .map_err(|error| self.failed_with("create", what, error)),
        }
    }

    /// Reports on the claim that the volume is on another node.
    pub(super) async fn announce(&self) -> Result<(), Error> {
        let (Some(volume), Some(claim), Some(plan)) =
            (&self.volume, self.claim(), self.object.plan())
        else {
            return Ok(());
        };
        let node = &volume.spec.node_name;
        if volume.spec.epoch < plan.epoch || *node != plan.to_node {
            return Ok(());
        }
        let status = self.object.status.as_ref();
        let how = match status.and_then(|status| status.promoted) {
            _ if self.is_takeover() => ", with its disk".to_owned(),
            Some(taken) => format!(
                ", as of {}: what was written to it after that is lost",
                taken.format(time::FORMAT)
            ),
            None => String::new(),
        };
        let body = EventContent {
            is_warning: false,
            reason: EventReason::VolumeMoved,
            action: ACTION,
            note: format!("volume {} is on node {node} now{how}", self.name()),
            key: volume.spec.epoch.to_string(),
        };
        publish_once(self.context, claim, &body).await?;
        Ok(())
    }

    /// Reports that the volume has moved, and removes the VolumeMove.
    pub(super) async fn end(&self) -> Result<Next, Error> {
        self.announce().await?;
        let ended = removal::release(self.context, &self.object).await;
        let object = format!("VolumeMove {}", self.name());
        ended.map_err(|error| self.failed_with("delete", &object, error))?;
        Ok(Next::OnChange)
    }

    /// Names of the pods that use the volume and are bound to another node that exists. They are listed only
    /// while the PersistentVolume names another node. If the volume was closed, a pod that has not started cannot
    /// get it, and is not in the way.
    pub(super) async fn pods_elsewhere(&self) -> Result<Vec<String>, Error> {
        let Some(volume) = &self.volume else {
            return Ok(Vec::new());
        };
        let bound_to = self.persistent_volume.as_ref().and_then(volume::node_of);
        if bound_to == Some(&names::topology_value(&volume.spec.node_name)) {
            return Ok(Vec::new());
        }
        let elsewhere = self.users().await?.into_iter().filter(|pod| {
            let exists = |node: &&str| self.context.cluster.node(node).is_some();
            let node = pod.node.as_deref().filter(exists);
            node.is_some_and(|node| node != volume.spec.node_name)
                && (pod.has_started || self.is_takeover())
        });
        Ok(elsewhere.map(|pod| pod.to_string()).collect())
    }

    /// Whether the takeover that the move is for stays granted, so that the volume may still follow.
    pub(super) fn is_granted(&self, plan: &MovePlan) -> bool {
        let node = self.context.cluster.storage_node(&plan.to_node);
        let pools = node.iter().filter_map(|guard| guard.0.as_ref().ok());
        let mut pools = pools.flat_map(|node| &node.spec.pools);
        pools.any(|pool| pool.take_over.is_some())
    }

    /// Whether the volume follows its disk, so that no data is copied.
    fn is_takeover(&self) -> bool {
        self.object.spec.takeover.is_some()
    }

    pub(super) fn claim(&self) -> Option<&ObjectReference> {
        let spec = self.persistent_volume.as_ref()?.spec.as_ref()?;
        spec.claim_ref.as_ref()
    }

    pub(super) fn moves(&self) -> Api<VolumeMove> {
        Api::all(self.context.client.clone())
    }

    pub(super) fn name(&self) -> &str {
        &self.object.spec.volume_name
    }

    pub(super) fn failed_with(
        &self,
        verb: &'static str,
        object: &str,
        source: kube::Error,
    ) -> Error {
        Error::Api {
            verb,
            object: object.to_owned(),
            volume: self.name().to_owned(),
            source,
        }
    }
}
