//! Writes observations made outside of a volume's reconciles to its status.

use std::borrow::Cow;

use cistern_crds::PoolVolume;

use super::status::{Own, VolumeOutcome};
use crate::agent::{Agent, io_limits, reconcile::Reconciliation, work::Error};

/// Writes what was observed since the last reconcile: the filesystem (by the Node service), the
/// health, the progress of a check, and whether its limits are in force. Returns the volume with
/// the new status; None if the object has changed.
pub(super) async fn note<'a>(
    agent: &Agent,
    volume: &'a PoolVolume,
) -> Result<Option<Cow<'a, PoolVolume>>, Error> {
    let mut noted = Cow::Borrowed(volume);
    let reconciliation = Reconciliation::of(agent, volume);
    if let Some(growth) = agent.observations.growth_of(&reconciliation.name) {
        let outcome = VolumeOutcome::Own(Own::Filesystem(growth.clone()));
        let Some(written) = reconciliation.write(&outcome).await? else {
            return Ok(None);
        };
        agent
            .observations
            .growth_reported(&reconciliation.name, &growth);
        noted = Cow::Owned(written);
    }
    let health = agent
        .observations
        .unreported_problems(&noted)
        .map(Own::Health);
    let checking = agent.checks.unreported_progress(&noted).map(Own::Checking);
    let limits = io_limits::unreported(agent, &noted).map(Own::Limits);
    for observed in [health, checking, limits].into_iter().flatten() {
        let outcome = VolumeOutcome::Own(observed);
        let Some(written) = Reconciliation::of(agent, &*noted).write(&outcome).await? else {
            return Ok(None);
        };
        noted = Cow::Owned(written);
    }
    Ok(Some(noted))
}
