//! What must end soon ends soon, although the I/O of its volume is limited and the node plugin itself runs in
//! a pod.

use std::{fs, path::PathBuf, sync::LazyLock};

use chrono::Utc;
use cistern_crds::{Bytes, Consistency, ExtentLimits, FilesystemType, IoLimits, Provisioning};
use cistern_host::{ImageRequest, Member, Pool, SnapshotRequest, Uid};
use cistern_node::{
    agent::io_limits::{IoEnforcement, LimitedVolume},
    mounting,
};
use tokio::runtime::Builder;

use crate::{
    cgroups::Pods,
    harness::{Machine, Volume, must, open_new, released, request},
    scenario::Volumes as _,
};

/// What each of two pods writes. At the limits of the tests it takes ten minutes, which is longer than any
/// deadline.
const EACH: Bytes = Bytes::mib(20);

/// The pods of all tests: a process is in one of them.
static PODS: LazyLock<Pods> = LazyLock::new(|| {
    let pods = Pods::new();
    fs::write(pods.processes("a"), "0").unwrap();
    pods
});

/// A limited volume with data of two pods that is not written yet.
struct Dirty {
    machine: Machine,
    pool: Pool,
    io: IoEnforcement,
    volume: LimitedVolume,
    staging: PathBuf,
}

impl Dirty {
    /// Limits differ between tests, because these share the pods and the device numbers.
    fn new(filesystem: FilesystemType, limit: u64) -> Self {
        let machine = Machine::new();
        let pool = open_new(&machine);
        let request = request("a", Bytes::mib(400), filesystem, Provisioning::Thin);
        let image = must(pool.new_image(&ImageRequest {
            uid: machine.uid("a"),
            ..request
        }));
        let staging = machine.staging("s");
        must(pool.stage(&Volume::new(&image).stage(&staging)));
        LazyLock::force(&PODS);
        let io = IoEnforcement::find();
        let volume = LimitedVolume {
            name: "pvc-a".to_owned(),
            image: image.uid,
            limits: IoLimits {
                write_bytes_per_second: Some(Bytes(limit)),
                ..IoLimits::NONE
            },
        };
        io.apply(&machine.root(), std::slice::from_ref(&volume));
        let this = Self {
            machine,
            pool,
            io,
            volume,
            staging,
        };
        this.write();
        this
    }

    fn image(&self) -> &Uid {
        &self.volume.image
    }

    fn device(&self) -> String {
        let loops = self.machine.inventory().loops;
        let of_image = |path: &PathBuf| path.ends_with(self.image().as_str());
        let bound = loops.iter().find(|it| of_image(&it.backing_file));
        format!("7:{}", bound.unwrap().number)
    }

    fn is_limited(&self, device: &str) -> bool {
        let limit = self.volume.limits.write_bytes_per_second.unwrap();
        let limited = format!("{device} rbps=max wbps={} ", limit.0);
        PODS.io_max().lines().any(|line| line.starts_with(&limited))
    }

    /// Writes in two pods, and leaves the data in memory.
    fn write(&self) {
        let device = self.device();
        assert!(self.is_limited(&device), "{}", PODS.io_max());
        let written = PODS.statistic(&device, "wbytes");
        PODS.run(&format!(
            "dd if=/dev/zero of={}/$1 bs=1M count={} 2>/dev/null",
            self.staging.display(),
            EACH.0 >> 20
        ));
        let written = PODS.statistic(&device, "wbytes") - written;
        assert!(written < EACH.0, "{written} bytes are written already");
    }

    /// Unstages the volume as one with these limits, before the timeout of kubelet.
    #[track_caller]
    fn is_unstaged_in_time(&self, limits: Option<LimitedVolume>) {
        let (root, device) = (self.machine.root(), self.device());
        let (io, staging) = (self.io.clone(), self.staging.clone());
        let unstaged = mounting::unstage("pvc-a", (), root, io, limits, staging);
        // A runtime of its own, because threads of an earlier one do not see the mounts of this machine.
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        // Unfinished is the error of an unmount that takes longer.
        must(runtime.block_on(unstaged));
        released(&self.machine, self.image());
        assert!(!self.is_limited(&device), "{}", PODS.io_max());
    }
}

#[test]
#[ignore = "needs cgroup v2, which the virtual machine has"]
fn a_filesystem_consistent_snapshot_of_a_limited_dirty_volume_keeps_its_deadlines() {
    for filesystem in FilesystemType::ALL {
        let volume = Dirty::new(filesystem, 64 << 10);
        let (root, device) = (volume.machine.root(), volume.device());
        let snapshot = volume.machine.uid("snapshot");
        let member = Member {
            pool: &volume.pool,
            request: SnapshotRequest {
                snapshot: "snapshot-a".to_owned(),
                uid: snapshot.clone(),
                volume: volume.volume.name.clone(),
                source: volume.image().clone(),
                extent_limits: ExtentLimits::number(1 << 20),
            },
        };
        let limits = std::slice::from_ref(&volume.volume);
        let members = std::slice::from_ref(&member);
        // Writing out, freezing and thawing have deadlines, and a snapshot that misses one fails.
        let taken =
            volume
                .io
                .take_snapshots(&root, limits, members, Consistency::Filesystem, Utc::now);
        must(taken);
        let image = must(volume.pool.image(&snapshot)).unwrap();
        assert!(image.allocated >= Bytes(2 * EACH.0), "{image:?}");
        assert!(volume.is_limited(&device), "{}", PODS.io_max());
        must(volume.io.unstage(&root, limits, &volume.staging));
        released(&volume.machine, volume.image());
    }
}

#[test]
#[ignore = "needs cgroup v2, which the virtual machine has"]
fn an_unmount_of_a_limited_dirty_volume_ends_before_the_timeout_of_kubelet() {
    for filesystem in FilesystemType::ALL {
        let volume = Dirty::new(filesystem, 65 << 10);
        volume.is_unstaged_in_time(Some(volume.volume.clone()));
    }
}

#[test]
#[ignore = "needs cgroup v2, which the virtual machine has"]
fn a_volume_that_should_have_no_limit_any_more_or_whose_object_is_gone_is_unmounted_in_time() {
    for (limit, is_known) in [(66 << 10, true), (67 << 10, false)] {
        let volume = Dirty::new(FilesystemType::Ext4, limit);
        let unlimited = LimitedVolume {
            limits: IoLimits::NONE,
            ..volume.volume.clone()
        };
        volume.is_unstaged_in_time(is_known.then_some(unlimited));
    }
}
