//! Status of a condition.

use cistern_crds::{Condition, ConditionStatus, ConditionType, condition};
use serde::Serialize;

/// Status of a condition. An absent condition is `Unknown`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum ConditionState {
    /// The condition holds.
    True,
    /// The condition does not hold.
    False,
    /// The condition is `Unknown` or absent.
    Unknown,
}

impl ConditionState {
    /// Returns the status of the condition of this type.
    pub fn of(conditions: &[Condition], kind: ConditionType) -> Self {
        match condition::find(conditions, kind) {
            Some(found) if found.status == ConditionStatus::True.as_str() => Self::True,
            Some(found) if found.status == ConditionStatus::False.as_str() => Self::False,
            Some(_) | None => Self::Unknown,
        }
    }

    /// Returns the value of the condition's `status` field.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}
