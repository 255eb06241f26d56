//! Writes observations made outside of a volume's reconciles to its status.

use std::borrow::Cow;

use cistern_crds::{HasImage as _, PoolVolume};
use kube::ResourceExt as _;

use super::status::{Own, VolumeOutcome};
use crate::agent::{Agent, reconcile::Reconciliation, work::Error};

/// Writes what was observed since the last reconcile. Returns the volume with the new status; None if the object has
/// changed.
pub(super) async fn note<'a>(
    agent: &Agent,
    volume: &'a PoolVolume,
) -> Result<Option<Cow<'a, PoolVolume>>, Error> {
    let mut noted = Cow::Borrowed(volume);
    for observed in unreported(agent, volume) {
        let outcome = VolumeOutcome::Own(observed);
        let reconciliation = Reconciliation::of(agent, &*noted);
        let Some(written) = reconciliation.write(&outcome).await? else {
            return Ok(None);
        };
        if let VolumeOutcome::Own(Own::Filesystem(growth)) = &outcome {
            let observations = &agent.observations;
            observations.growth_reported(&reconciliation.name, growth);
        }
        noted = Cow::Owned(written);
    }
    Ok(Some(noted))
}

/// Whether something was observed of a volume that its status does not report.
pub(super) fn has_news(agent: &Agent, volume: &PoolVolume) -> bool {
    unreported(agent, volume).next().is_some()
}

/// What was observed of a volume and its status does not report: the filesystem (by the Node service), the
/// health, the progress of a check, copy or allocation, and whether its limits are in force.
fn unreported(agent: &Agent, volume: &PoolVolume) -> impl Iterator<Item = Own> + use<> {
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
    observed.into_iter().flatten()
}
