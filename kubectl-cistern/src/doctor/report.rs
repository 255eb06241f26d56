//! Results of checks and their output.

use std::error::Error;

use cistern_client::Chain;
use serde::{Serialize, Serializer, ser::SerializeStruct as _};

use crate::{
    Verdict,
    output::{Paint, Style, View, counted, wrap},
};

/// Characters per line of text.
const WIDTH: usize = 100;

/// Suggested fix if an object of the manifests is missing or differs. The plugin does not know how Cistern was
/// installed, and other manifests would undo what was configured.
pub const APPLY: &str = "apply the manifests that you installed from again (your overlay, `install.yaml`, \
    or `helm upgrade`)";

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum CheckOutcome {
    /// The check found no problem.
    Ok,
    /// Cistern works but needs attention, or the check could not run.
    Warn,
    /// The check found a problem that keeps Cistern from working.
    Fail,
}

/// A check with its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Check {
    /// Name of the check; stable, for programs.
    pub name: &'static str,
    /// Result of the check.
    pub outcome: CheckOutcome,
    /// Observation, for people.
    pub message: String,
    /// Suggested fix; empty if the check passed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub action: String,
}

impl Check {
    /// Creates a check that passed.
    pub fn ok(name: &'static str, message: impl Into<String>) -> Self {
        Self {
            name,
            outcome: CheckOutcome::Ok,
            message: message.into(),
            action: String::new(),
        }
    }

    /// Creates a warning.
    pub fn warn(name: &'static str, message: impl Into<String>, action: impl Into<String>) -> Self {
        Self {
            outcome: CheckOutcome::Warn,
            action: action.into(),
            ..Self::ok(name, message)
        }
    }

    /// Creates a warning that the check could not run, because it could not read a list.
    pub fn unread(name: &'static str, error: &(dyn Error + 'static)) -> Self {
        Self::warn(
            name,
            Chain(error).to_string(),
            "ask a cluster administrator",
        )
    }

    /// Creates a failure.
    pub fn fail(name: &'static str, message: impl Into<String>, action: impl Into<String>) -> Self {
        Self {
            outcome: CheckOutcome::Fail,
            ..Self::warn(name, message, action)
        }
    }
}

/// All checks.
#[derive(Clone, Debug)]
pub struct Report {
    /// Checks in display order.
    pub checks: Vec<Check>,
}

impl Report {
    /// Returns the worst result; [`CheckOutcome::Ok`] if there are no checks.
    pub fn outcome(&self) -> CheckOutcome {
        let outcomes = self.checks.iter().map(|check| check.outcome);
        outcomes.max().unwrap_or(CheckOutcome::Ok)
    }

    /// Returns the verdict that sets the exit code.
    pub fn verdict(&self) -> Verdict {
        match self.outcome() {
            CheckOutcome::Ok => Verdict::Ok,
            CheckOutcome::Warn => Verdict::Warnings,
            CheckOutcome::Fail => Verdict::Failures,
        }
    }
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut report = serializer.serialize_struct("Report", 2)?;
        report.serialize_field("outcome", &self.outcome())?;
        report.serialize_field("checks", &self.checks)?;
        report.end()
    }
}

impl View for Report {
    const KIND: &'static str = "Diagnosis";

    fn text(&self, _: bool, paint: Paint) -> String {
        let mut lines = Vec::new();
        for check in &self.checks {
            let (word, style) = match check.outcome {
                CheckOutcome::Ok => ("ok  ", Style::Good),
                CheckOutcome::Warn => ("warn", Style::Warning),
                CheckOutcome::Fail => ("FAIL", Style::Bad),
            };
            let head = format!("{:<20}", check.name);
            let message = wrap(&check.message, WIDTH, 26);
            lines.push(format!("{}  {head}{message}\n", paint.of(style, word)));
            if !check.action.is_empty() {
                let action = wrap(&check.action, WIDTH, 29);
                let arrow = paint.of(Style::Strong, "->");
                lines.push(format!("{}{arrow} {action}\n", " ".repeat(26)));
            }
        }
        let count = |outcome| {
            self.checks
                .iter()
                .filter(|it| it.outcome == outcome)
                .count()
        };
        let bad = [
            (CheckOutcome::Fail, "failure"),
            (CheckOutcome::Warn, "warning"),
        ]
        .map(|(outcome, noun)| counted(count(outcome), noun));
        lines.push(match self.outcome() {
            CheckOutcome::Ok => format!("\n{} passed.\n", counted(self.checks.len(), "check")),
            CheckOutcome::Warn | CheckOutcome::Fail => format!("\n{}.\n", bad.join(", ")),
        });
        lines.concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_shows_actions_and_ends_with_counts() {
        let mut report = Report {
            checks: vec![Check::ok("agents", "3 of 3 are ready")],
        };
        assert_eq!(report.verdict(), Verdict::Ok);
        let text = report.text(false, Paint::plain());
        assert_eq!(
            text,
            "ok    agents              3 of 3 are ready\n\n1 check passed.\n"
        );

        report
            .checks
            .push(Check::warn("default class", "there is none", "mark one"));
        assert_eq!(report.verdict(), Verdict::Warnings);
        report
            .checks
            .push(Check::fail("definitions", "there are none", "apply them"));
        assert_eq!(report.verdict(), Verdict::Failures);
        let text = report.text(false, Paint::plain());
        let end = "FAIL  definitions         there are none\n                          -> apply them\n\
                   \n1 failure, 1 warning.\n";
        assert!(text.ends_with(end), "{text}");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["outcome"], "fail");
        assert_eq!(json["checks"][1]["outcome"], "warn");
    }
}
