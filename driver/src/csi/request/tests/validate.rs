//! ValidateVolumeCapabilities, and mount flags.

use cistern_crds::{
    names,
    parameters::{FSTYPE, MKFS_OPTIONS},
};

use super::*;

fn validate(
    change: impl FnOnce(&mut v1::ValidateVolumeCapabilitiesRequest),
) -> Result<Option<Mismatch>, Error> {
    let mut request = v1::ValidateVolumeCapabilitiesRequest {
        volume_id: "pvc-1".to_owned(),
        volume_capabilities: vec![mount("", Mode::SingleNodeWriter)],
        ..v1::ValidateVolumeCapabilitiesRequest::default()
    };
    change(&mut request);
    let volume = read(|_| {}).unwrap().in_pool("fast", "n1", None);
    Ok(ValidateVolumeCapabilities::from_request(request)?.mismatch(&volume))
}

#[test]
fn vvc_02_vvc_03_vcp_01_a_malformed_query_is_an_error() {
    assert!(validate(|r| r.volume_id.clear()).is_err());
    assert!(validate(|r| r.volume_capabilities.clear()).is_err());
    assert!(validate(|r| r.volume_capabilities[0].access_type = None).is_err());
    assert!(validate(|r| r.volume_capabilities[0].access_mode = None).is_err());
}

#[test]
fn vvc_05_vvc_09_vvc_10_a_mismatch_is_reported_without_an_error() {
    let confirmed: [fn(&mut v1::ValidateVolumeCapabilitiesRequest); 6] = [
        |_| {},
        // The modes of `ReadWriteOnce` and `ReadWriteOncePod`, regardless of the modes of the
        // volume, and read-only.
        |r| {
            r.volume_capabilities = vec![
                mount("", Mode::SingleNodeSingleWriter),
                mount("", Mode::SingleNodeMultiWriter),
                mount("", Mode::SingleNodeReaderOnly),
            ];
        },
        |r| r.volume_capabilities = vec![mount("ext4", Mode::SingleNodeWriter)],
        |r| r.parameters = pairs(&[("pool", "fast"), ("csi.storage.k8s.io/pvc/name", "x")]),
        |r| r.parameters = pairs(&[("pool", "slow,fast")]),
        |r| r.volume_context = pairs(&[("storage.kubernetes.io/csiProvisionerIdentity", "x")]),
    ];
    for (row, change) in confirmed.into_iter().enumerate() {
        assert_eq!(validate(change), Ok(None), "row {row}");
    }
    let denied: [fn(&mut v1::ValidateVolumeCapabilitiesRequest); 8] = [
        |r| {
            r.volume_capabilities
                .push(mount("", Mode::MultiNodeMultiWriter));
        },
        |r| r.volume_capabilities = vec![block()],
        |r| r.volume_capabilities = vec![mount("xfs", Mode::SingleNodeWriter)],
        |r| r.parameters = pairs(&[("pool", "slow,slower")]),
        |r| r.parameters = pairs(&[("pool", "fast"), ("provisioning", "thick")]),
        |r| r.parameters = pairs(&[("pool", "fast"), ("bogus", "x")]),
        |r| r.mutable_parameters = pairs(&[("a", "b")]),
        |r| r.volume_context = pairs(&[(names::IMAGE_CONTEXT, "uid-0")]),
    ];
    for (row, change) in denied.into_iter().enumerate() {
        assert!(validate(change).unwrap().is_some(), "row {row}");
    }
}

#[test]
fn vvc_10_mkfs_options_are_compared_with_those_that_the_volume_was_made_with() {
    let with = |options: &str| {
        let parameters = pairs(&[("pool", "fast"), (MKFS_OPTIONS, options)]);
        validate(|r| r.parameters = parameters).unwrap()
    };
    assert_eq!(with(""), None);
    assert!(with("-I 512").is_some());
    assert!(with("-b 1024").is_some());
}

#[test]
fn vvc_10_every_parameter_that_a_volume_was_made_with_is_compared() {
    type Own<'a> = &'a [(&'a str, &'a str)];
    let class = |own: Own<'_>| pairs(&[&[("pool", "fast")][..], own].concat());
    let mismatch = |made_with: Own<'_>, named: Own<'_>, way: v1::VolumeCapability| {
        let way = vec![way];
        let volume = read(|r| {
            r.parameters = class(made_with);
            r.volume_capabilities.clone_from(&way);
        });
        let query = v1::ValidateVolumeCapabilitiesRequest {
            volume_id: "pvc-1".to_owned(),
            volume_capabilities: way,
            parameters: class(named),
            ..v1::ValidateVolumeCapabilitiesRequest::default()
        };
        let query = ValidateVolumeCapabilities::from_request(query).unwrap();
        query.mismatch(&volume.unwrap().in_pool("fast", "n1", None))
    };
    let mounted = || mount("", Mode::SingleNodeWriter);
    let (xfs, adopts) = ((FSTYPE, "xfs"), ("adoptFilesystem", "true"));
    let encrypted = ("encryption", "luks2");
    let discards = ("encryptionDiscards", "true");
    let rows: [(Own<'_>, v1::VolumeCapability); 6] = [
        (&[encrypted], mounted()),
        (&[encrypted, discards], mounted()),
        (&[("extentSize", "1Mi")], mounted()),
        (&[xfs], mounted()),
        (&[encrypted], block()),
        (&[adopts], block()),
    ];
    for (own, way) in rows {
        assert_eq!(mismatch(own, own, way.clone()), None, "{own:?}");
        let plain = mismatch(&[], own, way);
        assert_eq!(plain, Some(Mismatch::Parameters), "{own:?}");
    }
    let other = mismatch(&[encrypted, discards], &[encrypted], mounted());
    assert_eq!(other, Some(Mismatch::Parameters));
    // A class may serve claims of both kinds.
    for (own, way) in [(xfs, block()), (adopts, mounted())] {
        assert_eq!(mismatch(&[own], &[own], way), None, "{own:?}");
    }
}

#[test]
fn vcp_13_sec_05_mount_flags_of_no_use_for_the_filesystem_are_refused_and_not_shown() {
    let flags = |fs_type: &str, flag: &str| v1::VolumeCapability {
        access_type: Some(ProtoType::Mount(MountVolume {
            fs_type: fs_type.to_owned(),
            mount_flags: vec!["noatime".to_owned(), flag.to_owned()],
            ..MountVolume::default()
        })),
        ..mount("", Mode::SingleNodeWriter)
    };
    let create = |way: v1::VolumeCapability, source: Option<v1::VolumeContentSource>| {
        read(|r| {
            r.volume_capabilities = vec![mount("", Mode::SingleNodeWriter), way];
            r.volume_content_source = source;
        })
    };
    let copied = || {
        use v1::volume_content_source::{SnapshotSource, Type};
        let snapshot_id = "s-1".to_owned();
        Some(v1::VolumeContentSource {
            r#type: Some(Type::Snapshot(SnapshotSource { snapshot_id })),
        })
    };
    assert!(create(flags("btrfs", "compress=zstd:1"), None).is_ok());
    assert!(create(flags("btrfs", "compress=zstd:1"), copied()).is_ok());
    for (fs_type, flag, source) in [
        ("", "MARKER", None),
        ("xfs", "compress=zstd:1", None),
        ("xfs", "MARKER", copied()),
    ] {
        let error = create(flags(fs_type, flag), source).unwrap_err();
        assert!(matches!(error, Error::MountFlags { .. }), "{error}");
        assert!(!format!("{error} {error:?}").contains("MARKER"), "{error}");
    }
    // The filesystem of the source is not in the request.
    assert!(create(flags("", "compress=zstd:1"), copied()).is_ok());

    let confirmed = validate(|r| r.volume_capabilities = vec![flags("", "ro")]);
    assert_eq!(confirmed, Ok(None));
    let denied = validate(|r| r.volume_capabilities = vec![flags("", "MARKER")]);
    let denied = denied.unwrap().unwrap();
    assert!(
        !format!("{denied} {denied:?}").contains("MARKER"),
        "{denied}"
    );
}
