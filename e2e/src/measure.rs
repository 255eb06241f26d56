//! Figures of processes, from `/proc`, and of samples.

use std::time::Instant;

/// Clock ticks of `/proc/PID/stat` in a second: the same on all machines that Cistern supports.
const TICKS: f64 = 100.0;

/// Resident memory of a process in mebibytes.
pub fn resident(process: u32) -> f64 {
    mebibytes(process, "VmRSS:")
}

/// Peak resident memory of a process in mebibytes.
pub fn peak(process: u32) -> f64 {
    mebibytes(process, "VmHWM:")
}

/// Seconds of processor time that a process has used since its start.
pub fn cpu_seconds(process: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("it runs");
    // The name of the program, in parentheses, may contain spaces. The state follows it.
    let (_, fields) = stat.rsplit_once(')').expect("the name is in parentheses");
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks = |index: usize| fields[index].parse::<f64>().expect("a number");
    (ticks(11) + ticks(12)) / TICKS
}

/// Seconds that the processors of this machine have been idle, in total.
pub fn idle_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/stat").expect("Linux has it");
    // cpu user nice system idle iowait ...
    let fields: Vec<&str> = stat.split_whitespace().take(6).collect();
    let ticks = |index: usize| fields[index].parse::<f64>().expect("a number");
    (ticks(4) + ticks(5)) / TICKS
}

/// The value below which `percent` of the samples lie.
pub fn percentile(samples: &[f64], percent: usize) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

/// Milliseconds since a point in time.
pub fn milliseconds(started: Instant) -> f64 {
    started.elapsed().as_secs_f64() * 1000.0
}

/// The sum of a metric over all series whose labels contain each of `labels`, in the text format of Prometheus.
pub fn metric(text: &str, name: &str, labels: &[&str]) -> f64 {
    let lines = text.lines().filter_map(|line| line.strip_prefix(name));
    let samples = lines.filter(|rest| rest.starts_with(['{', ' ']));
    let wanted = samples.filter(|rest| labels.iter().all(|label| rest.contains(label)));
    wanted
        .filter_map(|rest| rest.rsplit_once(' ')?.1.parse::<f64>().ok())
        .sum()
}

fn mebibytes(process: u32, figure: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(figure));
    let kibibytes = line
        .and_then(|line| line.trim().strip_suffix(" kB"))
        .expect("the kernel counts in kB");
    kibibytes.parse::<f64>().expect("a number") / 1024.0
}
