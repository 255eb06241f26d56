//! Reads the metrics of an agent, in the text format of OpenMetrics. Pure.

use std::collections::{BTreeMap, HashMap};

/// The samples of one response, by name of the metric.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exposition(HashMap<String, Vec<Sample>>);

/// A value of a metric, with its labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    labels: BTreeMap<String, String>,
    /// Value, in the unit of the metric.
    pub value: f64,
}

impl Sample {
    /// Returns the value as a number of bytes.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "agents serve whole numbers of bytes"
    )]
    pub const fn bytes(&self) -> u64 {
        self.value as u64
    }

    /// Returns the value of a label; empty if the sample does not have the label.
    pub fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }
}

impl Exposition {
    /// Parses a response. Skips lines that are not samples.
    pub fn parse(text: &str) -> Self {
        let mut all = HashMap::<String, Vec<Sample>>::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            if let Some((name, sample)) = sample(line) {
                all.entry(name.to_owned()).or_default().push(sample);
            }
        }
        Self(all)
    }

    /// Returns the samples of a metric; empty if the response does not contain the metric.
    pub fn of(&self, name: &str) -> &[Sample] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }
}

/// Parses `name{label="value",…} number`. Returns `None` for any other line.
fn sample(line: &str) -> Option<(&str, Sample)> {
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    let mut rest = rest;
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (label, quoted) = rest.split_once("=\"")?;
            let (value, after) = quoted_value(quoted)?;
            labels.insert(label.to_owned(), value);
            rest = after.strip_prefix(',').unwrap_or(after);
        }
        rest = rest.strip_prefix('}')?;
    }
    let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
    Some((name, Sample { labels, value }))
}

/// Reads a value up to its closing quotation mark. Returns the value and the text after the mark;
/// `None` if the mark is missing.
fn quoted_value(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, text.get(at + 1..)?)),
            '\\' => match characters.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_read_with_their_labels_and_other_lines_are_skipped() {
        let read = Exposition::parse(
            "# HELP a Something.\n# TYPE a counter\n\
             a_total{node=\"n,1\",volume=\"a\\\"}\\\\b\"} 12\na_total{} 1.5e3\nup 1\n\
             broken{x=\"y 1\nnothing\nwords many\n# EOF\n",
        );
        let [first, second] = read.of("a_total") else {
            panic!("{read:?}");
        };
        assert_eq!((first.label("node"), first.value), ("n,1", 12.0));
        assert_eq!(first.label("volume"), "a\"}\\b");
        assert_eq!((second.label("node"), second.value), ("", 1500.0));
        assert_eq!(read.of("up")[0].bytes(), 1);
        assert!(read.of("broken").is_empty() && read.of("words").is_empty());
    }
}
