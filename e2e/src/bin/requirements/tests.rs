//! Tests and the requirements that they name.
//!
//! A test is a function under `#[test]` or `#[tokio::test]`. It names a requirement in its own name
//! (`cv_07_…`), or as `CV-07` in a comment or a string: directly above it or inside.

use std::{collections::BTreeSet, fmt};

/// A test.
#[derive(Debug)]
pub(crate) struct Test {
    file: String,
    name: String,
    /// What it names, as in `CV-07`.
    pub(crate) ids: BTreeSet<String>,
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file, self.name)
    }
}

/// The tests of a source file. It is formatted, so that a function ends at a brace as far in as it
/// began.
pub(crate) fn find(file: &str, source: &str) -> Vec<Test> {
    let lines: Vec<&str> = source.lines().collect();
    let mut tests = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let attribute = line.trim_start();
        if attribute != "#[test]" && !attribute.starts_with("#[tokio::test") {
            continue;
        }
        let indent = line.len() - attribute.len();
        let above = lines.iter().take(number).rev();
        let above = above.take_while(|line| line.trim_start().starts_with("//"));
        let end = format!("{:indent$}}}", "");
        let inside = lines.iter().skip(number).take_while(|line| **line != end);
        let text: Vec<&str> = above.chain(inside).copied().collect();
        let text = text.join("\n");
        let Some(name) = name(&text) else { continue };
        let mut ids = in_name(name);
        ids.extend(in_text(&text));
        tests.push(Test {
            file: file.to_owned(),
            name: name.to_owned(),
            ids,
        });
    }
    tests
}

fn name(text: &str) -> Option<&str> {
    let declaration = text.lines().find_map(|line| {
        let line = line.trim_start();
        let line = line.strip_prefix("async ").unwrap_or(line);
        line.strip_prefix("fn ")
    });
    declaration?.split(['(', '<']).next()
}

/// `cv_07_gen_10_…` names CV-07 and GEN-10.
fn in_name(name: &str) -> BTreeSet<String> {
    let words: Vec<String> = name.split('_').map(str::to_ascii_uppercase).collect();
    let pairs = words.iter().zip(words.iter().skip(1));
    pairs
        .filter_map(|(prefix, number)| id(prefix, number))
        .collect()
}

fn in_text(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    let id = |word: &str| word.split_once('-').and_then(|(p, n)| id(p, n));
    words.filter_map(id).collect()
}

/// Two or three capitals, or K8S, and two digits.
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
    fn a_test_names_requirements_in_its_name_above_it_and_inside() {
        let source = r#"
// CV-01: of something else

// DV-02
#[tokio::test(flavor = "current_thread")]
#[ignore = "DV-03"]
async fn a_b_cv_07_gen_10_k8s_04_r13() {
    let row = ("LV-06", "UTF-8, CRC-32");
}

fn cv_08_no_test() {}

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
        let first = [
            "CRC-32", "CV-07", "DV-02", "DV-03", "GEN-10", "K8S-04", "LV-06",
        ];
        assert_eq!(ids, [&first[..], &["LV-11", "LV-12", "OF-20"]]);
        assert_eq!(found[0].to_string(), "a.rs: a_b_cv_07_gen_10_k8s_04_r13");
    }
}
