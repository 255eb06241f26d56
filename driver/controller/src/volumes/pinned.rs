//! Snapshots from which volumes are copied to another node.
//!
//! A volume changes while it is copied. So a snapshot of it is taken, and that is copied:
//!
//! ```text
//! ensure ─▶ pin: PoolSnapshot (copiedFor) ─▶ PoolVolume (contentSource.snapshotName) ─▶ made
//!               collect ─▶ the snapshot that no volume waits for is removed
//! ```
//!
//! *Invariant:* only snapshots with `spec.copiedFor` are removed, and none that a volume waits for or that is of a
//! move. Users can neither list, restore nor delete them.

use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use cistern_client::Chain;
use cistern_crds::{
    Consistency, ContentSource, HasImage as _, PoolSnapshot, PoolSnapshotSpec, PoolVolume, names,
    time,
};
use futures::{FutureExt as _, StreamExt as _, stream};
use kube::ResourceExt as _;

use super::{Error, Volumes, source, source::Source};
use crate::objects::{
    ensure::{Attempt, Request, attempt},
    follow::Refusal,
    listed_snapshot::ListedSnapshot,
    sweep::{AT_ONCE, next_sweep},
};

/// How long a snapshot is kept whose volume does not exist: the request that took it may be repeated.
const GRACE: TimeDelta = TimeDelta::minutes(15);

/// A request for the snapshot of a volume that is copied to another node.
struct Pin<'a> {
    /// The id of the new volume.
    volume: &'a str,
    source: &'a Source,
}

impl Pin<'_> {
    fn name(&self) -> String {
        names::copied_snapshot_name(self.volume, self.source.image())
    }

    fn of(&self, volume: &PoolVolume) -> PoolSnapshot {
        let requested = format!("copy for {}", self.volume);
        let consistency = Consistency::default();
        let spec = PoolSnapshotSpec {
            copied_for: Some(self.volume.to_owned()),
            ..PoolSnapshotSpec::of(volume, self.source.image(), &requested, consistency)
        };
        PoolSnapshot::desired(&self.name(), spec)
    }
}

impl Request for Pin<'_> {
    type Object = PoolSnapshot;

    fn difference(&self, existing: &PoolSnapshot) -> Option<String> {
        let spec = &existing.spec;
        let is_it = spec.copied_for.as_deref() == Some(self.volume)
            && spec.source_image == self.source.image();
        (!is_it).then(|| format!("it is of image {}", spec.source_image))
    }
}

impl Volumes {
    /// Takes the snapshot of a volume that is copied for the volume `id`, or finds it. Returns the source as that
    /// snapshot has it.
    ///
    /// Fails if the volume is gone meanwhile, if its node refuses the snapshot or is silent, or if a request to the
    /// API server fails.
    pub(super) async fn pin(&self, id: &str, source: &Source) -> Result<Source, Error> {
        let pin = Pin { volume: id, source };
        let mut operation = self.snapshots.begin(&pin.name())?;
        loop {
            let create = || {
                async {
                    let volume = self.source_volume(source).await?;
                    let created = self.snapshots.create(&pin.of(&volume)).await;
                    Ok::<_, Error>(created?)
                }
                .boxed()
            };
            match attempt(&self.snapshots, &pin, &mut operation, create).await? {
                Attempt::Made(ListedSnapshot { id, .. }) => {
                    return self.pinned(source, &id).await;
                }
                Attempt::Refused {
                    refusal,
                    is_new: true,
                } => return Err(refused(source, &refusal)),
                // The refusal may be out of date, so the agent is asked once more.
                Attempt::Refused { is_new: false, .. } => {}
            }
        }
    }

    /// Asks for the removal of the snapshots that no volume waits for.
    pub(super) fn unpin(&self) {
        self.unpinned.notify_one();
    }

    /// Removes the snapshots that no volume waits for, as long as it is polled.
    pub(super) async fn collect_pinned(self: Arc<Self>) {
        loop {
            if let Err(error) = self.collect().await {
                tracing::warn!(error = %Chain(&error), "cannot list the snapshots of copies");
            }
            next_sweep(&self.unpinned).await;
        }
    }

    async fn collect(&self) -> Result<(), Error> {
        let mut pinned = self.snapshots.select("spec.copiedFor!=").await?;
        // The operator takes and removes those of volumes that move.
        pinned.retain(|snapshot| !snapshot.spec.is_of_move());
        stream::iter(pinned)
            .for_each_concurrent(AT_ONCE, async |snapshot| {
                if let Err(error) = self.remove_unneeded(&snapshot).await {
                    let snapshot = snapshot.name_any();
                    tracing::info!(snapshot, error = %Chain(&error), "cannot remove the snapshot of a copy yet");
                }
            })
            .await;
        Ok(())
    }

    /// Removes a snapshot unless its volume waits for it.
    async fn remove_unneeded(&self, snapshot: &PoolSnapshot) -> Result<(), Error> {
        let Some(copied_for) = &snapshot.spec.copied_for else {
            return Ok(());
        };
        let volume = self.objects.find(copied_for).await?;
        if is_needed(snapshot, volume.as_ref(), Utc::now()) {
            return Ok(());
        }
        let name = snapshot.name_any();
        self.snapshots.sweep(&name).await?;
        tracing::info!(
            snapshot = name,
            volume = copied_for,
            "removed the snapshot of a copy"
        );
        Ok(())
    }
}

/// Whether the volume waits for the snapshot, or may still be created from it.
fn is_needed(snapshot: &PoolSnapshot, volume: Option<&PoolVolume>, now: DateTime<Utc>) -> bool {
    let name = snapshot.name_any();
    let is_its = |volume: &&PoolVolume| {
        let source = volume.spec.content_source.as_ref();
        source.and_then(ContentSource::copied_snapshot) == Some(&name)
    };
    if let Some(volume) = volume.filter(is_its) {
        return volume.size().is_none() && !volume.spec.deletion_requested;
    }
    let created = snapshot.metadata.creation_timestamp.as_ref();
    let created = created.map(time::from_kubernetes);
    created.is_none_or(|created| now.signed_duration_since(created) < GRACE)
}

/// The error for a snapshot that its node refuses.
fn refused(source: &Source, refusal: &Refusal) -> Error {
    let why = format!(
        "{} is copied to another node by a snapshot, which its node refuses: {}",
        source.reference().named(),
        refusal.why
    );
    source::refused(source.reference(), refusal)
        .unwrap_or_else(|| source.no_room(source.size(), why).into())
}

#[cfg(test)]
mod tests {
    use cistern_crds::{Bytes, PoolVolumeStatus, SourceKind};

    use super::*;
    use crate::testing::{at, ready_snapshot, wanted_volume};

    fn snapshot() -> PoolSnapshot {
        let mut snapshot = ready_snapshot();
        snapshot.spec.copied_for = Some("pvc-2".to_owned());
        snapshot.metadata.creation_timestamp = Some(time::to_kubernetes(at(0)));
        snapshot
    }

    fn clone_of(snapshot: &PoolSnapshot) -> PoolVolume {
        let mut volume = wanted_volume();
        volume.spec.content_source = Some(ContentSource {
            kind: SourceKind::Volume,
            name: snapshot.spec.source_volume.clone(),
            image: "uid-of-snapshot-1".to_owned(),
            node_name: Some(snapshot.spec.node_name.clone()),
            snapshot_name: Some(snapshot.name_any()),
        });
        volume
    }

    #[test]
    fn a_snapshot_is_kept_as_long_as_its_volume_waits_for_it() {
        let (snapshot, hours) = (snapshot(), at(100_000));
        let mut volume = clone_of(&snapshot);
        assert!(is_needed(&snapshot, Some(&volume), hours));
        volume.status = Some(PoolVolumeStatus {
            size: Some(Bytes::gib(1)),
            ..PoolVolumeStatus::default()
        });
        assert!(!is_needed(&snapshot, Some(&volume), at(0)), "made");
        volume.status = None;
        volume.spec.deletion_requested = true;
        assert!(!is_needed(&snapshot, Some(&volume), at(0)), "leaving");
    }

    #[test]
    fn a_snapshot_without_its_volume_is_kept_for_a_repeated_request() {
        let snapshot = snapshot();
        let mut other = clone_of(&snapshot);
        other.spec.content_source.as_mut().unwrap().snapshot_name = Some("snap-2".to_owned());
        for volume in [None, Some(&other)] {
            assert!(is_needed(&snapshot, volume, at(14 * 60)));
            assert!(!is_needed(&snapshot, volume, at(15 * 60)));
        }
    }
}
