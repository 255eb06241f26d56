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
mod copies;
mod elsewhere;
mod per_pool;
mod reclaim;
mod state;
mod tracked;

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;

use self::per_pool::PerPool;
pub use self::state::Drift;
use super::Agent;

/// A comparison that differs from the one before is followed by the next after this fraction of the
/// interval.
const SOONEST: u32 = 10;

/// Compares periodically until dropped.
pub async fn run(agent: &Arc<Agent>, interval: Duration) {
    agent.pools.reconciled().await;
    let (mut reclaims, mut copies) = (PerPool::default(), PerPool::default());
    let mut wait = interval;
    loop {
        let has_changes = Box::pin(compare::compare(agent)).await;
        reclaim::begin(agent, &mut reclaims);
        copies::begin(agent, &mut copies);
        wait = next_wait(wait, has_changes, interval);
        sleep(wait).await;
    }
}

/// The time until the next comparison. While nothing changes, it doubles up to the interval. So a new
/// finding is soon confirmed, and one that lasted for a moment does not stay in the status for long.
fn next_wait(wait: Duration, has_changes: bool, interval: Duration) -> Duration {
    if has_changes {
        interval / SOONEST
    } else {
        interval.min(wait * 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_are_frequent_after_a_change_and_rare_while_nothing_changes() {
        let interval = Duration::from_mins(5);
        let changes = [false, true, true, false, false, false, false, false, true];
        let mut wait = interval;
        let waits = changes.map(|has_changes| {
            wait = next_wait(wait, has_changes, interval);
            wait.as_secs()
        });
        assert_eq!(waits, [300, 30, 30, 60, 120, 240, 300, 300, 30]);
    }
}
