//! A volume that is used while it moves here: snapshots of it are copied in passes, each over the one before.

use std::{
    fs,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use cistern_host::{
    Image, ImageRequest, Pool, Uid,
    copy::{Chunk, CopyRequest, PromotedVolume},
    image::Error,
};
use cistern_types::{Bytes, Consistency, FilesystemType, Provisioning};
use rustix::fs::{FallocateFlags, fallocate};

use crate::{
    fence::{another_move, close, is_moving, the_move},
    harness::{Machine, allocated, image_path, must, open_new, request, uid},
    moved::{open_target, target_path},
    scenario::Volumes as _,
    snapshot::{snapshot_of, take_snapshot},
};

const SIZE: Bytes = Bytes::mib(16);

/// A raw block volume with 8 MiB of data at 1 MiB.
fn volume(machine: &Machine, pool: &Pool, name: &str) -> Image {
    let image = must(pool.new_image(&ImageRequest {
        uid: machine.uid(name),
        filesystem: None,
        ..request(name, SIZE, FilesystemType::Ext4, Provisioning::Thin)
    }));
    let data: Vec<u8> = (0..8 << 20)
        .map(|at: u32| (at % 251 + 1).to_le_bytes()[0])
        .collect();
    write(machine, &image, &data, 1 << 20);
    image
}

fn write(machine: &Machine, image: &Image, data: &[u8], at: u64) {
    let path = image_path(machine, &image.uid);
    let file = fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(data, at).unwrap();
    file.sync_all().unwrap();
}

/// Frees a part, as a discard in the volume does.
fn discard(machine: &Machine, image: &Image, at: u64, length: u64) {
    let path = image_path(machine, &image.uid);
    let file = fs::File::options().write(true).open(path).unwrap();
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, flags, at, length).unwrap();
}

/// Overwrites, frees and appends data, and writes zeros.
fn change(machine: &Machine, image: &Image) {
    write(machine, image, &[200; 8192], 2 << 20);
    discard(machine, image, 3 << 20, 1 << 20);
    write(machine, image, &[0; 4096], 5 << 20);
    write(machine, image, &[201; 4096], SIZE.0 - 4096);
}

fn snapshot(machine: &Machine, pool: &Pool, image: &Image, name: &str) -> Image {
    let request = snapshot_of(image, name);
    must(take_snapshot(machine, pool, request, Consistency::Crash))
}

/// What is sent of an image, and the base that it is relative to.
fn sent(pool: &Pool, image: &Uid, base: Option<&Uid>, from: u64) -> (Vec<Chunk>, Option<Uid>) {
    let sent = match base {
        Some(base) => must(pool.send_changes(image, base, from)),
        None => must(pool.send(image, from)),
    };
    let base = sent.base().cloned();
    (sent.filter_map(|chunk| must(chunk)).collect(), base)
}

fn bytes(chunks: &[Chunk]) -> usize {
    chunks.iter().map(|chunk| chunk.data.len()).sum()
}

fn pass(source: &Pool, volume: &Uid, snapshot: &Image, base: Option<&Uid>) -> CopyRequest {
    CopyRequest {
        volume: volume.clone(),
        original: must(source.send(&snapshot.uid, 0)).original().clone(),
        extent_size: None,
        point_for: Some(the_move()),
        base: base.cloned(),
    }
}

/// Copies what is left of a snapshot in a pass. Returns how many bytes of data were sent.
fn copy_pass(
    (source, target): (&Pool, &Pool),
    volume: &Uid,
    snapshot: &Image,
    base: Option<&Uid>,
) -> usize {
    let mut incoming = must(target.receive(&pass(source, volume, snapshot, base)));
    let (chunks, relative_to) = sent(source, &snapshot.uid, base, incoming.written().0);
    assert_eq!(relative_to.as_ref(), base);
    for chunk in &chunks {
        must(incoming.write(chunk));
    }
    must(incoming.complete());
    let has = must(target.has_point(volume, &the_move(), &snapshot.uid));
    assert!(has, "the point is the copy of the snapshot");
    bytes(&chunks)
}

fn point_path(machine: &Machine, volume: &Uid) -> PathBuf {
    let mut path = target_path(machine, "incoming", volume).into_os_string();
    path.push(".point");
    path.into()
}

#[track_caller]
fn same_bytes(left: &Path, right: &Path) {
    assert!(fs::read(left).unwrap() == fs::read(right).unwrap());
}

/// The files in the folder of the copies.
fn copies(machine: &Machine, volume: &Uid) -> Vec<String> {
    let path = target_path(machine, "incoming", volume);
    let folder = fs::read_dir(path.parent().unwrap()).unwrap();
    let names = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}

#[test]
fn a_pass_sends_what_has_changed_and_its_point_has_the_bytes_of_the_snapshot() {
    let machine = Machine::new();
    let (pool, other) = (open_new(&machine), open_target(&machine));
    let image = volume(&machine, &pool, "a");
    let first = snapshot(&machine, &pool, &image, "s");
    let all = copy_pass((&pool, &other), &image.uid, &first, None);
    assert_eq!(all, 8 << 20);
    let point = point_path(&machine, &image.uid);
    same_bytes(&point, &image_path(&machine, &first.uid));
    let listed = must(other.incoming());
    assert!(listed[0].is_point && listed[0].is_of_move(), "{listed:?}");
    assert_eq!(listed[0].volume, image.uid);
    assert_eq!(listed[0].allocated.0, allocated(&point));
    assert_eq!(listed[0].file_name(), copies(&machine, &image.uid)[0]);

    change(&machine, &image);
    let second = snapshot(&machine, &pool, &image, "t");
    let changed = copy_pass((&pool, &other), &image.uid, &second, Some(&first.uid));
    assert!(changed <= 64 << 10, "{changed}");
    same_bytes(&point, &image_path(&machine, &second.uid));
    assert_eq!(
        copies(&machine, &image.uid).len(),
        1,
        "one point, and no copy"
    );
    // What was freed has no blocks on the target, either. XFS allocates some more than is written.
    let blocks = allocated(&point);
    assert!(blocks <= (7 << 20) + (768 << 10), "{blocks}");

    let third = snapshot(&machine, &pool, &image, "u");
    let changed = copy_pass((&pool, &other), &image.uid, &third, Some(&second.uid));
    assert_eq!(changed, 0);
    must(other.remove_copy(&image.uid, &the_move()));
    assert_eq!(copies(&machine, &image.uid), [""; 0]);
}

#[test]
fn the_closed_volume_is_copied_over_the_last_point_and_owns_its_blocks() {
    for provisioning in [Provisioning::Thin, Provisioning::Thick] {
        let machine = Machine::new();
        let (pool, other) = (open_new(&machine), open_target(&machine));
        let image = volume(&machine, &pool, "a");
        must(pool.provision(&image.uid, provisioning));
        must(pool.allocate_all(&image.uid));
        let taken = snapshot(&machine, &pool, &image, "s");
        copy_pass((&pool, &other), &image.uid, &taken, None);
        change(&machine, &image);
        close(&pool, &image.uid);

        let (chunks, base) = sent(&pool, &image.uid, Some(&taken.uid), 0);
        assert_eq!(base.as_ref(), Some(&taken.uid));
        assert!(bytes(&chunks) <= 64 << 10);
        let request = CopyRequest {
            original: must(pool.send(&image.uid, 0)).original().clone(),
            point_for: None,
            ..pass(&pool, &image.uid, &taken, Some(&taken.uid))
        };
        let mut incoming = must(other.receive(&request));
        for chunk in &chunks {
            must(incoming.write(chunk));
        }
        must(incoming.complete());
        let closed = machine
            .mount_point(&crate::harness::image_pool(Bytes::gib(1)))
            .join("closed")
            .join(image.uid.as_str());
        must(other.open_copy(&image.uid, "pvc-a", &the_move()));
        let path = target_path(&machine, "images", &image.uid);
        same_bytes(&path, &closed);
        assert_eq!(copies(&machine, &image.uid), [""; 0]);
        if provisioning == Provisioning::Thick {
            assert!(allocated(&path) >= SIZE.0);
        }
        must(pool.remove_image(&taken.uid));
    }
}

#[test]
fn an_interrupted_pass_goes_on_over_its_base_and_another_pass_begins_anew() {
    let machine = Machine::new();
    let (pool, other) = (open_new(&machine), open_target(&machine));
    let image = volume(&machine, &pool, "a");
    let first = snapshot(&machine, &pool, &image, "s");
    copy_pass((&pool, &other), &image.uid, &first, None);
    change(&machine, &image);
    let second = snapshot(&machine, &pool, &image, "t");
    let request = pass(&pool, &image.uid, &second, Some(&first.uid));
    let (chunks, _) = sent(&pool, &second.uid, Some(&first.uid), 0);
    assert!(chunks.iter().any(|chunk| chunk.zeros > 0), "{chunks:?}");
    for stop in 0..chunks.len() {
        let mut incoming = must(other.receive(&request));
        let written = incoming.written().0;
        let (rest, _) = sent(&pool, &second.uid, Some(&first.uid), written);
        assert_eq!(rest, chunks[stop..]);
        must(incoming.write(&rest[0]));
        must(incoming.sync());
        // Not synced, and sent once more.
        if let Some(chunk) = rest.get(1) {
            must(incoming.write(chunk));
        }
    }
    let point = must(other.point(&image.uid, &the_move()));
    assert_eq!(point, Some(first.uid.clone()), "until the pass is complete");
    must(must(other.receive(&request)).complete());
    let point = point_path(&machine, &image.uid);
    same_bytes(&point, &image_path(&machine, &second.uid));

    let third = snapshot(&machine, &pool, &image, "u");
    let mut interrupted = must(other.receive(&pass(&pool, &image.uid, &third, None)));
    let (all, _) = sent(&pool, &third.uid, None, 0);
    must(interrupted.write(&all[0]));
    must(interrupted.sync());
    drop(interrupted);
    // It is not relative to the point, which stays until it is complete: it is all that there is of the volume.
    let kept = must(other.point(&image.uid, &the_move()));
    assert_eq!(kept, Some(second.uid));
    copy_pass((&pool, &other), &image.uid, &third, None);
    same_bytes(&point, &image_path(&machine, &third.uid));
}

#[test]
fn a_point_is_promoted_to_the_volume_in_spite_of_an_interrupted_pass_and_once() {
    // The volume may have grown since the copy.
    let grown = SIZE.saturating_add(Bytes::mib(4));
    for (provisioning, size) in [(Provisioning::Thin, SIZE), (Provisioning::Thick, grown)] {
        let machine = Machine::new();
        let (pool, other) = (open_new(&machine), open_target(&machine));
        let image = volume(&machine, &pool, "a");
        let first = snapshot(&machine, &pool, &image, "s");
        let promoted = |name: &str| PromotedVolume {
            uid: image.uid.clone(),
            name: name.to_owned(),
            size,
            provisioning,
            source: Some(uid("uid-source")),
        };
        let promote = |name: &str, by: &Uid| other.promote_point(&promoted(name), by);
        let missing = promote("pvc-a", &the_move()).unwrap_err();
        assert!(matches!(missing, Error::Missing { .. }), "{missing}");
        copy_pass((&pool, &other), &image.uid, &first, None);
        change(&machine, &image);
        let second = snapshot(&machine, &pool, &image, "t");
        let mut incoming = must(other.receive(&pass(&pool, &image.uid, &second, Some(&first.uid))));
        let (chunks, _) = sent(&pool, &second.uid, Some(&first.uid), 0);
        must(incoming.write(&chunks[0]));
        must(incoming.sync());
        // Neither while it is received, nor for another move, nor as another volume.
        let busy = promote("pvc-a", &the_move()).unwrap_err();
        assert!(matches!(busy, Error::InUse { .. }), "{busy}");
        drop(incoming);
        promote("pvc-a", &another_move()).unwrap_err();
        promote("pvc-b", &the_move()).unwrap_err();

        let is = must(promote("pvc-a", &the_move()));
        let identity = is.identity.clone().unwrap();
        assert_eq!(identity.owner.volume(), Some("pvc-a"));
        assert_eq!(identity.source, Some(uid("uid-source")));
        assert_eq!((is.size, identity.provisioning), (size, provisioning));
        let path = target_path(&machine, "images", &image.uid);
        let mut expected = fs::read(image_path(&machine, &first.uid)).unwrap();
        expected.resize(usize::try_from(size.0).unwrap(), 0);
        assert!(fs::read(&path).unwrap() == expected);
        assert_eq!(copies(&machine, &image.uid), [""; 0]);
        assert_eq!(must(promote("pvc-a", &the_move())), is, "again");
        if provisioning == Provisioning::Thick {
            assert!(allocated(&path) >= size.0);
        }
        // It is a volume like any other: of its own, and closed for the next move.
        promote("pvc-b", &the_move()).unwrap_err();
        must(other.begin_closing(&image.uid, &another_move()));
        must(other.close(&image.uid, &another_move()));
        promote("pvc-a", &the_move()).unwrap_err();
    }
}

#[test]
fn an_image_from_before_a_promotion_is_never_taken_for_the_promoted_point() {
    let machine = Machine::new();
    let (pool, other) = (open_new(&machine), open_target(&machine));
    let image = volume(&machine, &pool, "a");
    let uid = &image.uid;
    let first = snapshot(&machine, &pool, &image, "s");
    let before = ImageRequest {
        uid: uid.clone(),
        filesystem: None,
        ..request_of("a")
    };
    must(other.new_image(&before));
    // Neither is made beside the other any more, and an earlier version may have done so.
    let (file, away) = (
        target_path(&machine, "images", uid),
        target_path(&machine, "tmp", uid),
    );
    fs::rename(&file, &away).unwrap();
    copy_pass((&pool, &other), uid, &first, None);
    fs::rename(&away, &file).unwrap();
    let promoted = PromotedVolume {
        uid: uid.clone(),
        name: "pvc-a".to_owned(),
        size: SIZE,
        provisioning: Provisioning::Thin,
        source: None,
    };
    let refused = other.promote_point(&promoted, &the_move());
    assert!(matches!(refused, Err(Error::IdentityConflict { .. })));
    assert_eq!(must(other.point(uid, &the_move())), Some(first.uid.clone()));

    must(other.remove_image(uid));
    must(other.promote_point(&promoted, &the_move()));
    assert!(must(other.is_moved(uid, &the_move())));
    same_bytes(
        &target_path(&machine, "images", uid),
        &image_path(&machine, &first.uid),
    );
}

#[test]
fn a_point_stays_until_a_full_copy_of_the_closed_volume_is_opened() {
    let machine = Machine::new();
    let (pool, other) = (open_new(&machine), open_target(&machine));
    let image = volume(&machine, &pool, "a");
    let uid = &image.uid;
    let taken = snapshot(&machine, &pool, &image, "s");
    copy_pass((&pool, &other), uid, &taken, None);
    change(&machine, &image);
    close(&pool, uid);
    let request = CopyRequest {
        original: must(pool.send(uid, 0)).original().clone(),
        point_for: None,
        ..pass(&pool, uid, &taken, None)
    };
    let has_point = || must(other.point(uid, &the_move())) == Some(taken.uid.clone());
    let mut incoming = must(other.receive(&request));
    let (chunks, _) = sent(&pool, uid, None, 0);
    must(incoming.write(&chunks[0]));
    must(incoming.sync());
    drop(incoming);
    // It is all that there is of the volume here, should the other node be lost now.
    assert!(has_point());
    let mut incoming = must(other.receive(&request));
    for chunk in &chunks[1..] {
        must(incoming.write(chunk));
    }
    must(incoming.complete());
    assert!(has_point());
    must(other.open_copy(uid, "pvc-a", &the_move()));
    assert_eq!(copies(&machine, uid), [""; 0]);
}

#[test]
fn nothing_is_compared_with_an_image_that_is_no_snapshot_of_the_volume() {
    let machine = Machine::new();
    let (pool, other) = (open_new(&machine), open_target(&machine));
    let [image, stranger] = ["a", "b"].map(|name| volume(&machine, &pool, name));
    let taken = snapshot(&machine, &pool, &image, "s");
    let of_stranger = snapshot(&machine, &pool, &stranger, "t");
    for base in [&of_stranger.uid, &image.uid, &uid("uid-gone")] {
        let (chunks, relative_to) = sent(&pool, &taken.uid, Some(base), 0);
        assert_eq!((bytes(&chunks), relative_to), (8 << 20, None), "{base}");
    }
    // Differences are applied to nothing but their base.
    let lacks = |request: &CopyRequest| {
        let error = other.receive(request).map(drop).unwrap_err();
        assert!(matches!(error, Error::SourceMissing { .. }), "{error}");
    };
    let request = pass(&pool, &image.uid, &taken, Some(&of_stranger.uid));
    lacks(&request);
    copy_pass((&pool, &other), &image.uid, &taken, None);
    lacks(&request);
    let later = snapshot(&machine, &pool, &image, "u");
    lacks(&CopyRequest {
        point_for: Some(another_move()),
        ..pass(&pool, &image.uid, &later, Some(&taken.uid))
    });
    assert_eq!(must(other.point(&image.uid, &another_move())), None);
}

#[test]
fn a_copy_and_its_point_are_removed_for_their_move_and_are_no_volume() {
    let machine = Machine::new();
    let (pool, other) = (open_new(&machine), open_target(&machine));
    let image = volume(&machine, &pool, "a");
    let first = snapshot(&machine, &pool, &image, "s");
    copy_pass((&pool, &other), &image.uid, &first, None);
    let error = other.open_copy(&image.uid, "pvc-a", &the_move());
    assert!(matches!(error, Err(Error::Missing { .. })), "{error:?}");
    assert!(!must(other.is_received(&image.uid, &image.uid)));
    // The point alone, also for an object that was created again under another UID.
    match other.refuse_copies_of("pvc-a").unwrap_err() {
        Error::Moving { uid, by } => assert_eq!((uid, by), (image.uid.clone(), the_move())),
        error => panic!("{error}"),
    }
    must(other.refuse_copies_of("pvc-b"));

    let second = snapshot(&machine, &pool, &image, "t");
    let request = pass(&pool, &image.uid, &second, Some(&first.uid));
    let incoming = must(other.receive(&request));
    let error = other.remove_copy(&image.uid, &the_move()).unwrap_err();
    assert!(matches!(error, Error::InUse { .. }), "{error}");
    drop(incoming);
    // Neither for another move, nor as the copy of a snapshot.
    must(other.remove_copy(&image.uid, &another_move()));
    must(other.remove_incoming(&image.uid));
    assert_eq!(copies(&machine, &image.uid).len(), 2);
    let anew = ImageRequest {
        uid: image.uid.clone(),
        filesystem: None,
        ..request_of("a")
    };
    is_moving(other.new_image(&anew));
    must(other.remove_copy(&image.uid, &the_move()));
    assert_eq!(copies(&machine, &image.uid), [""; 0]);
    must(other.refuse_copies_of("pvc-a"));
    // No pass of a volume that the pool has.
    let error = pool.receive(&request).map(drop).unwrap_err();
    assert!(matches!(error, Error::IdentityConflict { .. }), "{error}");
}

fn request_of(name: &str) -> ImageRequest {
    request(name, SIZE, FilesystemType::Ext4, Provisioning::Thin)
}
