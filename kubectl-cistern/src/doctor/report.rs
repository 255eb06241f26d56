//! What was checked, and what came of it.

use serde::{Serialize, Serializer, ser::SerializeStruct as _};

use crate::{
    Verdict,
    output::{Paint, Tone, View, counted, wrap},
};

/// Characters of a line of text.
const WIDTH: usize = 100;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// As it has to be.
    Ok,
    /// It works, or nobody can tell.
    Warn,
    /// It does not work.
    Fail,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Check {
    /// What was looked at: a name that stays, for programs.
    pub name: &'static str,
    /// How it ended.
    pub outcome: Outcome,
    /// What was seen.
    pub message: String,
    /// What to do; nothing where all is well.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub action: String,
}

impl Check {
    /// It is as it has to be.
    pub fn ok(name: &'static str, message: impl Into<String>) -> Self {
        Self {
            name,
            outcome: Outcome::Ok,
            message: message.into(),
            action: String::new(),
        }
    }

    /// Somebody should do something, sooner or later.
    pub fn warn(name: &'static str, message: impl Into<String>, action: impl Into<String>) -> Self {
        Self {
            outcome: Outcome::Warn,
            action: action.into(),
            ..Self::ok(name, message)
        }
    }

    /// Somebody has to do something.
    pub fn fail(name: &'static str, message: impl Into<String>, action: impl Into<String>) -> Self {
        Self {
            outcome: Outcome::Fail,
            ..Self::warn(name, message, action)
        }
    }
}

/// Every check.
#[derive(Clone, Debug)]
pub struct Report {
    /// In the order in which a reader wants them.
    pub checks: Vec<Check>,
}

impl Report {
    /// The worst of them.
    pub fn outcome(&self) -> Outcome {
        let outcomes = self.checks.iter().map(|check| check.outcome);
        outcomes.max().unwrap_or(Outcome::Ok)
    }

    /// For the exit code.
    pub fn verdict(&self) -> Verdict {
        match self.outcome() {
            Outcome::Ok => Verdict::Well,
            Outcome::Warn => Verdict::Warnings,
            Outcome::Fail => Verdict::Failures,
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
            let (word, tone) = match check.outcome {
                Outcome::Ok => ("ok  ", Tone::Good),
                Outcome::Warn => ("warn", Tone::Warning),
                Outcome::Fail => ("FAIL", Tone::Bad),
            };
            let head = format!("{:<20}", check.name);
            let message = wrap(&check.message, WIDTH, 26);
            lines.push(format!("{}  {head}{message}\n", paint.of(tone, word)));
            if !check.action.is_empty() {
                let action = wrap(&check.action, WIDTH, 29);
                let arrow = paint.of(Tone::Strong, "->");
                lines.push(format!("{}{arrow} {action}\n", " ".repeat(26)));
            }
        }
        let count = |outcome| {
            self.checks
                .iter()
                .filter(|it| it.outcome == outcome)
                .count()
        };
        let bad = [(Outcome::Fail, "failure"), (Outcome::Warn, "warning")]
            .map(|(outcome, noun)| counted(count(outcome), noun));
        lines.push(match self.outcome() {
            Outcome::Ok => format!("\nAll {} are well.\n", counted(self.checks.len(), "check")),
            Outcome::Warn | Outcome::Fail => format!("\n{}.\n", bad.join(", ")),
        });
        lines.concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_what_to_do_and_ends_with_the_worst() {
        let mut report = Report {
            checks: vec![Check::ok("agents", "3 of 3 are ready")],
        };
        assert_eq!(report.verdict(), Verdict::Well);
        let text = report.text(false, Paint::plain());
        assert_eq!(
            text,
            "ok    agents              3 of 3 are ready\n\nAll 1 check are well.\n"
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
