//! A machine for one test: a mount namespace and a folder of its own.
//!
//! The namespace belongs to the test's thread and ends with it, and with it every mount and every
//! loop device of the test, also when the test is killed.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, symlink},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::scenario;
pub(crate) use crate::scenario::{linux, pool as image_pool, uid};
use cistern_host::{
    Checking, Engine, Expectation, Image, ImageRequest, MountOptions, Pool, PoolDeclaration,
    PublishRequest, Root, Source, StageRequest, System, Uid, Unlock,
    health::{PoolVitals, VolumeSubject, VolumeTrouble},
    image::Content,
    inventory::Inventory,
    system::{FailAt, Fault},
};
use cistern_types::{Bytes, FilesystemType, MkfsOptions, Provisioning};
use rustix::{
    fs::{CWD, FileType, Mode, OFlags, makedev, mknodat},
    mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, mount_remount},
    thread::UnshareFlags,
};

/// Calls the methods of a shared `dyn Engine`.
pub(crate) trait Probes {
    fn vitals(&self, deadline: Duration) -> PoolVitals;
    fn examine(&self, volumes: &[VolumeSubject<'_>], deadline: Duration)
    -> Vec<Vec<VolumeTrouble>>;
}

impl<E: Engine + 'static> Probes for Arc<E> {
    fn vitals(&self, deadline: Duration) -> PoolVitals {
        let engine: Arc<dyn Engine> = self.clone();
        engine.vitals(deadline)
    }

    fn examine(
        &self,
        volumes: &[VolumeSubject<'_>],
        deadline: Duration,
    ) -> Vec<Vec<VolumeTrouble>> {
        let engine: Arc<dyn Engine> = self.clone();
        engine.examine(volumes, deadline)
    }
}

/// Smallest size of a pool.
pub(crate) const POOL_SIZE: Bytes = Bytes::gib(1);

/// Size of the disk that simulates the host's. Its file is sparse.
pub(crate) const DISK_SIZE: Bytes = Bytes::gib(8);

/// The folder of one test, in a mount namespace of its own.
pub(crate) struct Machine {
    pub(crate) folder: PathBuf,
    pub(crate) system: Arc<dyn System>,
    _remove: Option<tempfile::TempDir>,
}

impl Machine {
    pub(crate) fn new() -> Self {
        Self::unshare_mounts();
        // On a disk of its own, so that the free space of the machine's disk does not matter.
        let outside = tempfile::tempdir_in("/var/tmp").unwrap();
        let (disk, folder) = (outside.path().join("disk"), outside.path().join("host"));
        fs::File::create(&disk)
            .and_then(|file| file.set_len(DISK_SIZE.0))
            .unwrap();
        run("mkfs.ext4", &["-q", "-F", disk.to_str().unwrap()]);
        fs::create_dir(&folder).unwrap();
        let (disk, at) = (disk.to_str().unwrap(), folder.to_str().unwrap());
        run("mount", &["-o", "loop,discard", disk, at]);
        fs::create_dir(folder.join("root")).unwrap();
        fs::create_dir(folder.join("kubelet")).unwrap();
        Self {
            system: linux(&folder),
            folder,
            _remove: Some(outside),
        }
    }

    /// A machine with a given folder, whose UIDs are the same each time. The folder must not exist.
    pub(crate) fn at(folder: PathBuf) -> Self {
        Self::unshare_mounts();
        for path in ["root", "kubelet"] {
            fs::create_dir_all(folder.join(path)).unwrap();
        }
        Self {
            system: linux(&folder),
            folder,
            _remove: None,
        }
    }

    fn unshare_mounts() {
        assert!(
            rustix::process::geteuid().is_root(),
            "these tests need root: they mount filesystems"
        );
        #[expect(
            unsafe_code,
            reason = "a mount namespace shares nothing with memory safety"
        )]
        // SAFETY: no descriptor table is unshared.
        unsafe {
            rustix::thread::unshare_unsafe(UnshareFlags::NEWNS).unwrap();
        }
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        mount_change("/", private).unwrap();
    }

    pub(crate) fn root(&self) -> Root {
        root(&self.folder, Arc::clone(&self.system))
    }

    /// A root whose system calls can be made to fail; none fails at first.
    pub(crate) fn faulty(&self) -> (Arc<FailAt>, Root) {
        let system = FailAt::new(Arc::clone(&self.system), Fault::Error, u64::MAX);
        let system = Arc::new(system);
        let root = root(&self.folder, Arc::clone(&system) as Arc<dyn System>);
        (system, root)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Hides the nodes of loop devices from `/dev`, as in a container that was started before these
    /// devices existed. Unmounting `/dev` brings them back.
    pub(crate) fn forget_device_nodes() {
        mount("none", "/dev", "tmpfs", MountFlags::empty(), None).unwrap();
        for (path, major, minor) in [("/dev/loop-control", 10, 237), ("/dev/null", 1, 3)] {
            let (kind, mode) = (FileType::CharacterDevice, Mode::RUSR | Mode::WUSR);
            mknodat(CWD, path, kind, mode, makedev(major, minor)).unwrap();
        }
    }

    /// Names devices in `/dev/disk/by-id`, as udev does, for this test alone.
    pub(crate) fn name_by_id(names: &[(&str, &Path)]) {
        let folder = Path::new("/dev/disk");
        fs::create_dir_all(folder).unwrap();
        let mounts = fs::read_to_string("/proc/thread-self/mounts").unwrap();
        if !mounts.contains("by-id-of-a-test /dev/disk ") {
            mount(
                "by-id-of-a-test",
                folder,
                "tmpfs",
                MountFlags::empty(),
                None,
            )
            .unwrap();
            fs::create_dir(folder.join("by-id")).unwrap();
        }
        for (name, device) in names {
            symlink(device, folder.join("by-id").join(name)).unwrap();
        }
    }

    /// A UID that no other machine has, because stage also finds leftovers by the image's name alone.
    pub(crate) fn uid(&self, name: &str) -> Uid {
        scenario::unique_uid(&self.folder, name)
    }

    /// Creates a staging directory, as kubelet does.
    pub(crate) fn staging(&self, name: &str) -> PathBuf {
        let path = self.folder.join("kubelet").join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }

    pub(crate) fn mount_point(&self, pool: &PoolDeclaration) -> PathBuf {
        self.root().mount_point(&pool.uid)
    }

    /// Mounts of this test.
    pub(crate) fn mounts(&self) -> Vec<PathBuf> {
        let mounts = self.system.mounts().unwrap().into_iter();
        mounts
            .map(|mount| mount.mount_point)
            .filter(|path| path.starts_with(&self.folder))
            .collect()
    }

    pub(crate) fn inventory(&self) -> Inventory {
        self.root().inventory(&[]).unwrap()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // The device of a raw block volume outlives the namespace.
        let loops = self.root().inventory(&[]).map(|all| all.loops);
        for bound in loops.unwrap_or_default() {
            let file = bound.backing_file.to_string_lossy();
            if ["/images/", "/closed/"]
                .iter()
                .any(|folder| file.contains(folder))
            {
                let device = format!("/dev/loop{}", bound.number);
                let image = file.rsplit('/').next().unwrap_or_default();
                let mapping = format!("cistern-{image}");
                #[expect(clippy::disallowed_methods, reason = "the test's own tools")]
                let _ = Command::new("cryptsetup")
                    .args(["close", &mapping])
                    .output();
                // A read-only flag would stay for the next user of the device number.
                for (program, option) in [("blockdev", "--setrw"), ("losetup", "-d")] {
                    #[expect(clippy::disallowed_methods, reason = "the test's own tools")]
                    let _ = Command::new(program).args([option, &device]).output();
                }
            }
        }
        // The namespace ends shortly after the folder is removed, so unmount before that.
        for mount_point in self.mounts().iter().rev() {
            let detached = rustix::mount::unmount(mount_point, UnmountFlags::DETACH);
            if let Err(error) = detached {
                eprintln!("left mounted: {}: {error}", mount_point.display());
            }
        }
    }
}

/// Some of the first calls of a walk of faults, each `stride`-th. They begin at another one in each run, so that the runs together
/// take all.
#[expect(clippy::print_stdout, reason = "a test that fails shows it")]
pub(crate) fn sampled(stride: u32, calls: u64) -> impl Iterator<Item = u64> {
    let now = std::time::UNIX_EPOCH.elapsed().unwrap();
    let first = 1 + u64::from(now.subsec_nanos() % stride);
    println!("the walk takes each call number {first} + {stride} n");
    (first..calls).step_by(stride as usize)
}

pub(crate) fn root(folder: &Path, system: Arc<dyn System>) -> Root {
    Root::new(folder.join("root"), system)
}

pub(crate) fn device_pool(paths: impl IntoIterator<Item = PathBuf>) -> PoolDeclaration {
    PoolDeclaration {
        source: Source::Device {
            paths: paths.into_iter().collect(),
            identity: None,
        },
        ..image_pool(Bytes::ZERO)
    }
}

pub(crate) fn known(pool: &Pool) -> Expectation {
    Expectation::Known {
        filesystem_uuid: pool.filesystem_uuid(),
    }
}

/// A new pool of the smallest size.
pub(crate) fn open_new(machine: &Machine) -> Pool {
    machine
        .root()
        .open_pool(&image_pool(POOL_SIZE), Expectation::New)
        .unwrap()
}

pub(crate) fn request(
    name: &str,
    size: Bytes,
    filesystem: FilesystemType,
    provisioning: Provisioning,
) -> ImageRequest {
    ImageRequest {
        encryption: None,
        volume: format!("pvc-{name}"),
        uid: uid(&format!("uid-{name}")),
        size,
        filesystem: Some(filesystem),
        mkfs_options: MkfsOptions::default(),
        extent_size: None,
        provisioning,
        source: None,
    }
}

/// How a volume is used in a test.
pub(crate) struct Volume<'a> {
    pub(crate) image: &'a Image,
    pub(crate) options: MountOptions,
    pub(crate) read_only: bool,
    /// What opens it if it is encrypted.
    pub(crate) unlock: Option<Unlock<'a>>,
}

impl<'a> Volume<'a> {
    pub(crate) fn new(image: &'a Image) -> Self {
        Self {
            image,
            options: MountOptions::default(),
            read_only: false,
            unlock: None,
        }
    }

    pub(crate) fn stage<'b>(&'b self, staging: &'b Path) -> StageRequest<'b> {
        let identity = self.image.identity.as_ref().unwrap();
        let Content::Filesystem { filesystem, uuid } = identity.content else {
            panic!("expected a volume with a filesystem");
        };
        StageRequest {
            unlock: self.unlock,
            image: &self.image.uid,
            volume: identity.owner.volume().unwrap(),
            filesystem,
            filesystem_uuid: uuid,
            size: identity.size,
            provisioning: identity.provisioning,
            options: &self.options,
            read_only: self.read_only,
            checking: Checking::UNSEEN,
            staging,
        }
    }

    pub(crate) fn publish<'b>(&'b self, staging: &'b Path, target: &'b Path) -> PublishRequest<'b> {
        let stage = self.stage(staging);
        PublishRequest {
            image: stage.image,
            filesystem: stage.filesystem,
            options: stage.options,
            read_only: stage.read_only,
            staging,
            target,
        }
    }
}

/// Runs a tool of the test, which must succeed, and returns its output.
pub(crate) fn run(program: &str, args: &[&str]) -> String {
    #[expect(clippy::disallowed_methods, reason = "the test's own tools")]
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Bytes allocated to a file.
pub(crate) fn allocated(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512
}

/// Joins the messages of an error and all its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// Returns the value, or panics with the error and all its causes.
#[track_caller]
pub(crate) fn must<T, E: std::error::Error>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("{}", chain(&error)))
}

/// Path of an image in [`image_pool`].
pub(crate) fn image_path(machine: &Machine, image: &Uid) -> PathBuf {
    let pool = machine.mount_point(&image_pool(Bytes::ZERO));
    pool.join("images").join(image.as_str())
}

/// Waits for a condition to hold; panics after five minutes. A busy or emulated machine is slow.
#[track_caller]
pub(crate) fn eventually(what: &str, holds: impl FnMut() -> bool) {
    assert!(comes(holds), "timed out waiting for {what}");
}

/// Whether a condition holds within five minutes.
pub(crate) fn comes(mut holds: impl FnMut() -> bool) -> bool {
    let begin = Instant::now();
    loop {
        if holds() {
            return true;
        }
        if begin.elapsed() > Duration::from_mins(5) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until the pools and volumes of this test have so many loop devices. Between fork and exec, a process
/// that another test starts keeps one that was just detached.
#[track_caller]
pub(crate) fn has_loops(machine: &Machine, count: usize) {
    let _ = comes(|| machine.inventory().loops.len() == count);
    let loops = machine.inventory().loops;
    assert_eq!(loops.len(), count, "{loops:?}");
}

/// Waits until no loop device has the image any more, also if it was removed.
#[track_caller]
pub(crate) fn released(machine: &Machine, image: &Uid) {
    eventually("the end of the loop device", || {
        let loops = machine.inventory().loops;
        let mut names = loops
            .iter()
            .map(|bound| bound.backing_file.to_string_lossy());
        !names.any(|name| name.contains(image.as_str()))
    });
}

/// Unstages a volume and waits until its loop device is detached, which another test that inspects
/// loop devices can delay.
#[track_caller]
pub(crate) fn unstage(machine: &Machine, image: &Uid, staging: &Path) {
    must(machine.root().unstage(staging));
    released(machine, image);
}

/// Makes a filesystem read-only, as the kernel does on errors. Retries, because processes that other
/// tests start briefly hold files that this one has opened for writing, and the kernel then refuses.
#[track_caller]
pub(crate) fn remount_read_only(path: &Path) {
    eventually("a filesystem that no file is open for writing on", || {
        mount_remount(path, MountFlags::RDONLY, "").is_ok()
    });
}

/// Unmounts, as an administrator or a reboot does. Retries, because processes that other tests start
/// briefly hold files of this one. Their copies of the mount end a moment later, and with the last
/// of them the filesystem writes its superblock.
#[track_caller]
pub(crate) fn unmount(path: &Path) {
    let device = rustix::fs::stat(path).map(|stat| stat.st_dev);
    eventually("the end of the mount", || {
        rustix::mount::unmount(path, UnmountFlags::empty()).is_ok()
    });
    let Ok(device) = device else { return };
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let mounts = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    if major != 7 || mounts.contains(&format!(" {major}:{minor} ")) {
        return;
    }
    let file = || fs::read(format!("/sys/block/loop{minor}/loop/backing_file")).ok();
    let bound = file();
    eventually("the end of the filesystem", || {
        let flags = OFlags::RDONLY | OFlags::EXCL;
        let open = || rustix::fs::open(format!("/dev/loop{minor}"), flags, Mode::empty());
        bound.is_none() || file() != bound || !matches!(open(), Err(rustix::io::Errno::BUSY))
    });
}
