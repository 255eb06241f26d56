//! Reports the progress while a reconcile does work on a volume that can take long, and says when the work is over.

use std::{borrow::Cow, pin::pin};

use cistern_client::Chain;
use cistern_crds::PoolVolume;
use tokio::time::sleep;

use super::note;
use crate::agent::{
    desired::readable,
    reconcile::{
        Reconciliation,
        progress::{INTERVAL, ReportedProgress},
    },
};

impl ReportedProgress for PoolVolume {
    /// Writes what was observed since the object was written, and returns the object. None if
    /// another client has changed it, or if the volume is to be deleted.
    async fn report(reconciliation: &Reconciliation<'_, Self>, object: Self) -> Option<Self> {
        if reconciliation.is_deleted() {
            return None;
        }
        match Box::pin(note::note(reconciliation.agent, &object)).await {
            Ok(noted) => noted.map(Cow::into_owned),
            Err(error) => {
                let (volume, error) = (&reconciliation.name, Chain(&error));
                tracing::warn!(volume, %error, "cannot report the progress");
                Some(object)
            }
        }
    }
}

impl Reconciliation<'_, PoolVolume> {
    /// Waits for something that can take hours to come. None once the object is outdated, or something was observed of
    /// the volume that its status does not report: the next reconcile reports that, and waits again.
    pub(super) async fn unless_outdated<T>(&self, awaited: impl Future<Output = T>) -> Option<T> {
        let mut awaited = pin!(awaited);
        loop {
            tokio::select! {
                done = &mut awaited => return Some(done),
                () = sleep(INTERVAL) => {}
            }
            if self.is_outdated() || note::has_news(self.agent, self.object) {
                return None;
            }
        }
    }

    /// Whether the spec has changed since this reconcile began, or the object is gone. Another one that was created
    /// under its name begins with the same generation.
    pub(super) fn is_outdated(&self) -> bool {
        let shown = self.agent.desired.volume(&self.name);
        let shown = shown.as_deref().and_then(readable);
        let (uid, generation) = (&self.object.metadata.uid, self.object.metadata.generation);
        shown.is_none_or(|shown| {
            shown.metadata.uid != *uid || shown.metadata.generation != generation
        })
    }

    /// Whether the volume is to be deleted by now.
    pub(super) fn is_deleted(&self) -> bool {
        let shown = self.agent.desired.volume(&self.name);
        let is_deleted = |volume: &PoolVolume| volume.spec.deletion_requested;
        shown.as_deref().and_then(readable).is_some_and(is_deleted)
    }
}

#[cfg(test)]
mod tests {
    use std::{future::pending, time::Duration};

    use cistern_crds::{
        ConditionType,
        condition::{self, ConditionUpdate},
    };
    use kube::{
        ResourceExt as _,
        core::DeserializeGuard,
        runtime::{reflector::store::Writer, watcher::Event},
    };
    use tokio::time::timeout;

    use super::*;
    use crate::{
        agent::{desired::Guarded, observations::Growth, testing::watched_agent},
        testing::{at, ready_volume},
    };

    fn show(watch: &mut Writer<Guarded<PoolVolume>>, volume: &PoolVolume) {
        watch.apply_watcher_event(&Event::Apply(DeserializeGuard(Ok(volume.clone()))));
    }

    #[tokio::test]
    async fn an_object_is_outdated_once_its_spec_changes_or_another_one_has_its_name() {
        let (agent, mut watch) = watched_agent();
        let volume = ready_volume();
        let reconciliation = Reconciliation::of(&agent, &volume);
        assert!(reconciliation.is_outdated(), "it is gone");
        show(&mut watch, &volume);
        assert!(!reconciliation.is_outdated());
        let mut changed = volume.clone();
        changed.metadata.generation = Some(2);
        show(&mut watch, &changed);
        assert!(reconciliation.is_outdated());
        let mut created_again = volume.clone();
        created_again.metadata.uid = Some("uid-2".to_owned());
        show(&mut watch, &created_again);
        assert!(reconciliation.is_outdated());
    }

    #[tokio::test]
    async fn a_wait_for_other_volumes_ends_once_there_is_something_to_report() {
        let (agent, mut watch) = watched_agent();
        let mut volume = ready_volume();
        let enforced = ConditionUpdate::reconciled(ConditionType::LimitsEnforced);
        let status = volume.status.get_or_insert_default();
        condition::set(&mut status.conditions, &enforced, None, at(0));
        show(&mut watch, &volume);
        assert!(!note::has_news(&agent, &volume));
        let growth = Growth::Incomplete("it is mounted".to_owned());
        agent.observations.grew(&volume.name_any(), growth, None);
        let reconciliation = Reconciliation::of(&agent, &volume);
        // No permit comes.
        let waiting = reconciliation.unless_outdated(pending::<()>());
        let ended = timeout(Duration::from_secs(20), waiting).await;
        assert!(matches!(ended, Ok(None)), "{ended:?}");
    }
}
