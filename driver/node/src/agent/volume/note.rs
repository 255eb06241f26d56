//! What was seen of a volume outside of its passes, and is written down by the next one.

use std::borrow::Cow;

use cistern_crds::PoolVolume;

use super::status::{Outcome, Own};
use crate::agent::{Agent, pass::Pass, work::Error};

/// The volume as it is with what was seen of it since its last pass: by the Node service of its
/// filesystem, by a look at its health, and by a check that runs. None when the object has changed meanwhile.
pub(super) async fn note<'a>(
    agent: &Agent,
    volume: &'a PoolVolume,
) -> Result<Option<Cow<'a, PoolVolume>>, Error> {
    let mut noted = Cow::Borrowed(volume);
    let pass = Pass::over(agent, volume);
    if let Some(seen) = agent.filesystems.get(&pass.name) {
        let outcome = Outcome::Own(Own::Filesystem(seen.clone()));
        let Some(written) = pass.write(&outcome).await? else {
            return Ok(None);
        };
        agent.filesystems.written(&pass.name, &seen);
        noted = Cow::Owned(written);
    }
    let health = agent.health.news_of(&noted).map(Own::Health);
    let checking = agent.checks.news_of(&noted).map(Own::Checking);
    for news in [health, checking].into_iter().flatten() {
        let outcome = Outcome::Own(news);
        let Some(written) = Pass::over(agent, &*noted).write(&outcome).await? else {
            return Ok(None);
        };
        noted = Cow::Owned(written);
    }
    Ok(Some(noted))
}
