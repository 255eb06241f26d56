//! The progress of work on a volume that can take long, as its status reports it.

use std::fmt;

use chrono::{DateTime, SecondsFormat, Utc};

/// Step of the reported progress in percent. Each step is a write to the API server.
const STEP: u8 = 5;

/// Start time and completed percentage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    since: DateTime<Utc>,
    percent: u8,
}

impl Progress {
    /// The progress of work that begins now.
    pub fn begun(now: DateTime<Utc>) -> Self {
        Self {
            since: now,
            percent: 0,
        }
    }

    /// Whether a first step is completed.
    pub fn is_under_way(&self) -> bool {
        self.percent > 0
    }

    /// Records the completed percentage. Returns whether it must be reported.
    pub fn reach(&mut self, percent: u8) -> bool {
        let reached = percent - percent % STEP;
        let is_step = reached > self.percent;
        if is_step {
            self.percent = reached;
        }
        is_step
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = self.since.to_rfc3339_opts(SecondsFormat::Secs, true);
        write!(f, "since {since}: {} % are done", self.percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    #[test]
    fn progress_is_reported_in_steps_with_its_start_time_and_never_decreases() {
        let mut progress = Progress::begun(at(0));
        assert!(!progress.reach(4));
        assert!(progress.reach(37) && !progress.reach(39) && !progress.reach(20));
        let text = "since 1970-01-01T00:00:00Z: 35 % are done";
        assert_eq!(progress.to_string(), text);
    }
}
