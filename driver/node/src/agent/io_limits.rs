//! Enforces the limits of the volumes' I/O on this node.
//!
//! *Invariant:* the limits of an attached volume change only under the volume's lock, so that no
//! periodic check sets them again while they are lifted for an operation that must end soon.

use std::{collections::HashMap, path::Path, sync::Arc};

use chrono::{DateTime, Utc};
use cistern_client::Chain;
use cistern_crds::{
    ConditionType, Consistency, Explanation, IoLimits, PoolVolume, Reason,
    condition::{self, ConditionUpdate},
};
use cistern_host::{
    Member, Root, Uid,
    io_limits::{IoController, Unavailable},
    mounting,
    snapshot::{self, Barrier},
};
use kube::ResourceExt as _;
use parking_lot::Mutex;

use super::{
    desired::{Desired, readable},
    pools::Pools,
};
use crate::usage::Volume;

/// Sets the limits of volumes, and remembers which could not be set.
#[derive(Clone, Debug)]
pub struct IoEnforcement {
    /// The error says why no limit is enforced on this node.
    controller: Result<IoController, Arc<Unavailable>>,
    /// The last error by name of the volume.
    failures: Arc<Mutex<HashMap<String, String>>>,
}

/// A volume, attached or not, and its limits.
#[derive(Clone, Debug)]
pub struct LimitedVolume {
    /// Name of the volume.
    pub name: String,
    /// Name of its image.
    pub image: Uid,
    /// The stricter of its own limits and those of its pool.
    pub limits: IoLimits,
}

impl IoEnforcement {
    /// Enforces limits with the node's controller for I/O. If the node has none, no limit is
    /// enforced.
    pub fn find() -> Self {
        let controller = IoController::find().map_err(|why| {
            tracing::info!(
                why = %Chain(&why),
                "limits of the volumes' I/O are not enforced on this node"
            );
            Arc::new(why)
        });
        Self {
            controller,
            failures: Arc::default(),
        }
    }

    /// Whether limits can be enforced on this node.
    pub fn is_available(&self) -> bool {
        self.controller.is_ok()
    }

    /// Sets the limits of those volumes that are attached. Blocks.
    pub fn apply(&self, root: &Root, volumes: &[LimitedVolume]) {
        let Ok(controller) = &self.controller else {
            return;
        };
        let wanted = volumes.iter().map(|it| (it.image.clone(), it.limits));
        let failed = root.limit_io(controller, &wanted.collect());
        let mut failures = self.failures.lock();
        for volume in volumes {
            let error = match &failed {
                Ok(failed) => failed.get(&volume.image),
                Err(error) => Some(error),
            };
            let Some(error) = error else {
                failures.remove(&volume.name);
                continue;
            };
            let (name, error) = (&volume.name, Chain(error).to_string());
            tracing::warn!(volume = name, limits = %volume.limits, error, "cannot set the limits of the volume's I/O");
            failures.insert(name.clone(), error);
        }
    }

    /// Takes snapshots ([`Root::take_snapshots`]) without the limits of their volumes, because
    /// writing out and freezing a filesystem has a deadline. Then sets the limits again. Blocks.
    pub fn take_snapshots(
        &self,
        root: &Root,
        volumes: &[LimitedVolume],
        members: &[Member<'_>],
        consistency: Consistency,
        clock: fn() -> DateTime<Utc>,
    ) -> Result<(), snapshot::Error> {
        let take = || root.take_snapshots(members, consistency, clock);
        self.without_limits(root, volumes, take).map(drop)
    }

    /// Takes the part of a group ([`Root::take_part`]) in the same way. Blocks.
    pub fn take_part(
        &self,
        root: &Root,
        volumes: &[LimitedVolume],
        members: &[Member<'_>],
        consistency: Consistency,
        barrier: &mut dyn Barrier,
    ) -> Result<(), snapshot::Error> {
        let take = || root.take_part(members, consistency, barrier);
        self.without_limits(root, volumes, take).map(drop)
    }

    /// Unmounts a volume from its staging path ([`Root::unstage`]) without its limits, because what
    /// is not written yet has to be written before kubelet's timeout. Sets the limits again if the
    /// volume stays mounted. Blocks.
    pub fn unstage(
        &self,
        root: &Root,
        volume: &[LimitedVolume],
        staging: &Path,
    ) -> Result<(), mounting::Error> {
        self.lift(root, volume);
        let unstaged = root.unstage(staging);
        if unstaged.is_err() {
            self.apply(root, volume);
        }
        unstaged
    }

    /// Does work without the limits of volumes that stay attached, and sets the limits again.
    fn without_limits<T>(
        &self,
        root: &Root,
        volumes: &[LimitedVolume],
        work: impl FnOnce() -> T,
    ) -> T {
        self.lift(root, volumes);
        let done = work();
        self.apply(root, volumes);
        done
    }

    /// Removes the limits of volumes, also those that they should not have any more. A failure only makes the work that
    /// follows slow.
    fn lift(&self, root: &Root, volumes: &[LimitedVolume]) {
        let unlimited = |volume: &LimitedVolume| LimitedVolume {
            limits: IoLimits::NONE,
            ..volume.clone()
        };
        let unlimited: Vec<_> = volumes.iter().map(unlimited).collect();
        if !unlimited.is_empty() {
            self.apply(root, &unlimited);
        }
    }

    /// Why the limits of a volume are not enforced; None if they are.
    fn problem(&self, volume: &str, limits: &IoLimits) -> Option<Explanation> {
        if limits.is_none() {
            return None;
        }
        if let Err(why) = &self.controller {
            let message = Chain(&**why).to_string();
            return Some(Explanation::new(Reason::LimitsUnavailable, message));
        }
        let failures = self.failures.lock();
        let error = failures.get(volume)?.clone();
        Some(Explanation::new(Reason::LimitsNotSet, error))
    }

    /// The update of the condition `LimitsEnforced` that the status of a volume lacks.
    pub fn unreported(&self, volume: &PoolVolume, pools: &Pools) -> Option<ConditionUpdate> {
        let limited = of(&Volume::read(volume).ok()?, pools);
        let kind = ConditionType::LimitsEnforced;
        let update = match self.problem(&volume.name_any(), &limited.limits) {
            None => ConditionUpdate::reconciled(kind),
            Some(why) => ConditionUpdate::new(kind, false, why.reason, why.message),
        };
        let status = volume.status.as_ref();
        let reported = status.and_then(|status| condition::find(&status.conditions, kind));
        let is_reported = reported.is_some_and(|reported| {
            reported.status == update.status.as_str()
                && reported.reason == update.reason.as_str()
                && reported.message == update.message
        });
        (!is_reported).then_some(update)
    }

    /// Forgets a volume that is gone.
    pub fn forget(&self, volume: &str) {
        self.failures.lock().remove(volume);
    }
}

/// The limits of a volume: the stricter of its own and those of its pool.
pub fn of(volume: &Volume, pools: &Pools) -> LimitedVolume {
    let pool = pools.get(&volume.pool);
    let of_pool = pool.map_or(IoLimits::NONE, |pool| pool.spec.limits.volume_io);
    LimitedVolume {
        name: volume.name.clone(),
        image: volume.image.clone(),
        limits: volume.io_limits.min(&of_pool),
    }
}

/// The limits of a volume that the watch shows and that has an image.
pub fn known(volume: &str, desired: &Desired, pools: &Pools) -> Option<LimitedVolume> {
    let object = desired.volume(volume)?;
    let volume = Volume::read(readable(&object)?).ok()?;
    Some(of(&volume, pools))
}

/// The volume that is staged at a path, without limits; None if none is. For one whose object is gone or unreadable. Blocks.
pub fn staged_at(volume: &str, root: &Root, staging: &Path) -> Option<LimitedVolume> {
    match root.staged_image(staging) {
        Ok(image) => image.map(|image| LimitedVolume {
            name: volume.to_owned(),
            image,
            limits: IoLimits::NONE,
        }),
        Err(error) => {
            tracing::warn!(volume, error = %Chain(&error), "cannot find the volume that is unstaged, to remove its limits");
            None
        }
    }
}

/// Whether a status reports that limits are not in force.
pub fn not_enforced(volume: &PoolVolume) -> Option<Reason> {
    let status = volume.status.as_ref()?;
    let failing = condition::failing(&status.conditions, ConditionType::LimitsEnforced)?;
    Reason::parse(&failing.reason)
}
