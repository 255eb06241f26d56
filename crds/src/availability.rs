//! Whether a pool can be used on a node, whether it takes new volumes there, and why not.
//!
//! The status of a pool, the published capacity, the events on claims, the promotion of copies, and the
//! controller's choice of a node share this decision.
//!
//! *Invariant:* pure. The sizes are the agent's; none is computed here.

use kube::ResourceExt as _;

use crate::{
    ConditionStatus, ConditionType, Encryption, Explanation, NodePoolStatus, Provisioning, Reason,
    StorageNode,
    condition::{self, ConditionUpdate},
};

/// What a volume needs of its pool and its node, apart from room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Whether the volume is thick or thin.
    pub provisioning: Provisioning,
    /// How the volume is encrypted; None if it is not.
    pub encryption: Option<Encryption>,
    /// Whether the volume is a copy: a restored snapshot, a clone, or a volume that moves.
    pub is_copy: bool,
}

/// Status of the pool `pool` on `node`, if the pool can be used there.
///
/// `registration` are the conditions that the operator sets for the node: an absent condition does not
/// make the node unavailable, because the operator has not observed the node yet.
///
/// # Errors
///
/// Why the pool cannot be used. The message states what is wrong and does not name the node, so it
/// can follow the node's name.
pub fn available_pool<'a>(
    pool: &str,
    node: Option<&'a StorageNode>,
    registration: &[&ConditionUpdate],
) -> Result<&'a NodePoolStatus, Explanation> {
    let mut entries = node.iter().flat_map(|node| &node.spec.pools);
    if entries.any(|entry| entry.name == pool && entry.retiring) {
        let message = format!("pool {pool} is leaving the node");
        return Err(Explanation::new(Reason::Retiring, message));
    }
    can_read(pool, node, registration)
}

/// Status of the pool `pool` on `node`, if the node can read the images in it: as [`available_pool`], but a pool
/// that is leaving the node counts, too, because it stays until it is empty.
///
/// # Errors
///
/// As [`available_pool`], without [`Reason::Retiring`].
pub fn can_read<'a>(
    pool: &str,
    node: Option<&'a StorageNode>,
    registration: &[&ConditionUpdate],
) -> Result<&'a NodePoolStatus, Explanation> {
    let refuse = |reason, message: String| Err(Explanation { reason, message });
    let Some(node) = node.filter(|node| node.source_of(pool).is_some()) else {
        return refuse(Reason::PoolUnknown, format!("does not carry pool {pool}"));
    };
    for part in registration {
        if part.status != ConditionStatus::True {
            return refuse(part.reason, part.message.clone());
        }
    }
    let Some(status) = node.status_of(pool) else {
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
        None => refuse(Reason::Pending, format!("pool {pool} is being created")),
    }
}

/// Status of the pool `pool` on `node`, if the node takes volumes with these needs: the pool can hold them, the node can
/// encrypt them, the pool is available there, as [`available_pool`] defines, and it is not cordoned. Room does not
/// count. What a node lacks does not count if it does not carry the pool.
///
/// # Errors
///
/// As [`available_pool`], and [`Reason::NotInVolumeGroup`], [`Reason::EncryptionUnavailable`] and [`Reason::Cordoned`].
pub fn takes<'a>(
    pool: &str,
    node: Option<&'a StorageNode>,
    needs: Needs,
    registration: &[&ConditionUpdate],
) -> Result<&'a NodePoolStatus, Explanation> {
    let carried = node.and_then(|node| Some((node, node.source_of(pool)?)));
    if let Some((node, source)) = carried {
        if needs.is_copy {
            source.copies(pool)?;
        }
        source.holds(pool, needs.provisioning)?;
        node.encrypts(needs.encryption)?;
    }
    let status = available_pool(pool, node, registration)?;
    let mut entries = node.iter().flat_map(|node| &node.spec.pools);
    if entries.any(|entry| entry.name == pool && entry.cordoned) {
        let message = format!("pool {pool} is cordoned there: `kubectl cistern uncordon`");
        return Err(Explanation::new(Reason::Cordoned, message));
    }
    Ok(status)
}

impl StorageNode {
    /// The conditions in the status that state whether the node can be used: `TopologyRegistered` and
    /// `AgentReporting`, if the operator has set them.
    fn registration(&self) -> Vec<ConditionUpdate> {
        let conditions = self.status.as_ref().map(|status| &status.conditions[..]);
        [
            ConditionType::TopologyRegistered,
            ConditionType::AgentReporting,
        ]
        .into_iter()
        .filter_map(|kind| {
            let found = condition::find(conditions.unwrap_or_default(), kind)?;
            let reason = Reason::parse(&found.reason).unwrap_or(Reason::OtherProblem);
            let status = ConditionStatus::parse(&found.status)?;
            let message = match kind {
                ConditionType::AgentReporting => {
                    format!("its agent does not report: {}", found.message)
                }
                _ => found.message.clone(),
            };
            Some(ConditionUpdate::new(kind, status, reason, message))
        })
        .collect()
    }

    /// Status of a pool on this node, if it can be used. See [`available_pool`].
    pub fn available_pool(&self, pool: &str) -> Result<&NodePoolStatus, Explanation> {
        let registration = self.registration();
        let registration: Vec<_> = registration.iter().collect();
        available_pool(pool, Some(self), &registration)
    }

    /// Status of a pool on this node, if the node can read the images in it. See [`can_read`].
    pub fn can_read(&self, pool: &str) -> Result<&NodePoolStatus, Explanation> {
        let registration = self.registration();
        let registration: Vec<_> = registration.iter().collect();
        can_read(pool, Some(self), &registration)
    }

    /// Status of a pool on this node, if the node takes volumes with these needs. See [`takes`].
    pub fn takes(&self, pool: &str, needs: Needs) -> Result<&NodePoolStatus, Explanation> {
        let registration = self.registration();
        let registration: Vec<_> = registration.iter().collect();
        takes(pool, Some(self), needs, &registration)
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;
    use crate::{
        Bytes, StorageNodeSpec, StorageNodeStatus,
        testing::{image_source, node_pool, volume_group_source},
    };

    /// A node that carries pool `fast`, which its agent reports as ready with 3 GiB of room.
    fn node() -> StorageNode {
        let mut node = StorageNode::new("w1", StorageNodeSpec::default());
        let source = image_source(Bytes::gib(10));
        node.spec.pools.push(node_pool("fast", "uid-fast", source));
        let pool = NodePoolStatus {
            name: "fast".to_owned(),
            uid: "uid-fast".to_owned(),
            thin_room: Bytes::gib(3),
            ..NodePoolStatus::default()
        };
        node.status = Some(StorageNodeStatus {
            pools: vec![pool],
            ..StorageNodeStatus::default()
        });
        set_ready(&mut node, true, Reason::Reconciled);
        node
    }

    fn set_ready(node: &mut StorageNode, is_ready: bool, reason: Reason) {
        let finding = ConditionUpdate::new(ConditionType::Ready, is_ready, reason, "by the test");
        let pool = &mut node.status.as_mut().unwrap().pools[0];
        condition::set(&mut pool.conditions, &finding, None, DateTime::default());
    }

    /// The conditions of a node on which kubelet has registered the driver.
    fn registered() -> [ConditionUpdate; 2] {
        [
            ConditionType::TopologyRegistered,
            ConditionType::AgentReporting,
        ]
        .map(ConditionUpdate::reconciled)
    }

    /// What the node refuses volumes with these needs for.
    fn refusal(node: &StorageNode, needs: Needs) -> Reason {
        let registered = registered();
        let taken = takes("fast", Some(node), needs, &registered.each_ref());
        taken.unwrap_err().reason
    }

    #[test]
    fn a_ready_pool_is_offered_as_the_agent_says() {
        let node = node();
        let offered = available_pool("fast", Some(&node), &registered().each_ref());
        assert_eq!(offered.unwrap().thin_room, Bytes::gib(3));
    }

    #[test]
    fn every_reason_not_to_use_a_pool_is_reported() {
        let refused = |node: Option<&StorageNode>, registration: [ConditionUpdate; 2]| {
            let refused = available_pool("fast", node, &registration.each_ref());
            refused.unwrap_err().reason
        };
        let ready = node();
        let mut bare = ready.clone();
        bare.spec.pools.clear();
        let mut carrying = ready.clone();
        carrying.status = None;
        let mut retiring = ready.clone();
        retiring.spec.pools[0].retiring = true;
        let mut broken = ready.clone();
        set_ready(&mut broken, false, Reason::ReadOnly);
        assert_eq!(refused(None, registered()), Reason::PoolUnknown);
        assert_eq!(refused(Some(&bare), registered()), Reason::PoolUnknown);
        assert_eq!(refused(Some(&carrying), registered()), Reason::Pending);
        assert_eq!(refused(Some(&retiring), registered()), Reason::Retiring);
        assert_eq!(refused(Some(&broken), registered()), Reason::ReadOnly);
        let mut unregistered = registered();
        unregistered[0].status = ConditionStatus::False;
        unregistered[0].reason = Reason::DriverNotRegistered;
        let refused = refused(Some(&ready), unregistered);
        assert_eq!(refused, Reason::DriverNotRegistered);
    }

    #[test]
    fn a_pool_that_is_leaving_its_node_can_be_read_while_its_agent_reports_it_as_ready() {
        let mut node = node();
        node.spec.pools[0].retiring = true;
        set_ready(&mut node, true, Reason::Retiring);
        assert!(node.can_read("fast").is_ok());
        let refused = node.available_pool("fast").unwrap_err();
        assert_eq!(refused.reason, Reason::Retiring);
        let unreadable = |node: &StorageNode| node.can_read("fast").unwrap_err().reason;
        let mut silent = node.clone();
        let kind = ConditionType::AgentReporting;
        let silence = ConditionUpdate::new(kind, false, Reason::AgentNotReady, "by the test");
        let status = silent.status.as_mut().unwrap();
        condition::set(&mut status.conditions, &silence, None, DateTime::default());
        assert_eq!(unreadable(&silent), Reason::AgentNotReady);
        set_ready(&mut node, false, Reason::ReadOnly);
        assert_eq!(unreadable(&node), Reason::ReadOnly);
        node.spec.pools.clear();
        assert_eq!(unreadable(&node), Reason::PoolUnknown);
    }

    #[test]
    fn a_cordoned_pool_can_be_used_and_takes_no_new_volumes() {
        let mut node = node();
        node.spec.pools[0].cordoned = true;
        assert!(available_pool("fast", Some(&node), &registered().each_ref()).is_ok());
        assert_eq!(refusal(&node, Needs::default()), Reason::Cordoned);
    }

    #[test]
    fn what_an_earlier_pool_of_the_same_name_left_is_not_offered() {
        let mut node = node();
        node.spec.pools[0].uid = "another".to_owned();
        let refused = available_pool("fast", Some(&node), &registered().each_ref());
        assert_eq!(refused.unwrap_err().reason, Reason::Pending);
    }

    #[test]
    fn the_status_of_a_pool_is_not_that_of_an_earlier_pool_of_the_same_name() {
        let mut node = node();
        let found = node.status_of("fast").unwrap();
        assert_eq!(found.uid, "uid-fast");
        assert_eq!(node.status_of("slow"), None);
        node.spec.pools[0].uid = "another".to_owned();
        assert_eq!(node.status_of("fast"), None);
        node.spec.pools.clear();
        assert_eq!(node.status_of("fast"), None, "the node does not carry it");
    }

    #[test]
    fn a_node_takes_only_volumes_that_its_pool_can_hold_and_the_node_can_encrypt() {
        let mut node = node();
        assert!(node.takes("fast", Needs::default()).is_ok());
        let encrypted = Needs {
            encryption: Some(Encryption::Luks2),
            ..Needs::default()
        };
        assert_eq!(refusal(&node, encrypted), Reason::EncryptionUnavailable);
        let copy = Needs {
            provisioning: Provisioning::Thick,
            is_copy: true,
            ..Needs::default()
        };
        assert!(node.takes("fast", copy).is_ok());
        node.spec.pools[0].source = volume_group_source("vg");
        let thin = Needs {
            provisioning: Provisioning::Thin,
            ..Needs::default()
        };
        let thick = Needs {
            is_copy: false,
            ..copy
        };
        for needs in [thin, copy] {
            assert_eq!(refusal(&node, needs), Reason::NotInVolumeGroup);
        }
        assert!(node.takes("fast", thick).is_ok());
        // It does not matter what a node without the pool lacks.
        node.spec.pools.clear();
        for needs in [thin, copy, encrypted] {
            assert_eq!(refusal(&node, needs), Reason::PoolUnknown);
        }
    }
}
