//! Code that all binaries share for the API server and for operation: guarded writes, tracking of own
//! writes, error chains, retries, logs, health and metrics.
//!
//! *Invariant:* this crate contains no storage logic.

pub mod chain;
pub mod http;
pub mod listen;
pub mod logging;
pub mod metrics;
pub mod own_writes;
pub mod retries;
pub mod shutdown;
pub mod watches;
pub mod writes;

pub use chain::Chain;
pub use listen::listen;
pub use own_writes::OwnWrites;
pub use retries::Retries;
pub use writes::Rejection;
