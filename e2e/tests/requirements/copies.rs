//! VCS: volumes that are created from snapshots and volumes, and their data.

use cistern_crds::Bytes;
use cistern_proto::csi::v1::{
    CreateVolumeRequest, VolumeContentSource,
    volume_capability::access_mode::Mode,
    volume_content_source::{SnapshotSource, Type, VolumeSource},
};
use tonic::Code;

use crate::{
    code, create, create_request, map, mounted, range,
    snapshots::{delete_snapshot, get, list, of, take},
    volume::{Volume, kinds},
};

pub(crate) fn from_snapshot(id: &str) -> VolumeContentSource {
    let snapshot_id = id.to_owned();
    VolumeContentSource {
        r#type: Some(Type::Snapshot(SnapshotSource { snapshot_id })),
    }
}

fn from_volume(id: &str) -> VolumeContentSource {
    let volume_id = id.to_owned();
    VolumeContentSource {
        r#type: Some(Type::Volume(VolumeSource { volume_id })),
    }
}

/// A request for a copy with the capability of its source. Without a size, the copy has that of the
/// source.
pub(crate) fn copy(
    name: &str,
    of: &Volume,
    source: VolumeContentSource,
    size: Bytes,
) -> CreateVolumeRequest {
    CreateVolumeRequest {
        capacity_range: (size > Bytes::ZERO)
            .then(|| range(size, Bytes::ZERO))
            .flatten(),
        volume_capabilities: vec![of.capability.clone()],
        volume_content_source: Some(source),
        ..create_request(name)
    }
}

/// The size of the filesystem or of the device that a pod sees.
async fn seen_size(volume: &Volume) -> u64 {
    let script = if volume.is_block() {
        "blockdev --getsize64 \"$1\""
    } else {
        "df --output=size -B1 \"$1\" | tail -n 1"
    };
    let size = volume.shell(script, &["target"]).await.unwrap();
    size.trim().parse().unwrap()
}

// Shows: CAP-06, CAP-07: the announced capabilities work. CS-06: a snapshot has what was written before
// it, and nothing that was written after it. DV-09, DS-06: each is deleted independently.
// Shows: CS-06, DS-06, DS-08, DV-09, VCS-11.
#[tokio::test]
async fn vcs_05_vcs_06_vcs_08_vcs_09_vcs_12_dv_05_npv_16_copies_have_the_data_grow_and_are_independent()
 {
    for (kind, capability, size) in kinds() {
        let source = Volume::new(&format!("source-{kind}"), capability, size).await;
        source.use_at("target").await;
        source.write("target", "before").await.unwrap();
        source.sync("target").await;
        let name = |what: &str| format!("{what}-of-{kind}");
        let snapshot = take(of(&name("snapshot"), &source.id)).await.unwrap();
        source.write("target", "after").await.unwrap();
        source.sync("target").await;

        // All of them are mounted on one node at the same time.
        let snapshot_source = || from_snapshot(&snapshot.snapshot_id);
        let double = size.saturating_add(size);
        let larger = copy(&name("larger"), &source, snapshot_source(), double);
        let answer = create(larger.clone()).await.unwrap();
        assert_eq!(answer.content_source, Some(snapshot_source()), "VCS-11");
        assert_eq!(answer.capacity_bytes, double.to_i64());
        let larger = Volume::from_request(larger).await;
        let clone = copy(
            &name("clone"),
            &source,
            from_volume(&source.id),
            Bytes::ZERO,
        );
        let clone = Volume::from_request(clone).await;
        for (volume, data) in [(&larger, "before"), (&clone, "after")] {
            volume.use_at("target").await;
            assert_eq!(volume.read("target").await, data, "{}", volume.id);
        }
        let (small, large) = (seen_size(&source).await, seen_size(&larger).await);
        assert!(large > small + size.0 * 3 / 4, "{kind}: {small} to {large}");

        larger.write("target", "restored").await.unwrap();
        clone.write("target", "cloned").await.unwrap();
        assert_eq!(source.read("target").await, "after", "VCS-12");

        // The source is deleted first, then the snapshot, and the copies do not change.
        source.end_use_at("target").await;
        let listed = list(&snapshot.source_volume_id).await;
        assert_eq!(listed, std::slice::from_ref(&snapshot), "DV-05");
        let again = copy(&name("again"), &larger, snapshot_source(), Bytes::ZERO);
        let again = Volume::from_request(again).await;
        again.use_at("target").await;
        delete_snapshot(&snapshot.snapshot_id).await.unwrap();
        let late = copy(&name("late"), &larger, snapshot_source(), Bytes::ZERO);
        assert_eq!(code(&create(late).await), Code::NotFound, "DS-08");
        for (volume, data) in [(again, "before"), (clone, "cloned"), (larger, "restored")] {
            assert_eq!(volume.read("target").await, data, "{}", volume.id);
            volume.end_use_at("target").await;
        }
    }
}

// Shows: CS-06: with a frozen filesystem, a snapshot has unsynced writes as well.
#[tokio::test]
async fn a_snapshot_of_a_frozen_filesystem_has_unsynced_data() {
    for (kind, capability, size) in kinds() {
        if kind == "block" {
            continue;
        }
        let source = Volume::new(&format!("at-rest-{kind}"), capability, size).await;
        source.use_at("target").await;
        source.write("target", "unsynced").await.unwrap();
        let mut request = of(&format!("rest-of-{kind}"), &source.id);
        request.parameters = map(&[("consistency", "filesystem")]);
        let snapshot = take(request).await.unwrap();
        source.write("target", "writable still").await.unwrap();
        let name = format!("from-rest-of-{kind}");
        let id = &snapshot.snapshot_id;
        let copy = Volume::from_request(copy(&name, &source, from_snapshot(id), Bytes::ZERO)).await;
        copy.use_at("target").await;
        assert_eq!(copy.read("target").await, "unsynced", "{kind}");
        delete_snapshot(id).await.unwrap();
        copy.end_use_at("target").await;
        source.end_use_at("target").await;
    }
}

// Shows: VCS-10: no range means the source's size. VCS-14: each refusal has its code.
// Shows: CAP-25: the capability to report a snapshot's topology is announced.
// Shows: CV-06, VCS-14.
#[tokio::test]
async fn vcs_01_vcs_02_vcs_03_vcs_04_vcs_07_vcs_10_a_copy_has_to_match_its_source() {
    type Change = fn(&mut CreateVolumeRequest);

    let source = Volume::new(
        "follow",
        mounted("ext4", Mode::SingleNodeWriter),
        Bytes::mib(32),
    )
    .await;
    let snapshot = take(of("follow-snapshot", &source.id)).await.unwrap();
    assert!(!snapshot.accessible_topology.is_empty());
    let announced = crate::services::announced().await;
    assert!(announced.contains("P SNAPSHOT_ACCESSIBILITY_CONSTRAINTS"));
    let rows: [(&str, Change, Code); 7] = [
        (
            "VCS-01",
            |r| r.volume_content_source = Some(VolumeContentSource::default()),
            Code::InvalidArgument,
        ),
        (
            "VCS-02",
            |r| r.volume_content_source = Some(from_snapshot("")),
            Code::InvalidArgument,
        ),
        (
            "VCS-02",
            |r| r.volume_content_source = Some(from_volume("")),
            Code::InvalidArgument,
        ),
        (
            "VCS-03",
            |r| r.volume_content_source = Some(from_snapshot("unknown")),
            Code::NotFound,
        ),
        (
            "VCS-03",
            |r| r.volume_content_source = Some(from_volume("unknown")),
            Code::NotFound,
        ),
        (
            "VCS-04",
            |r| r.volume_capabilities = vec![mounted("xfs", Mode::SingleNodeWriter)],
            Code::InvalidArgument,
        ),
        (
            "VCS-07",
            |r| r.capacity_range = range(Bytes::ZERO, Bytes::mib(31)),
            Code::OutOfRange,
        ),
    ];
    let request = || {
        copy(
            "follow-copy",
            &source,
            from_snapshot(&snapshot.snapshot_id),
            Bytes::ZERO,
        )
    };
    for (ids, change, expected) in rows {
        let mut refused = request();
        change(&mut refused);
        let answer = create(refused).await;
        assert_eq!(code(&answer), expected, "{ids}: {answer:?}");
    }
    // A snapshot of a filesystem is restored to a device, and the volume itself is not cloned to one.
    let device = |from| {
        let mut device = copy("follow-device", &source, from, Bytes::ZERO);
        device.volume_capabilities = vec![crate::block()];
        device
    };
    let refused = create(device(from_volume(&source.id))).await;
    assert_eq!(code(&refused), Code::InvalidArgument, "VCS-04: {refused:?}");
    let device = Volume::from_request(device(from_snapshot(&snapshot.snapshot_id))).await;
    device.end().await;
    // Options for mkfs and another provisioning are accepted. Without a named filesystem, the copy has
    // that of its source.
    let mut thick = request();
    thick.volume_capabilities = vec![mounted("", Mode::SingleNodeWriter)];
    thick
        .parameters
        .extend(map(&[("provisioning", "thick"), ("mkfsOptions", "-I 512")]));
    let created = create(thick.clone()).await.unwrap();
    assert_eq!(created.capacity_bytes, snapshot.size_bytes);
    assert_eq!(create(thick.clone()).await.unwrap(), created, "CV-06");
    let thick = Volume::from_request(thick).await;
    thick.end().await;
    delete_snapshot(&snapshot.snapshot_id).await.unwrap();
    assert_eq!(code(&get(&snapshot.snapshot_id).await), Code::NotFound);
    source.end().await;
}
