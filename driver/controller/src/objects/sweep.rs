//! Sweeps: now and then, snapshots that users neither see nor delete are removed, as soon as nothing needs them.

use std::time::Duration;

use cistern_crds::PoolSnapshot;
use kube::{
    Api,
    api::ListParams,
    core::{DeserializeGuard, ObjectList},
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};

use super::{Error, Objects, failed};

/// How often snapshots are looked at.
const INTERVAL: Duration = Duration::from_mins(1);
/// How long one removal may take. A node that does not answer is asked again later.
const REMOVAL: Duration = Duration::from_mins(1);
/// How many snapshots are removed at the same time, so that a silent node does not delay all of them.
pub const AT_ONCE: usize = 8;

/// Waits for the next sweep: until it is asked for, or is due.
pub async fn next_sweep(asked: &Notify) {
    tokio::select! {
        () = asked.notified() => {}
        () = sleep(INTERVAL) => {}
    }
}

impl Objects<PoolSnapshot> {
    /// The readable snapshots that a field selector selects. Fails if the request to the API server fails.
    pub async fn select(&self, fields: &str) -> Result<Vec<PoolSnapshot>, Error> {
        let api = Api::<DeserializeGuard<PoolSnapshot>>::all(self.client());
        let selected = api.list(&ListParams::default().fields(fields)).await;
        let selected: ObjectList<_> =
            selected.map_err(failed(|| "list PoolSnapshots".to_owned()))?;
        let readable = selected.items.into_iter().filter_map(|it| it.0.ok());
        Ok(readable.collect())
    }

    /// Removes a snapshot that nothing needs. Fails like [`Objects::remove`], and if its node takes too long.
    pub async fn sweep(&self, name: &str) -> Result<(), Error> {
        let deadline = Instant::now() + REMOVAL;
        let removing = async |operation: &mut _| self.remove(operation).await;
        self.run_exclusive(name, deadline, removing).await
    }
}
