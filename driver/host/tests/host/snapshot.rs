//! Snapshots and clones on every filesystem, of attached and detached volumes.

mod refused;

use std::{
    fs,
    io::Write as _,
    os::unix::fs::{FileExt as _, PermissionsExt as _},
    path::Path,
    sync::Arc,
};

use chrono::{DateTime, Utc};
use cistern_host::{
    BlockStageRequest, Content, Expectation, Image, ImageRequest, Member, Pool, SnapshotRequest,
    SourceImage, image, mounting, snapshot,
    system::{FailAt, Fault},
};
use cistern_types::{
    Bytes, Consistency, ExtentLimits, FilesystemType, MkfsOptions, Provisioning, mkfs_options,
};

use crate::{
    harness::{
        Machine, POOL_SIZE, Volume, allocated, image_path, image_pool, known, must, open_new,
        released, request, root, uid, unstage,
    },
    scenario::{Volumes as _, thaw},
};

/// The default of a StoragePool.
pub(crate) const MAXIMUM_EXTENTS: u64 = 500_000;

/// A snapshot of an image that [`request`] made.
pub(crate) fn snapshot_of(source: &Image, name: &str) -> SnapshotRequest {
    let identity = source.identity.as_ref().unwrap();
    SnapshotRequest {
        snapshot: format!("snapshot-{name}"),
        uid: uid(&format!("uid-{name}")),
        volume: identity.owner.volume().unwrap().to_owned(),
        source: source.uid.clone(),
        extent_limits: ExtentLimits::number(MAXIMUM_EXTENTS),
    }
}

/// Takes one snapshot.
pub(crate) fn take_snapshot(
    machine: &Machine,
    pool: &Pool,
    request: SnapshotRequest,
    consistency: Consistency,
) -> Result<Image, snapshot::Error> {
    let taken =
        machine
            .root()
            .take_snapshots(&[Member { pool, request }], consistency, Utc::now)?;
    let [image] = <[Image; 1]>::try_from(taken).unwrap();
    Ok(image)
}

/// Makes a request clone `source`.
pub(crate) fn from(source: &Image, request: ImageRequest) -> ImageRequest {
    ImageRequest {
        source: Some(SourceImage {
            uid: source.uid.clone(),
            extent_limits: ExtentLimits::number(MAXIMUM_EXTENTS),
        }),
        ..request
    }
}

pub(crate) fn moment(snapshot: &Image) -> DateTime<Utc> {
    let identity = snapshot.identity.as_ref().unwrap();
    identity.owner.snapshot().unwrap().time
}

fn read(staging: &Path, name: &str) -> String {
    fs::read_to_string(staging.join(name)).unwrap_or_else(|error| error.to_string())
}

fn write_synced(staging: &Path, name: &str) {
    let mut file = fs::File::create(staging.join(name)).unwrap();
    file.write_all(name.as_bytes()).unwrap();
    file.sync_all().unwrap();
}

/// Room for several thick volumes.
fn large_pool(machine: &Machine) -> Pool {
    let declaration = image_pool(Bytes::gib(3));
    must(machine.root().open_pool(&declaration, Expectation::New))
}

pub(crate) const SIZE: Bytes = Bytes::mib(300);

// Shows: VCS-05, VCS-06, CS-06.
#[test]
fn vcs_05_a_volume_made_from_a_snapshot_or_a_live_volume_is_mounted_beside_its_source() {
    for filesystem in FilesystemType::ALL {
        for (provisioning, consistency) in [
            (Provisioning::Thin, Consistency::Crash),
            (Provisioning::Thick, Consistency::Filesystem),
        ] {
            let machine = Machine::new();
            let pool = large_pool(&machine);
            let wanted = |name, size| request(name, size, filesystem, provisioning);
            let source = must(pool.new_image(&wanted("a", SIZE)));
            let mount = |image: &Image| {
                let staging = machine.staging(image.uid.as_str());
                must(pool.stage(&Volume::new(image).stage(&staging)));
                staging
            };
            let live = mount(&source);
            write_synced(&live, "first");
            // Only the log has this file; with btrfs, only the log tree of this file.
            write_synced(&live, "second");
            let taken = must(take_snapshot(
                &machine,
                &pool,
                snapshot_of(&source, "s"),
                consistency,
            ));
            assert_eq!(taken.size, SIZE);
            write_synced(&live, "third");

            let same = must(pool.new_image(&from(&taken, wanted("b", SIZE))));
            let larger = must(pool.new_image(&from(&taken, wanted("c", Bytes::mib(400)))));
            let clone = must(pool.new_image(&from(&source, wanted("d", Bytes::mib(500)))));
            for (image, third) in [(&same, false), (&larger, false), (&clone, true)] {
                let staging = mount(image);
                assert_eq!(read(&staging, "first"), "first", "{filesystem}");
                assert_eq!(read(&staging, "second"), "second", "{filesystem}");
                assert_eq!(staging.join("third").exists(), third, "{filesystem}");
                let covered = rustix::fs::statvfs(&staging).unwrap();
                let covered = covered.f_blocks * covered.f_frsize;
                // The log of an XFS does not count.
                let log = Bytes::mib(80).0;
                assert!(covered + log > image.size.0, "{filesystem}: {covered}");
                assert!(covered <= image.size.0, "{filesystem}: {covered}");
                if provisioning == Provisioning::Thick {
                    assert!(allocated(&image_path(&machine, &image.uid)) >= image.size.0);
                }
                write_synced(&staging, "own");
            }
            assert!(!live.join("own").exists());
            // A clone of a clone.
            let second = must(pool.new_image(&from(&same, wanted("e", SIZE))));
            let staging = mount(&second);
            assert_eq!(read(&staging, "own"), "own", "{filesystem}");

            // The remaining image is intact after the others are removed.
            let kept = machine.staging(larger.uid.as_str());
            must(machine.root().unstage(&live));
            for gone in [&source, &taken] {
                released(&machine, &gone.uid);
                must(pool.remove_image(&gone.uid));
                assert_eq!(read(&kept, "second"), "second", "{filesystem}");
            }
            must(machine.root().unstage(&kept));
            mount(&larger);
            assert_eq!(read(&kept, "first"), "first", "{filesystem}");

            let uuids = [&source, &taken, &same, &larger, &clone, &second].map(uuid);
            assert_eq!(uuids[0], uuids[1]);
            if filesystem != FilesystemType::Ext4 {
                for (index, uuid) in uuids.iter().enumerate().skip(2) {
                    assert!(!uuids[..index].contains(uuid), "{filesystem}: {uuids:?}");
                }
            }
        }
    }
}

fn uuid(image: &Image) -> String {
    match image.identity.as_ref().unwrap().content {
        Content::Filesystem { uuid, .. } => uuid.to_string(),
        Content::Block => panic!("expected a volume with a filesystem"),
    }
}

// Shows: CS-04, CGS-05.
#[test]
fn cs_04_a_repeated_request_finds_the_snapshots_and_an_incomplete_set_is_taken_again() {
    let machine = Machine::new();
    let pool = large_pool(&machine);
    let thin = |name| request(name, SIZE, FilesystemType::Ext4, Provisioning::Thin);
    let volumes = ["a", "b"].map(|name| must(pool.new_image(&thin(name))));
    let staging = machine.staging("globalmount");
    must(pool.stage(&Volume::new(&volumes[0]).stage(&staging)));
    let members = |names: [&str; 2]| {
        let member = |(source, name)| Member {
            pool: &pool,
            request: snapshot_of(source, name),
        };
        volumes.iter().zip(names).map(member).collect::<Vec<_>>()
    };
    let take = |names| {
        let members = members(names);
        must(
            machine
                .root()
                .take_snapshots(&members, Consistency::Crash, Utc::now),
        )
    };
    let first = take(["s", "t"]);
    assert_eq!(moment(&first[0]), moment(&first[1]));
    assert_eq!(take(["s", "t"]), first);
    must(pool.remove_image(&first[1].uid));
    let second = take(["s", "t"]);
    assert!(moment(&second[0]) > moment(&first[0]));
    assert_eq!(moment(&second[0]), moment(&second[1]));
    assert_eq!(thaw(&machine.root()).unwrap(), []);
}

/// Creates a raw block volume of 1 MiB with content.
fn block(machine: &Machine, pool: &Pool, name: &str) -> Image {
    let image = must(pool.new_image(&wanted_block(name, Bytes::mib(1))));
    fill(machine, &image, name);
    image
}

fn wanted_block(name: &str, size: Bytes) -> ImageRequest {
    ImageRequest {
        filesystem: None,
        ..request(name, size, FilesystemType::Ext4, Provisioning::Thin)
    }
}

fn content(of: &str) -> Vec<u8> {
    of.repeat((1 << 20) / of.len()).into_bytes()
}

fn fill(machine: &Machine, image: &Image, with: &str) {
    let path = image_path(machine, &image.uid);
    let file = fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(&content(with), 0).unwrap();
}

/// Returns all permutations of some numbers.
fn orders(numbers: &[usize]) -> Vec<Vec<usize>> {
    if numbers.is_empty() {
        return vec![Vec::new()];
    }
    let each = numbers.iter().flat_map(|first| {
        let rest: Vec<_> = numbers.iter().copied().filter(|n| n != first).collect();
        let rest = orders(&rest).into_iter();
        rest.map(|rest| [&[*first], &rest[..]].concat())
    });
    each.collect()
}

#[test]
fn a_group_that_fails_leaves_no_image_even_if_the_first_attempt_to_remove_one_fails() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let sources = ["a", "b"].map(|name| block(&machine, &pool, name));
    // Two calls in a row fail: one of the group, and the next one, with which it begins to remove images.
    let failing = |at| {
        let first = FailAt::new(Arc::clone(&machine.system), Fault::Error, at);
        Arc::new(FailAt::new(Arc::new(first), Fault::Error, at))
    };
    let opened = |at| {
        let system = failing(at);
        let root = root(&machine.folder, Arc::clone(&system) as _);
        let pool = must(root.open_pool(&image_pool(POOL_SIZE), known(&pool)));
        (root, pool, system)
    };
    let (_, _, counting) = opened(u64::MAX);
    let mut failures = 0;
    for at in 1.. {
        let (root, failing, system) = opened(counting.calls() + at);
        let members = sources.each_ref().map(|source| Member {
            pool: &failing,
            request: snapshot_of(source, &format!("of-{}", source.uid)),
        });
        let taken = root.take_snapshots(&members, Consistency::Crash, Utc::now);
        failures += u32::from(taken.is_err());
        must(pool.sweep());
        let mut left = must(pool.images());
        left.retain(|image| sources.iter().all(|source| source.uid != image.uid));
        // The last calls sync the names: a repeated request finds the whole group.
        let is_whole = left.len() == 2 && left.iter().all(|image| image.size == sources[0].size);
        assert!(left.is_empty() || is_whole, "call {at}: {left:?}");
        for image in left {
            must(pool.remove_image(&image.uid));
        }
        if !system.has_failed() {
            break;
        }
    }
    assert!(failures > 10, "{failures}");
}

#[test]
fn images_survive_the_removal_of_related_images_in_any_order() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let before = must(pool.statistics()).available;
    let all = orders(&[0, 1, 2, 3]);
    assert_eq!(all.len(), 24);
    for order in all {
        let source = block(&machine, &pool, "a");
        let request = snapshot_of(&source, "s");
        let taken = must(take_snapshot(&machine, &pool, request, Consistency::Crash));
        fill(&machine, &source, "later");
        let clone = |of, name| must(pool.new_image(&from(of, wanted_block(name, Bytes::mib(2)))));
        let (restored, cloned) = (clone(&taken, "b"), clone(&source, "c"));
        let images = [
            (source, "later"),
            (taken, "a"),
            (restored, "a"),
            (cloned, "later"),
        ];
        for (index, gone) in order.iter().enumerate() {
            must(pool.remove_image(&images[*gone].0.uid));
            for survivor in &order[index + 1..] {
                let (image, holds) = &images[*survivor];
                let found = fs::read(image_path(&machine, &image.uid)).unwrap();
                assert!(found.starts_with(&content(holds)), "{order:?} {index}");
            }
        }
    }
    assert_eq!(must(pool.images()), []);
    let lost = before.saturating_sub(must(pool.statistics()).available);
    assert!(lost < Bytes::mib(1), "{lost}");
}

#[test]
fn a_snapshot_is_never_attached_grown_or_allocated_and_only_root_reads_it() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let thick = request("a", SIZE, FilesystemType::Ext4, Provisioning::Thick);
    let source = must(pool.new_image(&thick));
    let request = snapshot_of(&source, "s");
    let taken = must(take_snapshot(&machine, &pool, request, Consistency::Crash));
    let path = image_path(&machine, &taken.uid);
    let before = fs::metadata(&path).unwrap();
    assert_eq!(before.permissions().mode() & 0o7777, 0o600);

    let volume = Volume::new(&source);
    let staging = machine.staging("globalmount");
    let mut stage = volume.stage(&staging);
    stage.image = &taken.uid;
    let refused = |error: mounting::Error| {
        assert!(error.to_string().contains("is not volume"), "{error}");
    };
    refused(pool.stage(&stage).unwrap_err());
    let block = BlockStageRequest {
        unlock: None,
        image: &taken.uid,
        volume: "pvc-a",
        size: taken.size,
        staging: &staging,
    };
    refused(pool.stage_block(&block).unwrap_err());
    conflicts(pool.grow_image(&taken.uid, Bytes::mib(400)));
    // A volume with the snapshot's UID is a conflict as well.
    let uid = taken.uid.clone();
    conflicts(pool.new_image(&ImageRequest { uid, ..thick }));
    must(pool.allocate_all(&taken.uid));
    assert!(
        allocated(&path) < taken.size.0 / 2,
        "the snapshot was allocated"
    );
    let after = fs::metadata(&path).unwrap();
    assert_eq!(after.modified().unwrap(), before.modified().unwrap());
}

#[track_caller]
fn conflicts(result: Result<Image, image::Error>) {
    let error = result.unwrap_err();
    let is_it = matches!(error, image::Error::IdentityConflict { .. });
    assert!(is_it, "{error}");
}

#[test]
fn an_image_that_is_being_read_is_not_removed() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let source = block(&machine, &pool, "a");
    let request = snapshot_of(&source, "s");
    let taken = must(take_snapshot(&machine, &pool, request, Consistency::Crash));
    let reader = fs::File::open(image_path(&machine, &taken.uid)).unwrap();
    reader.lock_shared().unwrap();
    let error = pool.remove_image(&taken.uid).unwrap_err();
    assert!(matches!(error, image::Error::InUse { .. }), "{error}");
    // Concurrent readers are allowed.
    must(pool.new_image(&from(&taken, wanted_block("b", Bytes::mib(1)))));
    drop(reader);
    must(pool.remove_image(&taken.uid));
}

/// A filesystem with any allowed `mkfsOptions` can be cloned while it is mounted.
#[test]
fn a_filesystem_made_with_any_options_is_cloned_live_and_mounted_beside_its_source() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    for filesystem in FilesystemType::ALL {
        let each = mkfs_options::every_option(filesystem);
        let all = |choose: fn(&Vec<String>) -> Option<&String>| {
            let chosen = each.iter().filter_map(choose).cloned();
            chosen.collect::<Vec<_>>().join(" ")
        };
        let together = [all(|values| values.first()), all(|values| values.last())];
        // The clone computes the checksums of its superblocks again, so each type is tested.
        let checksums = each.iter().flatten();
        let checksums = checksums.filter(|option| option.starts_with("--csum"));
        for options in together.iter().chain(checksums) {
            let wanted = |name, size| ImageRequest {
                mkfs_options: MkfsOptions::parse(filesystem, options).unwrap(),
                ..request(name, size, filesystem, Provisioning::Thin)
            };
            let source = must(pool.new_image(&wanted("a", SIZE)));
            let clone = |live: &Path| {
                write_synced(live, "first");
                write_synced(live, "second");
                let larger = from(&source, wanted("b", Bytes::mib(400)));
                must(pool.new_image(&larger))
            };
            let live = machine.staging("live");
            must(pool.stage(&Volume::new(&source).stage(&live)));
            let image = clone(&live);
            let staging = machine.staging("clone");
            must(pool.stage(&Volume::new(&image).stage(&staging)));
            assert_eq!(read(&staging, "second"), "second", "{filesystem} {options}");
            for (path, image) in [(live, source), (staging, image)] {
                unstage(&machine, &image.uid, &path);
                must(pool.remove_image(&image.uid));
            }
        }
    }
}

#[test]
fn a_snapshot_is_charged_for_written_and_not_for_unwritten_allocated_space() {
    for provisioning in [Provisioning::Thin, Provisioning::Thick] {
        let machine = Machine::new();
        let pool = large_pool(&machine);
        let wanted = request("a", SIZE, FilesystemType::Ext4, provisioning);
        let source = must(pool.new_image(&wanted));
        let before = must(pool.written(&source.uid));
        assert!(before > Bytes::ZERO && before < Bytes::mib(16), "{before}");
        let file = fs::File::options()
            .write(true)
            .open(image_path(&machine, &source.uid));
        let file = file.unwrap();
        let data = vec![b'x'; 4 << 20];
        file.write_all_at(&data, 200 << 20).unwrap();
        file.sync_all().unwrap();
        let written = must(pool.written(&source.uid));
        assert_eq!(written, before.saturating_add(Bytes::mib(4)));
        let snapshot = must(take_snapshot(
            &machine,
            &pool,
            snapshot_of(&source, "s"),
            Consistency::Crash,
        ));
        // The extent map may take a block or two more.
        let more = snapshot.allocated.saturating_sub(written);
        assert!(
            snapshot.allocated >= written && more < Bytes(64 << 10),
            "{more}"
        );
    }
}
