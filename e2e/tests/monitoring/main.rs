//! Metrics, alerts, the dashboard and logs, from real processes with a real volume, a real API server
//! and a real Prometheus.

#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod documented;
mod exposition;
mod installed;
mod logs;
mod prometheus;
mod rules;
