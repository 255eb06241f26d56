//! The text of `docs/conditions.md`.

use crate::{ConditionType, EventReason, Reason};

const INTRODUCTION: &str = "\
<!-- Generated from the Rust types: make generate. -->
# Conditions, reasons and events

Every condition type, reason and event of Cistern, with its meaning and what to do. `kubectl describe` shows
them on the objects. [Runbook](runbook.md) has the procedures for alerts.
";

/// The page, in Markdown: a table each of condition types, reasons, and reasons of events.
pub fn conditions_page() -> String {
    let mut page = INTRODUCTION.to_owned();
    table(
        &mut page,
        "Condition types",
        ConditionType::ALL
            .iter()
            .map(|it| (it.as_str(), it.documentation())),
    );
    table(
        &mut page,
        "Reasons of conditions and problems",
        Reason::ALL
            .iter()
            .map(|it| (it.as_str(), it.documentation())),
    );
    table(
        &mut page,
        "Reasons of events",
        EventReason::ALL
            .iter()
            .map(|it| (it.as_str(), it.documentation())),
    );
    page
}

fn table(page: &mut String, title: &str, rows: impl Iterator<Item = (&'static str, &'static str)>) {
    let write = |page: &mut String, line: &str| {
        page.push_str(line);
        page.push('\n');
    };
    write(page, &format!("\n## {title}\n"));
    write(page, "| Name | Meaning | What to do |");
    write(page, "|---|---|---|");
    for (name, documentation) in rows {
        let (meaning, remedy) = documentation
            .split_once("\n\n")
            .unwrap_or((documentation, ""));
        let line = format!(
            "| `{name}` | {} | {} |",
            one_line(meaning),
            one_line(remedy)
        );
        write(page, &line);
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
