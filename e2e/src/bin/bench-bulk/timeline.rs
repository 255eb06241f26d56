//! When a pod and its claim reached each state, as the watches of one process show it.

use std::{cell::RefCell, collections::HashMap, time::Instant};

use cistern_crds::{ConditionType, PoolVolume, condition, names::SELECTED_NODE_ANNOTATION};
use futures::{Stream, TryStreamExt as _};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::{ResourceExt as _, runtime::watcher};

/// A state that a pod or its claim reaches once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The API server has the pod and the claim.
    Created,
    /// The scheduler has chosen the node.
    NodeSelected,
    /// The controller has written the desired volume.
    Requested,
    /// The agent has made the volume.
    Made,
    /// The provisioner has written the PersistentVolume.
    Provisioned,
    /// The controller-manager has bound the claim.
    Bound,
    /// The scheduler has bound the pod to the node.
    Scheduled,
    /// kubelet reports the pod as ready.
    Ready,
}

/// A part of a pod's start, and who does it.
pub(crate) struct Stage {
    pub(crate) name: &'static str,
    from: State,
    to: State,
}

const fn stage(name: &'static str, from: State, to: State) -> Stage {
    Stage { name, from, to }
}

/// The stages of a pod with a volume.
pub(crate) const STAGES: [Stage; 8] = [
    stage(
        "scheduler: select a node",
        State::Created,
        State::NodeSelected,
    ),
    stage(
        "provisioner: call the controller, which requests",
        State::NodeSelected,
        State::Requested,
    ),
    stage(
        "agent: admit, make and format the volume",
        State::Requested,
        State::Made,
    ),
    stage(
        "controller and provisioner: answer, write the PV",
        State::Made,
        State::Provisioned,
    ),
    stage(
        "controller-manager: bind the claim",
        State::Provisioned,
        State::Bound,
    ),
    stage(
        "scheduler: notice, bind the pod",
        State::Bound,
        State::Scheduled,
    ),
    stage(
        "kubelet: stage, publish, start the container",
        State::Scheduled,
        State::Ready,
    ),
    stage("all", State::Created, State::Ready),
];

/// The stages of a pod without one.
pub(crate) const WITHOUT_VOLUME: [Stage; 3] = [
    stage("scheduler: bind the pod", State::Created, State::Scheduled),
    stage(
        "kubelet: start the container",
        State::Scheduled,
        State::Ready,
    ),
    stage("all", State::Created, State::Ready),
];

/// When one pod reached each state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Moments(HashMap<u8, Instant>);

impl Moments {
    fn reached(&mut self, state: State) {
        self.0.entry(state as u8).or_insert_with(Instant::now);
    }

    fn at(&self, state: State) -> Instant {
        self.0[&(state as u8)]
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.0.contains_key(&(State::Ready as u8))
    }

    /// How long a stage took. 0 if the watches showed its end first.
    pub(crate) fn seconds(&self, stage: &Stage) -> f64 {
        let (from, to) = (self.at(stage.from), self.at(stage.to));
        to.saturating_duration_since(from).as_secs_f64()
    }
}

/// The moments of every pod, by its name, which its claim has too.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    pods: RefCell<HashMap<String, Moments>>,
    /// The names of claims, by that of their volumes.
    claims: RefCell<HashMap<String, String>>,
}

impl Timeline {
    pub(crate) fn reached(&self, pod: &str, state: State) {
        let mut pods = self.pods.borrow_mut();
        pods.entry(pod.to_owned()).or_default().reached(state);
    }

    /// The moments of the pods whose names begin so.
    pub(crate) fn of(&self, prefix: &str) -> Vec<Moments> {
        let pods = self.pods.borrow();
        let ours = pods.iter().filter(|(name, _)| name.starts_with(prefix));
        ours.map(|(_, moments)| moments.clone()).collect()
    }

    /// Records what the watch of pods shows, until it fails.
    pub(crate) async fn pods(&self, shown: impl Stream<Item = watcher::Result<Pod>>) {
        let recorded = shown.try_for_each(async |pod: Pod| {
            let status = pod.status.as_ref();
            let conditions = status.and_then(|status| status.conditions.as_ref());
            for condition in conditions.into_iter().flatten() {
                match (condition.type_.as_str(), condition.status.as_str()) {
                    ("PodScheduled", "True") => self.reached(&pod.name_any(), State::Scheduled),
                    ("Ready", "True") => self.reached(&pod.name_any(), State::Ready),
                    _ => {}
                }
            }
            Ok(())
        });
        recorded.await.expect("pods can be watched");
    }

    pub(crate) async fn claims(
        &self,
        shown: impl Stream<Item = watcher::Result<PersistentVolumeClaim>>,
    ) {
        let recorded = shown.try_for_each(async |claim: PersistentVolumeClaim| {
            let name = claim.name_any();
            let volume = format!("pvc-{}", claim.uid().expect("it has been made"));
            self.claims.borrow_mut().insert(volume, name.clone());
            if claim.annotations().contains_key(SELECTED_NODE_ANNOTATION) {
                self.reached(&name, State::NodeSelected);
            }
            let phase = claim.status.as_ref().and_then(|s| s.phase.as_deref());
            if phase == Some("Bound") {
                self.reached(&name, State::Bound);
            }
            Ok(())
        });
        recorded.await.expect("claims can be watched");
    }

    pub(crate) async fn volumes(&self, shown: impl Stream<Item = watcher::Result<PoolVolume>>) {
        let recorded = shown.try_for_each(async |volume: PoolVolume| {
            self.volume_reached(&volume.name_any(), State::Requested);
            let conditions = volume.status.as_ref().map(|status| &status.conditions);
            if conditions.is_some_and(|all| condition::holds(all, ConditionType::Ready)) {
                self.volume_reached(&volume.name_any(), State::Made);
            }
            Ok(())
        });
        recorded.await.expect("PoolVolumes can be watched");
    }

    pub(crate) async fn persistent_volumes(
        &self,
        shown: impl Stream<Item = watcher::Result<PersistentVolume>>,
    ) {
        let recorded = shown.try_for_each(async |volume: PersistentVolume| {
            self.volume_reached(&volume.name_any(), State::Provisioned);
            Ok(())
        });
        recorded.await.expect("PersistentVolumes can be watched");
    }

    fn volume_reached(&self, volume: &str, state: State) {
        let claim = self.claims.borrow().get(volume).cloned();
        if let Some(claim) = claim {
            self.reached(&claim, state);
        }
    }
}
