//! CreateVolume from a snapshot or a volume.

use cistern_crds::{
    Bytes, SourceKind,
    parameters::{FSTYPE, MKFS_OPTIONS},
};

use super::*;

/// A request for a copy of a volume, or of a snapshot, of this id.
fn copy_of(kind: SourceKind, id: &str) -> v1::VolumeContentSource {
    use v1::volume_content_source::{SnapshotSource, Type, VolumeSource};

    let id = id.to_owned();
    v1::VolumeContentSource {
        r#type: Some(match kind {
            SourceKind::Snapshot => Type::Snapshot(SnapshotSource { snapshot_id: id }),
            SourceKind::Volume => Type::Volume(VolumeSource { volume_id: id }),
        }),
    }
}

// Shows: FLD-14.
#[test]
fn vcs_01_vcs_02_a_source_has_a_kind_and_an_id() {
    let without = read(|r| r.volume_content_source = Some(v1::VolumeContentSource::default()));
    let missing = |field| Err(Error::Missing { field });
    assert_eq!(without, missing("volume_content_source.type"));
    for (kind, field) in [
        (
            SourceKind::Snapshot,
            "volume_content_source.snapshot.snapshot_id",
        ),
        (SourceKind::Volume, "volume_content_source.volume.volume_id"),
    ] {
        let empty = read(|r| r.volume_content_source = Some(copy_of(kind, "")));
        assert_eq!(empty, missing(field));
        let long = read(|r| r.volume_content_source = Some(copy_of(kind, &"x".repeat(129))));
        assert!(matches!(long, Err(Error::TooLong { .. })), "FLD-14");
        let read = read(|r| r.volume_content_source = Some(copy_of(kind, "s-1"))).unwrap();
        let source = read.source.unwrap();
        assert_eq!((source.kind, &*source.id), (kind, "s-1"));
    }
}

#[test]
fn a_copy_takes_unset_properties_from_its_source_and_ignores_mkfs_options() {
    let copy = |change: fn(&mut v1::CreateVolumeRequest)| {
        read(|r| {
            r.capacity_range = None;
            r.volume_content_source = Some(copy_of(SourceKind::Snapshot, "s-1"));
            change(r);
        })
        .unwrap()
    };
    let open = copy(|_| {});
    assert_eq!((open.filesystem, open.size.chosen), (None, Bytes::ZERO));
    let class = copy(|r| {
        let options = [(MKFS_OPTIONS, "-I 512"), (FSTYPE, "xfs")];
        r.parameters.extend(pairs(&options));
    });
    assert_eq!(class.filesystem, Some(FilesystemType::Xfs));
    assert!(class.mkfs_options.is_empty());
}
