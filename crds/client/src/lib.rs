//! The few idioms with which both binaries meet the API server and the outside: guarded writes, own
//! writes that a cache lacks, errors as a chain, retries, logs, health and metrics.
//!
//! *Invariant:* nothing here knows what a pool or a volume is for.

pub mod chain;
pub mod http;
pub mod logging;
pub mod metrics;
pub mod own_writes;
pub mod retries;
pub mod shutdown;
pub mod watches;
pub mod writes;

pub use chain::Chain;
pub use own_writes::OwnWrites;
pub use retries::Retries;
pub use writes::Rejection;
