//! The snapshots of a move: takes and removes them. Only those that `status` names.

use cistern_crds::{Consistency, Explanation, HasImage as _, PoolSnapshot, PoolSnapshotSpec};
use kube::{Api, api::ListParams, core::DeserializeGuard};

use super::{Error, advance::Move, passes::Passes, removal};
use crate::{Context, controller::Next};

/// When to look again at a snapshot that is being removed.
const WAIT: std::time::Duration = std::time::Duration::from_secs(5);

impl Move<'_> {
    /// The snapshots of the pass and of the prepared copy.
    pub(super) async fn snapshots(&self) -> Result<[Option<PoolSnapshot>; 2], Error> {
        let Passes {
            copying, prepared, ..
        } = Passes::of(&self.object);
        let mut found = [None, None];
        let recorded = [
            copying.map(|it| it.snapshot_name),
            prepared.map(|it| it.snapshot_name),
        ];
        for (found, name) in found.iter_mut().zip(recorded) {
            if let Some(name) = name {
                *found = self.snapshot(&name).await?;
            }
        }
        Ok(found)
    }

    async fn snapshot(&self, name: &str) -> Result<Option<PoolSnapshot>, Error> {
        let found = self.pool_snapshots().get_opt(name).await;
        let found = found.map_err(|error| self.failed_with("get", "a PoolSnapshot", error))?;
        Ok(found.filter(|it| it.spec.is_of_move()))
    }

    /// Takes the snapshot of the pass that is recorded.
    pub(super) async fn take_snapshot(&self) -> Result<(), Error> {
        let (Some(volume), Some(pass)) = (&self.volume, Passes::of(&self.object).copying) else {
            return Ok(());
        };
        let Some(image) = volume.image() else {
            return Ok(());
        };
        let requested = format!("move of {}, pass {}", self.name(), pass.number);
        // Filesystems are not frozen: the copy of the closed volume is the one that is used.
        let spec = PoolSnapshotSpec {
            copied_for: Some(self.name().to_owned()),
            ..PoolSnapshotSpec::of(volume, &image.uid, &requested, Consistency::Crash)
        };
        let snapshot = PoolSnapshot::desired(&pass.snapshot_name, spec);
        self.create(&snapshot, "a PoolSnapshot").await
    }

    /// Requests that the agent removes the image of a snapshot.
    pub(super) async fn remove_snapshot(&self, name: &str) -> Result<(), Error> {
        if let Some(snapshot) = self.snapshot(name).await? {
            let removed = removal::request(self.context, &snapshot).await;
            removed.map_err(|error| self.failed_with("update", "a PoolSnapshot", error))?;
        }
        Ok(())
    }

    /// Removes a snapshot whose image is gone. Returns why it stays, if others hold it.
    pub(super) async fn release_snapshot(&self, name: &str) -> Result<Option<Explanation>, Error> {
        let Some(snapshot) = self.snapshot(name).await? else {
            return Ok(None);
        };
        if let Some(why) = removal::held(&snapshot) {
            return Ok(Some(why));
        }
        let released = removal::release(self.context, &snapshot).await;
        released.map_err(|error| self.failed_with("delete", "a PoolSnapshot", error))?;
        Ok(None)
    }

    fn pool_snapshots(&self) -> Api<PoolSnapshot> {
        Api::all(self.context.client.clone())
    }
}

/// Removes the snapshots that a move has left whose VolumeMove is gone. One that this version cannot read stays. Fails if the API
/// server refuses that.
pub(super) async fn remove_left(context: &Context, volume: &str) -> Result<Next, kube::Error> {
    let api = Api::<DeserializeGuard<PoolSnapshot>>::all(context.client.clone());
    let copied = ListParams::default().fields(&format!("spec.copiedFor={volume}"));
    let mut next = Next::OnChange;
    for snapshot in left(api.list(&copied).await?.items) {
        next = Next::After(WAIT);
        removal::advance(context, &snapshot).await?;
    }
    Ok(next)
}

/// The snapshots of a list that were taken for a move.
fn left(listed: Vec<DeserializeGuard<PoolSnapshot>>) -> impl Iterator<Item = PoolSnapshot> {
    let found = listed.into_iter().filter_map(removal::readable);
    found.filter(|snapshot| snapshot.spec.is_of_move())
}

#[cfg(test)]
mod tests {
    use cistern_crds::testing::ready_snapshot;
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn r22_a_snapshot_that_cannot_be_read_stays_and_hides_no_other() {
        let plain = ready_snapshot();
        let mut of_move = plain.clone();
        of_move.spec.copied_for = Some(plain.spec.source_volume.clone());
        let mut strange = json!(of_move);
        strange["status"]["creationTime"] = json!("2026-01-01T00:00:00x5Z");
        let listed = [strange, json!(plain), json!(of_move)];
        let read = |it| from_value::<DeserializeGuard<PoolSnapshot>>(it).unwrap();
        let found: Vec<PoolSnapshot> = left(listed.map(read).into()).collect();
        assert_eq!(found, [of_move]);
    }
}
