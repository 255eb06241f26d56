//! Which filesystems mount at which size, and how the kernel shows their options.

use std::{fs, os::fd::AsFd as _};

use cistern_host::{
    ImageRequest, MountOptions,
    mounting::{Difference, Error},
    options,
};
use cistern_types::{Bytes, FilesystemType, MkfsOptions, Provisioning, mkfs_options};
use rustix::fs::ioctl_ficlone;

use crate::{
    harness::{Machine, Volume, image_path, must, open_new, request, unstage},
    scenario::Volumes as _,
};

/// Stages, writes, unstages; reads what an earlier call wrote.
fn use_volume(machine: &Machine, pool: &cistern_host::Pool, volume: &Volume<'_>, expected: &str) {
    let staging = machine.staging("globalmount");
    must(pool.stage(&volume.stage(&staging)));
    let file = staging.join("file");
    assert_eq!(fs::read_to_string(&file).unwrap_or_default(), expected);
    fs::write(&file, format!("{expected}x")).unwrap();
    must(machine.root().unstage(&staging));
}

#[test]
fn each_filesystem_mounts_at_its_smallest_size_and_at_400_mib_and_again_after_a_reflink() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    for filesystem in FilesystemType::ALL {
        for size in [filesystem.minimum_size(), Bytes::mib(400)] {
            for provisioning in [Provisioning::Thin, Provisioning::Thick] {
                let request = request("a", size, filesystem, provisioning);
                let image = must(pool.new_image(&request));
                let volume = Volume::new(&image);
                use_volume(&machine, &pool, &volume, "");
                // From here on XFS demands 4096-byte alignment for direct I/O on this file.
                let path = image_path(&machine, &image.uid);
                let source = fs::File::open(&path).unwrap();
                let copy = fs::File::create(path.with_file_name("copy")).unwrap();
                ioctl_ficlone(copy.as_fd(), source.as_fd()).unwrap();
                use_volume(&machine, &pool, &volume, "x");
                use_volume(&machine, &pool, &volume, "xx");
                fs::remove_file(path.with_file_name("copy")).unwrap();
                must(pool.remove_image(&image.uid));
            }
        }
    }
}

#[test]
fn an_xfs_one_mib_below_the_smallest_size_is_not_made_and_leaves_nothing() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let size = FilesystemType::Xfs
        .minimum_size()
        .saturating_sub(Bytes::mib(1));
    let error = pool
        .new_image(&request("a", size, FilesystemType::Xfs, Provisioning::Thin))
        .unwrap_err();
    assert!(
        crate::harness::chain(&error).contains("mkfs.xfs"),
        "{error}"
    );
    let inventory = machine.inventory();
    assert!(inventory.pools[0].images.is_empty() && inventory.pools[0].temporary.is_empty());
}

/// Shows the invariant of `mkfs_options.rs`: a filesystem with any accepted options can be made and mounted.
#[test]
fn each_mkfs_option_makes_a_filesystem_of_the_smallest_size_that_mounts() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    for filesystem in FilesystemType::ALL {
        let each = mkfs_options::every_option(filesystem);
        let all = |choose: fn(&Vec<String>) -> Option<&String>| {
            let chosen = each.iter().filter_map(choose).cloned();
            chosen.collect::<Vec<_>>().join(" ")
        };
        let together = [all(|values| values.first()), all(|values| values.last())];
        for options in each.iter().flatten().chain(&together) {
            let request = ImageRequest {
                mkfs_options: MkfsOptions::parse(filesystem, options).unwrap(),
                ..request(
                    "a",
                    filesystem.minimum_size(),
                    filesystem,
                    Provisioning::Thin,
                )
            };
            let created = pool.new_image(&request);
            let image = must(created.inspect_err(|_| eprintln!("{filesystem} {options}")));
            use_volume(&machine, &pool, &Volume::new(&image), "");
            must(pool.remove_image(&image.uid));
        }
    }
}

/// Shows the invariant of `options.rs`: the kernel shows every accepted option as it was given.
#[test]
fn npv_14_the_kernel_shows_every_supported_mount_option_unchanged() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let attributes = ["ro", "noexec", "relatime", "nodiratime", "strictatime"];
    for filesystem in FilesystemType::ALL {
        let request = request(
            filesystem.as_str(),
            Bytes::mib(300),
            filesystem,
            Provisioning::Thin,
        );
        let image = must(pool.new_image(&request));
        let parameters = options::every_parameter(filesystem);
        assert!(parameters.len() > 6);
        let all = parameters.iter().map(String::as_str).chain(attributes);
        for option in all {
            let mut volume = Volume::new(&image);
            volume.options = MountOptions::parse(filesystem, [option]).unwrap();
            let staging = machine.staging("globalmount");
            let staged = pool.stage(&volume.stage(&staging));
            must(staged.inspect_err(|_| eprintln!("{filesystem} {option}")));
            // A second call knows only what the kernel shows.
            must(pool.stage(&volume.stage(&staging)));
            volume.options = MountOptions::default();
            let other = pool.stage(&volume.stage(&staging));
            let conflict = Error::Conflict {
                path: staging.clone(),
                difference: Difference::FilesystemOptions,
            };
            let is_conflict = other.as_ref().err().map(std::mem::discriminant)
                == Some(std::mem::discriminant(&conflict));
            assert!(is_conflict, "{filesystem} {option}: {other:?}");
            unstage(&machine, &image.uid, &staging);
        }
    }
}
