//! Events: what people are told of an object, each telling once, by whichever operator comes first.
//!
//! *Invariant:* the event's name says what it tells, so the API server, which keeps events for an hour,
//! is what remembers that it was told: an operator that has just started tells nothing twice.

use cistern_client::Rejection;
use cistern_crds::names;
use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::{Api, api::PostParams};

use crate::Context;

/// Kubernetes' limit for the note of an event, in bytes.
const NOTE: usize = 1024;
/// Most bytes of the object's name in that of the event: room is left for the hash.
const NAME: usize = 200;
/// Where the events of objects without a namespace are.
const DEFAULT: &str = "default";

/// Nobody could be told: the API server refused an event.
#[derive(Debug, thiserror::Error)]
#[error("cannot write an event about {subject}")]
pub struct Error {
    /// What it is about.
    pub subject: String,
    /// The API server's answer.
    #[source]
    pub source: kube::Error,
}

/// What is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Telling {
    /// Whether something is wrong.
    pub is_warning: bool,
    /// For programs: one word in `CamelCase`.
    pub reason: &'static str,
    /// What it came from, as events say it.
    pub action: &'static str,
    /// For people: what is wrong, with which object, and what to do.
    pub note: String,
    /// What makes it another telling than all others about the same object.
    pub key: String,
}

/// Tells it of an object, unless it was told already. Says whether it was told now.
pub async fn tell_once(
    context: &Context,
    regarding: &ObjectReference,
    telling: &Telling,
) -> Result<bool, Error> {
    let namespace = regarding.namespace.as_deref().unwrap_or(DEFAULT);
    let api = Api::<Event>::namespaced(context.client.clone(), namespace);
    let event = event(&context.instance, namespace, regarding, telling);
    match api.create(&PostParams::default(), &event).await {
        Ok(_) => {
            context.metrics.reported(telling.reason);
            Ok(true)
        }
        Err(error) if Rejection::from(&error) == Rejection::AlreadyExists => Ok(false),
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

fn event(instance: &str, namespace: &str, regarding: &ObjectReference, telling: &Telling) -> Event {
    let Telling {
        is_warning,
        reason,
        action,
        note,
        key,
    } = telling;
    let name = regarding.name.as_deref().unwrap_or_default();
    let shown = name
        .get(..name.floor_char_boundary(NAME))
        .unwrap_or_default();
    let uid = regarding.uid.as_deref().unwrap_or_default();
    let hash = names::short_hash(&[name, uid, reason, key].join("\0"));
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
        reason: Some((*reason).to_owned()),
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

    fn telling(key: &str) -> Telling {
        Telling {
            is_warning: true,
            reason: "VolumeDegraded",
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
        event("operator", "default", &claim, &telling(key))
    }

    #[test]
    fn r21_a_note_of_any_length_is_cut_to_what_the_api_takes() {
        let note = event_of("1", "ReadOnly").note.unwrap();
        assert!(note.len() <= NOTE && note.len() > NOTE - 4, "{note}");
    }

    #[test]
    fn the_same_telling_has_the_same_legal_name_and_any_other_has_another() {
        let name = |uid, key| event_of(uid, key).metadata.name.unwrap();
        let one = name("1", "ReadOnly");
        assert_eq!(one, name("1", "ReadOnly"));
        assert_ne!(one, name("2", "ReadOnly"));
        assert_ne!(one, name("1", "Hung"));
        assert!(one.len() <= 253 && one.starts_with("data-") && !one.contains("-."));
    }
}
