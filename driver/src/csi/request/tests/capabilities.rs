//! CreateVolume: the volume capabilities and the filesystem.

use cistern_crds::{
    AccessMode, AccessType, Bytes,
    parameters::{FSTYPE, MKFS_OPTIONS},
};

use super::*;

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
fn contradicting_the_class_and_contradicting_each_other_are_different_errors() {
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
