//! Gauges of the pools: their contents, reservations and health.

use std::{collections::HashSet, fmt, sync::Arc};

use cistern_client::metrics::Gauges;
use cistern_crds::{NodePoolStatus, PoolProblem};

use super::labels::write_health;
use crate::agent::{
    Agent,
    desired::AssignedObjects,
    pools::{Images, PoolState},
};

/// The last status of a pool, and its state in memory.
struct Known {
    status: NodePoolStatus,
    pool_state: Option<Arc<PoolState>>,
    problems: Vec<PoolProblem>,
    /// Names of the images that custom resources claim.
    claimed: HashSet<String>,
}

impl Known {
    /// The images that the last reconcile found.
    fn images(&self) -> Option<&Images> {
        Some(&self.pool_state.as_ref()?.usable()?.images)
    }
}

/// Name, help text and value of a gauge.
type Number = (&'static str, &'static str, fn(&Known) -> Option<u64>);

/// The gauges that have one sample for each pool.
const NUMBERS: &[Number] = &[
    (
        "cistern_pool_ready",
        "Whether the pool can be used on the node.",
        |pool| Some(u64::from(pool.status.is_ready())),
    ),
    (
        "cistern_pool_size_bytes",
        "Size of the image file or device that the pool's filesystem covers.",
        |pool| Some(pool.status.size.0),
    ),
    (
        "cistern_pool_usable_bytes",
        "Space for volumes and snapshots, without the part that reservedPercent sets aside.",
        |pool| Some(pool.status.usable.0),
    ),
    (
        "cistern_pool_available_bytes",
        "Physical space that is free in the pool's filesystem, at the last reconcile.",
        |pool| Some(pool.pool_state.as_ref()?.usable()?.statistics.available.0),
    ),
    (
        "cistern_pool_allocated_bytes",
        "Physical space that images take, at the last reconcile; shared blocks count once.",
        |pool| {
            let statistics = pool.pool_state.as_ref()?.usable()?.statistics;
            Some(statistics.empty.saturating_sub(statistics.available).0)
        },
    ),
    (
        "cistern_pool_reserved_bytes",
        "Space that the ledger holds for volumes, snapshots, orphans, unclaimed closed images and copies, and foreign \
         files.",
        |pool| Some(pool.status.reserved.0),
    ),
    (
        "cistern_pool_reserved_limit_bytes",
        "Limit of all reservations: usable space times overcommitPercent.",
        |pool| {
            let percent = pool.pool_state.as_ref()?.spec.overcommit_percent;
            Some(pool.status.usable.percent(percent).0)
        },
    ),
    (
        "cistern_pool_snapshots_reserved_bytes",
        "Space that the ledger holds for snapshots.",
        |pool| Some(pool.status.reserved_for_snapshots.0),
    ),
    (
        "cistern_pool_volumes",
        "Volumes that the ledger holds space for.",
        |pool| Some(u64::from(pool.status.volumes)),
    ),
    (
        "cistern_pool_snapshots",
        "Snapshots that the ledger holds space for.",
        |pool| Some(u64::from(pool.status.snapshots)),
    ),
    (
        "cistern_pool_orphans",
        "Images that no custom resource claims.",
        |pool| Some(pool.images()?.count_unclaimed(&pool.claimed)),
    ),
    (
        "cistern_pool_orphans_bytes",
        "Space that the ledger holds for images that no custom resource claims.",
        |pool| Some(pool.images()?.unclaimed(&pool.claimed).0),
    ),
    (
        "cistern_pool_extents_limit",
        "Highest number of extents of an image that can be snapshotted or cloned.",
        |pool| Some(pool.pool_state.as_ref()?.spec.limits.maximum_extents),
    ),
];

pub(super) fn write(agent: &Agent, gauges: &mut Gauges<'_>) -> fmt::Result {
    let statuses = agent.report.last().unwrap_or_default().into_iter();
    let mut seen = agent.health.all();
    let assigned = agent.desired.by_pool();
    let pools: Vec<Known> = statuses
        .map(|status| Known {
            pool_state: agent.pools.get(&status.name),
            claimed: assigned
                .get(&status.name)
                .map(AssignedObjects::claimed_images)
                .unwrap_or_default(),
            problems: seen
                .remove(&status.name)
                .unwrap_or_else(|| status.problems.clone()),
            status,
        })
        .collect();
    for (name, help, number) in NUMBERS {
        let samples = pools.iter().filter_map(|pool| {
            let labels = [("pool", pool.status.name.as_str())];
            Some((labels, number(pool)?))
        });
        gauges.write(name, help, samples)?;
    }
    let rooms = pools.iter().flat_map(|pool| {
        let room = |kind, room: cistern_crds::Bytes| {
            let labels = [("pool", pool.status.name.as_str()), ("provisioning", kind)];
            (labels, room.0)
        };
        [
            room("thin", pool.status.thin_room),
            room("thick", pool.status.thick_room),
        ]
    });
    gauges.write(
        "cistern_pool_room_bytes",
        "Room for more volumes with this provisioning, in total; 0 while the pool takes none.",
        rooms,
    )?;
    let health = pools.iter().map(|pool| {
        let labels = vec![("pool", pool.status.name.as_str())];
        (labels, &pool.problems[..])
    });
    write_health(gauges, "pool", &health.collect::<Vec<_>>())
}
