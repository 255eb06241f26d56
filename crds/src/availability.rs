//! Whether a pool can be used on a node, whether it takes new volumes there, and why not.
//!
//! The status of a pool, the published capacity, the events on claims, and the controller's choice of a
//! node share this decision.
//!
//! *Invariant:* pure. The sizes are the agent's; none is computed here.

use kube::ResourceExt as _;

use crate::{
    ConditionStatus, ConditionType, Explanation, NodePoolStatus, Reason, StorageNode,
    condition::{self, ConditionUpdate},
};

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
    let refuse = |reason, message: String| Err(Explanation { reason, message });
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
    for part in registration {
        if part.status != ConditionStatus::True {
            return refuse(part.reason, part.message.clone());
        }
    }
    let mut reported = node.status.iter().flat_map(|status| &status.pools);
    // A pool that was declared again under an old name is not the one that the agent reports.
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
        None => refuse(Reason::Pending, format!("pool {pool} is being created")),
    }
}

/// Status of the pool `pool` on `node`, if the node takes new volumes of it: the pool is available there, as
/// [`available_pool`] defines, and not cordoned.
///
/// # Errors
///
/// As [`available_pool`], and [`Reason::Cordoned`].
pub fn pool_for_new_volumes<'a>(
    pool: &str,
    node: Option<&'a StorageNode>,
    registration: &[&ConditionUpdate],
) -> Result<&'a NodePoolStatus, Explanation> {
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

    /// Status of a pool on this node, if the node takes new volumes of it. See
    /// [`pool_for_new_volumes`].
    pub fn pool_for_new_volumes(&self, pool: &str) -> Result<&NodePoolStatus, Explanation> {
        let registration = self.registration();
        let registration: Vec<_> = registration.iter().collect();
        pool_for_new_volumes(pool, Some(self), &registration)
    }
}
