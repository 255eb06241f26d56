//! Pools that are not ready: calls that wait for such a pool end early, with the reason.
//!
//! *Invariant:* a pool is not ready only if its agent says so, or if its node does not carry it. The error reverts
//! nothing: the spec is still set when the pool is ready again.

use std::time::Duration;

use chrono::{DateTime, Utc};
use cistern_crds::{
    ConditionStatus, ConditionType, Explanation, Reason, StorageNode, condition, time,
};
use kube::ResourceExt as _;
use tokio::time::timeout;

use super::{Error, ManagedObject, named, nodes::Nodes};

/// How long a pool may take to be ready again, for example when it is mounted again. Calls wait that long.
const REOPENING: Duration = Duration::from_secs(5);

/// A pool that its agent reports as not ready, or that its node does not carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotReady {
    /// The node of the pool.
    node: String,
    /// Reason and message.
    why: Explanation,
    /// How long calls still wait for the pool.
    left: Duration,
}

impl Nodes {
    /// Waits until one of these pools, each on its node, has not been ready for [`REOPENING`].
    pub async fn until_not_ready(&self, pools: &[(&str, &str)]) -> NotReady {
        let mut changes = self.subscribe();
        loop {
            let not_ready = pools
                .iter()
                .filter_map(|(node, pool)| self.not_ready(node, pool));
            match not_ready.min_by_key(|it| it.left) {
                Some(not_ready) if not_ready.left.is_zero() => return not_ready,
                Some(NotReady { left, .. }) => {
                    let _ = timeout(left, changes.changed()).await;
                }
                // The sender lives as long as `self`.
                None => {
                    let _ = changes.changed().await;
                }
            }
        }
    }

    fn not_ready(&self, node: &str, pool: &str) -> Option<NotReady> {
        self.inspect(node, |found| of_pool(found?, pool, Utc::now()))?
    }
}

fn of_pool(node: &StorageNode, pool: &str, now: DateTime<Utc>) -> Option<NotReady> {
    if node.source_of(pool).is_none() {
        let message = format!("it does not carry pool {pool}");
        return Some(NotReady {
            node: node.name_any(),
            why: Explanation::new(Reason::PoolUnknown, message),
            left: Duration::ZERO,
        });
    }
    let status = node.status_of(pool)?;
    let ready = condition::find(&status.conditions, ConditionType::Ready)?;
    if ready.status != ConditionStatus::False.as_str() {
        return None;
    }
    let since = time::from_kubernetes(&ready.last_transition_time);
    // Negative if the clock of the node is ahead.
    let lasting = (now - since).to_std().unwrap_or_default();
    let reason = Reason::parse(&ready.reason).unwrap_or(Reason::PoolNotReady);
    let message = format!("pool {pool}: {}: {}", ready.reason, ready.message);
    Some(NotReady {
        node: node.name_any(),
        why: Explanation::new(reason, message),
        left: REOPENING.saturating_sub(lasting),
    })
}

/// The error of a call that waits for a pool that is not ready.
pub fn not_ready<K: ManagedObject>(object: &K, pool: NotReady) -> Error {
    let NotReady { node, why, .. } = pool;
    Error::PoolNotReady {
        object: named::<K>(&object.name_any()),
        node,
        why,
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;
    use cistern_crds::{Bytes, condition::ConditionUpdate};
    use futures::FutureExt as _;

    use super::*;
    use crate::{
        objects::nodes::tests::{node, show, view},
        testing::{at, ready_volume},
    };

    /// A node whose pool `fast` is not ready since then.
    fn broken(name: &str, since: DateTime<Utc>) -> StorageNode {
        let mut node = node(name, Bytes::gib(1), Bytes::gib(1));
        let finding = ConditionUpdate::new(
            ConditionType::Ready,
            false,
            Reason::ReadOnly,
            "the disk is gone",
        );
        let pool = &mut node.status.as_mut().unwrap().pools[0];
        condition::set(&mut pool.conditions, &finding, None, since);
        node
    }

    #[test]
    fn a_pool_is_waited_for_as_long_as_it_may_take_to_be_mounted_again() {
        let left = |seconds| {
            let found = of_pool(&broken("n1", at(100)), "fast", at(seconds));
            found.unwrap().left.as_secs()
        };
        assert_eq!([left(90), left(100), left(103)], [5, 5, 2]);
        assert_eq!([left(105), left(9000)], [0, 0]);
        let ready = node("n1", Bytes::gib(1), Bytes::gib(1));
        assert_eq!(of_pool(&ready, "fast", at(9000)), None);
        let unknown = of_pool(&ready, "slow", at(9000)).unwrap();
        assert_eq!(unknown.why.reason, Reason::PoolUnknown);
        assert!(unknown.left.is_zero());
    }

    #[test]
    fn a_pool_that_has_not_been_ready_for_long_ends_a_call_at_once_and_any_other_does_not() {
        let now = Utc::now();
        let nodes = view(vec![
            node("ready", Bytes::gib(1), Bytes::gib(1)),
            broken("dead", now - TimeDelta::minutes(1)),
        ]);
        let ended = |pools: &[(&str, &str)]| nodes.until_not_ready(pools).now_or_never();
        assert_eq!(ended(&[]), None);
        assert_eq!(ended(&[("ready", "fast"), ("unknown", "fast")]), None);
        let found = ended(&[("ready", "fast"), ("dead", "fast")]).unwrap();
        let error = not_ready(&ready_volume(), found).to_string();
        assert_eq!(
            error,
            "volume pvc-1 has to wait until its pool is ready on node dead: pool fast: ReadOnly: the disk is gone"
        );
    }

    #[test]
    fn a_call_that_waits_sees_a_pool_that_stops_being_ready_afterwards() {
        let nodes = view(vec![node("n1", Bytes::gib(1), Bytes::gib(1))]);
        let pools = [("n1", "fast")];
        let mut waiting = std::pin::pin!(nodes.until_not_ready(&pools));
        assert_eq!(waiting.as_mut().now_or_never(), None);
        show(&nodes, broken("n1", Utc::now() - TimeDelta::minutes(1)));
        assert!(waiting.now_or_never().is_some());
    }
}
