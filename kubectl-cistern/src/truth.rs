//! What a condition says, in one word.

use cistern_crds::{Condition, ConditionStatus, ConditionType, condition};
use serde::Serialize;

/// `status` of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Truth {
    /// It is so.
    True,
    /// It is not so.
    False,
    /// Nobody can tell, or nobody has said.
    Unknown,
}

impl Truth {
    /// What a list of conditions says of one.
    pub fn of(conditions: &[Condition], kind: ConditionType) -> Self {
        match condition::find(conditions, kind) {
            Some(found) if found.status == ConditionStatus::True.as_str() => Self::True,
            Some(found) if found.status == ConditionStatus::False.as_str() => Self::False,
            Some(_) | None => Self::Unknown,
        }
    }

    /// As it stands in the condition.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}
