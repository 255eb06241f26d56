//! Pool problems are reported by the deadline, and cleared once they are over.

use std::{
    fs,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _, symlink},
    path::Path,
    sync::Arc,
    time::Duration,
};

use cistern_host::{
    Expectation, Image, ImageRequest, Pool, PoolDeclaration,
    health::{PoolTrouble, VolumeTrouble},
    pool::{Broken, Error},
    system::{Block, FailAt, Fault},
};
use cistern_types::{Bytes, Consistency, FilesystemType, Provisioning};
use failing_disk::Mode;
use rustix::{
    fs::{FallocateFlags, OFlags, fallocate},
    mount::{MountFlags, UnmountFlags, mount_remount},
};

use crate::{
    failing::{FailingDevice, text},
    harness::{
        Machine, POOL_SIZE, Probes as _, Volume, device_pool, eventually, image_path, image_pool,
        known, must, open_new, remount_read_only, request, root, run, uid, unmount,
    },
    health_volume::subject,
    scenario::Volumes as _,
    snapshot::{snapshot_of, take_snapshot},
};

/// Longer than any disk of these tests takes when it works.
const PATIENCE: Duration = Duration::from_mins(2);
const SHORT: Duration = Duration::from_millis(300);
const NAME: &str = ".cistern-probe";

fn small(machine: &Machine) -> ImageRequest {
    let size = Bytes::mib(16);
    ImageRequest {
        uid: machine.uid("a"),
        ..request("a", size, FilesystemType::Ext4, Provisioning::Thick)
    }
}

fn troubles(pool: &Arc<Pool>) -> Vec<PoolTrouble> {
    pool.vitals(PATIENCE).troubles
}

/// A full volume of this many percent of the pool, with a snapshot. It is open for direct I/O, as a loop device opens it.
fn snapshotted(machine: &Machine, pool: &Pool, percent: u32) -> (Image, fs::File) {
    let size = must(pool.statistics()).size.percent(percent);
    let request = ImageRequest {
        size: size.round_down_to_mib(),
        filesystem: None,
        ..small(machine)
    };
    let image = must(pool.new_image(&request));
    let path = image_path(machine, &image.uid);
    let filled = fs::File::options().write(true).open(&path).unwrap();
    for offset in (0..image.size.0).step_by(1 << 20) {
        filled.write_all_at(&vec![1; 1 << 20], offset).unwrap();
    }
    drop(filled);
    let snapshot = snapshot_of(&image, "s");
    must(take_snapshot(machine, pool, snapshot, Consistency::Crash));
    run("sync", &["--file-system", path.to_str().unwrap()]);
    let direct = i32::try_from(OFlags::DIRECT.bits()).unwrap();
    let file = fs::File::options()
        .read(true)
        .write(true)
        .custom_flags(direct)
        .open(&path);
    (image, file.unwrap())
}

const PREALLOCATED: u64 = 128 << 10;

/// Overwrites this block of each 128 KiB. XFS reserves all of them if the block is shared, also when the pool becomes full.
fn overwrite(file: &fs::File, size: Bytes, block: u64) {
    let step = usize::try_from(PREALLOCATED).unwrap();
    for offset in (0..size.0).step_by(step) {
        let at = offset + block * (Block::SIZE as u64);
        file.write_all_at(&Block([2; Block::SIZE]).0, at).unwrap();
    }
}

#[test]
fn a_pool_low_on_space_frees_what_overwrites_after_a_snapshot_have_preallocated() {
    let machine = Machine::new();
    let pool = Arc::new(open_new(&machine));
    // The volume, and as much again for preallocations, are more than 80 % of the pool.
    let (image, file) = snapshotted(&machine, &pool, 43);
    overwrite(&file, image.size, 0);

    let before = must(pool.statistics()).available;
    let vitals = pool.vitals(PATIENCE).fill.unwrap();
    // Of each 128 KiB only 4 KiB are written.
    let freed = vitals.available.saturating_sub(before);
    let size = image.size;
    assert!(
        freed > size.percent(90),
        "{freed} of {size}: {before}, then {vitals:?}"
    );
    let mut data = vec![0; 8192];
    let read = fs::File::open(image_path(&machine, &image.uid)).unwrap();
    read.read_exact_at(&mut data, PREALLOCATED).unwrap();
    assert_eq!((data[0], data[4096]), (2, 1));
}

#[test]
fn a_volume_that_needs_much_at_once_gets_what_overwrites_after_a_snapshot_have_preallocated() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let (image, file) = snapshotted(&machine, &pool, 30);
    let large = must(pool.statistics()).size.percent(45);
    let large = large.round_down_to_mib();
    let request = |name: &str, size, provisioning| ImageRequest {
        uid: machine.uid(name),
        filesystem: None,
        ..request(name, size, FilesystemType::Ext4, provisioning)
    };
    // Each time another block is overwritten, which is still shared.
    let preallocate = |block| {
        overwrite(&file, image.size, block);
        let available = must(pool.statistics()).available;
        assert!(available < large, "{available}");
    };
    let thin = must(pool.new_image(&request("thin", large, Provisioning::Thin)));
    preallocate(0);
    assert_eq!(must(pool.shortfall(&thin.uid)), Bytes::ZERO);
    preallocate(1);
    must(pool.provision(&thin.uid, Provisioning::Thick));
    must(pool.allocate_all(&thin.uid));
    must(pool.remove_image(&thin.uid));

    preallocate(2);
    let thick = must(pool.new_image(&request("thick", large, Provisioning::Thick)));
    must(pool.remove_image(&thick.uid));
    let small = request("small", Bytes::mib(16), Provisioning::Thick);
    let small = must(pool.new_image(&small));
    preallocate(3);
    let grown = must(pool.grow_image(&small.uid, large));
    assert!(grown.allocated >= large, "{grown:?}");
}

#[test]
fn each_probe_writes_new_data_to_a_working_pool_and_leaves_it_empty() {
    let machine = Machine::new();
    let declaration = image_pool(POOL_SIZE);
    let pool = Arc::new(open_new(&machine));
    let probe = machine.mount_point(&declaration).join(NAME);
    assert_eq!(troubles(&pool), []);
    let mut seen = Vec::new();
    for _ in 0..2 {
        let vitals = pool.vitals(PATIENCE);
        assert_eq!(vitals.troubles, []);
        let (fill, numbers) = (vitals.fill.unwrap(), must(pool.statistics()));
        assert_eq!(
            (fill.size, fill.available),
            (numbers.size, numbers.available)
        );
        seen.push(fs::read(&probe).unwrap());
    }
    assert_eq!(seen[0].len(), 4096);
    assert_ne!(seen[0], seen[1]);
    let inventory = machine.inventory();
    assert_eq!(
        (inventory.strays.len(), inventory.pools[0].strays.len()),
        (0, 0)
    );
    let expectation = known(&pool);
    drop(pool);
    must(machine.root().open_pool(&declaration, expectation));
    must(machine.root().remove_pool(&declaration, expectation));
}

#[test]
fn a_full_pool_is_not_reported_as_a_disk_problem_whether_probed_before_or_not() {
    let machine = Machine::new();
    let pool = Arc::new(open_new(&machine));
    let folder = machine.mount_point(&image_pool(POOL_SIZE));
    let filler = fs::File::create(folder.join("images/filler")).unwrap();
    let fill = |at: u64| {
        let (mut end, mut step) = (at, 64_u64 << 20);
        while step >= 4096 {
            match fallocate(&filler, FallocateFlags::empty(), end, step) {
                Ok(()) => end += step,
                Err(_) => step /= 2,
            }
        }
        end
    };
    let end = fill(0);
    assert_eq!(troubles(&pool), [], "never probed");
    filler.set_len(0).unwrap();
    assert_eq!(troubles(&pool), []);
    assert!(folder.join(NAME).exists() && fill(0) <= end);
    assert_eq!(troubles(&pool), [], "probed before");
}

#[test]
fn r16_a_hanging_disk_is_reported_by_the_deadline_and_delays_no_other_pool() {
    let machine = Machine::new();
    let disk = FailingDevice::new(&machine);
    let root = machine.root();
    let open = |declaration| Arc::new(must(root.open_pool(&declaration, Expectation::New)));
    let pool = open(device_pool([disk.path.clone()]));
    let other = open(PoolDeclaration {
        uid: uid("9f8e7d6c-0000-4000-8000-0000000000ff"),
        name: "slow".to_owned(),
        ..image_pool(POOL_SIZE)
    });
    let image = must(pool.new_image(&small(&machine)));
    assert_eq!(troubles(&pool), []);
    disk.set(Mode::Hang);
    let hung = PoolTrouble::Hung { after: SHORT };
    for _ in 0..2 {
        // The disk hangs until this loop ends, so a call that waits for it does not return.
        let vitals = pool.vitals(SHORT);
        assert_eq!((vitals.fill, vitals.troubles), (None, vec![hung.clone()]));
        // Its volumes are not probed.
        let found = pool.examine(&[subject(&image), subject(&image)], SHORT);
        assert_eq!(found.len(), 2);
        for troubles in found {
            assert!(
                matches!(troubles[..], [VolumeTrouble::Hung { .. }]),
                "{troubles:?}"
            );
        }
    }
    assert_eq!(troubles(&other), []);
    disk.set(Mode::Ok);
    eventually("an answer of the disk", || troubles(&pool).is_empty());
    assert_eq!(pool.examine(&[subject(&image)], PATIENCE), [[]]);
}

#[test]
fn a_disk_with_errors_shuts_its_pool_down_and_the_pool_is_mounted_again_once_no_pod_uses_it() {
    let machine = Machine::new();
    let disk = FailingDevice::new(&machine);
    let declaration = device_pool([disk.path.clone()]);
    let root = machine.root();
    let pool = Arc::new(must(root.open_pool(&declaration, Expectation::New)));
    let image = must(pool.new_image(&small(&machine)));
    let volume = Volume::new(&image);
    let (staging, target) = (
        machine.staging("globalmount"),
        machine.path("kubelet/target"),
    );
    must(pool.stage(&volume.stage(&staging)));
    must(root.publish(&volume.publish(&staging, &target)));

    disk.set(Mode::Eio);
    let path = machine.mount_point(&declaration).join("tmp/a");
    let _ = fs::File::create(path).and_then(|file| file.sync_all());
    assert_eq!(troubles(&pool), [PoolTrouble::ShutDown]);
    disk.set(Mode::Ok);
    assert_eq!(
        troubles(&pool),
        [PoolTrouble::ShutDown],
        "it does not recover without a remount"
    );

    let expectation = known(&pool);
    drop(pool);
    let open = || root.open_pool(&declaration, expectation);
    match open() {
        Err(Error::InUse { state, images, .. }) => {
            assert_eq!((state, images), (Broken::ShutDown, vec![image.uid.clone()]));
        }
        other => panic!("{other:?}"),
    }
    // Unpublish and unstage need no pool.
    must(root.unpublish(&target));
    must(root.unstage(&staging));
    eventually("the end of the loop device", || open().is_ok());
    let pool = Arc::new(must(open()));
    assert_eq!(troubles(&pool), []);
    assert_eq!(must(pool.images()).len(), 1, "nothing is lost");
    must(pool.stage(&volume.stage(&staging)));
}

#[test]
fn a_pulled_out_disk_serves_its_pool_again_once_its_path_points_to_it() {
    let machine = Machine::new();
    let disk = FailingDevice::new(&machine);
    let link = machine.path("by-id");
    symlink(&disk.path, &link).unwrap();
    let declaration = device_pool([link.clone()]);
    let pool = must(machine.root().open_pool(&declaration, Expectation::New));
    let pool = Arc::new(pool);
    let image = must(pool.new_image(&small(&machine)));
    let (expectation, before) = (known(&pool), disk.path.clone());
    let disk = disk.replug(&machine);
    assert_ne!(disk.path, before);
    fs::remove_file(&link).unwrap();
    symlink(&disk.path, &link).unwrap();
    let path = machine.mount_point(&declaration).join("tmp/a");
    let _ = fs::File::create(path).and_then(|file| file.sync_all());
    assert_eq!(troubles(&pool), [PoolTrouble::ShutDown]);
    drop(pool);
    let pool = must(machine.root().open_pool(&declaration, expectation));
    assert_eq!(pool.device(), disk.path);
    let pool = Arc::new(pool);
    assert_eq!(troubles(&pool), []);
    assert_eq!(must(pool.image(&image.uid)), Some(image));
}

#[test]
fn a_disk_with_errors_is_reported_until_it_recovers() {
    let machine = Machine::new();
    let disk = FailingDevice::new(&machine);
    let declaration = device_pool([disk.path.clone()]);
    let pool = must(machine.root().open_pool(&declaration, Expectation::New));
    let pool = Arc::new(pool);
    for mode in [Mode::EioWrite, Mode::Eio] {
        assert_eq!(troubles(&pool), []);
        disk.set(mode);
        let found = troubles(&pool);
        let expected = format!(
            "could not write {}: Input/output error (os error 5)",
            machine.mount_point(&declaration).join(NAME).display()
        );
        assert_eq!(found[0].to_string(), expected, "{mode}");
        disk.set(Mode::Ok);
    }
    assert_eq!(troubles(&pool), []);
}

#[test]
fn a_disk_that_loses_writes_is_reported() {
    let machine = Machine::new();
    let disk = FailingDevice::new(&machine);
    let declaration = device_pool([disk.path.clone()]);
    let pool = must(machine.root().open_pool(&declaration, Expectation::New));
    let pool = Arc::new(pool);
    assert_eq!(troubles(&pool), []);
    disk.set(Mode::Lose);
    let path = machine.mount_point(&declaration).join(NAME);
    assert_eq!(troubles(&pool), [PoolTrouble::NotReadBack { path }]);
    disk.set(Mode::Ok);
    assert_eq!(troubles(&pool), []);
}

/// Punches a hole into an unused part of a new pool's file, as a trim of the pool does.
fn punch_hole(file: &Path) {
    let (offset, length) = ("900MiB", "64MiB");
    run("fallocate", &["-p", "-o", offset, "-l", length, text(file)]);
}

#[test]
fn space_that_a_pools_file_has_lost_is_reported_and_reallocated_once_the_disk_has_room() {
    let machine = Machine::new();
    let declaration = image_pool(POOL_SIZE);
    let pool = Arc::new(open_new(&machine));
    let at = machine.mount_point(&declaration);
    let file = at.with_extension("img");
    assert_eq!(troubles(&pool), []);
    punch_hole(&file);
    let found = troubles(&pool);
    let [PoolTrouble::NotAllocated { missing }] = found[..] else {
        panic!("{found:?}");
    };
    // The metadata blocks of the file hide a few.
    assert!(missing > Bytes::mib(60) && missing <= Bytes::mib(64));

    // Other files take the space.
    let neighbour = fs::File::create(machine.path("neighbour")).unwrap();
    let space = rustix::fs::statvfs(&machine.folder).unwrap();
    let taken = (space.f_bavail * space.f_frsize).saturating_sub(32 << 20);
    fallocate(&neighbour, FallocateFlags::empty(), 0, taken).unwrap();
    let resized = must(pool.resize_file(POOL_SIZE));
    let shortage = resized.shortage.unwrap();
    assert!(shortage.why.contains("its filesystem lacks"), "{shortage}");
    // The pool still opens, also after a restart.
    let expectation = known(&pool);
    let opened = must(machine.root().open_pool(&declaration, expectation));
    assert_eq!(troubles(&Arc::new(opened)), found);

    neighbour.set_len(taken - (256 << 20)).unwrap();
    // The pool gets its space back, although less remains free than new pools must leave.
    eventually("the space", || {
        must(pool.resize_file(POOL_SIZE)).shortage.is_none()
    });
    let space = rustix::fs::statvfs(&machine.folder).unwrap();
    assert!(space.f_bavail < space.f_blocks / 10);
    assert_eq!(troubles(&pool), []);
}

/// Whether the kernel records the damage that it finds: since Linux 6.9.
fn kernel_remembers_damage() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut parts = release.split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap(), parts.next().unwrap()) >= (6, 9)
}

#[test]
fn pool_damage_that_the_kernel_finds_is_reported() {
    if !kernel_remembers_damage() {
        eprintln!("skipped: this kernel does not record the damage that it finds");
        return;
    }
    let machine = Machine::new();
    let declaration = image_pool(POOL_SIZE);
    let pool = open_new(&machine);
    let (at, expectation) = (machine.mount_point(&declaration), known(&pool));
    drop(pool);
    unmount(&at);
    // One copy of the free space btree, in an allocation group that is not used yet.
    let file = at.with_extension("img");
    let commands = [
        "-r",
        "-c",
        "agf 3",
        "-c",
        "addr bnoroot",
        "-c",
        "daddr",
        text(&file),
    ];
    let sector = run("xfs_db", &commands);
    let sector: u64 = sector.rsplit(' ').next().unwrap().trim().parse().unwrap();
    let disk = fs::OpenOptions::new().write(true).open(&file).unwrap();
    disk.write_all_at(&[0x55; 512], sector * 512 + 512).unwrap();
    disk.sync_all().unwrap();

    let pool = Arc::new(must(machine.root().open_pool(&declaration, expectation)));
    assert_eq!(troubles(&pool), [], "the kernel has not found it yet");
    let query = format!("! xfs_io -c 'fsmap -n 1000' {} 2>&1", at.display());
    run("sh", &["-c", &query]);
    assert_eq!(
        troubles(&pool),
        [PoolTrouble::FilesystemErrors { count: 1 }]
    );
}

#[test]
fn r08_a_read_only_or_missing_pool_is_reported_until_it_recovers() {
    let machine = Machine::new();
    let declaration = image_pool(POOL_SIZE);
    let pool = Arc::new(open_new(&machine));
    let at = machine.mount_point(&declaration);
    remount_read_only(&at);
    assert_eq!(troubles(&pool), [PoolTrouble::ReadOnly]);
    mount_remount(&at, MountFlags::empty(), "").unwrap();
    assert_eq!(troubles(&pool), []);

    let (file, away) = (at.with_extension("img"), machine.path("away"));
    fs::rename(&file, &away).unwrap();
    let found = troubles(&pool);
    assert!(
        matches!(found[..], [PoolTrouble::BackingMissing { .. }]),
        "{found:?}"
    );
    fs::rename(&away, &file).unwrap();
    assert_eq!(troubles(&pool), []);

    rustix::mount::unmount(&at, UnmountFlags::DETACH).unwrap();
    let found = troubles(&pool);
    assert!(
        matches!(found[..], [PoolTrouble::NotMounted { .. }]),
        "{found:?}"
    );
}

#[test]
fn a_pool_that_has_shut_down_is_not_unmounted_while_that_would_lose_its_file() {
    let machine = Machine::new();
    let declaration = image_pool(POOL_SIZE);
    let pool = open_new(&machine);
    let at = machine.mount_point(&declaration);
    let expectation = known(&pool);
    drop(pool);
    fs::remove_file(at.with_extension("img")).unwrap();
    run("xfs_io", &["-x", "-c", "shutdown", text(&at)]);
    let opened = machine.root().open_pool(&declaration, expectation);
    assert!(
        matches!(opened, Err(Error::BackingMissing { .. })),
        "{opened:?}"
    );
    let mounts = machine.mounts();
    assert!(
        mounts.contains(&at),
        "an administrator can still copy it from its loop device"
    );
}

#[test]
fn an_error_of_any_call_is_reported_and_the_next_probe_succeeds() {
    let machine = Machine::new();
    let declaration = image_pool(POOL_SIZE);
    let pool = Arc::new(open_new(&machine));
    let probe = machine.mount_point(&declaration).join(NAME);
    let expectation = known(&pool);
    for at in 1.. {
        // Each run starts with the first probe.
        let _ = fs::remove_file(&probe);
        // Count the calls that open the pool, so that the fault comes after them.
        let calls = FailAt::new(Arc::clone(&machine.system), Fault::Error, u64::MAX);
        let calls = Arc::new(calls);
        let opened = root(&machine.folder, Arc::clone(&calls) as _);
        must(opened.open_pool(&declaration, expectation));
        let system = FailAt::new(
            Arc::clone(&machine.system),
            Fault::Error,
            calls.calls() + at,
        );
        let system = Arc::new(system);
        let faulty = root(&machine.folder, Arc::clone(&system) as _);
        let faulty = Arc::new(must(faulty.open_pool(&declaration, expectation)));
        let found = troubles(&faulty);
        assert_eq!(troubles(&pool), [], "after an error at call {at}");
        if !system.has_failed() {
            assert_eq!(found, []);
            assert!(at > 10);
            break;
        }
        assert!(!found.is_empty(), "an error at call {at} is not reported");
    }
}
