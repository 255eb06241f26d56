//! Gauges that are computed on each scrape, and the metrics of every process.
//!
//! *Invariant:* a scrape uses only the state of the process, so that it is cheap and never hangs.

mod requests;
mod vitals;

use std::{collections::BTreeMap, fmt};

use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeGaugeValue, EncodeLabelSet, EncodeMetric as _},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge, info::Info},
    registry::Registry,
};

pub use self::requests::{Observed, Requests};

/// Registers the metrics of every process: `cistern_build_info` and the customary `process_*`.
pub fn register(registry: &mut Registry, version: &'static str) {
    registry.register(
        "cistern_build",
        "Version of the binary",
        Info::new([("version", version)]),
    );
    vitals::register(registry);
}

/// Writes gauges with current values. A gauge without samples is written as well.
#[derive(Debug)]
pub struct Gauges<'a>(DescriptorEncoder<'a>);

impl<'a> Gauges<'a> {
    /// Creates a writer on the encoder of a collector.
    pub fn onto(encoder: DescriptorEncoder<'a>) -> Self {
        Self(encoder)
    }

    /// Writes a gauge: its name with the unit, its help text, and a number for each set of labels.
    /// Fails if the encoder fails.
    pub fn write<L: EncodeLabelSet, N: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, N)>,
    ) -> fmt::Result {
        let mut gauge = self
            .0
            .encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, number) in samples {
            ConstGauge::new(number).encode(gauge.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// Writes a counter that the kernel keeps: its name without `_total`, its help text, and a
    /// number for each set of labels. Fails if the encoder fails.
    pub fn write_counter<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let mut counter = self
            .0
            .encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, number) in samples {
            ConstCounter::new(number).encode(counter.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// Writes a gauge without labels. It has no sample if `number` is None. Fails if the encoder
    /// fails.
    pub fn write_one<N: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        number: Option<N>,
    ) -> fmt::Result {
        let gauge = self
            .0
            .encode_descriptor(name, help, None, MetricType::Gauge)?;
        number.map_or(Ok(()), |number| ConstGauge::new(number).encode(gauge))
    }
}

/// Counts the occurrences of each value.
pub fn tally<T: Ord>(all: impl IntoIterator<Item = T>) -> BTreeMap<T, u64> {
    all.into_iter().fold(BTreeMap::new(), |mut counts, each| {
        let count = counts.entry(each).or_default();
        *count = count.saturating_add(1);
        counts
    })
}

#[cfg(test)]
mod tests {
    use prometheus_client::{collector::Collector, encoding::text::encode};

    use super::*;

    #[derive(Debug)]
    struct Fruit;

    impl Collector for Fruit {
        fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
            let mut gauges = Gauges::onto(encoder);
            let kinds = tally(["pear", "apple", "pear"]);
            let samples = kinds
                .into_iter()
                .map(|(kind, count)| ([("kind", kind)], count));
            gauges.write("fruit", "Fruit by kind.", samples)?;
            gauges.write_counter("eaten", "Fruit eaten.", [([("kind", "plum")], 3)])?;
            gauges.write_one("nuts", "Nuts.", None::<u64>)
        }
    }

    #[test]
    fn gauges_are_computed_on_a_scrape_and_listed_also_without_samples() {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Fruit));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        assert!(text.contains("fruit{kind=\"pear\"} 2\n"), "{text}");
        assert!(text.contains("eaten_total{kind=\"plum\"} 3\n"), "{text}");
        assert!(text.contains("# TYPE nuts gauge\n"), "{text}");
    }

    #[test]
    fn a_process_exports_its_version_memory_files_and_start_time() {
        let mut registry = Registry::default();
        register(&mut registry, "1.2.3");
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        assert!(
            text.contains("cistern_build_info{version=\"1.2.3\"} 1\n"),
            "{text}"
        );
        for name in [
            "process_resident_memory_bytes",
            "process_open_fds",
            "process_start_time_seconds",
        ] {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            let number: f64 = line.rsplit(' ').next().unwrap().parse().unwrap();
            assert!(number > 1.0, "{line}");
        }
    }
}
