//! Parses the pages in `docs`: the requirements, and those that do not apply.

use std::collections::BTreeMap;

/// One line of the page of requirements.
#[derive(Debug)]
pub(crate) struct Requirement {
    /// The id, such as `CV-07`.
    pub(crate) id: String,
    /// The text after the id, which begins with its keyword, such as `MUST`.
    pub(crate) text: String,
}

/// Returns the part of an id before its number.
pub(crate) fn prefix(id: &str) -> &str {
    id.split_once('-').map_or(id, |(prefix, _)| prefix)
}

/// Parses lines such as `- **CV-07** MUST: …`.
pub(crate) fn requirements(page: &str) -> Vec<Requirement> {
    let line = |line: &str| {
        let (id, text) = line.strip_prefix("- **")?.split_once("**")?;
        Some(Requirement {
            id: id.to_owned(),
            text: text.trim_start_matches(':').trim().to_owned(),
        })
    };
    page.lines().filter_map(line).collect()
}

/// Parses rows such as `| CV-26 | the reason |`; one row may name several ids. Rows below a heading that ends in
/// "does not meet" are unmet requirements; the others do not apply.
pub(crate) fn reasons(page: &str) -> BTreeMap<String, String> {
    let mut reasons = BTreeMap::new();
    let mut verdict = "does not apply";
    for row in page.lines() {
        if let Some(heading) = row.strip_prefix("## ") {
            verdict = if heading.ends_with("does not meet") {
                "is not met"
            } else {
                "does not apply"
            };
        }
        let cells = row.strip_prefix('|').and_then(|row| row.strip_suffix('|'));
        let Some((ids, reason)) = cells.and_then(|cells| cells.split_once('|')) else {
            continue;
        };
        for id in ids
            .split(',')
            .map(str::trim)
            .filter(|id| id.contains(|c: char| c.is_ascii_digit()))
        {
            let reason = format!("{verdict}: {}", reason.trim());
            reasons.insert(id.to_owned(), reason);
        }
    }
    reasons
}
