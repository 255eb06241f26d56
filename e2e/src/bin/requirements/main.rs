//! `make requirements`: lists the tests that show each CSI requirement.
//!
//! Prints for each requirement of `docs/csi-requirements.md` the tests that show it, or the reason in
//! `docs/csi-requirements-not-applicable.md` why none does. Fails for a requirement that has neither or both, and
//! for a test that names an unknown requirement.

#![expect(clippy::print_stdout, reason = "the table is what this prints")]

mod page;
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use cistern_e2e::process::workspace;

use crate::{page::Requirement, tests::Test};

/// The requirements that must be shown, by the prefix of their ids. The others belong to features that do not
/// exist yet.
const COVERED: &[&str] = &[
    "GEN", "FLD", "CON", "SEC", "CAP", "GPI", "GPC", "PRB", "VCP", "CV", "TOP", "DV", "CPV", "CUV",
    "VVC", "LV", "CGV", "GC", "CGC", "CEV", "CMV", "NSV", "NUS", "NPV", "NUP", "NGS", "NGC", "NGI",
    "NEV", "PRT", "ENV", "FSY", "LIF", "LOG", "VCS", "CS", "DS", "LS", "GS", "GGC", "CGS", "DGS",
    "GGS", "SMD", "MDA", "MDD", "VCO", "CLH", "CGH", "NVH", "NSH",
];

/// The crates whose tests are searched.
const CRATES: [&str; 5] = ["proto", "crds", "driver", "operator", "e2e"];

fn main() -> io::Result<ExitCode> {
    let docs = workspace().join("docs");
    let read = |name: &str| fs::read_to_string(docs.join(name));
    let requirements = page::requirements(&read("csi-requirements.md")?);
    let reasons = page::reasons(&read("csi-requirements-not-applicable.md")?);
    let tests = all_tests(workspace())?;
    let (table, mistakes) = compare(&requirements, &reasons, &tests);
    for line in table {
        println!("{line}");
    }
    for mistake in &mistakes {
        eprintln!("error: {mistake}");
    }
    Ok(ExitCode::from(u8::from(!mistakes.is_empty())))
}

/// Returns the table and the list of errors.
fn compare(
    requirements: &[Requirement],
    reasons: &BTreeMap<String, String>,
    tests: &[Test],
) -> (Vec<String>, Vec<String>) {
    let mut shown: BTreeMap<&str, Vec<&Test>> = BTreeMap::new();
    for test in tests {
        for id in &test.ids {
            shown.entry(id).or_default().push(test);
        }
    }
    let (mut table, mut mistakes) = (Vec::new(), Vec::new());
    let mut later: BTreeMap<&str, usize> = BTreeMap::new();
    for Requirement { id, text } in requirements {
        let by = shown.remove(id.as_str()).unwrap_or_default();
        let reason = reasons.get(id);
        if !COVERED.contains(&page::prefix(id)) {
            *later.entry(page::prefix(id)).or_default() += 1;
        } else if by.is_empty() && reason.is_none() {
            mistakes.push(format!("{id} has no test and no reason: {text}"));
        } else if let (Some(_), Some(test)) = (reason, by.first()) {
            mistakes.push(format!(
                "{id} has a reason why no test shows it, and {test} does"
            ));
        }
        let entries = by.iter().map(ToString::to_string);
        for (row, entry) in entries.chain(reason.cloned()).enumerate() {
            let id = if row == 0 { id.as_str() } else { "" };
            table.push(format!("{id:<6}  {entry}"));
        }
    }
    let known: BTreeSet<&str> = requirements.iter().map(|r| page::prefix(&r.id)).collect();
    for (id, by) in shown {
        if known.contains(page::prefix(id)) {
            let by = by.first().map(ToString::to_string).unwrap_or_default();
            mistakes.push(format!("there is no {id}, which {by} names"));
        }
    }
    let exists = |id: &String| requirements.iter().any(|r| r.id == *id);
    for id in reasons.keys().filter(|id| !exists(id)) {
        mistakes.push(format!("there is no {id}, for which a reason is given"));
    }
    let later: Vec<String> = later.iter().map(|(p, n)| format!("{p} ({n})")).collect();
    table.push(format!("not demanded yet: {}", later.join(", ")));
    (table, mistakes)
}

/// Returns the tests of all crates, in the order of their files.
fn all_tests(workspace: &Path) -> io::Result<Vec<Test>> {
    let mut files = Vec::new();
    for name in CRATES {
        collect(&workspace.join(name), &mut files)?;
    }
    files.sort();
    let mut found = Vec::new();
    for file in files {
        let name = file.strip_prefix(workspace).unwrap_or(&file);
        found.extend(tests::find(
            &name.display().to_string(),
            &fs::read_to_string(&file)?,
        ));
    }
    Ok(found)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.ends_with("src/bin/requirements") {
            // The ids in these tests are examples.
        } else if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn what_has_neither_test_nor_reason_or_both_or_does_not_exist_is_a_mistake() {
        let page = "- **LV-01** MUST: a.\n- **LV-02** MUST: b.\n- **LV-03** MUST: c.\n\
            - **LV-04** MUST: d.\n- **K8S-01** MUST: e.\n";
        let requirements = page::requirements(page);
        let reasons = page::reasons(
            "## What X does not meet\n| LV-02 | why |\n## Not of X\n| LV-03 | why |\n| LV-09 | why |\n",
        );
        let source = "#[test]\nfn lv_01_lv_03_lv_08_r04() {\n}\n";
        let (table, mistakes) = compare(&requirements, &reasons, &tests::find("a.rs", source));
        let expected = [
            "LV-01   a.rs: lv_01_lv_03_lv_08_r04",
            "LV-02   is not met: why",
            "LV-03   a.rs: lv_01_lv_03_lv_08_r04",
            "        does not apply: why",
            "not demanded yet: K8S (1)",
        ];
        assert_eq!(table, expected);
        let named: Vec<&str> = mistakes
            .iter()
            .flat_map(|mistake| mistake.split([' ', ',']))
            .filter(|word| word.starts_with("LV-"))
            .collect();
        assert_eq!(named, ["LV-03", "LV-04", "LV-08", "LV-09"]);
    }
}
