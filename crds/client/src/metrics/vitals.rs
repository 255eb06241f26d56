//! Resource usage of the process, under the customary names.

use std::{
    fmt, fs,
    time::{SystemTime, UNIX_EPOCH},
};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, registry::Registry};

use super::Gauges;

/// Registers `process_resident_memory_bytes`, `process_open_fds` and `process_start_time_seconds`.
pub(super) fn register(registry: &mut Registry) {
    // The process started a few milliseconds earlier. This does not matter for detecting restarts.
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
            "Resident memory of the process.",
            resident(),
        )?;
        gauges.write_one(
            "process_open_fds",
            "Number of open file descriptors of the process.",
            fs::read_dir("/proc/self/fd").ok().map(Iterator::count),
        )?;
        gauges.write_one(
            "process_start_time_seconds",
            "Start time of the process in seconds since the epoch.",
            Some(self.started),
        )
    }
}

/// Resident memory in bytes, from `VmRSS` of proc_pid_status(5).
fn resident() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}
