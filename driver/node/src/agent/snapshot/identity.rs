//! Whether an image on the disk is the snapshot's.

use chrono::{DateTime, Utc};
use cistern_crds::PoolSnapshot;
use cistern_host::{Owner, SnapshotRecord};
use kube::ResourceExt as _;

use crate::{
    agent::{Agent, desired::readable, kind::Kind as _},
    image::{self, Difference, Image, ImageObject},
};

impl ImageObject for PoolSnapshot {
    fn noun() -> &'static str {
        Self::NOUN
    }

    fn volume(&self) -> String {
        self.spec.source_volume.clone()
    }

    fn is_named(&self, owner: &Owner) -> bool {
        owner.snapshot().map(|record| &record.name) == self.metadata.name.as_ref()
    }

    fn is_served_by(&self, image: &Image) -> Result<(), Difference> {
        serves(self, image)
    }
}

/// Whether the image matches the spec: name, volume, source, access type and filesystem; and the
/// recorded size and moment.
fn serves(snapshot: &PoolSnapshot, image: &Image) -> Result<(), Difference> {
    let spec = &snapshot.spec;
    let Owner::Snapshot(record) = &image.owner else {
        let wanted = format!("snapshot {}", snapshot.name_any());
        return Err(image.differs("owner", image.owner.to_string(), wanted));
    };
    let status = snapshot.status.clone().unwrap_or_default();
    let recorded = |record: &SnapshotRecord| status.creation_time.unwrap_or(record.time);
    for (what, found, wanted) in [
        ("snapshot", record.name.clone(), snapshot.name_any()),
        ("volume", record.volume.clone(), spec.source_volume.clone()),
        (
            "source",
            record.source.to_string(),
            spec.source_image.clone(),
        ),
        (
            "moment",
            record.time.to_rfc3339(),
            recorded(record).to_rfc3339(),
        ),
    ] {
        if found != wanted {
            return Err(image.differs(what, found, wanted));
        }
    }
    let size = status.size.unwrap_or(image.size);
    if image.size != size {
        return Err(image.differs("size", image.size.to_string(), size.to_string()));
    }
    image.holds(spec.access_type, spec.filesystem, spec.encryption)
}

/// Format time of a snapshot's filesystem, from its volume if that still exists.
pub(super) fn formatted(agent: &Agent, snapshot: &PoolSnapshot) -> DateTime<Utc> {
    let volume = agent.desired.volume(&snapshot.spec.source_volume);
    let volume = volume.as_deref().and_then(readable);
    let filesystem = volume.and_then(|volume| volume.status.as_ref()?.filesystem.as_ref());
    filesystem.map_or_else(agent.node.now, |filesystem| filesystem.format_time)
}

/// Reads the image of a snapshot, if it exists and is the snapshot's. Blocks.
pub(super) fn inspect(
    pool: &dyn cistern_host::Engine,
    snapshot: &PoolSnapshot,
    formatted: DateTime<Utc>,
) -> Result<Image, image::Error> {
    let image = Image::read(&image::find(pool, snapshot)?, pool.takeovers(), formatted)?;
    image::is_the_same(snapshot, &image)?;
    Ok(image)
}

#[cfg(test)]
mod tests {
    use cistern_crds::{Bytes, Reason};

    use super::*;
    use crate::testing::{at, image_of_snapshot, image_of_volume, ready_snapshot, wanted_snapshot};

    #[test]
    fn every_part_of_a_snapshots_identity_must_agree() {
        let check = |change: fn(&mut Image)| {
            let mut image = image_of_snapshot();
            change(&mut image);
            let same = image::is_the_same(&ready_snapshot(), &image);
            same.map_err(|difference| difference.reason())
        };
        let record = |change: fn(&mut SnapshotRecord)| {
            let mut image = image_of_snapshot();
            let Owner::Snapshot(record) = &mut image.owner else {
                panic!("{image:?}");
            };
            change(record);
            let same = image::is_the_same(&ready_snapshot(), &image);
            same.map_err(|difference| difference.reason())
        };
        let conflict = Err(Reason::IdentityConflict);
        assert_eq!(check(|_| {}), Ok(()));
        assert_eq!(record(|record| record.name = "snapshot-2".into()), conflict);
        assert_eq!(record(|record| record.volume = "pvc-2".into()), conflict);
        assert_eq!(
            record(|record| record.source = "uid-2".parse().unwrap()),
            conflict
        );
        assert_eq!(record(|record| record.time = at(301)), conflict);
        assert_eq!(check(|image| image.size = Bytes::gib(2)), conflict);
        assert_eq!(check(|image| image.filesystem = None), conflict);
        let other_pool = check(|image| image.image.pool_uuid = "other".into());
        assert_eq!(other_pool, conflict);
        let other_filesystem = check(|image| {
            let filesystem = image.filesystem.as_mut().unwrap();
            filesystem.uuid = "33333333-3333-4333-8333-333333333333".into();
        });
        assert_eq!(other_filesystem, Err(Reason::FilesystemConflict));
    }

    #[test]
    fn r08_a_volume_image_is_never_a_snapshot_nor_a_snapshot_image_a_volume() {
        let mut snapshot = wanted_snapshot();
        snapshot.metadata.name = Some("pvc-1".into());
        let of_volume = image_of_volume();
        assert!(!snapshot.is_named(&of_volume.owner));
        assert!(snapshot.is_served_by(&of_volume).is_err());
        let mut volume = crate::testing::wanted_volume();
        volume.metadata.name = Some("snapshot-1".into());
        let of_snapshot = image_of_snapshot();
        assert!(!volume.is_named(&of_snapshot.owner));
        assert!(volume.is_served_by(&of_snapshot).is_err());
    }
}
