//! Gauges of the volumes: their claims, extents and health.

use std::{fmt, sync::Arc};

use cistern_client::metrics::{Gauges, tally};
use cistern_crds::{ConditionType, PoolVolume, Reason, VolumeProblem, condition};

use super::{
    io,
    labels::{name, of_volume, write_health},
    transfers,
};
use crate::agent::{
    Agent,
    desired::{Guarded, readable},
    io_limits,
};

pub(super) fn write(agent: &Agent, gauges: &mut Gauges<'_>) -> fmt::Result {
    let objects = agent.desired.volumes();
    let volumes: Vec<&PoolVolume> = objects
        .iter()
        .filter_map(|object: &Arc<Guarded<PoolVolume>>| readable(object))
        .collect();
    claims(&volumes, gauges)?;
    extents(&volumes, gauges)?;
    sizes(&volumes, gauges)?;
    allocated(agent, &volumes, gauges)?;
    io::write(agent, &volumes, gauges)?;
    health(agent, &volumes, gauges)?;
    not_expanded(&volumes, gauges)?;
    not_limited(&volumes, gauges)?;
    transfers::write(agent, &volumes, gauges)
}

/// Joins the other metrics with the claim, for alerts and dashboards.
fn claims(volumes: &[&PoolVolume], gauges: &mut Gauges<'_>) -> fmt::Result {
    let claims = volumes.iter().map(|volume| {
        let claim = volume.spec.claim.as_ref();
        let labels = [
            ("volume", name(volume)),
            ("pool", volume.spec.pool_name.as_str()),
            // Not `namespace`, which is the namespace of the process.
            (
                "claim_namespace",
                claim.map_or("", |it| it.namespace.as_str()),
            ),
            ("claim", claim.map_or("", |claim| claim.name.as_str())),
        ];
        (labels, 1_u64)
    });
    gauges.write(
        "cistern_volume_info",
        "The PersistentVolumeClaim of a volume.",
        claims,
    )
}

fn extents(volumes: &[&PoolVolume], gauges: &mut Gauges<'_>) -> fmt::Result {
    let extents = volumes.iter().filter_map(|volume| {
        let extents = volume.status.as_ref()?.extents?;
        Some((of_volume(volume), extents))
    });
    gauges.write(
        "cistern_volume_extents",
        "Approximate number of extents of a volume's image, which determines the cost of a snapshot.",
        extents,
    )
}

fn sizes(volumes: &[&PoolVolume], gauges: &mut Gauges<'_>) -> fmt::Result {
    let sizes = volumes.iter().filter_map(|volume| {
        let size = volume.status.as_ref()?.size?;
        Some((of_volume(volume), size.0))
    });
    gauges.write("cistern_volume_size_bytes", "Size of a volume.", sizes)
}

fn allocated(agent: &Agent, volumes: &[&PoolVolume], gauges: &mut Gauges<'_>) -> fmt::Result {
    let allocated = volumes.iter().filter_map(|volume| {
        let image = volume.status.as_ref()?.image.as_ref()?;
        let pool_state = agent.pools.get(&volume.spec.pool_name)?;
        let allocated = pool_state.usable()?.images.allocated(&image.uid)?;
        Some((of_volume(volume), allocated.0))
    });
    gauges.write(
        "cistern_volume_allocated_bytes",
        "Physical space that a volume's image takes, at the last reconcile of its pool, with shared blocks.",
        allocated,
    )
}

fn health(agent: &Agent, volumes: &[&PoolVolume], gauges: &mut Gauges<'_>) -> fmt::Result {
    // The last observation. A volume that was not observed since a restart has its status.
    let mut seen = agent.observations.problems();
    let known: Vec<(&PoolVolume, Vec<VolumeProblem>)> = volumes
        .iter()
        .map(|volume| {
            let seen = seen.remove(name(volume));
            (*volume, seen.unwrap_or_else(|| reported(volume).to_vec()))
        })
        .collect();
    let health = known
        .iter()
        .map(|(volume, problems)| (of_volume(volume).to_vec(), &problems[..]));
    write_health(gauges, "volume", &health.collect::<Vec<_>>())
}

fn not_expanded(volumes: &[&PoolVolume], gauges: &mut Gauges<'_>) -> fmt::Result {
    let failures = volumes.iter().filter_map(|volume| failure(volume));
    let counts = tally(failures.map(Reason::as_str)).into_iter();
    gauges.write(
        "cistern_volumes_not_expanded",
        "Volumes whose last growth failed or whose filesystem has not grown yet, by reason.",
        counts.map(|(reason, count)| ([("reason", reason)], count)),
    )
}

fn not_limited(volumes: &[&PoolVolume], gauges: &mut Gauges<'_>) -> fmt::Result {
    let reasons = volumes.iter().filter_map(|it| io_limits::not_enforced(it));
    let counts = tally(reasons.map(Reason::as_str)).into_iter();
    gauges.write(
        "cistern_volumes_not_limited",
        "Volumes that work without the limits of their I/O, by reason.",
        counts.map(|(reason, count)| ([("reason", reason)], count)),
    )
}

/// The reason why the last growth of a volume failed, if it did. A growth in progress has not failed.
fn failure(volume: &PoolVolume) -> Option<Reason> {
    let status = volume.status.as_ref()?;
    let failing = condition::failing(&status.conditions, ConditionType::Expanded)?;
    Reason::parse(&failing.reason).filter(|reason| *reason != Reason::Pending)
}

fn reported(volume: &PoolVolume) -> &[VolumeProblem] {
    let status = volume.status.as_ref();
    status.map_or(&[], |status| &status.problems)
}
