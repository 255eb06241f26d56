//! Whether a pool can be used on a node, and whether it takes new volumes there. Uses the
//! registration that the operator observes now.

use cistern_crds::{Explanation, NodePoolStatus, StorageNode, availability};

use crate::registration::Registration;

/// Status of the pool `pool` on `node`. Fails with the reason if the pool cannot be used there.
///
/// The conditions in the status may be older than the caches, so the observed registration takes
/// precedence.
pub fn available_pool<'a>(
    pool: &str,
    node: Option<&'a StorageNode>,
    registration: &Registration,
) -> Result<&'a NodePoolStatus, Explanation> {
    let Registration { topology, agent } = registration;
    availability::available_pool(pool, node, &[topology, agent])
}

/// Status of the pool `pool` on `node`. Fails with the reason if the node takes no new volumes of
/// it.
pub fn pool_for_new_volumes<'a>(
    pool: &str,
    node: Option<&'a StorageNode>,
    registration: &Registration,
) -> Result<&'a NodePoolStatus, Explanation> {
    let Registration { topology, agent } = registration;
    availability::pool_for_new_volumes(pool, node, &[topology, agent])
}

#[cfg(test)]
mod tests {
    use cistern_crds::{Bytes, Reason};

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
    fn a_cordoned_pool_can_be_used_and_takes_no_new_volumes() {
        let node = storage_node("w1")
            .carrying("fast")
            .cordoned("fast")
            .with_room("fast", Bytes::gib(3))
            .build();
        let registration = registered("w1");
        assert!(available_pool("fast", Some(&node), &registration).is_ok());
        let refusal = pool_for_new_volumes("fast", Some(&node), &registration).unwrap_err();
        assert_eq!(refusal.reason, Reason::Cordoned);
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
