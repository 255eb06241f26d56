//! Updates of condition lists.
//!
//! Reasons are machine-readable, messages human-readable. gRPC codes are never stored: the driver's
//! CSI services map reasons to codes.

use chrono::{DateTime, Utc};
pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::{JsonSchema as _, Schema, SchemaGenerator, json_schema};

use crate::{
    bounds,
    reason::{ConditionType, Reason},
    time,
};

/// Status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    /// What the condition names is the case.
    True,
    /// The condition does not hold.
    False,
    /// The state cannot be determined.
    Unknown,
}

impl ConditionStatus {
    /// The value as serialized in the custom resource.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }

    /// Parses a serialized status. Returns `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::True, Self::False, Self::Unknown]
            .into_iter()
            .find(|status| status.as_str() == text)
    }
}

impl From<bool> for ConditionStatus {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

/// A condition to set, without its time and generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionUpdate {
    /// Type of the condition.
    pub kind: ConditionType,
    /// Status of the condition.
    pub status: ConditionStatus,
    /// Machine-readable reason.
    pub reason: Reason,
    /// Human-readable message.
    pub message: String,
}

impl ConditionUpdate {
    /// Creates an update; `status` may be a bool.
    pub fn new(
        kind: ConditionType,
        status: impl Into<ConditionStatus>,
        reason: Reason,
        message: impl Into<String>,
    ) -> Self {
        Self {
            kind,
            status: status.into(),
            reason,
            message: message.into(),
        }
    }

    /// The condition is true, and there is nothing to say about it.
    pub fn reconciled(kind: ConditionType) -> Self {
        Self::new(kind, true, Reason::Reconciled, "")
    }
}

/// Applies an update to a list. The transition time changes only with the status.
pub fn set(
    conditions: &mut Vec<Condition>,
    update: &ConditionUpdate,
    generation: Option<i64>,
    now: DateTime<Utc>,
) {
    let position = conditions
        .iter()
        .position(|c| c.type_ == update.kind.as_str());
    let before = position.map(|index| conditions.swap_remove(index));
    let last_transition_time = match &before {
        Some(before) if before.status == update.status.as_str() => {
            before.last_transition_time.clone()
        }
        _ => time::to_kubernetes(now),
    };
    let message = bounds::truncate(update.message.clone(), bounds::MESSAGE);
    conditions.push(Condition {
        type_: update.kind.as_str().to_owned(),
        status: update.status.as_str().to_owned(),
        reason: update.reason.as_str().to_owned(),
        message,
        observed_generation: generation,
        last_transition_time,
    });
    conditions.sort_by_key(|c| ConditionType::parse(&c.type_).map_or(u8::MAX, |kind| kind as u8));
}

/// The condition of this type, if the list has one.
pub fn find(conditions: &[Condition], kind: ConditionType) -> Option<&Condition> {
    conditions.iter().find(|c| c.type_ == kind.as_str())
}

/// The condition of this type, if the list has one with the status `True`.
pub fn holding(conditions: &[Condition], kind: ConditionType) -> Option<&Condition> {
    find(conditions, kind).filter(|c| c.status == ConditionStatus::True.as_str())
}

/// Whether the list has a condition of this type with the status `True`.
pub fn holds(conditions: &[Condition], kind: ConditionType) -> bool {
    holding(conditions, kind).is_some()
}

/// The condition of this type, if the list has one with the status `False`.
pub fn failing(conditions: &[Condition], kind: ConditionType) -> Option<&Condition> {
    find(conditions, kind).filter(|c| c.status == ConditionStatus::False.as_str())
}

/// Descriptions of a condition's fields, shorter than those of Kubernetes.
const DESCRIPTIONS: [(&str, &str); 6] = [
    (
        "type",
        "Type of the condition in CamelCase; see docs/conditions.md.",
    ),
    ("status", "Status of the condition: True, False or Unknown."),
    (
        "reason",
        "Machine-readable reason in CamelCase; see docs/conditions.md.",
    ),
    ("message", "Human-readable explanation; may be empty."),
    (
        "observedGeneration",
        "Generation of the spec that the condition describes.",
    ),
    ("lastTransitionTime", "When the status last changed."),
];

/// Schema of a list of conditions: a map list keyed by `type`, so that server-side apply merges it.
pub fn list_schema(generator: &mut SchemaGenerator) -> Schema {
    let mut items = Condition::json_schema(generator);
    items.remove("description");
    let limits = [
        ("type", bounds::NAME),
        ("reason", bounds::NAME),
        ("message", bounds::MESSAGE),
        ("status", 7),
    ];
    let properties = items
        .get_mut("properties")
        .and_then(|properties| properties.as_object_mut());
    for (name, property) in properties.into_iter().flatten() {
        let Some(property) = property.as_object_mut() else {
            continue;
        };
        if let Some((_, text)) = DESCRIPTIONS.iter().find(|(described, _)| described == name) {
            property.insert("description".to_owned(), (*text).into());
        }
        if let Some((_, limit)) = limits.iter().find(|(limited, _)| limited == name) {
            property.insert("maxLength".to_owned(), (*limit).into());
        }
    }
    json_schema!({
        "type": "array",
        "items": items,
        "maxItems": bounds::CONDITIONS,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    })
}

/// The same for an object whose status has one writer. The list is replaced as a whole, so the API server
/// does not record who wrote which field of each condition, which takes more room than the conditions.
pub fn owned_list_schema(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = list_schema(generator);
    schema.remove("x-kubernetes-list-map-keys");
    schema.insert("x-kubernetes-list-type".to_owned(), "atomic".into());
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transition_time_moves_only_with_the_status() {
        let mut list = Vec::new();
        let at = |second| DateTime::from_timestamp(second, 0).unwrap();
        let ready = |status: bool, message: &str| {
            ConditionUpdate::new(ConditionType::Ready, status, Reason::Pending, message)
        };
        set(&mut list, &ready(false, "a"), Some(1), at(10));
        set(&mut list, &ready(false, "b"), Some(2), at(20));
        assert_eq!(time::from_kubernetes(&list[0].last_transition_time), at(10));
        assert_eq!(
            (list[0].message.as_str(), list[0].observed_generation),
            ("b", Some(2))
        );
        set(&mut list, &ready(true, "c"), Some(2), at(30));
        assert_eq!(time::from_kubernetes(&list[0].last_transition_time), at(30));
        assert_eq!(list.len(), 1);
    }

    #[test]
    fn ready_is_listed_first_and_long_messages_are_truncated_at_a_character() {
        let mut list = Vec::new();
        let now = DateTime::from_timestamp(0, 0).unwrap();
        for kind in [
            ConditionType::Reclaimed,
            ConditionType::Admitted,
            ConditionType::Ready,
        ] {
            set(
                &mut list,
                &ConditionUpdate::new(kind, true, Reason::Reconciled, "ü".repeat(2000)),
                None,
                now,
            );
        }
        assert_eq!(list[0].type_, "Ready");
        assert_eq!(list[0].message.len(), bounds::MESSAGE);
    }
}
