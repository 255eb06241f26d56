//! Writes observations made outside of a volume's reconciles to its status.

use std::borrow::Cow;

use cistern_crds::{HasImage as _, PoolVolume};
use kube::ResourceExt as _;

use super::status::{Own, VolumeOutcome};
use crate::agent::{Agent, reconcile::Reconciliation, work::Error};

/// Writes what was observed since the last reconcile: the filesystem (by the Node service), the
/// health, the progress of a check, copy or allocation, and whether its limits are in force. Returns the volume with
/// the new status; None if the object has changed.
pub(super) async fn note<'a>(
    agent: &Agent,
    volume: &'a PoolVolume,
) -> Result<Option<Cow<'a, PoolVolume>>, Error> {
    let observations = &agent.observations;
    let growth = observations.growth_of(&volume.name_any());
    let observed = [
        growth.map(Own::Filesystem),
        observations.unreported_problems(volume).map(Own::Health),
        agent.checks.unreported_progress(volume).map(Own::Checking),
        agent
            .transfers
            .copies
            .unreported_progress(&volume.name_any(), volume.conditions())
            .map(Own::Copying),
        agent
            .allocations
            .unreported_progress(volume)
            .map(Own::Allocating),
        agent.io.unreported(volume, &agent.pools).map(Own::Limits),
    ];
    let mut noted = Cow::Borrowed(volume);
    for observed in observed.into_iter().flatten() {
        let outcome = VolumeOutcome::Own(observed);
        let reconciliation = Reconciliation::of(agent, &*noted);
        let Some(written) = reconciliation.write(&outcome).await? else {
            return Ok(None);
        };
        if let VolumeOutcome::Own(Own::Filesystem(growth)) = &outcome {
            observations.growth_reported(&reconciliation.name, growth);
        }
        noted = Cow::Owned(written);
    }
    Ok(Some(noted))
}
