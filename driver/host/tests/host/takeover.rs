//! Ownership of pools: one machine uses a shared disk, and a grant moves it to another.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use cistern_host::{
    Expectation, Pool, PoolDeclaration,
    pool::{Error, ForeignMarker},
};
use cistern_types::{Bytes, FilesystemType, Provisioning};

use crate::{
    device::Disk,
    harness::{
        Machine, POOL_SIZE, device_pool, image_pool, known, must, request, run, uid, unmount,
    },
    scenario::{Volumes as _, node},
};

fn on(name: &str, pool: &PoolDeclaration) -> PoolDeclaration {
    PoolDeclaration {
        node: node(name),
        ..pool.clone()
    }
}

fn open(
    machine: &Machine,
    pool: &PoolDeclaration,
    expectation: Expectation,
) -> Result<Pool, Error> {
    machine.root().open_pool(pool, expectation)
}

/// The marker in the error of a refused pool.
#[track_caller]
fn refused(result: Result<Pool, Error>, node: &str) -> ForeignMarker {
    match result {
        Err(error @ Error::OtherNode { .. }) => {
            let text = format!("belongs to node {node} (machine machine-of-{node})");
            assert!(error.to_string().contains(&text), "{error}");
            let Error::OtherNode { foreign, .. } = error else {
                unreachable!()
            };
            *foreign
        }
        other => panic!("{other:?}"),
    }
}

fn digest(path: &Path) -> String {
    run("sync", &[]);
    run("sha256sum", &[path.to_str().unwrap()])
}

#[test]
fn a_pool_of_another_node_is_refused_and_unchanged_until_the_takeover_is_granted() {
    let machine = Machine::new();
    let disk = Disk::new(&machine, "disk");
    let (device, file) = (device_pool([disk.device.clone()]), machine.path("disk"));
    let image = image_pool(POOL_SIZE);
    let image_file = machine.mount_point(&image).with_extension("img");
    for (pool, file) in [(device, file), (image, image_file)] {
        let first = on("w1", &pool);
        let opened = must(open(&machine, &first, Expectation::New));
        assert_eq!(opened.takeovers(), 0);
        let volume = request(
            "a",
            Bytes::mib(16),
            FilesystemType::Ext4,
            Provisioning::Thin,
        );
        let volume = must(opened.new_image(&volume));
        let before = known(&opened);
        drop(opened);
        unmount(&machine.mount_point(&pool));

        let second = on("w2", &pool);
        let untouched = digest(&file);
        let foreign = refused(open(&machine, &second, Expectation::New), "w1");
        for expectation in [before, Expectation::Made] {
            assert_eq!(refused(open(&machine, &second, expectation), "w1"), foreign);
        }
        // The grant is for another pool.
        let other = PoolDeclaration {
            take_over: Some(ForeignMarker {
                owner: node("w3"),
                ..foreign.clone()
            }),
            ..second.clone()
        };
        assert_eq!(refused(open(&machine, &other, before), "w1"), foreign);
        assert_eq!(digest(&file), untouched);
        assert!(
            machine
                .mounts()
                .iter()
                .all(|at| *at != machine.mount_point(&pool))
        );

        let granted = PoolDeclaration {
            take_over: Some(foreign),
            ..second.clone()
        };
        let opened = must(open(&machine, &granted, Expectation::New));
        assert_eq!(must(opened.images()), [volume]);
        must(opened.check());
        assert_eq!(opened.takeovers(), 1);
        drop(opened);
        unmount(&machine.mount_point(&pool));
        // It now belongs to the second node, with or without the grant, and no longer to the first.
        for declaration in [&granted, &second] {
            let opened = must(open(&machine, declaration, before));
            assert_eq!(opened.takeovers(), 1, "counted once");
            drop(opened);
            unmount(&machine.mount_point(&pool));
        }
        refused(open(&machine, &first, before), "w2");
        // The former node can forget a pool on a device; a file is kept.
        let removed = machine.root().remove_pool(&first, before);
        assert_eq!(removed.is_ok(), file == machine.path("disk"), "{removed:?}");
        assert_eq!(
            must(must(open(&machine, &second, before)).images()).len(),
            1
        );
        unmount(&machine.mount_point(&pool));
        if removed.is_err() {
            fs::remove_file(file).unwrap();
        }
    }
}

#[test]
fn the_node_of_a_pool_is_on_the_disk_before_the_pool_is_used() {
    let machine = Machine::new();
    let disk = Disk::new(&machine, "disk");
    let pool = device_pool([disk.device.clone()]);
    let first = on("w1", &pool);
    // Another machine sees the disk without the log.
    let seen = |name: &str| {
        let copy = machine.path(name);
        fs::copy(machine.path("disk"), &copy).unwrap();
        let at = machine.staging(name);
        let options = "loop,ro,norecovery,nouuid";
        run(
            "mount",
            &["-o", options, copy.to_str().unwrap(), at.to_str().unwrap()],
        );
        let marker = fs::read_to_string(at.join(".cistern-pool")).unwrap();
        unmount(&at);
        marker
    };
    let opened = must(open(&machine, &first, Expectation::New));
    assert!(seen("made").contains("\"node\": \"w1\""));
    let expectation = known(&opened);
    drop(opened);
    unmount(&machine.mount_point(&pool));
    let mut second = on("w2", &pool);
    second.take_over = Some(refused(open(&machine, &second, expectation), "w1"));
    // Between fork and exec, a process keeps the mounts that its parent closes.
    let opened = while_mounts_are_kept(&disk.device, || must(open(&machine, &second, expectation)));
    assert!(seen("taken-over").contains("\"node\": \"w2\""));
    drop(opened);
    unmount(&machine.mount_point(&pool));
}

/// Runs a piece of work while each file that it opens on a filesystem of this device, and so the mount
/// of that file, is kept for a moment after it is closed.
fn while_mounts_are_kept<T>(device: &Path, work: impl FnOnce() -> T) -> T {
    let device = fs::metadata(device).unwrap().rdev();
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                let kept = fs::read_dir("/proc/self/fd")
                    .unwrap()
                    .filter_map(|entry| fs::File::open(entry.ok()?.path()).ok())
                    .find(|file| file.metadata().is_ok_and(|it| it.dev() == device));
                if kept.is_some() {
                    thread::sleep(Duration::from_millis(30));
                    drop(kept);
                    thread::sleep(Duration::from_millis(20));
                }
            }
        });
        let result = work();
        is_done.store(true, Ordering::Relaxed);
        result
    })
}

#[test]
fn a_pool_that_names_no_node_belongs_to_the_node_that_finds_it() {
    let machine = Machine::new();
    let pool = image_pool(POOL_SIZE);
    let (first, second) = (on("w1", &pool), on("w2", &pool));
    let opened = must(open(&machine, &first, Expectation::New));
    let expectation = known(&opened);
    drop(opened);
    // A marker of a version that did not record nodes.
    let at = machine.mount_point(&pool).join(".cistern-pool");
    let mut marker: serde_json::Value = serde_json::from_slice(&fs::read(&at).unwrap()).unwrap();
    assert!(marker.as_object_mut().unwrap().remove("owner").is_some());
    fs::write(&at, marker.to_string()).unwrap();
    unmount(&machine.mount_point(&pool));
    drop(must(open(&machine, &second, expectation)));
    // It is refused while it is mounted, too.
    refused(open(&machine, &first, expectation), "w2");
    unmount(&machine.mount_point(&pool));
    refused(open(&machine, &first, expectation), "w2");
}

#[test]
fn a_restored_pool_is_adopted_only_by_its_node() {
    let machine = Machine::new();
    let pool = on("w1", &image_pool(POOL_SIZE));
    drop(must(open(&machine, &pool, Expectation::New)));
    unmount(&machine.mount_point(&pool));
    let restored = PoolDeclaration {
        uid: uid("1a2b3c4d-0000-4000-8000-00000000cafe"),
        ..pool.clone()
    };
    refused(open(&machine, &on("w2", &restored), Expectation::New), "w1");
    // Another cluster has a node of the same name on another machine.
    let mut elsewhere = restored.clone();
    elsewhere.node.machine = Some("another".to_owned());
    refused(open(&machine, &elsewhere, Expectation::New), "w1");
    // The same machine, and the same pool on a machine that was reinstalled.
    drop(must(open(&machine, &restored, Expectation::New)));
    unmount(&machine.mount_point(&pool));
    let mut anew = restored.clone();
    anew.node.machine = Some("another".to_owned());
    drop(must(open(&machine, &anew, Expectation::New)));
    unmount(&machine.mount_point(&pool));
}
