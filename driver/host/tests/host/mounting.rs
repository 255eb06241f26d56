//! Staging and publishing volumes, and undoing both.

use std::{
    fs, io,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
    time::Duration,
};

use cistern_host::{
    Image, MountOptions, Pool, VolumeStatistics, image, mounting::Error, statistics,
};
use cistern_types::{Bytes, FilesystemType, Provisioning};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind};

use crate::{
    harness::{
        Machine, Volume, eventually, has_loops, image_path, image_pool, must, open_new, request,
        run, unmount, unstage,
    },
    scenario::Volumes as _,
};

fn volume_of(pool: &Pool, name: &str) -> Image {
    let size = Bytes::mib(64);
    must(pool.new_image(&request(
        name,
        size,
        FilesystemType::Ext4,
        Provisioning::Thin,
    )))
}

fn is_conflict<T: std::fmt::Debug>(result: Result<T, Error>) {
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Conflict { .. }), "{error}");
}

fn is_read_only(path: &Path) -> bool {
    let error = fs::write(path.join("probe"), "x").err();
    error.is_some_and(|error| error.kind() == io::ErrorKind::ReadOnlyFilesystem)
}

#[test]
fn a_volume_is_staged_published_and_removed_without_leftovers() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    for (filesystem, provisioning) in [
        (FilesystemType::Ext4, Provisioning::Thin),
        (FilesystemType::Xfs, Provisioning::Thick),
    ] {
        let name = filesystem.as_str();
        let image = pool
            .new_image(&request(name, Bytes::mib(400), filesystem, provisioning))
            .unwrap();
        let volume = Volume::new(&image);
        let (staging, target) = (machine.staging(name), machine.path("kubelet/target"));
        for _ in 0..3 {
            must(pool.stage(&volume.stage(&staging)));
            must(machine.root().publish(&volume.publish(&staging, &target)));
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
    has_loops(&machine, 1);
    assert_eq!(machine.inventory().pools[0].images, []);
}

#[test]
fn nsv_06_a_volume_staged_with_other_parameters_is_a_conflict_and_stays_unchanged() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let (image, other) = (volume_of(&pool, "a"), volume_of(&pool, "b"));
    let staging = machine.staging("s");
    let volume = Volume::new(&image);
    must(pool.stage(&volume.stage(&staging)));
    is_conflict(pool.stage(&Volume::new(&other).stage(&staging)));
    is_conflict(
        pool.stage(
            &Volume {
                read_only: true,
                ..Volume::new(&image)
            }
            .stage(&staging),
        ),
    );
    for options in ["relatime", "commit=30", "ro"] {
        let options = MountOptions::parse(FilesystemType::Ext4, [options]).unwrap();
        is_conflict(
            pool.stage(
                &Volume {
                    options,
                    ..Volume::new(&image)
                }
                .stage(&staging),
            ),
        );
    }
    must(pool.stage(&volume.stage(&staging)));
    assert!(!is_read_only(&staging));
    // A second staging path shares the loop device, and cannot have other options.
    let second = machine.staging("second");
    must(pool.stage(&volume.stage(&second)));
    let options = MountOptions::parse(FilesystemType::Ext4, ["commit=30"]).unwrap();
    let third = machine.staging("third");
    is_conflict(
        pool.stage(
            &Volume {
                options,
                ..Volume::new(&image)
            }
            .stage(&third),
        ),
    );
    assert!(
        !machine.mounts().contains(&third),
        "nothing is left of what failed"
    );
    has_loops(&machine, 2);
    must(machine.root().unstage(&staging));
    assert!(!is_read_only(&second));
}

#[test]
fn npv_07_a_volume_published_with_other_parameters_is_a_conflict_and_stays_unchanged() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let (image, other) = (volume_of(&pool, "a"), volume_of(&pool, "b"));
    let (staging, target) = (machine.staging("s"), machine.path("kubelet/target"));
    let volume = Volume::new(&image);
    let reader = Volume {
        read_only: true,
        ..Volume::new(&image)
    };
    must(pool.stage(&volume.stage(&staging)));
    must(machine.root().publish(&reader.publish(&staging, &target)));
    must(machine.root().publish(&reader.publish(&staging, &target)));
    assert!(is_read_only(&target) && !is_read_only(&staging));
    is_conflict(machine.root().publish(&volume.publish(&staging, &target)));
    let options = MountOptions::parse(FilesystemType::Ext4, ["noexec"]).unwrap();
    let strict = Volume {
        options,
        read_only: true,
        ..Volume::new(&image)
    };
    is_conflict(machine.root().publish(&strict.publish(&staging, &target)));
    let (other_staging, elsewhere) = (machine.staging("t"), machine.path("kubelet/elsewhere"));
    must(pool.stage(&Volume::new(&other).stage(&other_staging)));
    is_conflict(
        machine
            .root()
            .publish(&Volume::new(&other).publish(&other_staging, &target)),
    );
    // Several targets, each with its own options.
    must(
        machine
            .root()
            .publish(&volume.publish(&staging, &elsewhere)),
    );
    assert!(!is_read_only(&elsewhere) && is_read_only(&target));
    must(machine.root().unpublish(&elsewhere));
    assert!(is_read_only(&target) && !elsewhere.exists(), "nup_07");
}

#[test]
fn npv_19_an_unstaged_volume_is_not_published_and_no_target_is_left() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let (image, other) = (volume_of(&pool, "a"), volume_of(&pool, "b"));
    let (staging, target) = (machine.staging("s"), machine.path("kubelet/target"));
    let volume = Volume::new(&image);
    let not_staged = || {
        let error = machine
            .root()
            .publish(&volume.publish(&staging, &target))
            .unwrap_err();
        assert!(matches!(error, Error::NotStaged { .. }), "{error}");
        assert!(!target.exists());
    };
    not_staged();
    must(pool.stage(&Volume::new(&other).stage(&staging)));
    not_staged();
    // A path that kubelet did not create.
    let nowhere = machine.path("kubelet/no/where");
    let error = pool.stage(&volume.stage(&nowhere)).unwrap_err();
    assert!(matches!(error, Error::PathMissing { .. }), "{error}");
    must(machine.root().unstage(&staging));
    must(pool.stage(&volume.stage(&staging)));
    let error = machine
        .root()
        .publish(&volume.publish(&staging, &nowhere))
        .unwrap_err();
    assert!(matches!(error, Error::PathMissing { .. }), "{error}");
}

#[test]
fn a_volume_staged_read_only_cannot_be_written_where_staged_or_published() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    for filesystem in FilesystemType::ALL {
        let request = request(
            filesystem.as_str(),
            Bytes::mib(300),
            filesystem,
            Provisioning::Thin,
        );
        let image = must(pool.new_image(&request));
        let reader = Volume {
            read_only: true,
            ..Volume::new(&image)
        };
        let (staging, target) = (machine.staging("s"), machine.path("kubelet/target"));
        must(pool.stage(&reader.stage(&staging)));
        must(machine.root().publish(&reader.publish(&staging, &target)));
        assert!(is_read_only(&staging) && is_read_only(&target));
        must(machine.root().unpublish(&target));
        must(machine.root().unstage(&staging));
    }
}

#[test]
fn nup_08_every_mount_of_a_target_is_unmounted() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let image = volume_of(&pool, "a");
    let (staging, target) = (machine.staging("s"), machine.path("kubelet/target"));
    let volume = Volume::new(&image);
    must(pool.stage(&volume.stage(&staging)));
    must(machine.root().publish(&volume.publish(&staging, &target)));
    mount_bind(&staging, &target).unwrap();
    mount("none", &target, "tmpfs", MountFlags::empty(), None).unwrap();
    must(machine.root().unpublish(&target));
    assert!(!target.exists());
    mount_bind(&staging, &staging).unwrap();
    unstage(&machine, &image.uid, &staging);
    assert_eq!(fs::read_dir(&staging).unwrap().count(), 0);
    must(pool.remove_image(&image.uid));
}

#[test]
fn nup_09_a_failed_unmount_is_an_error_and_nothing_below_it_is_removed() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let image = volume_of(&pool, "a");
    let (staging, target) = (machine.staging("s"), machine.path("kubelet/target"));
    let volume = Volume::new(&image);
    must(pool.stage(&volume.stage(&staging)));
    must(machine.root().publish(&volume.publish(&staging, &target)));
    fs::write(target.join("file"), "data").unwrap();
    let open = fs::File::open(target.join("file")).unwrap();
    let error = machine.root().unpublish(&target).unwrap_err();
    assert!(matches!(error, Error::Busy { .. }), "{error}");
    assert_eq!(fs::read(target.join("file")).unwrap(), b"data");
    drop(open);
    must(machine.root().unpublish(&target));
    // Cistern does not own an unmounted file at a target path.
    fs::create_dir(&target).unwrap();
    fs::write(target.join("file"), "data").unwrap();
    let error = machine.root().unpublish(&target).unwrap_err();
    assert!(matches!(error, Error::NotRemoved { .. }), "{error}");
    assert_eq!(fs::read(target.join("file")).unwrap(), b"data");
}

#[test]
fn a_symbolic_link_is_never_followed() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let image = volume_of(&pool, "a");
    let staging = machine.staging("s");
    let volume = Volume::new(&image);
    must(pool.stage(&volume.stage(&staging)));
    let victim = machine.path("victim");
    fs::create_dir(&victim).unwrap();
    let link = machine.path("kubelet/link");
    symlink(&victim, &link).unwrap();
    for target in [link.clone(), link.join("below")] {
        let publish = volume.publish(&staging, &target);
        machine.root().publish(&publish).unwrap_err();
        pool.stage(&volume.stage(&target)).unwrap_err();
    }
    let behind = link.join("below");
    machine.root().unpublish(&behind).unwrap_err();
    // The mount behind the link stays: nothing is mounted on the link itself.
    mount_bind(&staging, &victim).unwrap();
    must(machine.root().unstage(&link));
    // A link holds no data, and is removed so that the pod can end.
    must(machine.root().unpublish(&link));
    assert!(fs::symlink_metadata(&link).is_err());
    assert!(machine.mounts().contains(&victim));
    unmount(&victim);
    assert_eq!(fs::read_dir(&victim).unwrap().count(), 0);
}

// Shows: NPV-06, NSV-05.
#[test]
fn nus_07_unpublish_and_unstage_need_neither_pool_nor_image() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let image = volume_of(&pool, "a");
    let (staging, target) = (machine.staging("s"), machine.path("kubelet/target"));
    let volume = Volume::new(&image);
    must(pool.stage(&volume.stage(&staging)));
    must(machine.root().publish(&volume.publish(&staging, &target)));
    fs::remove_file(image_path(&machine, &image.uid)).unwrap();
    drop(pool);
    let at = machine.mount_point(&image_pool(Bytes::ZERO));
    rustix::mount::unmount(at, UnmountFlags::DETACH).unwrap();
    // kubelet repeats its calls for the running pod, and they find the mounts (NSV-05, NPV-06).
    assert!(must(machine.root().is_staged(&volume.stage(&staging))));
    must(machine.root().publish(&volume.publish(&staging, &target)));
    let reader = Volume {
        read_only: true,
        ..Volume::new(&image)
    };
    is_conflict(machine.root().publish(&reader.publish(&staging, &target)));
    for _ in 0..2 {
        must(machine.root().unpublish(&target));
        must(machine.root().unstage(&staging));
    }
    let nowhere = machine.path("kubelet/no/where");
    must(machine.root().unpublish(&nowhere));
    must(machine.root().unstage(&nowhere));
}

#[test]
fn a_filesystem_that_has_shut_down_is_still_unmounted() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let request = request(
        "a",
        Bytes::mib(300),
        FilesystemType::Xfs,
        Provisioning::Thin,
    );
    let image = must(pool.new_image(&request));
    let (staging, target) = (machine.staging("s"), machine.path("kubelet/target"));
    let volume = Volume::new(&image);
    must(pool.stage(&volume.stage(&staging)));
    must(machine.root().publish(&volume.publish(&staging, &target)));
    run(
        "xfs_io",
        &["-x", "-c", "shutdown", staging.to_str().unwrap()],
    );
    assert!(fs::metadata(&target).is_err(), "it is not shut down");
    must(machine.root().unpublish(&target));
    must(machine.root().unstage(&staging));
    // Its log is replayed by the next mount.
    must(pool.stage(&volume.stage(&staging)));
    assert!(!is_read_only(&staging));
}

#[test]
fn an_image_mounted_in_another_mount_namespace_is_in_use_until_that_ends() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let image = volume_of(&pool, "a");
    let staging = machine.staging("s");
    must(pool.stage(&Volume::new(&image).stage(&staging)));
    #[expect(clippy::disallowed_methods, reason = "the test's own tools")]
    let mut holder = std::process::Command::new("unshare")
        .args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            "echo ready; exec sleep 600",
        ])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0; 5];
    io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut ready).unwrap();
    must(machine.root().unstage(&staging));
    let error = pool.check_unused(&image.uid).unwrap_err();
    let in_use = matches!(error, image::Error::InUse { .. });
    let error = pool.remove_image(&image.uid).unwrap_err();
    let in_use = in_use && matches!(error, image::Error::InUse { .. });
    // If it is staged again in between, it has the same loop device.
    must(pool.stage(&Volume::new(&image).stage(&staging)));
    let loops = machine.inventory().loops.len();
    must(machine.root().unstage(&staging));
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert!(in_use && loops == 2, "{error}, {loops} loop devices");
    // The namespace ends a moment after its last process.
    eventually("the end of the namespace", || {
        pool.check_unused(&image.uid).is_ok()
    });
    // The check changes nothing.
    must(pool.stage(&Volume::new(&image).stage(&staging)));
    must(machine.root().unstage(&staging));
    must(pool.remove_image(&image.uid));
    must(pool.check_unused(&image.uid));
}

#[test]
fn ngs_09_every_path_of_a_volume_reports_its_space_and_no_other_path_does() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let image = volume_of(&pool, "a");
    let (staging, target) = (machine.staging("s"), machine.path("kubelet/target"));
    let volume = Volume::new(&image);
    must(pool.stage(&volume.stage(&staging)));
    must(machine.root().publish(&volume.publish(&staging, &target)));
    let ask = |path: &Path| {
        machine
            .root()
            .statistics_of(&image.uid, path, Duration::from_mins(1))
    };
    for path in [&staging, &target] {
        let VolumeStatistics::Filesystem(numbers) = must(ask(path)) else {
            panic!("it has a filesystem");
        };
        let df = run(
            "df",
            &[
                "-B1",
                "--output=size,used,avail,itotal,iused",
                path.to_str().unwrap(),
            ],
        );
        let df: Vec<u64> = df
            .lines()
            .nth(1)
            .unwrap()
            .split_whitespace()
            .map(|n| n.parse().unwrap())
            .collect();
        let found = [
            numbers.total.0,
            numbers.used.0,
            numbers.available.0,
            numbers.inodes,
            numbers.inodes_used,
        ];
        assert_eq!(df, found);
    }
    let other = volume_of(&pool, "b");
    let wrong = [
        machine
            .root()
            .statistics_of(&other.uid, &staging, Duration::from_mins(1)),
        ask(&machine.path("kubelet")),
        ask(&machine.path("kubelet/no/where")),
    ];
    for result in wrong {
        let error = result.unwrap_err();
        assert!(
            matches!(error, statistics::Error::NotThere { .. }),
            "{error}"
        );
    }
}

/// In a container, `/dev` is a copy from its start.
#[test]
fn a_loop_device_without_a_node_in_dev_is_used() {
    let machine = Machine::new();
    Machine::forget_device_nodes();
    let pool = open_new(&machine);
    assert!(pool.device().starts_with(machine.path("root/dev")));
    let image = volume_of(&pool, "a");
    let (staging, target) = (machine.staging("s"), machine.path("kubelet/target"));
    let volume = Volume::new(&image);
    must(pool.stage(&volume.stage(&staging)));
    must(machine.root().publish(&volume.publish(&staging, &target)));
    assert_eq!(machine.inventory().loops.len(), 2);
    must(machine.root().unpublish(&target));
    unstage(&machine, &image.uid, &staging);
    must(pool.remove_image(&image.uid));
    rustix::mount::unmount("/dev", UnmountFlags::DETACH).unwrap();
}
