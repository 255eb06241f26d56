//! Volume problems are reported, and cleared once they are over.

use std::{fs, path::Path, sync::Arc, time::Duration};

use cistern_host::{
    BlockPublishRequest, BlockStageRequest, Image, ImageRequest, Pool, Root, Uid,
    health::{VolumeSubject, VolumeTrouble},
    system::{FailAt, Fault},
};
use cistern_types::{Bytes, FilesystemType, Provisioning};
use rustix::mount::{MountFlags, UnmountFlags, mount_remount, unmount};

use crate::{
    failing::text,
    harness::{
        Machine, POOL_SIZE, Probes as _, Volume, image_path, image_pool, known, must, open_new,
        remount_read_only, request, root, run, unstage,
    },
    scenario::Volumes as _,
};

const PATIENCE: Duration = Duration::from_mins(2);

/// A volume as its status describes it.
pub(crate) fn subject(image: &Image) -> VolumeSubject<'_> {
    let identity = image.identity.as_ref().unwrap();
    VolumeSubject {
        image: &image.uid,
        volume: identity.owner.volume().unwrap(),
        size: identity.size,
        content: identity.content,
        staging: None,
    }
}

/// A volume that is staged and published.
struct Attached {
    machine: Machine,
    pool: Arc<Pool>,
    image: Image,
    staging: std::path::PathBuf,
    target: std::path::PathBuf,
}

impl Attached {
    fn new(filesystem: FilesystemType) -> Self {
        let machine = Machine::new();
        let pool = Arc::new(open_new(&machine));
        let size = Bytes::mib(300);
        let wanted = ImageRequest {
            uid: machine.uid("a"),
            ..request("a", size, filesystem, Provisioning::Thin)
        };
        let image = must(pool.new_image(&wanted));
        let (staging, target) = (
            machine.staging("globalmount"),
            machine.path("kubelet/target"),
        );
        let attached = Self {
            machine,
            pool,
            image,
            staging,
            target,
        };
        attached.attach();
        attached
    }

    fn attach(&self) {
        let volume = Volume::new(&self.image);
        must(self.pool.stage(&volume.stage(&self.staging)));
        let root = self.machine.root();
        must(root.publish(&volume.publish(&self.staging, &self.target)));
    }

    fn detach(&self) {
        must(self.machine.root().unpublish(&self.target));
        unstage(&self.machine, &self.image.uid, &self.staging);
    }

    fn troubles(&self) -> Vec<VolumeTrouble> {
        self.pool
            .examine(&[subject(&self.image)], PATIENCE)
            .remove(0)
    }

    /// With a known staging path.
    fn troubles_staged(&self) -> Vec<VolumeTrouble> {
        let staged = VolumeSubject {
            staging: Some(&self.staging),
            ..subject(&self.image)
        };
        self.pool.examine(&[staged], PATIENCE).remove(0)
    }

    /// The number of its loop device.
    fn number(&self) -> u32 {
        let loops = self.machine.inventory().loops.into_iter();
        let mut ours = loops.filter(|bound| {
            let name = bound.backing_file.to_string_lossy();
            name.contains(self.image.uid.as_str())
        });
        ours.next().unwrap().number
    }

    fn device(&self) -> String {
        format!("/dev/loop{}", self.number())
    }
}

#[test]
fn a_healthy_volume_has_no_problems_attached_or_detached() {
    for filesystem in [
        FilesystemType::Ext4,
        FilesystemType::Xfs,
        FilesystemType::Btrfs,
    ] {
        let volume = Attached::new(filesystem);
        assert_eq!(volume.troubles(), [], "{filesystem}");
        assert_eq!(volume.troubles_staged(), [], "{filesystem}");
        must(volume.machine.root().unpublish(&volume.target));
        assert_eq!(volume.troubles_staged(), [], "{filesystem} staged alone");
        volume.detach();
        assert_eq!(volume.troubles(), [], "{filesystem} detached");
    }
}

#[test]
fn a_removed_image_is_reported_missing_and_one_in_use_can_still_be_copied() {
    let volume = Attached::new(FilesystemType::Ext4);
    let (path, device) = (
        image_path(&volume.machine, &volume.image.uid),
        volume.device(),
    );
    fs::remove_file(path).unwrap();
    assert_eq!(volume.troubles(), [VolumeTrouble::ImageDeleted { device }]);
    volume.detach();
    let image = volume.image.uid.clone();
    assert_eq!(volume.troubles(), [VolumeTrouble::ImageMissing { image }]);
}

#[test]
fn an_image_that_is_too_small_or_of_another_volume_is_reported() {
    let volume = Attached::new(FilesystemType::Ext4);
    let (image, expected) = (volume.image.uid.clone(), volume.image.size);
    let path = image_path(&volume.machine, &image);
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    let found = Bytes(expected.0 - 4096);
    file.set_len(found.0).unwrap();
    let too_small = VolumeTrouble::ImageTooSmall {
        image: image.clone(),
        found,
        expected,
    };
    assert_eq!(volume.troubles(), [too_small]);
    file.set_len(expected.0).unwrap();
    assert_eq!(volume.troubles(), []);

    volume.detach();
    let other = request("b", expected, FilesystemType::Ext4, Provisioning::Thin);
    let other = must(volume.pool.new_image(&other));
    fs::rename(image_path(&volume.machine, &other.uid), &path).unwrap();
    let found = volume.troubles();
    match &found[..] {
        [VolumeTrouble::IdentityConflict { image: named, why }] => {
            assert_eq!(named, &image);
            assert_eq!(why.to_string(), "it is that of volume pvc-b");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_read_only_loop_device_of_a_writable_volume_is_reported() {
    let volume = Attached::new(FilesystemType::Ext4);
    let device = volume.device();
    run("blockdev", &["--setro", &device]);
    let path = volume.staging.clone();
    let trouble = VolumeTrouble::DeviceReadOnly {
        device: device.clone(),
        path,
    };
    assert_eq!(volume.troubles(), [trouble]);
    run("blockdev", &["--setrw", &device]);
    assert_eq!(volume.troubles(), []);
}

#[test]
fn a_read_only_filesystem_of_a_writable_volume_is_reported() {
    for filesystem in [
        FilesystemType::Ext4,
        FilesystemType::Xfs,
        FilesystemType::Btrfs,
    ] {
        let volume = Attached::new(filesystem);
        remount_read_only(&volume.staging);
        let path = volume.target.clone();
        assert_eq!(
            volume.troubles(),
            [VolumeTrouble::MountReadOnly { path }],
            "{filesystem}"
        );
        mount_remount(&volume.staging, MountFlags::empty(), "").unwrap();
        assert_eq!(volume.troubles(), [], "{filesystem}");
    }
}

#[test]
fn a_volume_that_was_unmounted_under_its_pod_is_reported() {
    let volume = Attached::new(FilesystemType::Ext4);
    let used = fs::File::create(volume.target.join("used")).unwrap();
    unmount(&volume.staging, UnmountFlags::empty()).unwrap();
    assert_eq!(
        volume.troubles(),
        [],
        "the caller does not report it as staged"
    );
    let path = Some(volume.staging.clone());
    assert_eq!(
        volume.troubles_staged(),
        [VolumeTrouble::MountMissing { path }]
    );
    unmount(&volume.target, UnmountFlags::DETACH).unwrap();
    assert_eq!(
        volume.troubles(),
        [VolumeTrouble::MountMissing { path: None }]
    );
    drop(used);
    volume.detach();
    volume.attach();
    assert_eq!(volume.troubles_staged(), []);
}

#[test]
fn the_errors_that_an_ext4_has_counted_are_reported() {
    let volume = Attached::new(FilesystemType::Ext4);
    let folder = format!("/sys/fs/ext4/loop{}", volume.number());
    fs::write(format!("{folder}/trigger_fs_error"), "a test").unwrap();
    let (mut found, path) = (volume.troubles(), volume.staging.clone());
    assert_eq!(
        found.pop(),
        Some(VolumeTrouble::FilesystemErrors { count: 1 })
    );
    // It became read-only, which it reports since Linux 6.15.
    if let Some(trouble) = found.pop() {
        assert_eq!(trouble, VolumeTrouble::MountReadOnly { path });
    }
    assert_eq!(found, []);
    let attached = volume
        .machine
        .root()
        .examine_attached(&[subject(&volume.image)], PATIENCE);
    assert_eq!(attached, [volume.troubles()], "without the pool");
}

#[test]
fn an_xfs_that_has_shut_down_is_reported_until_it_is_staged_again() {
    let volume = Attached::new(FilesystemType::Xfs);
    run("xfs_io", &["-x", "-c", "shutdown", text(&volume.target)]);
    assert_eq!(volume.troubles(), [VolumeTrouble::FilesystemShutDown]);
    volume.detach();
    volume.attach();
    assert_eq!(volume.troubles(), []);
}

#[test]
fn a_pool_that_shuts_down_is_reported_by_its_volumes_and_they_can_be_unstaged() {
    for filesystem in [FilesystemType::Ext4, FilesystemType::Btrfs] {
        let volume = Attached::new(filesystem);
        let declaration = image_pool(POOL_SIZE);
        let pool = volume.machine.mount_point(&declaration);
        run("xfs_io", &["-x", "-c", "shutdown", text(&pool)]);
        // The pod's writes no longer reach the disk, and its filesystem counts that.
        let file = fs::File::create(volume.target.join("file"));
        let _ = file.and_then(|file| file.sync_all());
        let found = volume.troubles();
        assert!(
            matches!(found[0], VolumeTrouble::Failed { .. }),
            "{filesystem}: {found:?}"
        );
        let counted = found
            .iter()
            .any(|trouble| matches!(trouble, VolumeTrouble::FilesystemErrors { .. }));
        assert!(counted, "{filesystem}: {found:?}");
        // Attached volumes of a pool that does not answer are still examined.
        let inventory = volume.machine.inventory();
        assert!(inventory.pools[0].silent.is_some());
        assert_eq!((inventory.loops.len(), inventory.mounts.len()), (2, 3));
        volume.detach();
    }
}

#[test]
fn an_interrupted_stage_is_undone_also_where_its_pool_has_shut_down() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let (staging, target) = (machine.staging("device"), machine.path("kubelet/target"));
    let image = attach_block(&machine, &pool, &staging, &target);
    let root = machine.root();
    must(root.unpublish(&target));
    // Its device is kept, and its node does not exist yet.
    unmount(staging.join(image.uid.as_str()), UnmountFlags::empty()).unwrap();
    let at = machine.mount_point(&image_pool(POOL_SIZE));
    run("xfs_io", &["-x", "-c", "shutdown", text(&at)]);
    unstage(&machine, &image.uid, &staging);
    let expectation = known(&pool);
    drop(pool);
    must(root.open_pool(&image_pool(POOL_SIZE), expectation));
}

/// A raw block volume that is staged and published.
fn attach_block(machine: &Machine, pool: &Pool, staging: &Path, target: &Path) -> Image {
    let wanted = ImageRequest {
        uid: machine.uid("block"),
        filesystem: None,
        ..request(
            "block",
            Bytes::mib(16),
            FilesystemType::Ext4,
            Provisioning::Thick,
        )
    };
    let image = must(pool.new_image(&wanted));
    stage_block(machine, pool, &image.uid, staging, target);
    image
}

fn stage_block(machine: &Machine, pool: &Pool, image: &Uid, staging: &Path, target: &Path) {
    must(pool.stage_block(&BlockStageRequest {
        unlock: None,
        image,
        volume: "pvc-block",
        size: Bytes::mib(16),
        staging,
    }));
    must(machine.root().publish_block(&BlockPublishRequest {
        image,
        read_only: false,
        staging,
        target,
    }));
}

#[test]
fn a_raw_block_volume_whose_device_was_removed_is_reported_and_can_be_unstaged() {
    let machine = Machine::new();
    let pool = Arc::new(open_new(&machine));
    let (staging, target) = (machine.staging("device"), machine.path("kubelet/target"));
    let image = attach_block(&machine, &pool, &staging, &target);
    let troubles = || pool.examine(&[subject(&image)], PATIENCE).remove(0);
    assert_eq!(troubles(), []);
    let bound = machine.inventory().loops;
    let bound = bound
        .iter()
        .find(|bound| bound.backing_file.ends_with(image.uid.as_str()));
    let device = format!("/dev/loop{}", bound.unwrap().number);

    run("blockdev", &["--setro", &device]);
    let found = troubles();
    assert!(
        matches!(found[..], [VolumeTrouble::DeviceReadOnly { .. }]),
        "{found:?}"
    );
    run("blockdev", &["--setrw", &device]);
    assert_eq!(troubles(), []);

    run("losetup", &["-d", &device]);
    let path = staging.join(image.uid.as_str());
    assert_eq!(troubles(), [VolumeTrouble::DeviceMissing { device, path }]);
    let root = machine.root();
    must(root.unpublish(&target));
    must(root.unstage(&staging));
    assert_eq!(troubles(), []);
    stage_block(&machine, &pool, &image.uid, &staging, &target);
    assert_eq!(troubles(), []);
    must(root.unpublish(&target));
    must(root.unstage(&staging));
}

#[test]
fn an_error_while_a_volume_is_probed_is_reported_and_the_next_probe_succeeds() {
    let volume = Attached::new(FilesystemType::Xfs);
    let declaration = image_pool(POOL_SIZE);
    let expectation = known(&volume.pool);
    for at in 1.. {
        let system = FailAt::new(Arc::clone(&volume.machine.system), Fault::Error, u64::MAX);
        let system = Arc::new(system);
        let faulty: Root = root(&volume.machine.folder, Arc::clone(&system) as _);
        let pool = Arc::new(must(faulty.open_pool(&declaration, expectation)));
        system.fail_in(at);
        let found = pool.examine(&[subject(&volume.image)], PATIENCE).remove(0);
        assert_eq!(volume.troubles(), [], "after an error at call {at}");
        if !system.has_failed() {
            assert_eq!(found, []);
            assert!(at > 5);
            break;
        }
        assert!(!found.is_empty(), "an error at call {at} is not reported");
    }
}
