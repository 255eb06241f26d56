//! [`PoolRecord`]: which pool a disk is, as the disk itself records it: in the marker of a filesystem, or in the tags
//! of a volume group.

use std::path::Path;

use cistern_types::is_zero;
use serde::{Deserialize, Serialize};

use super::{Conflict, Error, ForeignMarker, Owner};
use crate::id::{Uid, Uuid};

/// A pool that a node is to carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolClaim {
    /// UID of the StoragePool.
    pub uid: Uid,
    /// Name of the StoragePool.
    pub name: String,
    /// UIDs of the other pools of this host.
    pub others: Vec<Uid>,
    /// The node that runs on this host.
    pub node: Owner,
    /// The pool of another node that this node may take over, exactly as it is recorded.
    pub take_over: Option<ForeignMarker>,
}

/// Which pool a disk is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PoolRecord {
    /// UID of the StoragePool.
    pub(crate) pool_uid: Uid,
    /// Name of the StoragePool.
    pub(crate) pool_name: String,
    /// UUID of the filesystem that contains it, or of the volume group as a pool.
    pub(crate) filesystem_uuid: Uuid,
    /// The node that carries the pool. None in pools of versions that did not record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) owner: Option<Owner>,
    /// How often a node has taken over the pool from another one. Never lowered: it tells the latest
    /// node from those that carried the pool before.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) takeovers: u32,
}

impl PoolRecord {
    /// The record of a new pool.
    pub(crate) fn new(claim: &PoolClaim, filesystem_uuid: Uuid) -> Self {
        Self {
            pool_uid: claim.uid.clone(),
            pool_name: claim.name.clone(),
            filesystem_uuid,
            owner: Some(claim.node.clone()),
            takeovers: 0,
        }
    }

    /// Whether it is the claimed pool before its StoragePool was recreated as another object: the same
    /// name, and a UID of no other pool on this host.
    pub(crate) fn is_returning(&self, claim: &PoolClaim) -> bool {
        self.pool_name == claim.name
            && self.pool_uid != claim.uid
            && !claim.others.contains(&self.pool_uid)
    }

    /// The record after the claimed pool has adopted this one.
    pub(crate) fn settled(&self, claim: &PoolClaim) -> Self {
        let present = &claim.node;
        let owner = self.owner.as_ref().unwrap_or(present).completed(present);
        let foreign = self.foreign();
        let is_taken_over = foreign.is_some_and(|it| !it.is_of(present, &claim.uid));
        Self {
            pool_uid: claim.uid.clone(),
            owner: Some(owner),
            takeovers: self.takeovers.saturating_add(u32::from(is_taken_over)),
            ..self.clone()
        }
    }

    /// Verifies that this is the record of the claimed pool, and of this node or of a node whose pool
    /// this node may take over. The error names the path.
    pub(crate) fn verify(&self, path: &Path, claim: &PoolClaim) -> Result<(), Error> {
        if self.pool_uid != claim.uid && !self.is_returning(claim) {
            return Err(Error::BackingConflict {
                path: path.to_owned(),
                why: Conflict::OtherPool {
                    name: self.pool_name.clone(),
                    uid: self.pool_uid.clone(),
                },
            });
        }
        let Some(foreign) = self.foreign() else {
            return Ok(());
        };
        let is_granted = claim.take_over.as_ref() == Some(&foreign);
        if is_granted || foreign.is_of(&claim.node, &claim.uid) {
            return Ok(());
        }
        Err(Error::OtherNode {
            path: path.to_owned(),
            foreign: Box::new(foreign),
        })
    }

    /// The record as one of another node may be granted. None if it names no node.
    fn foreign(&self) -> Option<ForeignMarker> {
        Some(ForeignMarker {
            owner: self.owner.clone()?,
            pool: self.pool_uid.clone(),
            filesystem: self.filesystem_uuid,
        })
    }

    /// Logs that the record is replaced by another one.
    pub(crate) fn log_adoption(&self, by: &Self) {
        let text = |record: &Self| {
            let owner = record.owner.as_ref().map(ToString::to_string);
            format!("{} on {}", record.pool_uid, owner.unwrap_or_default())
        };
        let (before, is) = (text(self), text(by));
        tracing::info!(pool = by.pool_name, before, is, "adopted the pool");
    }
}
