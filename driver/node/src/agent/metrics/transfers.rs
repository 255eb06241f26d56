//! Counters and gauges of the copies between nodes.

use std::{collections::BTreeMap, fmt};

use cistern_client::metrics::Gauges;
use cistern_crds::PoolVolume;
use prometheus_client::registry::{Registry, Unit};

use super::labels::{name, of_volume};
use crate::{
    agent::Agent,
    agent::transfers::{CopyState, Transfers},
};

/// Registers the counters.
pub(super) fn register(transfers: &Transfers, registry: &mut Registry) {
    registry.register_with_unit(
        "cistern_transfer_received",
        "Data of snapshots that was received from other nodes",
        Unit::Bytes,
        transfers.copies.received.clone(),
    );
    registry.register_with_unit(
        "cistern_transfer_sent",
        "Data of snapshots that was sent to other nodes",
        Unit::Bytes,
        transfers.sent.clone(),
    );
}

/// Writes the state of each copy that a volume waits for.
pub(super) fn write(
    agent: &Agent,
    volumes: &[&PoolVolume],
    gauges: &mut Gauges<'_>,
) -> fmt::Result {
    let awaited = volumes.iter().filter_map(|volume| {
        volume.awaited_copy()?;
        Some((*volume, agent.transfers.copies.state(name(volume))?))
    });
    let awaited: Vec<(&PoolVolume, CopyState)> = awaited.collect();
    let mut counts = BTreeMap::from(["queued", "running", "waiting"].map(|state| (state, 0_u64)));
    for (_, state) in &awaited {
        *counts.entry(label(state)).or_default() += 1;
    }
    gauges.write(
        "cistern_transfers",
        "Copies from other nodes that volumes wait for, by state.",
        counts
            .into_iter()
            .map(|(state, count)| ([("state", state)], count)),
    )?;
    // A copy in the queue cannot make progress.
    let offsets = awaited.iter().filter_map(|(volume, state)| match state {
        CopyState::Running(offset) | CopyState::Waiting(offset) => {
            Some((of_volume(volume), *offset))
        }
        CopyState::Queued => None,
    });
    gauges.write(
        "cistern_volume_copied_bytes",
        "Offset up to which the copy that a volume waits for is complete.",
        offsets,
    )
}

/// The value of the label `state`.
const fn label(state: &CopyState) -> &'static str {
    match state {
        CopyState::Running(_) => "running",
        CopyState::Queued => "queued",
        CopyState::Waiting(_) => "waiting",
    }
}
