//! Lets the PersistentVolume follow its volume: reads what `steps` decides from, and writes what it decides.

use std::time::Duration;

use chrono::TimeDelta;
use cistern_client::{
    Chain, Rejection,
    writes::{delete_exactly, patch_guarded},
};
use cistern_crds::{Explanation, MovePlan, Reason, names, time};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{Api, ResourceExt as _, api::PostParams};
use serde_json::{Value, json};

use super::{
    Error,
    advance::{AT_ONCE, Move, WAIT},
    steps::{Step, View, next},
    volume,
};
use crate::controller::Next;

/// How long kube-controller-manager takes to bind a new PersistentVolume, unless it is overloaded or does not run.
const BINDING: TimeDelta = TimeDelta::seconds(5);
/// Between two looks during that time.
const BRIEFLY: Duration = Duration::from_millis(100);

impl Move<'_> {
    /// The next step with the PersistentVolume.
    pub(super) async fn next_step(&self, plan: &MovePlan) -> Result<Step, Error> {
        let pods = self.pods_elsewhere().await?;
        let claim = self.claim_of_new().await?;
        Ok(next(&View {
            object: &self.object,
            plan,
            volume: self.volume.as_ref(),
            persistent_volume: self.persistent_volume.as_ref(),
            claim: claim.as_ref(),
            is_granted: self.is_granted(plan),
            pods: &pods,
            now: (self.context.now)(),
        }))
    }

    /// The claim of a PersistentVolume that was created again for this move. None if there is none, or if it uses
    /// another PersistentVolume.
    async fn claim_of_new(&self) -> Result<Option<PersistentVolumeClaim>, Error> {
        let (Some(found), Some(claim)) = (&self.persistent_volume, self.claim()) else {
            return Ok(None);
        };
        let saved = volume::saved_uid(&self.object);
        let (Some(namespace), Some(name)) = (&claim.namespace, &claim.name) else {
            return Ok(None);
        };
        if saved.is_none() || saved == found.uid().as_deref() {
            return Ok(None);
        }
        let api = Api::<PersistentVolumeClaim>::namespaced(self.context.client.clone(), namespace);
        let read = api.get_opt(name).await;
        let read = read.map_err(|error| self.failed_with("get", "its claim", error))?;
        Ok(read.filter(|it| {
            let bound = it.spec.as_ref().and_then(|spec| spec.volume_name.as_ref());
            it.uid() == claim.uid && bound == found.metadata.name.as_ref()
        }))
    }

    /// Takes a step with the PersistentVolume.
    pub(super) async fn take(&self, step: Step) -> Result<Next, Error> {
        tracing::debug!(volume = self.name(), ?step, "moving the PersistentVolume");
        match (step, &self.persistent_volume) {
            (Step::Wait(why), _) => return self.pause(why).await,
            (Step::Repoint(affinity), Some(seen)) => {
                if let Some(why) = self.repoint(seen, affinity).await? {
                    return self.pause(why).await;
                }
            }
            (Step::Retain, Some(seen)) => {
                let change = json!({
                    "metadata": {"annotations": {(names::MOVE_ANNOTATION): self.object.uid()}},
                    "spec": {"persistentVolumeReclaimPolicy": volume::RETAIN},
                });
                self.patch(seen, change).await?;
            }
            (Step::Delete, Some(seen)) => {
                let deleted = delete_exactly(&self.persistent_volumes(), seen).await;
                deleted.map_err(|error| self.failed("delete", error))?;
            }
            (Step::Strip, Some(seen)) => {
                let change = json!({"metadata": {"finalizers": null, "uid": seen.uid()}});
                match self.patch(seen, change).await {
                    Err(Error::Api { source, .. })
                        if Rejection::from(&source) == Rejection::NotFound => {}
                    result => result?,
                }
            }
            (Step::Create(again), _) => {
                let (api, parameters) = (self.persistent_volumes(), PostParams::default());
                match api.create(&parameters, &again).await {
                    Err(error) if Rejection::from(&error) == Rejection::AlreadyExists => {}
                    result => _ = result.map_err(|error| self.failed("create", error))?,
                }
            }
            (Step::AwaitBound, Some(seen)) => return self.await_bound(seen).await,
            (Step::Restore(policy), Some(seen)) => {
                let change = json!({
                    "metadata": {"annotations": {(names::MOVE_ANNOTATION): null}},
                    "spec": {"persistentVolumeReclaimPolicy": policy},
                });
                self.patch(seen, change).await?;
            }
            (Step::Wake { claim, node }, _) => return self.wake(&claim, &node).await,
            (Step::End, _) => return self.end().await,
            (
                Step::Repoint(_)
                | Step::Retain
                | Step::Delete
                | Step::Strip
                | Step::AwaitBound
                | Step::Restore(_),
                None,
            ) => {}
        }
        Ok(Next::After(AT_ONCE))
    }

    /// Reports why the PersistentVolume waits.
    async fn pause(&self, why: Explanation) -> Result<Next, Error> {
        self.report(why).await?;
        Ok(Next::After(WAIT))
    }

    /// Changes the node affinity where the API server allows that, and otherwise saves the
    /// PersistentVolume before it is replaced. Returns why it is not replaced, if the API server would not create it
    /// again.
    async fn repoint(
        &self,
        seen: &PersistentVolume,
        affinity: Value,
    ) -> Result<Option<Explanation>, Error> {
        let change = json!({"spec": {"nodeAffinity": affinity}});
        match self.patch(seen, change).await {
            Err(Error::Api { source, .. }) if Rejection::from(&source) == Rejection::Invalid => {
                let saved = volume::saved(seen);
                let refused = Box::pin(self.refused_again(seen, &saved)).await?;
                if refused.is_none() {
                    let saved = json!({"persistentVolume": saved});
                    self.write_status("save the PersistentVolume in", saved)
                        .await?;
                }
                Ok(refused)
            }
            result => result.map(|()| None),
        }
    }

    /// Why the API server would not create the PersistentVolume again. It is asked under another name, and stores
    /// nothing.
    async fn refused_again(
        &self,
        seen: &PersistentVolume,
        saved: &Value,
    ) -> Result<Option<Explanation>, Error> {
        let node = self.volume.as_ref().map(|it| it.spec.node_name.as_str());
        let move_uid = self.object.move_uid();
        let mut again = volume::again(saved, node, &move_uid).unwrap_or_default();
        again.metadata.generate_name = again.metadata.name.take();
        let parameters = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        match self.persistent_volumes().create(&parameters, &again).await {
            Ok(_) => Ok(None),
            Err(kube::Error::Api(status)) if matches!(status.code, 400 | 403 | 422) => {
                let (name, said) = (seen.name_any(), &status.message);
                let message = format!(
                    "PersistentVolume {name} is not replaced, because the API server would not create it again: {said}"
                );
                let reason = Reason::PersistentVolumeConflict;
                Ok(Some(Explanation::new(reason, message)))
            }
            Err(error) => Err(self.failed("create", error)),
        }
    }

    /// Waits until kube-controller-manager has bound the new PersistentVolume.
    async fn await_bound(&self, seen: &PersistentVolume) -> Result<Next, Error> {
        let created = seen.metadata.creation_timestamp.as_ref();
        let created = created.map(time::from_kubernetes);
        if created.is_some_and(|created| (self.context.now)() - created < BINDING) {
            return Ok(Next::After(BRIEFLY));
        }
        let name = seen.name_any();
        let message =
            format!("kube-controller-manager has not bound the new PersistentVolume {name} yet");
        self.pause(Explanation::new(Reason::Moving, message)).await
    }

    /// Changes the claim, so that kube-controller-manager looks at it. If that is refused, the claim waits until
    /// kube-controller-manager looks at it by itself.
    async fn wake(&self, claim: &PersistentVolumeClaim, node: &str) -> Result<Next, Error> {
        let namespace = claim.namespace().unwrap_or_default();
        let api = Api::<PersistentVolumeClaim>::namespaced(self.context.client.clone(), &namespace);
        let change =
            json!({"metadata": {"annotations": {(names::SELECTED_NODE_ANNOTATION): node}}});
        let woken = patch_guarded(&api, claim, names::OPERATOR_MANAGER, change).await;
        let Err(error) = woken else {
            return Ok(Next::After(AT_ONCE));
        };
        match Rejection::from(&error) {
            Rejection::NotFound => Ok(Next::After(AT_ONCE)),
            Rejection::Denied | Rejection::Invalid => {
                let (volume, claim) = (self.name(), claim.name_any());
                tracing::warn!(
                    volume, claim, error = %Chain(&error),
                    "cannot update the claim: it may be Lost until kube-controller-manager looks at it"
                );
                Ok(Next::After(WAIT))
            }
            Rejection::AlreadyExists | Rejection::Conflict | Rejection::Unavailable => {
                Err(self.failed_with("update", "its claim", error))
            }
        }
    }

    async fn patch(&self, seen: &PersistentVolume, change: Value) -> Result<(), Error> {
        let api = self.persistent_volumes();
        let patched = patch_guarded(&api, seen, names::OPERATOR_MANAGER, change).await;
        patched
            .map(drop)
            .map_err(|error| self.failed("update", error))
    }

    fn persistent_volumes(&self) -> Api<PersistentVolume> {
        Api::all(self.context.client.clone())
    }

    fn failed(&self, verb: &'static str, source: kube::Error) -> Error {
        self.failed_with(verb, "its PersistentVolume", source)
    }
}
