//! Copies of snapshots in another pool.

use std::{fs, os::unix::fs::FileExt as _, path::PathBuf};

use cistern_host::{
    Expectation, Image, ImageRequest, Pool, PoolDeclaration,
    copy::{CHUNK, Chunk, CopyRequest},
    image::Error,
    mounting,
};
use cistern_types::{Bytes, Consistency, FilesystemType, Provisioning};

use crate::{
    harness::{
        Machine, Volume, allocated, chain, image_path, image_pool, must, open_new, released,
        request, run, uid, unstage,
    },
    scenario::Volumes as _,
    snapshot::{SIZE, from, snapshot_of, take_snapshot},
};

/// The pool of the node that receives.
fn target() -> PoolDeclaration {
    PoolDeclaration {
        uid: uid("4e2d1c0b-0000-4000-8000-00000000c0de"),
        name: "target".to_owned(),
        ..image_pool(Bytes::gib(1))
    }
}

fn open_target(machine: &Machine) -> Pool {
    must(machine.root().open_pool(&target(), Expectation::New))
}

fn copy_path(machine: &Machine, volume: &ImageRequest) -> PathBuf {
    let pool = machine.mount_point(&target());
    pool.join("incoming").join(volume.uid.as_str())
}

fn copy_of(source: &Pool, snapshot: &Image, volume: &ImageRequest) -> CopyRequest {
    CopyRequest {
        volume: volume.uid.clone(),
        original: must(source.send(&snapshot.uid, 0)).original().clone(),
        extent_size: None,
        point_for: None,
        base: None,
    }
}

fn chunks(source: &Pool, snapshot: &Image, from: u64) -> Vec<Chunk> {
    let sent = must(source.send(&snapshot.uid, from));
    sent.filter_map(|chunk| must(chunk)).collect()
}

/// Copies a snapshot in full.
fn copy(source: &Pool, snapshot: &Image, pool: &Pool, volume: &ImageRequest) {
    let mut incoming = must(pool.receive(&copy_of(source, snapshot, volume)));
    for chunk in chunks(source, snapshot, 0) {
        must(incoming.write(&chunk));
    }
    must(incoming.complete());
}

fn block(name: &str, size: Bytes) -> ImageRequest {
    ImageRequest {
        filesystem: None,
        ..request(name, size, FilesystemType::Ext4, Provisioning::Thin)
    }
}

/// A raw block volume of 8 MiB with 3 MiB of data at 1 MiB and a block at the end, and its snapshot.
fn written(machine: &Machine, pool: &Pool) -> Image {
    let image = must(pool.new_image(&block("a", Bytes::mib(8))));
    let path = image_path(machine, &image.uid);
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    let data: Vec<u8> = (0..3 << 20)
        .map(|at: u32| (at % 251 + 1).to_le_bytes()[0])
        .collect();
    file.write_all_at(&data, 1 << 20).unwrap();
    file.write_all_at(&[7; 4096], (8 << 20) - 4096).unwrap();
    let snapshot = snapshot_of(&image, "s");
    must(take_snapshot(machine, pool, snapshot, Consistency::Crash))
}

#[test]
fn a_volume_that_is_made_from_a_copy_has_the_files_and_the_size_and_leaves_no_copy() {
    for filesystem in FilesystemType::ALL {
        let machine = Machine::new();
        let (pool, other) = (open_new(&machine), open_target(&machine));
        let thin = request("a", SIZE, filesystem, Provisioning::Thin);
        let image = must(pool.new_image(&thin));
        let staging = machine.staging("source");
        must(pool.stage(&Volume::new(&image).stage(&staging)));
        fs::write(staging.join("file"), "kept").unwrap();
        run("sync", &["-f", staging.to_str().unwrap()]);
        let snapshot = snapshot_of(&image, "s");
        let snapshot = must(take_snapshot(
            &machine,
            &pool,
            snapshot,
            Consistency::Filesystem,
        ));

        let thick = request("b", Bytes::mib(400), filesystem, Provisioning::Thick);
        let volume = from(&snapshot, thick);
        copy(&pool, &snapshot, &other, &volume);
        let made = must(other.new_image(&volume));
        assert!(must(other.is_received(&volume.uid, &snapshot.uid)));
        let restored = machine.staging("restored");
        must(other.stage(&Volume::new(&made).stage(&restored)));
        assert_eq!(
            fs::read(restored.join("file")).unwrap(),
            b"kept",
            "{filesystem}"
        );
        let covered = rustix::fs::statvfs(&restored).unwrap();
        assert!(
            covered.f_blocks * covered.f_frsize + Bytes::mib(100).0 > made.size.0,
            "{filesystem}: {} of {} bytes",
            covered.f_blocks,
            covered.f_frsize
        );
        let of_target = machine.mount_point(&target());
        let path = of_target.join("images").join(volume.uid.as_str());
        assert!(allocated(&path) >= volume.size.0, "{filesystem}");
        assert_eq!(must(other.incoming()), [], "{filesystem}");
        unstage(&machine, &made.uid, &restored);
    }
}

#[test]
fn a_damaged_ext4_that_was_copied_is_refused_as_one_that_was_restored_in_its_own_pool() {
    let machine = Machine::new();
    let (pool, other) = (open_new(&machine), open_target(&machine));
    let ext4 = |name, size| request(name, size, FilesystemType::Ext4, Provisioning::Thin);
    let image = must(pool.new_image(&ext4("a", SIZE)));
    let staging = machine.staging("source");
    must(pool.stage(&Volume::new(&image).stage(&staging)));
    fs::create_dir(staging.join("folder")).unwrap();
    unstage(&machine, &image.uid, &staging);
    let path = image_path(&machine, &image.uid);
    // A directory whose inode says that it is a file, which needs a decision.
    for change in [
        "set_inode_field folder mode 0100644",
        "set_super_value state 2",
    ] {
        run("debugfs", &["-w", "-R", change, path.to_str().unwrap()]);
    }
    let snapshot = snapshot_of(&image, "s");
    let snapshot = take_snapshot(&machine, &pool, snapshot, Consistency::Crash);
    let snapshot = must(snapshot);

    // A larger volume is checked when it is made, and one of the same size before it is mounted.
    let (same, larger) = (ext4("b", SIZE), ext4("c", Bytes::mib(400)));
    let (same, larger) = (from(&snapshot, same), from(&snapshot, larger));
    for (home, is_copied) in [(&pool, false), (&other, true)] {
        if is_copied {
            copy(&pool, &snapshot, &other, &same);
            copy(&pool, &snapshot, &other, &larger);
        }
        let error = home.new_image(&larger).unwrap_err();
        assert!(matches!(error, Error::Damaged { .. }), "{error}");
        assert_eq!(must(home.image(&larger.uid)), None);
        let made = must(home.new_image(&same));
        let restored = machine.staging("restored");
        let error = home.stage(&Volume::new(&made).stage(&restored));
        let error = error.unwrap_err();
        let is_damage = matches!(error, mounting::Error::Image(Error::Damaged { .. }));
        assert!(is_damage, "{error}");
        assert!(!machine.mounts().contains(&restored));
        released(&machine, &made.uid);
        must(home.remove_image(&made.uid));
    }
}

#[test]
fn an_interrupted_copy_goes_on_behind_what_was_synced() {
    let machine = Machine::new();
    let (pool, other) = (open_new(&machine), open_target(&machine));
    let snapshot = written(&machine, &pool);
    let volume = from(&snapshot, block("b", Bytes::mib(8)));
    let all = chunks(&pool, &snapshot, 0);
    assert!(all.iter().all(|chunk| chunk.data.len() <= CHUNK));
    let request = copy_of(&pool, &snapshot, &volume);

    let mut incoming = must(other.receive(&request));
    must(incoming.write(&all[0]));
    must(incoming.sync());
    let synced = incoming.written();
    must(incoming.write(&all[1]));
    drop(incoming);
    let mut incoming = must(other.receive(&request));
    assert_eq!(incoming.written(), synced);
    let rest = chunks(&pool, &snapshot, synced.0);
    assert_eq!(rest, all[1..]);
    for chunk in &rest {
        must(incoming.write(chunk));
    }
    must(incoming.complete());
    assert!(must(other.is_received(&volume.uid, &snapshot.uid)));
    // A repeated call finds it complete.
    assert_eq!(must(other.receive(&request)).written(), snapshot.size);

    let (copied, original) = (
        copy_path(&machine, &volume),
        image_path(&machine, &snapshot.uid),
    );
    assert!(fs::read(&copied).unwrap() == fs::read(&original).unwrap());
    assert!(allocated(&copied) < Bytes::mib(5).0, "zeros are holes");
}

#[test]
fn no_volume_is_made_from_a_copy_that_is_incomplete_or_received() {
    let machine = Machine::new();
    let (pool, other) = (open_new(&machine), open_target(&machine));
    let snapshot = written(&machine, &pool);
    let volume = from(&snapshot, block("b", Bytes::mib(8)));
    let request = copy_of(&pool, &snapshot, &volume);
    let incoming = must(other.receive(&request));
    for result in [
        other.receive(&request).map(drop),
        other.new_image(&volume).map(drop),
        other.remove_image(&volume.uid),
    ] {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::InUse { .. }), "{error}");
    }
    drop(incoming);
    assert!(!must(other.is_received(&volume.uid, &snapshot.uid)));
    let error = other.new_image(&volume).unwrap_err();
    assert!(matches!(error, Error::SourceMissing { .. }), "{error}");
    assert_eq!(must(other.incoming())[0].volume, volume.uid);
    assert_eq!(must(other.images()), []);
    // fsck lists it, and its pool has no foreign files.
    let inventory = machine.inventory();
    let listed = inventory
        .pools
        .iter()
        .find(|pool| pool.name.as_deref() == Some("target"));
    let listed = listed.unwrap();
    assert_eq!(listed.incoming, must(other.incoming()));
    assert!(!listed.incoming[0].is_of_move());
    assert_eq!(listed.incoming[0].file_name(), volume.uid.as_str());
    assert_eq!(listed.temporary, [] as [PathBuf; 0]);
    assert_eq!(listed.strays, []);

    must(other.remove_image(&volume.uid));
    assert_eq!(must(other.incoming()), []);
}

#[test]
fn a_copy_of_another_snapshot_is_begun_anew() {
    let machine = Machine::new();
    let (pool, other) = (open_new(&machine), open_target(&machine));
    let snapshot = written(&machine, &pool);
    let volume = from(&snapshot, block("b", Bytes::mib(8)));
    let mut request = copy_of(&pool, &snapshot, &volume);
    let mut incoming = must(other.receive(&request));
    for chunk in chunks(&pool, &snapshot, 0) {
        must(incoming.write(&chunk));
    }
    must(incoming.sync());
    drop(incoming);
    request.original.identity.uid = uid("uid-t");
    let incoming = must(other.receive(&request));
    assert_eq!(incoming.written(), Bytes::ZERO);
    assert!(allocated(&copy_path(&machine, &volume)) < Bytes::mib(1).0);
}

#[test]
fn chunks_out_of_order_or_beyond_the_end_are_refused() {
    let machine = Machine::new();
    let (pool, other) = (open_new(&machine), open_target(&machine));
    let snapshot = written(&machine, &pool);
    let volume = from(&snapshot, block("b", Bytes::mib(8)));
    let mut incoming = must(other.receive(&copy_of(&pool, &snapshot, &volume)));
    let chunk = |offset| Chunk {
        offset,
        data: vec![1; 4096],
        zeros: 0,
    };
    must(incoming.write(&chunk(8192)));
    for offset in [0, 8192, 8 << 20, (8 << 20) - 4095, u64::MAX] {
        let error = incoming.write(&chunk(offset)).unwrap_err();
        assert!(chain(&error).contains("do not follow"), "{}", chain(&error));
    }
    must(incoming.write(&chunk(12288)));
}

#[test]
fn a_pool_that_is_full_refuses_the_copy_by_name() {
    let machine = Machine::new();
    let (pool, other) = (open_new(&machine), open_target(&machine));
    let snapshot = written(&machine, &pool);
    let volume = from(&snapshot, block("b", Bytes::mib(8)));
    let filler = machine.mount_point(&target()).join("images/filler");
    let size = must(other.statistics()).available.0 - Bytes::mib(1).0;
    let mut incoming = must(other.receive(&copy_of(&pool, &snapshot, &volume)));
    run(
        "fallocate",
        &["-l", &size.to_string(), filler.to_str().unwrap()],
    );
    let mut failed = None;
    for chunk in chunks(&pool, &snapshot, 0) {
        failed = incoming.write(&chunk).and_then(|()| incoming.sync()).err();
        if failed.is_some() {
            break;
        }
    }
    let error = failed.unwrap();
    assert!(matches!(error, Error::NoSpace { .. }), "{error}");
    fs::remove_file(filler).unwrap();
}

#[test]
fn copies_that_are_received_at_the_same_time_lie_in_few_pieces() {
    const MEBIBYTES: u8 = 48;
    let machine = Machine::new();
    let (pool, other) = (open_new(&machine), open_target(&machine));
    let snapshot = written(&machine, &pool);
    let volumes = ["b", "c"].map(|name| from(&snapshot, block(name, Bytes::mib(64))));
    let mut incoming = volumes.each_ref().map(|volume| {
        let mut request = copy_of(&pool, &snapshot, volume);
        request.original.size = Bytes::mib(64);
        must(other.receive(&request))
    });
    for number in 0..MEBIBYTES {
        let chunk = Chunk {
            offset: u64::from(number) << 20,
            data: vec![number + 1; CHUNK],
            zeros: 0,
        };
        for incoming in &mut incoming {
            must(incoming.write(&chunk));
        }
    }
    for incoming in incoming {
        must(incoming.complete());
    }
    for volume in &volumes {
        let path = copy_path(&machine, volume);
        let found = run("filefrag", &[path.to_str().unwrap()]);
        let (_, extents) = found.rsplit_once(": ").unwrap();
        let extents: u8 = extents.split(' ').next().unwrap().parse().unwrap();
        assert!(extents <= MEBIBYTES / 8, "{found}");
        let copied = fs::read(&path).unwrap();
        let is_it =
            |(number, data): (usize, &[u8])| data.iter().all(|byte| *byte as usize == number + 1);
        let data = &copied[..usize::from(MEBIBYTES) << 20];
        assert!(data.chunks(CHUNK).enumerate().all(is_it));
    }
}
