//! How staging handles filesystems damaged by a crash or a failing disk.

use std::{
    cell::Cell,
    fs,
    io::Write as _,
    os::{fd::AsFd as _, unix::fs::FileExt as _},
    path::{Path, PathBuf},
};

use cistern_host::{
    Checking, Engine, Image, ImageRequest, Pool, SourceImage, StageRequest, UNSTOPPED, image,
    mounting,
};
use cistern_types::{Bytes, ExtentLimits, FilesystemType, Provisioning};
use rustix::fs::ioctl_ficlone;

use crate::{
    harness::{
        Machine, Volume, image_path, must, open_new, released, request as request_of, run, unstage,
    },
    scenario::Volumes as _,
};

/// A volume that was used once: it holds the file `kept` and the directory `folder`.
struct Used {
    machine: Machine,
    pool: Pool,
    image: Image,
    staging: PathBuf,
}

impl Used {
    fn new(filesystem: FilesystemType) -> Self {
        let machine = Machine::new();
        let pool = open_new(&machine);
        let request = request_of("a", Bytes::mib(300), filesystem, Provisioning::Thin);
        let image = must(pool.new_image(&request));
        let staging = machine.staging("globalmount");
        let used = Self {
            machine,
            pool,
            image,
            staging,
        };
        must(used.stage());
        fs::write(used.staging.join("kept"), "kept").unwrap();
        fs::create_dir(used.staging.join("folder")).unwrap();
        used.unstage();
        used
    }

    fn stage(&self) -> Result<(), mounting::Error> {
        let volume = Volume::new(&self.image);
        self.pool.stage(&volume.stage(&self.staging)).map(drop)
    }

    fn unstage(&self) {
        unstage(&self.machine, &self.image.uid, &self.staging);
    }

    fn path(&self) -> PathBuf {
        image_path(&self.machine, &self.image.uid)
    }

    /// Changes an ext4 from outside.
    fn debugfs(&self, request: &str) {
        run(
            "debugfs",
            &["-w", "-R", request, self.path().to_str().unwrap()],
        );
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.staging.join(name)).unwrap()
    }

    /// Staging is refused because of damage, and nothing stays mounted or bound.
    #[track_caller]
    fn is_refused(&self) {
        let error = self.stage().unwrap_err();
        let is_damage = matches!(error, mounting::Error::Image(image::Error::Damaged { .. }));
        assert!(is_damage, "{error}");
        assert!(!self.machine.mounts().contains(&self.staging));
        released(&self.machine, &self.image.uid);
    }
}

fn clone(from: &Path, to: &Path) {
    let from = fs::File::open(from).unwrap();
    let to = fs::File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(to)
        .unwrap();
    ioctl_ficlone(to.as_fd(), from.as_fd()).unwrap();
}

#[test]
fn r02_data_synced_before_a_crash_survives_the_next_stage() {
    for filesystem in FilesystemType::ALL {
        let used = Used::new(filesystem);
        must(used.stage());
        // The file is only in the log until that is replayed.
        let mut file = fs::File::create(used.staging.join("synced")).unwrap();
        file.write_all(b"synced").unwrap();
        file.sync_all().unwrap();
        let (path, crashed) = (used.path(), used.path().with_file_name("crashed"));
        clone(&path, &crashed);
        drop(file);
        used.unstage();

        clone(&crashed, &path);
        must(used.stage());
        assert_eq!(
            (used.read("kept"), used.read("synced")),
            ("kept".into(), "synced".into())
        );
        used.unstage();
    }
}

#[test]
fn an_ext4_with_harmless_damage_is_repaired_before_it_is_mounted() {
    let used = Used::new(FilesystemType::Ext4);
    used.debugfs("set_super_value free_blocks_count 1");
    used.debugfs("freeb 5000 10");
    used.debugfs("set_super_value state 2");
    must(used.stage());
    assert_eq!(used.read("kept"), "kept");
    used.unstage();
    // Otherwise the kernel would keep the error state.
    let header = run("dumpe2fs", &["-h", used.path().to_str().unwrap()]);
    let state = header
        .lines()
        .find(|line| line.starts_with("Filesystem state:"));
    assert_eq!(
        state.unwrap().split_whitespace().last(),
        Some("clean"),
        "{state:?}"
    );
    run("e2fsck", &["-f", "-n", used.path().to_str().unwrap()]);
}

#[test]
fn a_full_check_or_a_growth_waits_for_a_call_that_allows_it_and_a_journal_is_replayed_immediately()
{
    let used = Used::new(FilesystemType::Ext4);
    let volume = Volume::new(&used.image);
    let plain = || volume.stage(&used.staging);
    let later = || StageRequest {
        checking: Checking::Later,
        ..plain()
    };
    let waits = |checking| {
        let request = StageRequest {
            checking,
            ..plain()
        };
        let error = used.pool.stage(&request).unwrap_err();
        let needed = matches!(
            error,
            mounting::Error::Image(image::Error::CheckNeeded { .. })
        );
        assert!(needed, "{error}");
        released(&used.machine, &used.image.uid);
    };
    let prepared = || {
        let percent = Cell::new(0);
        let progress = |done| percent.set(done);
        let request = StageRequest {
            checking: Checking::Now(&progress),
            ..plain()
        };
        must(must((&used.pool as &dyn Engine).prepare(&request)));
        assert_eq!(percent.get(), 100);
        let staged = must(used.pool.stage(&later()));
        assert!(staged.not_grown.is_none(), "{:?}", staged.not_grown);
    };
    used.debugfs("set_super_value state 2");
    waits(Checking::Later);
    waits(Checking::Without);
    prepared();

    // After a crash, only the journal is replayed.
    let (path, crashed) = (used.path(), used.path().with_file_name("crashed"));
    clone(&path, &crashed);
    used.unstage();
    clone(&crashed, &path);
    must(used.pool.stage(&later()));
    used.unstage();

    must(used.pool.grow_image(&used.image.uid, Bytes::mib(600)));
    waits(Checking::Later);
    prepared();
    used.unstage();

    // A larger copy is refused before it begins.
    let source = SourceImage {
        uid: used.image.uid.clone(),
        extent_limits: ExtentLimits::number(1000),
    };
    let copy = ImageRequest {
        source: Some(source),
        ..request_of(
            "copy",
            Bytes::gib(1),
            FilesystemType::Ext4,
            Provisioning::Thin,
        )
    };
    let error = used.pool.create(&copy, Checking::Later, UNSTOPPED);
    let error = error.unwrap_err();
    assert!(matches!(error, image::Error::CheckNeeded { .. }), "{error}");
    must(used.pool.new_image(&copy));
}

#[test]
fn nsv_15_an_ext4_that_needs_manual_repair_is_refused_until_repaired() {
    let used = Used::new(FilesystemType::Ext4);
    // A directory whose inode says that it is a file.
    used.debugfs("set_inode_field folder mode 0100644");
    used.debugfs("set_super_value state 2");
    for _ in 0..2 {
        used.is_refused();
    }
    used.debugfs("set_inode_field folder mode 040755");
    must(used.stage());
    assert_eq!(used.read("kept"), "kept");
    assert!(used.staging.join("folder").is_dir());
    used.unstage();
}

#[test]
fn nsv_15_a_damaged_xfs_is_refused_and_left_unchanged() {
    let used = Used::new(FilesystemType::Xfs);
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(used.path())
        .unwrap();
    // Within the superblock, but outside its magic number and UUID.
    let place = 180;
    let mut byte = [0];
    file.read_exact_at(&mut byte, place).unwrap();
    file.write_all_at(&[!byte[0]], place).unwrap();
    file.sync_all().unwrap();
    for _ in 0..2 {
        used.is_refused();
    }
    file.write_all_at(&byte, place).unwrap();
    file.sync_all().unwrap();
    must(used.stage());
    assert_eq!(used.read("kept"), "kept");
    used.unstage();
}
