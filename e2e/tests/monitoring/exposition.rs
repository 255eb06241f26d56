//! Parses the answer of `/metrics`.

use std::collections::{BTreeMap, BTreeSet};

/// A served metric.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Metric {
    /// Its type: `counter`, `gauge`, `histogram`, `info`.
    pub(crate) kind: String,
    /// Label names of all its series, without `le`.
    pub(crate) labels: BTreeSet<String>,
    /// Number of its series.
    pub(crate) series: usize,
}

/// Returns the metrics of an answer by the names that queries use.
pub(crate) fn metrics(answer: &str) -> BTreeMap<String, Metric> {
    let mut all = BTreeMap::<String, Metric>::new();
    let mut current = String::new();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    for line in body.lines() {
        if let Some(declared) = line.strip_prefix("# TYPE ") {
            let (name, kind) = declared.split_once(' ').unwrap();
            current = match kind {
                "counter" => format!("{name}_total"),
                "info" => format!("{name}_info"),
                _ => name.to_owned(),
            };
            let metric = Metric {
                kind: kind.to_owned(),
                ..Metric::default()
            };
            let before = all.insert(current.clone(), metric);
            assert_eq!(before, None, "{current} is declared twice");
        } else if !line.starts_with('#') && line.starts_with(current.as_str()) {
            let metric = all.get_mut(&current).unwrap();
            metric.labels.extend(labels(line));
            metric.series += 1;
        }
    }
    all
}

fn labels(line: &str) -> Vec<String> {
    let Some((_, rest)) = line.split_once('{') else {
        return Vec::new();
    };
    let (labels, _) = rest.rsplit_once('}').unwrap();
    let names = labels
        .split("\",")
        .map(|label| label.split_once('=').unwrap().0);
    names
        .filter(|name| *name != "le")
        .map(str::to_owned)
        .collect()
}
