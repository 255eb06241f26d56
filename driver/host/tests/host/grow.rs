//! Growing volumes: online, offline, and interrupted.

use std::{fs, path::Path};

use cistern_host::{
    ExpandRequest, Image, ImageRequest, Pool, Root,
    grow::{self, Error},
    image,
};
use cistern_types::{Bytes, FilesystemType, Provisioning};

use crate::{
    harness::{
        Machine, Volume, allocated, image_path, known, must, open_new, request, root, run, unstage,
    },
    scenario::Volumes as _,
};

const FROM: Bytes = Bytes::mib(300);

fn volume_of(pool: &Pool, filesystem: FilesystemType, provisioning: Provisioning) -> Image {
    let name = filesystem.as_str();
    must(pool.new_image(&request(name, FROM, filesystem, provisioning)))
}

fn expand(pool: &Pool, image: &Image, path: &Path, required: Bytes) -> Result<Bytes, Error> {
    pool.expand(&ExpandRequest {
        keys: None,
        image: &image.uid,
        filesystem: image.identity.as_ref().unwrap().content.filesystem(),
        path,
        required,
        limit: None,
    })
}

/// Bytes of the filesystem at a path, as a pod sees them.
fn seen(path: &Path) -> u64 {
    let space = rustix::fs::statvfs(path).unwrap();
    space.f_blocks * space.f_frsize
}

fn checksum(path: &Path) -> String {
    run("sha256sum", &[path.to_str().unwrap()])
}

/// Number of mounts of an ext4 since its last full check.
fn stages_since_check(image: &Path) -> u32 {
    let output = run("dumpe2fs", &["-h", image.to_str().unwrap()]);
    let line = output
        .lines()
        .find_map(|line| line.strip_prefix("Mount count:"));
    line.unwrap().trim().parse().unwrap()
}

/// Whether a mounted ext4 can grow here: this needs a capability that some machines do not grant.
fn ext4_grows_online() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = u64::from_str_radix(line.unwrap().trim(), 16).unwrap();
    let grows = capabilities >> 24 & 1 == 1;
    #[expect(
        clippy::disallowed_methods,
        reason = "set where the capability must be there: in the virtual machine of e2e/vm"
    )]
    let is_expected = std::env::var_os("CISTERN_EXPECT_ONLINE_EXT4").is_some();
    assert!(grows || !is_expected, "CAP_SYS_RESOURCE is missing");
    eprintln!("CAP_SYS_RESOURCE: {grows}");
    grows
}

#[test]
fn nev_08_nev_12_nev_13_a_volume_in_use_grows_immediately_or_reports_that_it_grows_at_the_next_stage()
 {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let ext4_grows_online = ext4_grows_online();
    for filesystem in FilesystemType::ALL {
        for provisioning in [Provisioning::Thin, Provisioning::Thick] {
            let image = volume_of(&pool, filesystem, provisioning);
            let volume = Volume::new(&image);
            let (staging, target) = (machine.staging("staging"), machine.path("kubelet/target"));
            must(pool.stage(&volume.stage(&staging)));
            must(machine.root().publish(&volume.publish(&staging, &target)));
            let file = target.join("file");
            fs::write(&file, vec![7; 1 << 20]).unwrap();
            let (before, content) = (seen(&target), checksum(&file));

            for to in [Bytes::mib(301), Bytes::mib(440)] {
                must(pool.grow_image(&image.uid, to));
                must(pool.grow_image(&image.uid, to));
                assert_eq!(seen(&target), before.max(seen(&staging)));
                for path in [&target, &staging, &target] {
                    match expand(&pool, &image, path, to) {
                        Ok(size) => assert_eq!(size, to),
                        Err(Error::OnlyUnmounted { .. }) => {
                            assert!(filesystem == FilesystemType::Ext4 && !ext4_grows_online);
                        }
                        Err(error) => panic!("{filesystem}: {error}"),
                    }
                }
            }
            let grew = seen(&target) >= before + (130 << 20);
            assert_eq!(
                grew,
                filesystem != FilesystemType::Ext4 || ext4_grows_online,
                "{filesystem}: {before} became {}",
                seen(&target)
            );
            let beyond = expand(&pool, &image, &target, Bytes::mib(441)).unwrap_err();
            assert!(
                matches!(beyond, Error::OutOfRange { .. }),
                "nev_07: {beyond}"
            );
            assert_eq!(checksum(&file), content);
            must(machine.root().unpublish(&target));
            unstage(&machine, &image.uid, &staging);

            // The next pod has the full size in every case.
            let staged = must(pool.stage(&volume.stage(&staging)));
            assert!(staged.not_grown.is_none(), "{:?}", staged.not_grown);
            assert!(seen(&staging) >= before + (130 << 20), "{filesystem}");
            assert_eq!(
                checksum(&staging.join("file")).split(' ').next(),
                content.split(' ').next()
            );
            unstage(&machine, &image.uid, &staging);
            must(pool.remove_image(&image.uid));
        }
    }
}

#[test]
fn offline_a_filesystem_grows_with_its_next_stage_and_only_once() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    for filesystem in FilesystemType::ALL {
        let image = volume_of(&pool, filesystem, Provisioning::Thin);
        let staging = machine.staging("staging");
        let volume = Volume::new(&image);
        must(pool.stage(&volume.stage(&staging)));
        let before = seen(&staging);
        fs::write(staging.join("file"), "kept").unwrap();
        unstage(&machine, &image.uid, &staging);
        // By the smallest size, by sizes too small for another group of ext4, and by a large one.
        for mib in [301, 384, 385, 386, 387, 388, 389, 390, 391, 392, 512] {
            must(pool.grow_image(&image.uid, Bytes::mib(mib)));
            for _ in 0..2 {
                let staged = must(pool.stage(&volume.stage(&staging)));
                assert!(staged.not_grown.is_none(), "{mib}: {:?}", staged.not_grown);
                assert_eq!(fs::read_to_string(staging.join("file")).unwrap(), "kept");
                unstage(&machine, &image.uid, &staging);
            }
            if filesystem == FilesystemType::Ext4 {
                let stages = stages_since_check(&image_path(&machine, &image.uid));
                assert!(stages >= 2, "{mib} MiB are checked again at each stage");
            }
        }
        must(pool.stage(&volume.stage(&staging)));
        assert!(seen(&staging) > before + (200 << 20), "{filesystem}");
        unstage(&machine, &image.uid, &staging);
        must(pool.remove_image(&image.uid));
    }
}

#[test]
fn a_read_only_volume_is_staged_at_its_old_size_and_grows_once_it_is_writable() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    for filesystem in FilesystemType::ALL {
        let image = volume_of(&pool, filesystem, Provisioning::Thin);
        let staging = machine.staging("staging");
        let mut volume = Volume::new(&image);
        must(pool.stage(&volume.stage(&staging)));
        let before = seen(&staging);
        unstage(&machine, &image.uid, &staging);
        let size = must(pool.grow_image(&image.uid, Bytes::mib(400))).size;
        volume.read_only = true;
        must(pool.stage(&volume.stage(&staging)));
        let error = expand(&pool, &image, &staging, size).unwrap_err();
        assert!(matches!(error, Error::ReadOnly { .. }), "{error}");
        assert_eq!(seen(&staging), before);
        unstage(&machine, &image.uid, &staging);
        volume.read_only = false;
        must(pool.stage(&volume.stage(&staging)));
        assert!(seen(&staging) > before);
        unstage(&machine, &image.uid, &staging);
        must(pool.remove_image(&image.uid));
    }
}

#[test]
fn nev_14_a_volume_is_expanded_only_at_its_own_paths() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let image = volume_of(&pool, FilesystemType::Xfs, Provisioning::Thin);
    let other = volume_of(&pool, FilesystemType::Ext4, Provisioning::Thin);
    let (staging, elsewhere) = (machine.staging("one"), machine.staging("other"));
    let not_there = |path: &Path| {
        let error = expand(&pool, &image, path, FROM).unwrap_err();
        assert!(matches!(error, Error::NotThere { .. }), "{error}");
    };
    not_there(&staging);
    must(pool.stage(&Volume::new(&image).stage(&staging)));
    must(pool.stage(&Volume::new(&other).stage(&elsewhere)));
    for wrong in [
        &elsewhere,
        &machine.path("kubelet"),
        &machine.path("no/where"),
    ] {
        not_there(wrong);
    }
    must(expand(&pool, &image, &staging, FROM));
    for path in [&staging, &elsewhere] {
        must(machine.root().unstage(path));
    }
}

#[test]
fn nev_13_the_content_of_a_block_volume_is_unchanged() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let block = ImageRequest {
        filesystem: None,
        ..request("block", FROM, FilesystemType::Ext4, Provisioning::Thin)
    };
    let image = must(pool.new_image(&block));
    let path = image_path(&machine, &image.uid);
    let device = run(
        "losetup",
        &[
            "--find",
            "--show",
            "--sector-size",
            "4096",
            path.to_str().unwrap(),
        ],
    );
    let device = Path::new(device.trim());
    fs::OpenOptions::new()
        .write(true)
        .open(device)
        .and_then(|mut file| {
            use std::io::Write as _;
            file.write_all(&[9; 8192])?;
            file.sync_all()
        })
        .unwrap();
    let target = machine.path("kubelet/device");
    fs::write(&target, "").unwrap();
    run(
        "mount",
        &["--bind", device.to_str().unwrap(), target.to_str().unwrap()],
    );

    must(pool.grow_image(&image.uid, Bytes::mib(400)));
    let size = || {
        run("blockdev", &["--getsize64", target.to_str().unwrap()])
            .trim()
            .parse::<u64>()
            .unwrap()
    };
    assert_eq!(size(), FROM.0);
    for _ in 0..2 {
        assert_eq!(
            must(expand(&pool, &image, &target, Bytes::mib(400))),
            Bytes::mib(400)
        );
        assert_eq!(size(), Bytes::mib(400).0);
    }
    let content = fs::read(&path).unwrap();
    assert!(content[..8192].iter().all(|byte| *byte == 9));
    assert!(content[8192..].iter().all(|byte| *byte == 0));
    let error = expand(&pool, &image, &machine.path("kubelet"), FROM).unwrap_err();
    assert!(matches!(error, Error::NotThere { .. }), "{error}");
    run("umount", &[target.to_str().unwrap()]);
    run("losetup", &["--detach", device.to_str().unwrap()]);
}

#[test]
fn a_thick_volume_that_the_disk_cannot_hold_keeps_its_size_and_allocation() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let image = volume_of(&pool, FilesystemType::Ext4, Provisioning::Thick);
    let path = image_path(&machine, &image.uid);
    let before = (fs::metadata(&path).unwrap().len(), allocated(&path));
    let free = must(pool.statistics()).available;
    let error = pool.grow_image(&image.uid, Bytes::gib(2)).unwrap_err();
    assert!(matches!(error, image::Error::NoSpace { .. }), "{error}");
    assert_eq!(
        (fs::metadata(&path).unwrap().len(), allocated(&path)),
        before
    );
    let freed = must(pool.statistics()).available;
    assert!(freed.0 + (1 << 20) > free.0, "{free} became {freed}");
    let grown = must(pool.grow_image(&image.uid, Bytes::mib(500)));
    assert_eq!(grown.size, Bytes::mib(500));
    assert!(allocated(&path) >= Bytes::mib(500).0);
}

#[test]
fn an_image_is_not_staged_until_a_tool_that_outlived_the_agent_has_ended() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let image = volume_of(&pool, FilesystemType::Ext4, Provisioning::Thin);
    let staging = machine.staging("staging");
    let volume = Volume::new(&image);
    // A tool that is still running holds the file with its lock.
    let tool = fs::File::open(image_path(&machine, &image.uid)).unwrap();
    rustix::fs::flock(&tool, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let error = pool.stage(&volume.stage(&staging)).unwrap_err();
    assert!(
        crate::harness::chain(&error).contains("wait for the tool"),
        "{error}"
    );
    drop(tool);
    must(pool.stage(&volume.stage(&staging)));
    must(machine.root().unstage(&staging));
}

#[test]
fn a_filesystem_that_cannot_grow_is_staged_at_its_old_size_and_the_reason_is_reported() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let image = volume_of(&pool, FilesystemType::Ext4, Provisioning::Thin);
    let (staging, other) = (machine.staging("staging"), machine.staging("other"));
    let volume = Volume::new(&image);
    must(pool.stage(&volume.stage(&other)));
    must(pool.grow_image(&image.uid, Bytes::mib(400)));
    // It is bound to a loop device, so it cannot grow before it is mounted.
    let before = seen(&other);
    let staged = must(pool.stage(&volume.stage(&staging)));
    if ext4_grows_online() {
        assert!(staged.not_grown.is_none() && seen(&staging) > before);
    } else {
        let why = staged.not_grown.unwrap();
        assert!(matches!(why, grow::Error::OnlyUnmounted { .. }), "{why}");
        assert_eq!(seen(&staging), before);
    }
    fs::write(staging.join("file"), "writable").unwrap();
    let root: Root = root(&machine.folder, machine.system.clone());
    for path in [&staging, &other] {
        must(root.unstage(path));
    }
    let again = must(root.open_pool(
        &crate::harness::image_pool(crate::harness::POOL_SIZE),
        known(&pool),
    ));
    let staged = must(again.stage(&volume.stage(&staging)));
    assert!(staged.not_grown.is_none() && seen(&staging) > before);
    must(root.unstage(&staging));
}
