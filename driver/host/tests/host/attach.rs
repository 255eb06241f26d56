//! Staging and publishing, and back.

use std::{fs, os::unix::fs::PermissionsExt as _};

use cistern_crds::{Bytes, FilesystemType, Provisioning};

use crate::harness::{Machine, Volume, chain, open_new, request};

#[test]
fn a_volume_goes_the_whole_way_there_and_back_and_leaves_nothing() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    for (filesystem, provisioning) in [
        (FilesystemType::Ext4, Provisioning::Thin),
        (FilesystemType::Xfs, Provisioning::Thick),
    ] {
        let name = filesystem.as_str();
        let image = pool
            .create_image(&request(name, Bytes::mib(400), filesystem, provisioning))
            .unwrap_or_else(|error| panic!("{}", chain(&error)));
        let volume = Volume::new(&image);
        let (staging, target) = (machine.staging(name), machine.path("kubelet/target"));
        for _ in 0..3 {
            let staged = pool.stage(&volume.stage(&staging));
            staged.unwrap_or_else(|error| panic!("{}", chain(&error)));
            let published = pool.publish(&volume.publish(&staging, &target));
            published.unwrap_or_else(|error| panic!("{}", chain(&error)));
        }
        fs::write(target.join("file"), "data").unwrap();
        assert_eq!(fs::read(staging.join("file")).unwrap(), b"data");
        // Disk, pool, staging and target.
        assert_eq!(machine.mounts().len(), 4, "{:?}", machine.mounts());
        let error = pool.remove_image(&image.uid).unwrap_err();
        assert!(error.to_string().contains("still attached"), "{error}");
        for _ in 0..2 {
            machine.root().unpublish(&target).unwrap();
            machine.root().unstage(&staging).unwrap();
        }
        assert!(!target.exists() && staging.exists());
        assert_eq!(
            fs::metadata(&staging).unwrap().permissions().mode() & 0o7000,
            0
        );
        for _ in 0..2 {
            pool.remove_image(&image.uid).unwrap();
        }
    }
    assert_eq!(machine.inventory().loops.len(), 1, "the pool's own");
    assert_eq!(machine.inventory().pools[0].images, []);
}
