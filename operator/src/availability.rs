//! Whether a node takes new volumes of a pool, and why not. The status of a pool, the published
//! capacity and the events on claims share this answer.
//!
//! *Invariant:* the sizes are the agent's; none is computed here.

use cistern_crds::{
    ConditionStatus, ConditionType, NodePoolStatus, Reason, StorageNode, condition,
};
use kube::ResourceExt as _;

use crate::registration::Registration;

/// Why a node takes no new volume of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// Reason of the condition.
    pub reason: Reason,
    /// A clause that names what is wrong, but not the node.
    pub message: String,
}

/// Status of the pool `pool` on `node`, if the node takes new volumes of it.
pub fn available_pool<'a>(
    pool: &str,
    node: Option<&'a StorageNode>,
    registration: &Registration,
) -> Result<&'a NodePoolStatus, Unavailable> {
    let refuse = |reason, message: String| Err(Unavailable { reason, message });
    let entry = node.and_then(|node| {
        let entry = node.spec.pools.iter().find(|entry| entry.name == pool)?;
        Some((node, entry))
    });
    let Some((node, entry)) = entry else {
        return refuse(Reason::PoolUnknown, format!("does not carry pool {pool}"));
    };
    if entry.retiring {
        return refuse(Reason::Retiring, format!("pool {pool} is leaving the node"));
    }
    for part in [&registration.topology, &registration.agent] {
        if part.status != ConditionStatus::True {
            return refuse(part.reason, part.message.clone());
        }
    }
    let mut reported = node.status.iter().flat_map(|status| &status.pools);
    let Some(status) = reported.find(|status| status.uid == entry.uid) else {
        let message = format!(
            "the agent on {} has not reported pool {pool} yet",
            node.name_any()
        );
        return refuse(Reason::Pending, message);
    };
    match condition::find(&status.conditions, ConditionType::Ready) {
        _ if status.is_ready() => Ok(status),
        Some(ready) => {
            let reason = Reason::parse(&ready.reason).unwrap_or(Reason::PoolNotReady);
            refuse(
                reason,
                format!("pool {pool}: {}: {}", ready.reason, ready.message),
            )
        }
        None => refuse(Reason::Pending, format!("pool {pool} is being made")),
    }
}

#[cfg(test)]
mod tests {
    use cistern_crds::Bytes;

    use super::*;
    use crate::testing::{registered, storage_node, unregistered};

    #[test]
    fn a_ready_pool_is_offered_as_the_agent_says() {
        let node = storage_node("w1")
            .carrying("fast")
            .with_room("fast", Bytes::gib(3))
            .build();
        let offered = available_pool("fast", Some(&node), &registered("w1")).unwrap();
        assert_eq!(offered.thin_room, Bytes::gib(3));
    }

    #[test]
    fn every_reason_not_to_use_a_pool_is_reported() {
        let refused = |node: Option<&StorageNode>, registration| {
            available_pool("fast", node, &registration)
                .unwrap_err()
                .reason
        };
        let bare = storage_node("w1").build();
        let carrying = storage_node("w1").carrying("fast").build();
        let room = storage_node("w1")
            .carrying("fast")
            .with_room("fast", Bytes::gib(3));
        let retiring = room.clone().retiring("fast").build();
        let broken = room.clone().broken("fast", Reason::ReadOnly).build();
        let ready = room.build();
        assert_eq!(refused(None, registered("w1")), Reason::PoolUnknown);
        assert_eq!(refused(Some(&bare), registered("w1")), Reason::PoolUnknown);
        assert_eq!(refused(Some(&carrying), registered("w1")), Reason::Pending);
        assert_eq!(refused(Some(&retiring), registered("w1")), Reason::Retiring);
        assert_eq!(refused(Some(&broken), registered("w1")), Reason::ReadOnly);
        let silent = refused(Some(&ready), unregistered("w1"));
        assert_eq!(silent, Reason::DriverNotRegistered);
    }

    #[test]
    fn what_an_earlier_pool_of_the_same_name_left_is_not_offered() {
        let mut node = storage_node("w1")
            .carrying("fast")
            .with_room("fast", Bytes::gib(3))
            .build();
        node.spec.pools[0].uid = "another".to_owned();
        let refusal = available_pool("fast", Some(&node), &registered("w1")).unwrap_err();
        assert_eq!(refusal.reason, Reason::Pending);
    }
}
