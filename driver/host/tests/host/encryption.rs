//! Encrypted volumes: LUKS2 between the loop device and the filesystem.

use std::{
    fs,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
    time::Duration,
};

use cistern_host::{
    BlockPublishRequest, BlockStageRequest, EncryptionState, ExpandRequest, Image, ImageRequest,
    Key, Keys, Pool, Unlock,
    encryption::{HEADER, HeaderConflict},
    grow, image,
    mounting::Error,
};
use cistern_types::{Bytes, Consistency, Encryption, FilesystemType, MkfsOptions, Provisioning};
use rustix::fs::{SeekFrom, seek};

use crate::{
    harness::{
        Machine, Probes as _, Volume, allocated, eventually, has_loops, image_path, must, open_new,
        released, request, run, unstage,
    },
    health_volume::subject,
    scenario::Volumes as _,
    snapshot::{from, snapshot_of, take_snapshot},
};

const SIZE: Bytes = Bytes::mib(340);
/// What a pod writes: it must not be on the disk.
const CANARY: &[u8] = b"canary of a tenant";
/// Options for mkfs that make no difference.
static OPTIONS: LazyLock<MkfsOptions> = LazyLock::new(MkfsOptions::default);

/// A key of one repeated letter.
fn key(letter: u8) -> Key {
    Key::new(vec![letter; 32]).unwrap()
}

pub(crate) fn keys(letter: u8) -> Keys {
    Keys::new(key(letter), None)
}

/// The keys after a rotation.
fn rotated(letter: u8, previous: u8) -> Keys {
    Keys::new(key(letter), Some(key(previous)))
}

pub(crate) fn unlock(keys: &Keys) -> Unlock<'_> {
    Unlock {
        keys,
        discard: false,
        mkfs_options: &OPTIONS,
        extent_size: None,
    }
}

/// A volume with a UID that no other test has, because that is in the name of its mapping.
pub(crate) fn encrypted(
    machine: &Machine,
    name: &str,
    filesystem: FilesystemType,
    provisioning: Provisioning,
) -> ImageRequest {
    ImageRequest {
        encryption: Some(Encryption::Luks2),
        uid: machine.uid(name),
        ..request(name, SIZE, filesystem, provisioning)
    }
}

/// A thin volume that is not staged yet.
fn thin(machine: &Machine, pool: &Pool, name: &str, filesystem: FilesystemType) -> Image {
    let wanted = encrypted(machine, name, filesystem, Provisioning::Thin);
    must(pool.new_image(&wanted))
}

pub(crate) fn raw(machine: &Machine) -> ImageRequest {
    ImageRequest {
        size: Bytes::mib(32),
        filesystem: None,
        ..encrypted(machine, "raw", FilesystemType::Ext4, Provisioning::Thin)
    }
}

/// Stages a volume, and returns its image as it is then.
pub(crate) fn stage(
    pool: &Pool,
    image: &Image,
    keys: &Keys,
    staging: &Path,
) -> Result<Image, Error> {
    let volume = Volume {
        unlock: Some(unlock(keys)),
        ..Volume::new(image)
    };
    pool.stage(&volume.stage(staging)).map(|staged| {
        assert!(staged.not_grown.is_none(), "{:?}", staged.not_grown);
        must(pool.image(&image.uid)).unwrap()
    })
}

pub(crate) fn stage_block(
    pool: &Pool,
    image: &Image,
    keys: Option<&Keys>,
    staging: &Path,
) -> Result<(), Error> {
    let request = BlockStageRequest {
        image: &image.uid,
        volume: image.identity.as_ref().unwrap().owner.volume().unwrap(),
        size: image.size,
        unlock: keys.map(unlock),
        staging,
    };
    pool.stage_block(&request).map(drop)
}

fn state(pool: &Pool, image: &Image) -> Option<EncryptionState> {
    must(pool.image(&image.uid)).unwrap().encryption()
}

/// Whether the file of an image has the bytes that a pod wrote. Reads no holes.
fn has_canary(machine: &Machine, image: &Image) -> bool {
    let file = fs::File::open(image_path(machine, &image.uid)).unwrap();
    let mut at = 0;
    while let Ok(data) = seek(&file, SeekFrom::Data(at)) {
        at = seek(&file, SeekFrom::Hole(data)).unwrap();
        let mut bytes = vec![0; usize::try_from(at - data).unwrap()];
        file.read_exact_at(&mut bytes, data).unwrap();
        let mut starts = bytes.split(|byte| *byte == CANARY[0]).skip(1);
        if starts.any(|rest| rest.starts_with(&CANARY[1..8])) {
            return true;
        }
    }
    false
}

pub(crate) fn mapping(image: &Image) -> PathBuf {
    format!("/dev/mapper/cistern-{}", image.uid).into()
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn an_encrypted_volume_is_formatted_when_its_key_arrives_and_opens_with_it_from_then_on() {
    let machine = Machine::new();
    let pool = Arc::new(open_new(&machine));
    for filesystem in FilesystemType::ALL {
        let wanted = encrypted(
            &machine,
            filesystem.as_str(),
            filesystem,
            Provisioning::Thin,
        );
        let image = must(pool.new_image(&wanted));
        assert_eq!(image.encryption(), Some(EncryptionState::Unformatted));
        assert_eq!(
            (image.size, image.file_size()),
            (SIZE, Bytes(SIZE.0 + HEADER.0))
        );
        assert_eq!(
            must(pool.new_image(&wanted)),
            image,
            "a repeated call changes nothing"
        );
        let (staging, mine) = (machine.staging(filesystem.as_str()), keys(b'a'));

        let no_key = pool.stage(&Volume::new(&image).stage(&staging));
        let Err(Error::Image(image::Error::KeyNeeded { .. })) = no_key else {
            panic!("{no_key:?}");
        };
        assert_eq!(state(&pool, &image), Some(EncryptionState::Unformatted));

        let staged = must(stage(&pool, &image, &mine, &staging));
        assert_eq!(staged.encryption(), Some(EncryptionState::Complete));
        let content = |image: &Image| image.identity.as_ref().unwrap().content;
        assert_eq!(
            content(&staged),
            content(&image),
            "its UUID is known before its key"
        );
        fs::write(staging.join("file"), CANARY).unwrap();
        let again = must(stage(&pool, &image, &mine, &staging));
        assert_eq!(again.encryption(), Some(EncryptionState::Complete));
        let troubles = pool.examine(&[subject(&staged)], Duration::from_mins(2));
        assert_eq!(troubles, [[]], "{filesystem}");
        let inventory = machine.inventory();
        let mut mounts = inventory.mounts.iter();
        assert!(
            mounts.any(|mount| mount.mount_point == staging),
            "{inventory:?}"
        );
        assert_eq!(machine.root().count_loops().unwrap().leaked, 0);
        unstage(&machine, &image.uid, &staging);
        eventually("the end of the mapping", || !mapping(&image).exists());
        assert!(!has_canary(&machine, &image), "{filesystem}");

        let wrong = stage(&pool, &image, &keys(b'b'), &staging);
        let Err(Error::Image(image::Error::WrongKey { .. })) = wrong else {
            panic!("{wrong:?}");
        };
        must(stage(&pool, &image, &mine, &staging));
        assert_eq!(fs::read(staging.join("file")).unwrap(), CANARY);
        unstage(&machine, &image.uid, &staging);
        must(pool.remove_image(&image.uid));
    }
    has_loops(&machine, 1);
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn an_encrypted_raw_block_volume_gives_a_device_whose_data_only_its_key_opens() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let image = must(pool.new_image(&raw(&machine)));
    let (staging, target) = (machine.staging("raw"), machine.path("kubelet/target"));
    let (root, mine) = (machine.root(), keys(b'a'));
    let no_key = stage_block(&pool, &image, None, &staging);
    let Err(Error::Image(image::Error::KeyNeeded { .. })) = no_key else {
        panic!("{no_key:?}");
    };
    let publish = |read_only| {
        must(root.publish_block(&BlockPublishRequest {
            image: &image.uid,
            read_only,
            staging: &staging,
            target: &target,
        }));
    };
    must(stage_block(&pool, &image, Some(&mine), &staging));
    must(stage_block(&pool, &image, Some(&mine), &staging));
    publish(false);
    let device = fs::OpenOptions::new().write(true).open(&target).unwrap();
    device.write_all_at(CANARY, 0).unwrap();
    device.sync_all().unwrap();
    let size = run("blockdev", &["--getsize64", target.to_str().unwrap()]);
    assert_eq!(size.trim(), image.size.0.to_string());
    drop(device);
    must(root.unpublish(&target));
    unstage(&machine, &image.uid, &staging);
    assert!(!has_canary(&machine, &image));

    let wrong = stage_block(&pool, &image, Some(&keys(b'b')), &staging);
    let Err(Error::Image(image::Error::WrongKey { .. })) = wrong else {
        panic!("{wrong:?}");
    };
    must(stage_block(&pool, &image, Some(&mine), &staging));
    publish(true);
    let mut options = fs::OpenOptions::new();
    let device = options.read(true).write(true).open(&target).unwrap();
    let mut read = vec![0; CANARY.len()];
    device.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(read, CANARY);
    assert!(
        device.write_at(CANARY, 0).is_err(),
        "the device is read-only"
    );
    drop(device);
    must(root.unpublish(&target));
    unstage(&machine, &image.uid, &staging);
    must(pool.remove_image(&image.uid));
    has_loops(&machine, 1);
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn clones_of_an_encrypted_volume_are_mounted_beside_it_with_a_key_of_their_own() {
    for filesystem in FilesystemType::ALL {
        let machine = Machine::new();
        let pool = open_new(&machine);
        let source = thin(&machine, &pool, "a", filesystem);
        let (live, first) = (machine.staging("live"), keys(b'a'));
        must(stage(&pool, &source, &first, &live));
        fs::write(live.join("file"), CANARY).unwrap();
        let snapshot = snapshot_of(&source, "s");
        let taken = must(take_snapshot(
            &machine,
            &pool,
            snapshot,
            Consistency::Filesystem,
        ));
        assert_eq!(taken.size, SIZE);

        let plain = ImageRequest {
            encryption: None,
            ..encrypted(&machine, "plain", filesystem, Provisioning::Thin)
        };
        let refused = pool.new_image(&from(&taken, plain)).unwrap_err();
        assert!(refused.to_string().contains("encrypted"), "{refused}");

        let larger = ImageRequest {
            size: Bytes::mib(400),
            ..encrypted(&machine, "b", filesystem, Provisioning::Thin)
        };
        let clone = must(pool.new_image(&from(&taken, larger)));
        let staging = machine.staging("clone");
        let other = stage(&pool, &clone, &keys(b'b'), &staging);
        let Err(Error::Image(image::Error::WrongKey { .. })) = other else {
            panic!("{other:?}");
        };
        // Its Secret has a key of its own, and that of the source.
        let own = must(stage(&pool, &clone, &rotated(b'b', b'a'), &staging));
        let content = |image: &Image| image.identity.as_ref().unwrap().content;
        assert_eq!(
            content(&own),
            content(&clone),
            "its UUID is known before its key"
        );
        assert_eq!(
            content(&own) == content(&source),
            filesystem == FilesystemType::Ext4
        );
        assert_eq!(own.encryption(), Some(EncryptionState::Complete));
        assert_eq!(fs::read(staging.join("file")).unwrap(), CANARY);
        let space = rustix::fs::statvfs(&staging).unwrap();
        let covered = space.f_blocks * space.f_frsize;
        assert!(
            covered + Bytes::mib(80).0 > Bytes::mib(400).0,
            "{filesystem}: {covered}"
        );
        unstage(&machine, &clone.uid, &staging);

        let revoked = stage(&pool, &own, &keys(b'a'), &staging);
        let Err(Error::Image(image::Error::WrongKey { .. })) = revoked else {
            panic!("{filesystem}: the key of the source still opens the clone: {revoked:?}");
        };
        // The same key twice takes none away.
        must(stage(&pool, &own, &rotated(b'b', b'b'), &staging));
        unstage(&machine, &clone.uid, &staging);
        must(stage(&pool, &own, &keys(b'b'), &staging));
        unstage(&machine, &clone.uid, &staging);
        unstage(&machine, &source.uid, &live);
        must(stage(&pool, &source, &first, &live));
        unstage(&machine, &source.uid, &live);
    }
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn an_encrypted_volume_grows_while_it_is_used_if_its_key_is_there_and_else_when_it_is_staged() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let image = thin(&machine, &pool, "a", FilesystemType::Xfs);
    let (staging, mine) = (machine.staging("a"), keys(b'a'));
    let (others, next) = (keys(b'b'), rotated(b'b', b'a'));
    must(stage(&pool, &image, &mine, &staging));
    let blocks = || rustix::fs::statvfs(&staging).unwrap().f_blocks;
    let expand = |size, keys| {
        must(pool.grow_image(&image.uid, size));
        pool.expand(&ExpandRequest {
            image: &image.uid,
            filesystem: Some(FilesystemType::Xfs),
            path: &staging,
            required: size,
            limit: None,
            keys,
        })
    };
    let before = blocks();
    let (second, third) = (Bytes::mib(400), Bytes::mib(500));
    let wrong = expand(second, Some(&others)).unwrap_err();
    let is_wrong_key = matches!(wrong, grow::Error::Image(image::Error::WrongKey { .. }));
    assert!(is_wrong_key && wrong.leaves_it_smaller(), "{wrong}");
    assert_eq!(blocks(), before);
    // The Secret has a new key already, which the volume gets when it is staged again.
    assert_eq!(must(expand(second, Some(&next))), second);
    let grown = blocks();
    assert!(grown > before);
    let no_key = expand(third, None).unwrap_err();
    assert!(matches!(no_key, grow::Error::KeyNeeded { .. }), "{no_key}");
    assert!(no_key.leaves_it_smaller());
    assert_eq!(blocks(), grown);
    unstage(&machine, &image.uid, &staging);
    must(stage(&pool, &image, &mine, &staging));
    assert!(blocks() > grown);
    assert_eq!(
        must(expand(third, None)),
        third,
        "a repeated call needs no key"
    );
    unstage(&machine, &image.uid, &staging);
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn the_mapping_that_an_interrupted_stage_has_left_is_removed_and_one_in_use_is_not() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let image = thin(&machine, &pool, "a", FilesystemType::Ext4);
    let staging = machine.staging("a");
    must(stage(&pool, &image, &keys(b'a'), &staging));
    must(machine.root().detach_idle(&image.uid));
    fs::write(staging.join("file"), "data").unwrap();
    unstage(&machine, &image.uid, &staging);

    // A process that was killed before it mounted anything.
    let (path, secret) = (image_path(&machine, &image.uid), machine.path("key"));
    fs::write(&secret, [b'a'; 32]).unwrap();
    let name = format!("cistern-{}", image.uid);
    let bound = run("losetup", &["--find", "--show", path.to_str().unwrap()]);
    let open = ["open", "--type", "luks2", "--disable-locks", "--key-file"];
    let operands = [secret.to_str().unwrap(), bound.trim(), &name];
    run("cryptsetup", &[&open[..], &operands].concat());
    run("losetup", &["--detach", bound.trim()]);
    must(machine.root().unstage(&staging));
    // That of the pool, and that of the image.
    has_loops(&machine, 2);
    must(machine.root().detach_idle(&image.uid));
    released(&machine, &image.uid);
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn a_thick_encrypted_volume_is_allocated_in_full_once_it_is_complete() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let wanted = encrypted(&machine, "a", FilesystemType::Ext4, Provisioning::Thick);
    let image = must(pool.new_image(&wanted));
    // The identity takes a block where it is too long for the inode.
    assert!(allocated(&image_path(&machine, &image.uid)) <= 4096);
    let staging = machine.staging("a");
    must(stage(&pool, &image, &keys(b'a'), &staging));
    must(pool.allocate_all(&image.uid));
    assert!(allocated(&image_path(&machine, &image.uid)) >= image.file_size().0);
    unstage(&machine, &image.uid, &staging);
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn an_image_with_data_or_without_a_header_is_neither_formatted_nor_opened() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let (staging, mine) = (machine.staging("a"), keys(b'a'));
    let conflict = |image: &Image| match stage(&pool, image, &mine, &staging) {
        Err(Error::Image(image::Error::EncryptionConflict { why, .. })) => why,
        result => panic!("{result:?}"),
    };
    let image = thin(&machine, &pool, "a", FilesystemType::Ext4);
    let path = image_path(&machine, &image.uid);
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(CANARY, Bytes::mib(100).0).unwrap();
    file.sync_all().unwrap();
    assert_eq!(conflict(&image), HeaderConflict::NotBlank);
    assert!(has_canary(&machine, &image));

    let other = thin(&machine, &pool, "b", FilesystemType::Ext4);
    must(stage(&pool, &other, &mine, &staging));
    unstage(&machine, &other.uid, &staging);
    let file = fs::OpenOptions::new()
        .write(true)
        .open(image_path(&machine, &other.uid))
        .unwrap();
    file.write_all_at(&[0; 4096], 0).unwrap();
    assert_eq!(conflict(&other), HeaderConflict::Missing);

    let plain = request("c", SIZE, FilesystemType::Ext4, Provisioning::Thin);
    let plain = must(pool.new_image(&plain));
    assert_eq!(conflict(&plain), HeaderConflict::NotEncrypted);
    let block = ImageRequest {
        encryption: None,
        ..raw(&machine)
    };
    let block = must(pool.new_image(&block));
    let refused = stage_block(&pool, &block, Some(&mine), &staging).unwrap_err();
    assert!(refused.to_string().contains("not encrypted"), "{refused}");
    has_loops(&machine, 1);
}
