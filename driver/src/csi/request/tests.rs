use std::collections::BTreeMap;

use cistern_controller::volumes::NewVolume;
use cistern_crds::{
    AccessMode, AccessType, Bytes, PoolNames, Provisioning, SourceKind, VolumeAttributes, names,
    parameters::{FSTYPE, MKFS_OPTIONS},
};
use proptest::prelude::*;
use v1::volume_capability::{
    AccessMode as ProtoMode, AccessType as ProtoType, BlockVolume, MountVolume, access_mode::Mode,
};

use super::*;

fn mount(fs_type: &str, mode: Mode) -> v1::VolumeCapability {
    v1::VolumeCapability {
        access_type: Some(ProtoType::Mount(MountVolume {
            fs_type: fs_type.to_owned(),
            ..MountVolume::default()
        })),
        access_mode: Some(ProtoMode { mode: mode.into() }),
    }
}

fn block() -> v1::VolumeCapability {
    v1::VolumeCapability {
        access_type: Some(ProtoType::Block(BlockVolume {})),
        ..mount("", Mode::SingleNodeWriter)
    }
}

fn pairs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|&(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

fn request() -> v1::CreateVolumeRequest {
    v1::CreateVolumeRequest {
        name: "pvc-1".to_owned(),
        volume_capabilities: vec![mount("", Mode::SingleNodeWriter)],
        parameters: pairs(&[("pool", "fast")]),
        ..v1::CreateVolumeRequest::default()
    }
}

fn read(change: impl FnOnce(&mut v1::CreateVolumeRequest)) -> Result<NewVolume, Error> {
    let mut request = request();
    change(&mut request);
    NewVolume::from_request(request)
}

#[test]
fn a_plain_request_becomes_a_volume_with_our_defaults() {
    let wanted = read(|_| {}).unwrap();
    assert_eq!(wanted.name, "pvc-1");
    assert_eq!(
        (wanted.pools, wanted.attributes.provisioning),
        (PoolNames::only("fast"), Provisioning::Thin)
    );
    assert_eq!(wanted.filesystem, Some(FilesystemType::Ext4));
    assert_eq!(wanted.access_modes, [AccessMode::SingleNodeWriter]);
    assert_eq!(wanted.size.chosen, Bytes::gib(1));
    assert_eq!(wanted.claim, None);
}

// Shows: DV-02.
#[test]
fn cv_02_cv_03_gen_04_a_missing_field_is_named() {
    for (field, error) in [
        ("name", read(|r| r.name.clear())),
        (
            "volume_capabilities",
            read(|r| r.volume_capabilities.clear()),
        ),
        // Missing fields are reported before invalid ones.
        (
            "name",
            read(|r| {
                r.name.clear();
                r.volume_capabilities = vec![block()];
            }),
        ),
        (
            "volume_capabilities",
            read(|r| {
                r.volume_capabilities.clear();
                r.parameters = pairs(&[("bogus", "x")]);
            }),
        ),
    ] {
        assert_eq!(error, Err(Error::Missing { field }));
    }
    let id = delete_volume(v1::DeleteVolumeRequest::default());
    assert_eq!(id, Err(Error::Missing { field: "volume_id" }), "DV-02");
}

#[test]
fn fld_12_names_are_any_unicode_but_most_control_characters() {
    let named = |name: &str| read(|r| r.name = name.to_owned());
    for good in [
        "a/b",
        "..",
        "with space",
        "🦀",
        "tab\t",
        "line\n",
        "return\r",
        &"x".repeat(128),
    ] {
        assert_eq!(named(good).unwrap().name, good);
    }
    for (bad, code) in [
        ('\0', 0),
        ('\u{7}', 7),
        ('\u{b}', 0xb),
        ('\u{1f}', 0x1f),
        ('\u{7f}', 0x7f),
        ('\u{85}', 0x85),
    ] {
        assert_eq!(
            named(&format!("a{bad}b")),
            Err(Error::ControlCharacter { code })
        );
    }
}

#[test]
fn fld_14_overlong_strings_and_maps_are_refused_and_the_limit_itself_is_not() {
    assert_eq!(
        read(|r| r.name = "ü".repeat(65)),
        Err(Error::TooLong {
            field: "name",
            limit: 128
        }),
        "bytes, not characters"
    );
    let id = |length: usize| {
        delete_volume(v1::DeleteVolumeRequest {
            volume_id: "x".repeat(length),
            ..v1::DeleteVolumeRequest::default()
        })
    };
    assert!(id(128).is_ok());
    assert!(id(129).is_err());
    let filled = |length: usize| {
        read(|r| {
            let key = "csi.storage.k8s.io/x";
            let left = length - "pool".len() - "fast".len() - key.len();
            r.parameters.insert(key.to_owned(), "v".repeat(left));
        })
    };
    assert!(filled(4096).is_ok());
    assert_eq!(
        filled(4097),
        Err(Error::TooLong {
            field: "parameters",
            limit: 4096
        })
    );
}

#[test]
fn cv_04_one_bad_capability_refuses_all_and_two_filesystems_contradict() {
    assert!(matches!(
        read(|r| r
            .volume_capabilities
            .push(mount("", Mode::MultiNodeMultiWriter))),
        Err(Error::Capability(_))
    ));
    assert!(matches!(
        read(|r| r.volume_capabilities.push(block())),
        Err(Error::TwoAccessTypes)
    ));
    assert!(matches!(
        read(|r| r.volume_capabilities = vec![
            mount("xfs", Mode::SingleNodeWriter),
            mount("ext4", Mode::SingleNodeWriter),
        ]),
        Err(Error::Contradiction { .. })
    ));
    assert!(matches!(
        read(|r| {
            r.volume_capabilities = vec![mount("ext4", Mode::SingleNodeWriter)];
            r.parameters.insert(FSTYPE.to_owned(), "xfs".to_owned());
        }),
        Err(Error::ContradictsClass { .. })
    ));
}

#[test]
fn a_capability_that_contradicts_its_class_is_told_from_two_that_contradict_each_other() {
    let capabilities = |types: &[&str]| {
        let types = types.iter();
        types
            .map(|it| mount(it, Mode::SingleNodeWriter))
            .collect::<Vec<_>>()
    };
    let refused = |class: &str, types: &[&str]| {
        let wanted = read(|r| {
            r.volume_capabilities = capabilities(types);
            r.parameters.insert(FSTYPE.to_owned(), class.to_owned());
        });
        wanted.unwrap_err().to_string()
    };
    assert_eq!(
        refused("xfs", &["ext4"]),
        "parameter \"csi.storage.k8s.io/fstype\" of the class asks for filesystem xfs, and a volume \
         capability for ext4"
    );
    // The class agrees with one of them.
    assert_eq!(
        refused("xfs", &["xfs", "ext4"]),
        "the volume capabilities ask for filesystem xfs and for ext4 in one volume"
    );
}

#[test]
fn cv_05_several_ways_to_use_a_volume_are_kept_in_order_and_each_once() {
    let wanted = read(|r| {
        r.volume_capabilities = vec![
            mount("xfs", Mode::SingleNodeReaderOnly),
            mount("", Mode::SingleNodeWriter),
            mount("xfs", Mode::SingleNodeWriter),
        ];
    })
    .unwrap();
    assert_eq!(
        wanted.access_modes,
        [
            AccessMode::SingleNodeWriter,
            AccessMode::SingleNodeReaderOnly
        ]
    );
    assert_eq!(wanted.filesystem, Some(FilesystemType::Xfs));
}

#[test]
fn only_a_raw_block_volume_adopts_a_filesystem_and_only_if_its_class_says_so() {
    let adopts = |value: &str, capability: v1::VolumeCapability| {
        let parameters = pairs(&[("pool", "fast"), ("adoptFilesystem", value)]);
        let read = read(|r| (r.parameters, r.volume_capabilities) = (parameters, vec![capability]));
        Ok::<_, Error>(read?.adopt_filesystem)
    };
    let mount = || mount("", Mode::SingleNodeWriter);
    assert!(adopts("true", block()).unwrap());
    assert!(!adopts("true", mount()).unwrap());
    assert!(!adopts("false", block()).unwrap());
    assert!(adopts("yes", block()).is_err());
}

#[test]
fn a_raw_block_volume_has_no_filesystem_also_where_its_class_names_one() {
    let wanted = read(|r| {
        r.volume_capabilities = vec![block()];
        r.parameters.insert(FSTYPE.to_owned(), "xfs".to_owned());
    })
    .unwrap();
    assert_eq!(
        (wanted.access_type, wanted.filesystem),
        (AccessType::Block, None)
    );
    assert_eq!(wanted.access_modes, [AccessMode::SingleNodeWriter]);
    // Options that have no effect are refused.
    let refused = read(|r| {
        r.volume_capabilities = vec![block()];
        r.parameters
            .insert(MKFS_OPTIONS.to_owned(), "-I 512".to_owned());
    });
    let error = refused.unwrap_err();
    assert!(error.to_string().contains("mkfsOptions"), "{error}");
}

#[test]
fn the_filesystem_of_the_class_counts_where_the_capability_leaves_it_open() {
    let wanted = read(|r| drop(r.parameters.insert(FSTYPE.to_owned(), "xfs".to_owned()))).unwrap();
    assert_eq!(wanted.filesystem, Some(FilesystemType::Xfs));
    assert_eq!(wanted.size.chosen, Bytes::gib(1));
}

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

#[test]
fn cv_27_unknown_mutable_parameters_are_refused_by_name() {
    let mutable = read(|r| r.mutable_parameters = pairs(&[("XXX_FakeKey", "x")]));
    let message = mutable.unwrap_err().to_string();
    assert!(message.contains("\"XXX_FakeKey\""), "{message}");
}

#[test]
fn cv_18_mutable_parameters_override_the_parameters() {
    for (class, mutable, expected) in [
        ("thin", "thick", Provisioning::Thick),
        ("thick", "thin", Provisioning::Thin),
    ] {
        let wanted = read(|r| {
            r.parameters = pairs(&[("pool", "fast"), ("provisioning", class)]);
            r.mutable_parameters = pairs(&[("provisioning", mutable)]);
        });
        assert_eq!(wanted.unwrap().attributes.provisioning, expected);
    }
}

#[test]
fn cmv_02_cmv_03_cmv_05_a_modification_names_a_volume_and_valid_parameters() {
    let request = |id: &str, parameters: &[(&str, &str)]| {
        ModifyVolume::from_request(v1::ControllerModifyVolumeRequest {
            volume_id: id.to_owned(),
            mutable_parameters: pairs(parameters),
            ..v1::ControllerModifyVolumeRequest::default()
        })
    };
    assert_eq!(request("", &[]), Err(Error::Missing { field: "volume_id" }));
    let missing = Error::Missing {
        field: "mutable_parameters",
    };
    assert_eq!(request("pvc-1", &[]).unwrap().changes(), Err(missing));
    let bogus = request("pvc-1", &[("provisioning", "thick"), ("bogus", "x")]);
    assert!(bogus.unwrap().changes().is_err());
    let thick = request("pvc-1", &[("provisioning", "thick")]).unwrap();
    let thick = thick.changes().unwrap().apply(VolumeAttributes::default());
    assert_eq!(thick.provisioning, Provisioning::Thick);
}

#[test]
fn k8s_01_the_claim_is_read_from_the_provisioners_keys_and_only_a_legal_name_counts() {
    let named = |namespace: &str, name: &str| {
        read(|r| {
            r.parameters.extend(pairs(&[
                ("csi.storage.k8s.io/pvc/namespace", namespace),
                ("csi.storage.k8s.io/pvc/name", name),
                ("csi.storage.k8s.io/pv/name", "pvc-1"),
            ]));
        })
    };
    let claim = named("default", "data.web-0").unwrap().claim.unwrap();
    assert_eq!(
        (claim.namespace.as_str(), claim.name.as_str()),
        ("default", "data.web-0")
    );
    for (namespace, name) in [
        ("", "x"),
        ("a/b", "x"),
        ("x", "../../nodes"),
        ("x", "A"),
        ("x", "a-"),
    ] {
        assert_eq!(
            named(namespace, name).unwrap().claim,
            None,
            "{namespace}/{name}"
        );
    }
}

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
fn cv_17_mkfs_options_are_those_of_the_filesystem_wherever_it_is_named() {
    let with = |options: &str, fs_type: &str| {
        read(|r| {
            r.parameters = pairs(&[("pool", "fast"), (MKFS_OPTIONS, options)]);
            r.volume_capabilities = vec![mount(fs_type, Mode::SingleNodeWriter)];
        })
    };
    let wanted = with(" -i maxpct=5  -i size=1024", "xfs").unwrap();
    assert_eq!(wanted.mkfs_options.to_string(), "-i size=1024,maxpct=5");
    assert!(with("", "btrfs").unwrap().mkfs_options.is_empty());
    for (bad, fs_type) in [("-I 512", "xfs"), ("-i size=1024", ""), ("-b 1024", "ext4")] {
        let error = with(bad, fs_type).unwrap_err();
        assert!(matches!(error, Error::Parameters(_)), "{bad}: {error}");
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

#[test]
fn gc_03_gc_04_gc_05_a_capacity_request_becomes_a_query() {
    let ask = |request| get_capacity(request).unwrap();
    assert_eq!(
        ask(v1::GetCapacityRequest::default()),
        Some(CapacityQuery::default())
    );

    // The provisioner sends the parameters of the class and its own keys.
    let class = pairs(&[
        ("pool", "fast"),
        (FSTYPE, "xfs"),
        ("csi.storage.k8s.io/x", "y"),
    ]);
    let query = ask(v1::GetCapacityRequest {
        parameters: class.clone(),
        accessible_topology: Some(v1::Topology {
            segments: pairs(&[(names::TOPOLOGY_KEY, "n1")]),
        }),
        ..v1::GetCapacityRequest::default()
    })
    .unwrap();
    assert_eq!(query.pools, Some(PoolNames::only("fast")));
    assert_eq!(query.filesystem, Some(FilesystemType::Xfs));
    assert_eq!(query.places, Some(vec!["n1".to_owned()]));

    let foreign = ask(v1::GetCapacityRequest {
        accessible_topology: Some(v1::Topology {
            segments: pairs(&[("zone", "z")]),
        }),
        ..v1::GetCapacityRequest::default()
    });
    assert_eq!(foreign.unwrap().places, Some(vec![]));

    let with = |capability| v1::GetCapacityRequest {
        parameters: class.clone(),
        volume_capabilities: vec![capability],
        ..v1::GetCapacityRequest::default()
    };
    assert_eq!(
        ask(with(block())).unwrap().filesystem,
        None,
        "whatever the class says"
    );
    assert_eq!(
        ask(with(mount("ext4", Mode::SingleNodeWriter))),
        None,
        "the class says xfs"
    );
    let default = v1::GetCapacityRequest {
        volume_capabilities: vec![mount("", Mode::SingleNodeWriter)],
        ..v1::GetCapacityRequest::default()
    };
    assert_eq!(ask(default).unwrap().filesystem, Some(FilesystemType::Ext4));
}

#[test]
fn gen_05_a_capacity_request_with_mkfs_options_of_another_filesystem_is_refused() {
    let ask = |fs_type: &str| {
        get_capacity(v1::GetCapacityRequest {
            parameters: pairs(&[("pool", "p"), (MKFS_OPTIONS, "-n 32k")]),
            volume_capabilities: vec![mount(fs_type, Mode::SingleNodeWriter)],
            ..v1::GetCapacityRequest::default()
        })
    };
    assert!(ask("btrfs").unwrap().is_some());
    assert!(ask("").is_err());
}

#[test]
fn gen_05_a_capacity_request_with_illegal_values_is_refused() {
    let bogus = v1::GetCapacityRequest {
        parameters: pairs(&[("pool", "p"), ("bogus", "x")]),
        ..v1::GetCapacityRequest::default()
    };
    assert!(get_capacity(bogus).is_err());
    let malformed = v1::GetCapacityRequest {
        accessible_topology: Some(v1::Topology {
            segments: pairs(&[("Bad Key!", "z")]),
        }),
        ..v1::GetCapacityRequest::default()
    };
    assert!(get_capacity(malformed).is_err());
    let no_type = v1::GetCapacityRequest {
        volume_capabilities: vec![v1::VolumeCapability::default()],
        ..v1::GetCapacityRequest::default()
    };
    assert!(get_capacity(no_type).is_err());
}

prop_compose! {
    /// Arbitrary requests, with meaningful words in them.
    fn any_request()(
        name in ".{0,140}",
        words in prop::collection::vec(
            prop::sample::select(vec!["pool", "fast", "provisioning", "thick", "ext4", FSTYPE, "/", "\0", ""]),
            12,
        ),
        (required, limit) in any::<(i64, i64)>(),
        (block, mode, flags) in (any::<bool>(), -1..9_i32, ".{0,30}"),
        requisite in prop::option::of(".{0,70}"),
    ) -> v1::CreateVolumeRequest {
        let mut capability = if block { self::block() } else { mount(words[0], Mode::Unknown) };
        capability.access_mode = Some(ProtoMode { mode });
        if let Some(ProtoType::Mount(mount)) = &mut capability.access_type {
            mount.mount_flags = vec![flags];
        }
        let topology = |value: String| v1::Topology {
            segments: pairs(&[(names::TOPOLOGY_KEY, value.as_str())]),
        };
        v1::CreateVolumeRequest {
            name,
            capacity_range: Some(v1::CapacityRange { required_bytes: required, limit_bytes: limit }),
            volume_capabilities: vec![capability],
            parameters: pairs(&[(words[1], words[2]), (words[3], words[4]), (words[5], words[6])]),
            accessibility_requirements: requisite.map(|value| v1::TopologyRequirement {
                requisite: vec![topology(value)],
                preferred: Vec::new(),
            }),
            ..v1::CreateVolumeRequest::default()
        }
    }
}

proptest! {
    #[test]
    fn gen_13_no_request_makes_the_parser_panic_and_what_it_reads_is_within_bounds(
        request in any_request(),
    ) {
        if let Ok(wanted) = NewVolume::from_request(request.clone()) {
            let asked = request.capacity_range.unwrap_or_default();
            let size = wanted.size.chosen.to_i64();
            prop_assert!(size >= asked.required_bytes);
            prop_assert!(asked.limit_bytes == 0 || size <= asked.limit_bytes);
            prop_assert!(names::is_id(&wanted.id()));
        }
    }

    #[test]
    fn fld_12_no_name_makes_the_parser_panic_and_every_name_gets_a_legal_id(name in "\\PC{0,140}") {
        if let Ok(wanted) = read(|r| r.name = name) {
            prop_assert!(names::is_id(&wanted.id()));
        }
    }
}
