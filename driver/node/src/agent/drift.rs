//! Drift between this node and the API, as `cistern-driver fsck` reports it.
//!
//! ```text
//! compare ─▶ what fsck finds ─▶ what two comparisons in a row find ─▶ StorageNode.status, metrics
//!                                           └─▶ reclaim, where the pool has opted in
//! ```
//!
//! *Invariants:* a comparison only reads, and no operation waits for one. Work in progress is not
//! reported, because a finding counts only when two comparisons in a row have it. Nothing is
//! reported while the view of the API is incomplete. The start time of a finding survives a
//! restart, in the status.

mod compare;
mod elsewhere;
mod reclaim;
mod state;
mod tracked;

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;

use self::reclaim::Reclaims;
pub use self::state::Drift;
use super::Agent;

/// A comparison with a new finding is followed by the next after this fraction of the interval.
const CONFIRMED_AFTER: u32 = 10;

/// Compares periodically until dropped.
pub async fn run(agent: &Arc<Agent>, interval: Duration) {
    agent.pools.reconciled().await;
    let mut reclaims = Reclaims::default();
    loop {
        let is_open = Box::pin(compare::compare(agent)).await;
        reclaims.begin(agent);
        let wait = if is_open {
            interval / CONFIRMED_AFTER
        } else {
            interval
        };
        sleep(wait).await;
    }
}
