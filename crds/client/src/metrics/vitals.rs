//! What a process takes of its machine, under the names that every exporter uses.

use std::{
    fmt, fs,
    time::{SystemTime, UNIX_EPOCH},
};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, registry::Registry};

use super::Gauges;

/// Registers `process_resident_memory_bytes`, `process_open_fds` and `process_start_time_seconds`.
pub(super) fn register(registry: &mut Registry) {
    // A few milliseconds late; who looks for restarts does not mind.
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    registry.register_collector(Box::new(Vitals {
        started: since_epoch.unwrap_or_default().as_secs_f64(),
    }));
}

#[derive(Debug)]
struct Vitals {
    /// Seconds since the epoch.
    started: f64,
}

impl Collector for Vitals {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut gauges = Gauges::onto(encoder);
        gauges.write_one(
            "process_resident_memory_bytes",
            "Memory of the process that is in use.",
            resident(),
        )?;
        gauges.write_one(
            "process_open_fds",
            "Files that the process has open.",
            fs::read_dir("/proc/self/fd").ok().map(Iterator::count),
        )?;
        gauges.write_one(
            "process_start_time_seconds",
            "When the process started, since the epoch.",
            Some(self.started),
        )
    }
}

/// Bytes, as `VmRSS` of proc_pid_status(5) has them.
fn resident() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}
