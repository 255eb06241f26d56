//! Why something is not as it is wanted, for programs and for users.

use std::fmt;

use crate::Reason;

/// The reason for a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Machine-readable reason.
    pub reason: Reason,
    /// Human-readable clause.
    pub message: String,
}

impl Explanation {
    /// A reason with a message for users.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { reason, message }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
