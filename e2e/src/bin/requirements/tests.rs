//! Finds tests and the requirements that they show.
//!
//! A test is a function under `#[test]` or `#[tokio::test]` that is not ignored. It names the requirements that
//! it shows in its own name (`cv_07_…`), or in a marker directly above it:
//!
//! ```text
//! // Shows: CV-07, GEN-10: a repeated call creates nothing.
//! ```
//!
//! *Invariant:* other comments and strings do not count, so that no test shows a requirement by mentioning it.

use std::{collections::BTreeSet, fmt};

/// A test.
#[derive(Debug)]
pub(crate) struct Test {
    file: String,
    name: String,
    /// The ids in its name and markers, such as `CV-07`.
    pub(crate) ids: BTreeSet<String>,
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file, self.name)
    }
}

/// Returns the tests of a source file. The file is formatted, so a function ends at a brace with its own indentation.
pub(crate) fn find(file: &str, source: &str) -> Vec<Test> {
    let lines: Vec<&str> = source.lines().collect();
    let mut tests = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let attribute = line.trim_start();
        if attribute != "#[test]" && !attribute.starts_with("#[tokio::test") {
            continue;
        }
        let indent = line.len() - attribute.len();
        let end = format!("{:indent$}}}", "");
        let inside = lines.iter().skip(number).take_while(|line| **line != end);
        let above = lines
            .iter()
            .take(number)
            .rev()
            .map(|line| line.trim_start());
        let above = above.take_while(|line| line.starts_with("//") || line.starts_with("#["));
        let below = inside.clone().map(|line| line.trim_start());
        let mut attributes = above
            .clone()
            .chain(below.take_while(|line| name(line).is_none()));
        if attributes.any(|line| line.starts_with("#[ignore")) {
            continue;
        }
        let Some(name) = inside.copied().find_map(name) else {
            continue;
        };
        let mut ids = in_name(name);
        ids.extend(above.filter_map(marked).flatten());
        tests.push(Test {
            file: file.to_owned(),
            name: name.to_owned(),
            ids,
        });
    }
    tests
}

/// Returns the name of the function that a line declares.
fn name(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = line.strip_prefix("async ").unwrap_or(line);
    line.strip_prefix("fn ")?.split(['(', '<']).next()
}

/// Parses `cv_07_gen_10_…` as CV-07 and GEN-10.
fn in_name(name: &str) -> BTreeSet<String> {
    let words: Vec<String> = name.split('_').map(str::to_ascii_uppercase).collect();
    let pairs = words.iter().zip(words.iter().skip(1));
    pairs
        .filter_map(|(prefix, number)| id(prefix, number))
        .collect()
}

/// Returns the ids of a marker, which precede its text.
fn marked(line: &str) -> Option<Vec<String>> {
    let list = line.strip_prefix("// Shows: ")?;
    let list = list.split([':', '.']).next().unwrap_or(list);
    let words = list.split(',').map(str::trim);
    let id = |word: &str| word.split_once('-').and_then(|(p, n)| id(p, n));
    Some(words.filter_map(id).collect())
}

/// Returns an id of two or three capital letters, or K8S, and two digits.
fn id(prefix: &str, number: &str) -> Option<String> {
    let is_prefix = matches!(prefix.len(), 2 | 3)
        && prefix
            .bytes()
            .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit())
        && prefix.starts_with(|c: char| c.is_ascii_uppercase());
    let is_number = number.len() == 2 && number.bytes().all(|c| c.is_ascii_digit());
    (is_prefix && is_number).then(|| format!("{prefix}-{number}"))
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn a_test_shows_what_its_name_and_its_markers_say_and_nothing_that_is_only_mentioned() {
        let source = r#"
// Shows: CV-01: of something else

// Shows: DV-02, LV-06: what follows on LV-07.
// Shows: DV-03.
// DV-04 is shown elsewhere.
#[expect(clippy::pedantic)]
#[tokio::test(flavor = "current_thread")]
async fn a_b_cv_07_gen_10_k8s_04_r13() {
    // Shows: DV-05
    let row = ("LV-08", "UTF-8, CRC-32");
}

fn cv_08_no_test() {}

// Shows: DV-06
#[tokio::test]
#[ignore = "DV-07"]
async fn cv_09_ignored() {
}

mod deep {
    proptest! {
        #[test]
        fn lv_11_of_20(x in 0..3) {
            if true {
            } // LV-12
        }
    }
    // LV-13
}
"#;
        let found = find("a.rs", source);
        let ids: Vec<Vec<&str>> = found
            .iter()
            .map(|test| test.ids.iter().map(String::as_str).collect())
            .collect();
        let first = ["CV-07", "DV-02", "DV-03", "GEN-10", "K8S-04", "LV-06"];
        assert_eq!(ids, [&first[..], &["LV-11", "OF-20"]]);
        assert_eq!(found[0].to_string(), "a.rs: a_b_cv_07_gen_10_k8s_04_r13");
    }

    #[test]
    fn an_ignored_test_shows_nothing_wherever_the_attribute_stands() {
        let source = "#[ignore]\n#[test]\nfn cv_01() {\n}\n#[test]\n#[ignore]\nfn cv_02() {\n}\n";
        assert!(find("a.rs", source).is_empty());
    }
}
