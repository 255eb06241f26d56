//! Rates of I/O from two samples of the same counters. Pure.

use std::{collections::BTreeMap, ops::Add, time::Instant};

use serde::Serialize;

use super::exposition::Exposition;

/// The metrics of a node at one time.
#[derive(Clone, Debug)]
pub struct NodeMetrics {
    /// Name of the node.
    pub node: String,
    /// Time at which the response arrived.
    pub at: Instant,
    /// Metrics in the response of the agent.
    pub metrics: Exposition,
}

/// I/O per second of a volume, or of all volumes of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rates {
    /// Number of completed reads.
    pub reads_per_second: f64,
    /// Number of completed writes.
    pub writes_per_second: f64,
    /// Number of bytes read.
    pub read_bytes_per_second: f64,
    /// Number of bytes written.
    pub written_bytes_per_second: f64,
}

impl Add for Rates {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            reads_per_second: self.reads_per_second + other.reads_per_second,
            writes_per_second: self.writes_per_second + other.writes_per_second,
            read_bytes_per_second: self.read_bytes_per_second + other.read_bytes_per_second,
            written_bytes_per_second: self.written_bytes_per_second
                + other.written_bytes_per_second,
        }
    }
}

impl Rates {
    /// Returns the sum of reads and writes per second.
    pub fn operations(self) -> f64 {
        self.reads_per_second + self.writes_per_second
    }

    /// Returns the sum of bytes read and written per second.
    pub fn bytes(self) -> f64 {
        self.read_bytes_per_second + self.written_bytes_per_second
    }
}

/// Returns the rates of the attached volumes of a node, by name of the volume. A volume whose loop
/// device changed between the samples has no rates, and neither has one whose counters decreased.
pub fn of_volumes(before: &NodeMetrics, after: &NodeMetrics) -> BTreeMap<String, Rates> {
    let seconds = after.at.saturating_duration_since(before.at).as_secs_f64();
    let mut all = BTreeMap::<String, Rates>::new();
    if seconds <= 0.0 {
        return all;
    }
    for (counter, set) in COUNTERS {
        let counted = |metrics: &Exposition| -> BTreeMap<(String, String), f64> {
            let each = metrics.of(counter).iter().map(|sample| {
                let [volume, device] = ["volume", "device"].map(|it| sample.label(it).to_owned());
                ((volume, device), sample.value)
            });
            each.collect()
        };
        let earlier = counted(&before.metrics);
        for ((volume, device), now) in counted(&after.metrics) {
            let then = earlier.get(&(volume.clone(), device));
            if let Some(then) = then.filter(|then| **then <= now) {
                *set(all.entry(volume).or_default()) += (now - then) / seconds;
            }
        }
    }
    all
}

type Field = fn(&mut Rates) -> &mut f64;

const COUNTERS: [(&str, Field); 4] = [
    ("cistern_volume_reads_completed_total", |rates| {
        &mut rates.reads_per_second
    }),
    ("cistern_volume_writes_completed_total", |rates| {
        &mut rates.writes_per_second
    }),
    ("cistern_volume_read_bytes_total", |rates| {
        &mut rates.read_bytes_per_second
    }),
    ("cistern_volume_written_bytes_total", |rates| {
        &mut rates.written_bytes_per_second
    }),
];

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_rate_is_the_difference_of_two_samples_of_one_device_over_the_time_between_them() {
        let began = Instant::now();
        let sample = |seconds: u64, text: &str| NodeMetrics {
            node: "n".to_owned(),
            at: began + Duration::from_secs(seconds),
            metrics: Exposition::parse(text),
        };
        let reads = "cistern_volume_reads_completed_total";
        let before = sample(
            0,
            &format!(
                "{reads}{{volume=\"a\",device=\"loop1\"}} 100\n\
                 {reads}{{volume=\"moved\",device=\"loop2\"}} 7\n\
                 {reads}{{volume=\"reset\",device=\"loop3\"}} 7\n\
                 cistern_volume_written_bytes_total{{volume=\"a\",device=\"loop1\"}} 0\n"
            ),
        );
        let after = sample(
            2,
            &format!(
                "{reads}{{volume=\"a\",device=\"loop1\"}} 150\n\
                 {reads}{{volume=\"moved\",device=\"loop9\"}} 900\n\
                 {reads}{{volume=\"reset\",device=\"loop3\"}} 6\n\
                 cistern_volume_written_bytes_total{{volume=\"a\",device=\"loop1\"}} 4096\n"
            ),
        );
        let rates = of_volumes(&before, &after);
        let expected = Rates {
            reads_per_second: 25.0,
            written_bytes_per_second: 2048.0,
            ..Rates::default()
        };
        assert_eq!(rates, BTreeMap::from([("a".to_owned(), expected)]));
        assert!(of_volumes(&before, &before).is_empty());
    }
}
