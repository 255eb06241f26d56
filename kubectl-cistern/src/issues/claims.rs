//! The issues of claims that wait for their volume. Pure.

use chrono::{DateTime, Utc};
use cistern_crds::{Reason, names::SELECTED_NODE_ANNOTATION, time, volume::ClaimReference};
use k8s_openapi::api::core::v1::{Event, PersistentVolumeClaim};
use kube::ResourceExt as _;

use super::{GRACE_PERIOD, Issue, Severity};
use crate::cluster::Cluster;

/// Returns an issue if a claim is pending for longer than [`GRACE_PERIOD`] and does not wait for
/// its first consumer: a node is selected, a pod uses the claim, or its class binds immediately.
pub(super) fn of_claim(
    claim: &PersistentVolumeClaim,
    cluster: &Cluster,
    now: DateTime<Utc>,
) -> Option<Issue> {
    let phase = claim.status.as_ref()?.phase.as_deref()?;
    let created = claim
        .creation_timestamp()
        .as_ref()
        .map(time::from_kubernetes);
    let (namespace, name) = (claim.namespace()?, claim.name_any());
    let reference = ClaimReference { namespace, name };
    let is_wanted = claim.annotations().contains_key(SELECTED_NODE_ANNOTATION)
        || cluster.pods_with(&reference).next().is_some()
        || binds_at_once(claim, cluster);
    let waits = created.is_none_or(|created| now - created >= GRACE_PERIOD);
    if phase != "Pending" || !is_wanted || !waits {
        return None;
    }
    let about = |event: &&Event| {
        let object = &event.involved_object;
        object.namespace.as_deref() == Some(&reference.namespace)
            && object.name.as_deref() == Some(&reference.name)
    };
    let event = cluster.events.iter().filter(about).max_by_key(|event| {
        let at = event.last_timestamp.as_ref().map(|time| time.0);
        at.or_else(|| event.event_time.as_ref().map(|time| time.0))
    });
    let hint = format!(
        "it is pending: see `kubectl describe pvc -n {} {}`",
        reference.namespace, reference.name
    );
    let name = format!("{}/{}", reference.namespace, reference.name);
    let reason = event.and_then(|event| event.reason.clone());
    let reason = reason.unwrap_or_else(|| Reason::Pending.to_string());
    Some(Issue {
        message: event
            .and_then(|event| event.message.clone())
            .unwrap_or(hint),
        since: created,
        ..Issue::new(Severity::Warning, "Claim", name, reason)
    })
}

fn binds_at_once(claim: &PersistentVolumeClaim, cluster: &Cluster) -> bool {
    let class = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.storage_class_name.as_deref());
    let mut classes = cluster.classes.iter();
    let class = classes.find(|it| Some(it.name_any().as_str()) == class);
    class.is_some_and(|class| class.volume_binding_mode.as_deref() != Some("WaitForFirstConsumer"))
}
