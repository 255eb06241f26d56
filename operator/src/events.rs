//! Events for users: each is written once, by the first operator that reports it, or updated while its
//! problem lasts.
//!
//! *Invariant:* the event's name identifies its contents, so the API server, which keeps events for an
//! hour, rejects duplicates: an operator that has just started publishes no event twice.

use cistern_client::Rejection;
use cistern_crds::{EventReason, names};
use k8s_openapi::{
    api::{
        core::v1::{Event as CoreEvent, ObjectReference},
        events::v1::Event,
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;

use crate::Context;

/// Kubernetes' limit for the note of an event, in bytes.
const NOTE: usize = 1024;
/// Maximum bytes of the object's name in the event's name; the rest is for the hash.
const NAME: usize = 200;
/// Namespace of events about cluster-scoped objects.
const DEFAULT: &str = "default";

/// The API server refused an event.
#[derive(Debug, thiserror::Error)]
#[error("cannot write an event about {subject}")]
pub struct Error {
    /// Kind and name of the object that the event is about.
    pub subject: String,
    /// The error of the API server or of the connection.
    #[source]
    pub source: kube::Error,
}

/// Contents of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventContent {
    /// Whether the type of the event is `Warning`; otherwise it is `Normal`.
    pub is_warning: bool,
    /// Reason; `docs/conditions.md` lists them.
    pub reason: EventReason,
    /// Action of the event.
    pub action: &'static str,
    /// Note: the problem, the object and the remedy.
    pub note: String,
    /// Distinguishes it from other events about the same object.
    pub key: String,
}

/// Publishes an event about an object, unless it exists. Returns whether it was published now.
/// Fails if the API server rejects the event or does not answer.
pub async fn publish_once(
    context: &Context,
    regarding: &ObjectReference,
    body: &EventContent,
) -> Result<bool, Error> {
    let namespace = regarding.namespace.as_deref().unwrap_or(DEFAULT);
    let api = Api::<Event>::namespaced(context.client.clone(), namespace);
    let event = event(&context.instance, namespace, regarding, body);
    match api.create(&PostParams::default(), &event).await {
        Ok(_) => {
            context.metrics.reported(body.reason.as_str());
            Ok(true)
        }
        Err(error) if Rejection::from(&error) == Rejection::AlreadyExists => Ok(false),
        Err(source) => Err(Error {
            subject: describe(regarding),
            source,
        }),
    }
}

/// Publishes the event about an object that has this reason and key, or updates it. `count` is the
/// number of publications, including this one. Fails if the API server rejects the event or does
/// not answer.
pub async fn publish_or_update(
    context: &Context,
    regarding: &ObjectReference,
    body: &EventContent,
    count: i32,
) -> Result<(), Error> {
    if publish_once(context, regarding, body).await? {
        return Ok(());
    }
    let namespace = regarding.namespace.as_deref().unwrap_or(DEFAULT);
    let event = event(&context.instance, namespace, regarding, body);
    // The newer API of events does not allow changes of a note.
    let api = Api::<CoreEvent>::namespaced(context.client.clone(), namespace);
    let change = json!({
        "message": event.note,
        "series": {"count": count.max(2), "lastObservedTime": event.event_time},
    });
    let name = event.metadata.name.unwrap_or_default();
    match api
        .patch(&name, &PatchParams::default(), &Patch::Merge(change))
        .await
    {
        Ok(_) => Ok(()),
        // The event has expired meanwhile.
        Err(error) if Rejection::from(&error) == Rejection::NotFound => {
            publish_once(context, regarding, body).await.map(drop)
        }
        Err(source) => Err(Error {
            subject: describe(regarding),
            source,
        }),
    }
}

fn describe(object: &ObjectReference) -> String {
    let kind = object.kind.as_deref().unwrap_or_default();
    let name = object.name.as_deref().unwrap_or_default();
    match &object.namespace {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    }
}

fn event(
    instance: &str,
    namespace: &str,
    regarding: &ObjectReference,
    content: &EventContent,
) -> Event {
    let EventContent {
        is_warning,
        reason,
        action,
        note,
        key,
    } = content;
    let name = regarding.name.as_deref().unwrap_or_default();
    let shown = name
        .get(..name.floor_char_boundary(NAME))
        .unwrap_or_default();
    let uid = regarding.uid.as_deref().unwrap_or_default();
    let hash = names::short_hash(&[name, uid, reason.as_str(), key].join("\0"));
    let kind = if *is_warning { "Warning" } else { "Normal" };
    Event {
        metadata: ObjectMeta {
            namespace: Some(namespace.to_owned()),
            name: Some(format!("{}.{hash}", shown.trim_end_matches(['-', '.']))),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(Timestamp::now())),
        regarding: Some(regarding.clone()),
        type_: Some(kind.to_owned()),
        reason: Some(reason.to_string()),
        action: Some((*action).to_owned()),
        note: Some(
            note.get(..note.floor_char_boundary(NOTE))
                .unwrap_or_default()
                .to_owned(),
        ),
        reporting_controller: Some(names::DRIVER.to_owned()),
        reporting_instance: Some(instance.to_owned()),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(key: &str) -> EventContent {
        EventContent {
            is_warning: true,
            reason: EventReason::VolumeDegraded,
            action: "Watching",
            note: "ü".repeat(1000),
            key: key.to_owned(),
        }
    }

    fn event_of(uid: &str, key: &str) -> Event {
        let claim = ObjectReference {
            name: Some("data-".repeat(50)),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        };
        event("operator", "default", &claim, &content(key))
    }

    #[test]
    fn r21_a_note_of_any_length_is_cut_to_what_the_api_takes() {
        let note = event_of("1", "ReadOnly").note.unwrap();
        assert!(note.len() <= NOTE && note.len() > NOTE - 4, "{note}");
    }

    #[test]
    fn equal_events_have_the_same_legal_name_and_others_have_another() {
        let name = |uid, key| event_of(uid, key).metadata.name.unwrap();
        let one = name("1", "ReadOnly");
        assert_eq!(one, name("1", "ReadOnly"));
        assert_ne!(one, name("2", "ReadOnly"));
        assert_ne!(one, name("1", "Hung"));
        assert!(one.len() <= 253 && one.starts_with("data-") && !one.contains("-."));
    }
}
