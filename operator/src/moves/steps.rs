//! The next step of the PersistentVolume of a move, from what the API server has. Pure.

use chrono::{DateTime, TimeDelta, Utc};
use cistern_crds::{Explanation, MovePlan, PoolVolume, Reason, VolumeMove, names, time};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::volume::{RETAIN, again, node_of, pointed_at, saved_in, saved_policy, saved_uid};

/// Age of a new PersistentVolume after which its claim is not changed any more: kube-controller-manager looks at each claim
/// every 15 s.
const WOKEN: TimeDelta = TimeDelta::seconds(20);
/// Finalizers that Kubernetes and external-provisioner give to a PersistentVolume. Only these are removed.
const KNOWN_FINALIZERS: [&str; 2] = [
    "kubernetes.io/pv-protection",
    "external-provisioner.volume.kubernetes.io/finalizer",
];

/// The next step of the PersistentVolume of a move.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// Wait, because of this.
    Wait(Explanation),
    /// Give the PersistentVolume this node affinity, or save it if that is not allowed.
    Repoint(Value),
    /// Make sure that the deletion of the PersistentVolume deletes no data, and that it is known as ours.
    Retain,
    /// Delete the PersistentVolume.
    Delete,
    /// Remove the finalizers of the deleted PersistentVolume.
    Strip,
    /// Create the PersistentVolume again.
    Create(Box<PersistentVolume>),
    /// Wait until kube-controller-manager has bound the new PersistentVolume to its claim.
    AwaitBound,
    /// Give the new PersistentVolume this reclaim policy, which the replaced one had, and remove its mark.
    Restore(String),
    /// Let the claim name this node as the selected one, so that kube-controller-manager looks at it again.
    Wake {
        /// The claim, as it was read.
        claim: Box<PersistentVolumeClaim>,
        /// Name of the Node.
        node: String,
    },
    /// Nothing is left to do.
    End,
}

/// What is known of a move and its PersistentVolume.
pub(super) struct View<'a> {
    pub(super) object: &'a VolumeMove,
    pub(super) plan: &'a MovePlan,
    pub(super) volume: Option<&'a PoolVolume>,
    pub(super) persistent_volume: Option<&'a PersistentVolume>,
    /// The claim of a PersistentVolume that was created again.
    pub(super) claim: Option<&'a PersistentVolumeClaim>,
    /// Whether the takeover is granted, so that the volume may still follow.
    pub(super) is_granted: bool,
    /// The pods in the way.
    pub(super) pods: &'a [String],
    pub(super) now: DateTime<Utc>,
}

/// The next step of the PersistentVolume of a move.
pub(super) fn next(view: &View<'_>) -> Step {
    if view.persistent_volume.is_none()
        && let Some(saved) = saved_in(view.object)
    {
        return create(view, saved);
    }
    if let Some(step) = restore(view) {
        return step;
    }
    // Without a volume, the data is gone.
    let Some(volume) = view.volume else {
        return Step::End;
    };
    if volume.spec.epoch < view.plan.epoch {
        return if view.is_granted {
            wait(Reason::Pending, "the volume has not moved yet".to_owned())
        } else {
            Step::End
        };
    }
    match view.persistent_volume {
        Some(found) => replace(view, found, &volume.spec.node_name),
        None => Step::End,
    }
}

/// The step with the PersistentVolume that is there.
fn replace(view: &View<'_>, found: &PersistentVolume, node: &str) -> Step {
    let name = found.name_any();
    let value = names::topology_value(node);
    if node_of(found).is_none_or(|found| found == value) {
        return wake(view, found, node);
    }
    let is_saved = saved_uid(view.object) == found.uid().as_deref();
    if !is_saved && is_to_be_deleted(found) {
        return Step::End;
    }
    let is_ours = is_marked(view, found);
    let is_terminating = found.metadata.deletion_timestamp.is_some();
    if is_terminating && !is_ours {
        let message = format!("PersistentVolume {name} is being deleted: wait, or create it again");
        return wait(Reason::PersistentVolumeConflict, message);
    }
    if let Some(foreign) = foreign_finalizer(found) {
        let message = format!(
            "PersistentVolume {name} has the finalizer {foreign}, and cannot be replaced: remove it"
        );
        return wait(Reason::PersistentVolumeConflict, message);
    }
    if !view.pods.is_empty() && !is_terminating {
        let message = format!(
            "pods that use the volume are bound to another node than {node}, which has it: {}",
            view.pods.join(", ")
        );
        return wait(Reason::PodsRemain, message);
    }
    match (is_saved, is_ours, is_terminating) {
        (false, _, _) => {
            let affinity = found.spec.as_ref().and_then(|it| it.node_affinity.as_ref());
            affinity.map_or(Step::End, |it| Step::Repoint(json!(pointed_at(it, node))))
        }
        (true, false, _) => Step::Retain,
        // Somebody has changed the policy back.
        (true, true, false) if policy(found) != Some(RETAIN) => Step::Retain,
        (true, true, false) => Step::Delete,
        (true, true, true) => Step::Strip,
    }
}

/// Whether a PersistentVolume is deleted with its volume, because its claim is gone. Another one in its place would
/// have no claim either, and keep the policy `Retain`.
fn is_to_be_deleted(volume: &PersistentVolume) -> bool {
    policy(volume) == Some("Delete") && matches!(phase(volume), Some("Released" | "Failed"))
}

fn policy(volume: &PersistentVolume) -> Option<&str> {
    let spec = volume.spec.as_ref()?;
    spec.persistent_volume_reclaim_policy.as_deref()
}

/// Whether a PersistentVolume has the mark of this move.
fn is_marked(view: &View<'_>, found: &PersistentVolume) -> bool {
    let mark = found.annotations().get(names::MOVE_ANNOTATION);
    mark.is_some() && mark.map(String::as_str) == view.object.uid().as_deref()
}

/// The step after the PersistentVolume was deleted for this move. It is created again whatever has become of
/// the volume: without it, the claim is lost, and its reclaim policy is not followed.
fn create(view: &View<'_>, saved: &Value) -> Step {
    let node = view.volume.map(|volume| volume.spec.node_name.as_str());
    again(saved, node, &view.object.move_uid()).map_or_else(
        || {
            let message = "the saved PersistentVolume cannot be read: create it by hand from status.persistentVolume";
            wait(Reason::PersistentVolumeConflict, message.to_owned())
        },
        |again| Step::Create(Box::new(again)),
    )
}

/// The step that gives a PersistentVolume that was created again the reclaim policy of the replaced one. It is taken once
/// kube-controller-manager has bound it, or if it has no claim: a claim that was deleted meanwhile does not delete the data.
/// One that is not replaced after all, because the volume is back on its node, gets its policy again, too. None if nothing is
/// to be restored.
fn restore(view: &View<'_>) -> Option<Step> {
    let (found, saved) = (view.persistent_volume?, saved_in(view.object)?);
    let is_new = saved_uid(view.object) != found.uid().as_deref();
    let node = view
        .volume
        .map(|it| names::topology_value(&it.spec.node_name));
    let is_kept = node.is_some() && node_of(found) == node.as_deref();
    let is_to_stay = (is_new || is_kept) && found.metadata.deletion_timestamp.is_none();
    if !is_to_stay || !is_marked(view, found) {
        return None;
    }
    let has_claim = found.spec.as_ref()?.claim_ref.is_some();
    if has_claim && !is_bound(found) {
        // Without the claim, it is never bound again.
        return view.claim.is_some().then_some(Step::AwaitBound);
    }
    let policy = saved_policy(saved).unwrap_or(RETAIN);
    Some(Step::Restore(policy.to_owned()))
}

fn is_bound(volume: &PersistentVolume) -> bool {
    phase(volume) == Some("Bound")
}

fn phase(volume: &PersistentVolume) -> Option<&str> {
    volume.status.as_ref()?.phase.as_deref()
}

/// The step after the PersistentVolume was created again. kube-controller-manager makes a claim `Lost` that it looks at
/// in between. It binds the new PersistentVolume, but looks at the claim again only when that changes, or after 15 s.
/// So a claim that cannot be changed holds nothing up for longer.
fn wake(view: &View<'_>, found: &PersistentVolume, node: &str) -> Step {
    let Some(claim) = view.claim else {
        return Step::End;
    };
    if !is_bound(found) {
        return Step::AwaitBound;
    }
    let phase = claim.status.as_ref().and_then(|it| it.phase.as_deref());
    let selected = claim.annotations().get(names::SELECTED_NODE_ANNOTATION);
    let created = found.metadata.creation_timestamp.as_ref();
    let created = created.map(time::from_kubernetes);
    let is_late = created.is_some_and(|created| view.now - created > WOKEN);
    if phase == Some("Bound") || selected.is_some_and(|selected| selected == node) || is_late {
        return Step::End;
    }
    let (claim, node) = (Box::new(claim.clone()), node.to_owned());
    Step::Wake { claim, node }
}

fn foreign_finalizer(volume: &PersistentVolume) -> Option<&str> {
    let mut finalizers = volume.finalizers().iter().map(String::as_str);
    finalizers.find(|finalizer| !KNOWN_FINALIZERS.contains(finalizer))
}

fn wait(reason: Reason, message: String) -> Step {
    Step::Wait(Explanation::new(reason, message))
}

#[cfg(test)]
mod tests;
