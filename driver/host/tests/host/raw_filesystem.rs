//! Adopts a filesystem that a program has written to a raw block volume.

use std::{
    fs,
    os::{fd::AsFd as _, unix::fs::FileExt as _},
    path::Path,
};

use cistern_host::{
    AdoptionRequest, BlockStageRequest, Content, Image, ImageRequest, Pool, SourceImage, Uid,
    image::{self, NotAdoptable},
};
use cistern_types::{Bytes, ExtentLimits, ExtentSize, FilesystemType, Provisioning};
use rustix::fs::ioctl_ficlone;

use crate::{
    harness::{
        Machine, Volume, allocated, has_loops, image_path, must, open_new, request, run, unstage,
    },
    scenario::Volumes as _,
};

const SIZE: Bytes = Bytes::mib(340);
/// Size of the volume that was backed up.
const SMALLER: Bytes = Bytes::mib(300);

/// Creates a raw block volume.
fn raw(pool: &Pool, provisioning: Provisioning) -> Image {
    let request = ImageRequest {
        filesystem: None,
        extent_size: Some(ExtentSize::Mib1),
        ..request("raw", SIZE, FilesystemType::Ext4, provisioning)
    };
    must(pool.new_image(&request))
}

/// Creates a volume with a filesystem that has a file.
fn original(machine: &Machine, pool: &Pool, filesystem: FilesystemType) -> Image {
    let name = format!("original-{filesystem}");
    let image = must(pool.new_image(&request(&name, SMALLER, filesystem, Provisioning::Thin)));
    let staging = machine.staging("original");
    must(pool.stage(&Volume::new(&image).stage(&staging)));
    fs::write(staging.join("file"), "kept").unwrap();
    fs::create_dir(staging.join("folder")).unwrap();
    unstage(machine, &image.uid, &staging);
    image
}

/// Writes the content of an image to a raw block volume, as a backup program does.
fn write(machine: &Machine, from: &Image, to: &Image) {
    let open = |image: &Image| {
        let path = image_path(machine, &image.uid);
        let options = &mut fs::OpenOptions::new();
        options.read(true).write(true).open(path).unwrap()
    };
    let (mut from, mut to) = (open(from), open(to));
    std::io::copy(&mut from, &mut to).unwrap();
    to.sync_all().unwrap();
}

fn adopt(
    pool: &Pool,
    raw: &Image,
    filesystem: Option<FilesystemType>,
) -> Result<Image, image::Error> {
    let request = AdoptionRequest {
        image: &raw.uid,
        volume: raw.identity.as_ref().unwrap().owner.volume().unwrap(),
        filesystem,
        extent_size: Some(ExtentSize::Mib1),
        extent_limits: ExtentLimits::number(u64::MAX),
    };
    pool.adopt_filesystem(&request, &|_| {})
}

fn content(image: &Image) -> Content {
    image.identity.as_ref().unwrap().content
}

/// Refuses to adopt the content of a raw block volume, which is unchanged.
#[track_caller]
fn refuses(
    machine: &Machine,
    pool: &Pool,
    raw: &Image,
    asked: Option<FilesystemType>,
) -> image::Error {
    let bytes = |uid: &Uid| fs::read(image_path(machine, uid)).unwrap();
    let before = bytes(&raw.uid);
    let error = adopt(pool, raw, asked).unwrap_err();
    let after = must(pool.image(&raw.uid)).unwrap();
    assert_eq!(after.identity, raw.identity);
    assert!(bytes(&raw.uid) == before, "{error}: the image has changed");
    assert_eq!(machine.inventory().pools[0].temporary, [] as [String; 0]);
    error
}

#[test]
fn a_filesystem_in_a_raw_block_volume_is_the_volumes_from_its_adoption_on() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    for filesystem in FilesystemType::ALL {
        let (original, raw) = (
            original(&machine, &pool, filesystem),
            raw(&pool, Provisioning::Thin),
        );
        write(&machine, &original, &raw);
        let adopted = must(adopt(&pool, &raw, Some(filesystem)));
        assert_eq!(
            must(adopt(&pool, &raw, None)),
            adopted,
            "a repeated call changes nothing"
        );
        assert_eq!(content(&adopted).filesystem(), Some(filesystem));
        let has_own_uuid = content(&adopted) != content(&original);
        // The kernel accepts two ext4 with one UUID.
        assert_eq!(has_own_uuid, filesystem != FilesystemType::Ext4);

        // Both can be used at the same time, and the adopted one has the size of its volume.
        let [first, second] = ["first", "second"].map(|name| machine.staging(name));
        must(pool.stage(&Volume::new(&original).stage(&first)));
        must(pool.stage(&Volume::new(&adopted).stage(&second)));
        assert_eq!(fs::read_to_string(second.join("file")).unwrap(), "kept");
        let blocks = |at: &Path| rustix::fs::statvfs(at).unwrap().f_blocks;
        assert!(blocks(&second) > blocks(&first), "{filesystem}");
        unstage(&machine, &original.uid, &first);
        unstage(&machine, &adopted.uid, &second);
        must(pool.remove_image(&original.uid));
        must(pool.remove_image(&adopted.uid));
    }
}

#[test]
fn a_filesystem_is_cloned_to_a_larger_raw_block_volume_byte_for_byte_and_adopted_there() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    for filesystem in FilesystemType::ALL {
        let original = original(&machine, &pool, filesystem);
        let clone = ImageRequest {
            filesystem: None,
            source: Some(SourceImage {
                uid: original.uid.clone(),
                extent_limits: ExtentLimits::number(u64::MAX),
            }),
            ..request("raw", SIZE, FilesystemType::Ext4, Provisioning::Thin)
        };
        let raw = must(pool.new_image(&clone));
        assert_eq!(content(&raw), Content::Block);
        let bytes = |image: &Image| fs::read(image_path(&machine, &image.uid)).unwrap();
        let (before, copied) = (bytes(&original), bytes(&raw));
        assert!(copied.starts_with(&before), "{filesystem}");
        assert!(copied[before.len()..].iter().all(|byte| *byte == 0));
        let adopted = must(adopt(&pool, &raw, None));
        assert_eq!(content(&adopted).filesystem(), Some(filesystem));
        assert!(bytes(&original) == before);
        must(pool.remove_image(&original.uid));
        must(pool.remove_image(&adopted.uid));
    }
}

#[test]
fn a_thick_volume_has_all_of_its_blocks_after_the_adoption() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let original = original(&machine, &pool, FilesystemType::Xfs);
    let raw = raw(&pool, Provisioning::Thick);
    write(&machine, &original, &raw);
    must(adopt(&pool, &raw, None));
    must(pool.provision(&raw.uid, Provisioning::Thick));
    must(pool.allocate_all(&raw.uid));
    assert!(allocated(&image_path(&machine, &raw.uid)) >= SIZE.0);
}

#[test]
fn content_that_is_no_filesystem_of_the_volume_is_refused_and_unchanged() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let raw = raw(&pool, Provisioning::Thin);
    let why = |error: image::Error| match error {
        image::Error::NotAdoptable { why, .. } => why,
        other => panic!("{}", crate::harness::chain(&other)),
    };
    let refused = |asked| why(refuses(&machine, &pool, &raw, asked));
    let path = image_path(&machine, &raw.uid);
    assert_eq!(refused(None), NotAdoptable::Missing);

    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(b"no filesystem", 1024).unwrap();
    assert_eq!(refused(None), NotAdoptable::Missing);

    let mkfs = |program: &str, options: &[&str], size: Bytes| {
        file.set_len(0).unwrap();
        file.set_len(size.0).unwrap();
        run(program, &[options, &[path.to_str().unwrap()]].concat());
        file.set_len(SIZE.0).unwrap();
    };
    mkfs("mkfs.xfs", &["-q", "-s", "size=4096"], SMALLER);
    let other = NotAdoptable::Other {
        found: FilesystemType::Xfs,
        expected: FilesystemType::Ext4,
    };
    assert_eq!(refused(Some(FilesystemType::Ext4)), other);

    mkfs("mkfs.ext4", &["-q", "-b", "1024"], SMALLER);
    let small_blocks = NotAdoptable::BlockSize {
        filesystem: FilesystemType::Ext4,
        size: 1024,
    };
    assert_eq!(refused(None), small_blocks);

    let larger = Bytes(SIZE.0 + (4 << 20));
    mkfs("mkfs.ext4", &["-q", "-b", "4096"], larger);
    let too_large = NotAdoptable::TooLarge {
        filesystem: FilesystemType::Ext4,
        size: larger,
    };
    assert_eq!(refused(None), too_large);
}

#[test]
fn a_damaged_filesystem_is_not_adopted_and_is_unchanged() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let original = original(&machine, &pool, FilesystemType::Ext4);
    let raw = raw(&pool, Provisioning::Thin);
    write(&machine, &original, &raw);
    let path = image_path(&machine, &raw.uid);
    // A directory whose inode says that it is a file. The kernel would mount it, because its superblock says that it is
    // clean.
    let damage = "set_inode_field folder mode 0100644";
    run("debugfs", &["-w", "-R", damage, path.to_str().unwrap()]);
    let error = refuses(&machine, &pool, &raw, None);
    assert!(matches!(error, image::Error::Damaged { .. }), "{error}");
}

#[test]
fn a_device_that_is_in_use_is_not_adopted() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let original = original(&machine, &pool, FilesystemType::Xfs);
    let raw = raw(&pool, Provisioning::Thin);
    write(&machine, &original, &raw);
    let staging = machine.staging("device");
    must(pool.stage_block(&BlockStageRequest {
        unlock: None,
        image: &raw.uid,
        volume: raw.identity.as_ref().unwrap().owner.volume().unwrap(),
        size: SIZE,
        staging: &staging,
    }));
    let error = refuses(&machine, &pool, &raw, None);
    assert!(matches!(error, image::Error::InUse { .. }), "{error}");
    must(machine.root().unstage(&staging));
    has_loops(&machine, 1);
    must(adopt(&pool, &raw, None));
}

#[test]
fn a_reflink_of_the_raw_block_volume_is_unchanged_by_the_adoption() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let original = original(&machine, &pool, FilesystemType::Btrfs);
    let raw = raw(&pool, Provisioning::Thin);
    write(&machine, &original, &raw);
    let path = image_path(&machine, &raw.uid);
    let snapshot = path.with_file_name("snapshot");
    let (from, to) = (
        fs::File::open(&path).unwrap(),
        fs::File::create(&snapshot).unwrap(),
    );
    ioctl_ficlone(to.as_fd(), from.as_fd()).unwrap();
    let before = fs::read(&path).unwrap();
    must(adopt(&pool, &raw, None));
    assert!(
        fs::read(&path).unwrap() != before,
        "it has a UUID of its own"
    );
    assert!(fs::read(&snapshot).unwrap() == before);
}
