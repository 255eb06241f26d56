//! Limits of the I/O of volumes, on a kernel with cgroup v2. The virtual machine of `e2e/vm` has it.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::Instant,
};

use cistern_host::{
    BlockStageRequest, Image, ImageRequest, Pool, Uid,
    io_limits::IoController,
    system::{Devices as _, Linux},
};
use cistern_types::{Bytes, FilesystemType, IoLimits, Provisioning};

use crate::harness::{Machine, Volume, must, open_new, request, run, unstage};

const CGROUPS: &str = "/sys/fs/cgroup";

/// A cgroup of all pods with two pods, of the test's own.
struct Pods(PathBuf);

impl Pods {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let this = Self(Path::new(CGROUPS).join(format!("test-{number}/kubepods")));
        for pod in ["a", "b"] {
            fs::create_dir_all(this.0.join(pod)).unwrap();
        }
        // Writeback is charged to a cgroup that has both controllers.
        let parent = this.0.parent().unwrap();
        for folder in [Path::new(CGROUPS), parent, &this.0] {
            fs::write(folder.join("cgroup.subtree_control"), "+io +memory").unwrap();
        }
        this
    }

    fn controller(&self) -> IoController {
        let own = self.0.strip_prefix(CGROUPS).unwrap().join("a");
        let own = format!("0::/{}\n", own.display());
        must(IoController::below(Path::new(CGROUPS), &own))
    }

    /// Runs a script in both pods at the same time, with the name of the pod as `$1`, and returns
    /// the seconds that they take together.
    fn run(&self, script: &str) -> f64 {
        let started = Instant::now();
        std::thread::scope(|scope| {
            for pod in ["a", "b"] {
                let procs = self.0.join(pod).join("cgroup.procs");
                let script = format!("echo $$ >{}; {script}", procs.display());
                scope.spawn(move || run("sh", &["-euc", &script, "sh", pod]));
            }
        });
        started.elapsed().as_secs_f64()
    }
}

impl Drop for Pods {
    fn drop(&mut self) {
        for folder in ["a", "b", "", ".."] {
            let _ = fs::remove_dir(self.0.join(folder));
        }
    }
}

fn limit(machine: &Machine, pods: &Pods, image: &Uid, limits: IoLimits) {
    let wanted = HashMap::from([(image.clone(), limits)]);
    let failed = machine.root().limit_io(&pods.controller(), &wanted);
    assert!(failed.as_ref().is_ok_and(HashMap::is_empty), "{failed:?}");
}

fn io_max(pods: &Pods) -> String {
    fs::read_to_string(pods.0.join("io.max")).unwrap()
}

fn written_at_most(bytes: Bytes) -> IoLimits {
    IoLimits {
        write_bytes_per_second: Some(bytes),
        ..IoLimits::NONE
    }
}

/// A staged volume with ext4.
fn staged(machine: &Machine, pool: &Pool) -> (Image, PathBuf) {
    let request = ImageRequest {
        uid: machine.uid("a"),
        ..request(
            "a",
            Bytes::mib(200),
            FilesystemType::Ext4,
            Provisioning::Thick,
        )
    };
    let image = must(pool.create_image(&request));
    let staging = machine.staging("s");
    must(pool.stage(&Volume::new(&image).stage(&staging)));
    (image, staging)
}

#[test]
#[ignore = "needs cgroup v2, which the virtual machine has"]
fn limits_of_an_attached_volume_are_set_and_removed_and_those_of_others_are_left() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let pods = Pods::new();
    let (image, staging) = staged(&machine, &pool);
    let all = IoLimits {
        read_iops: Some(100),
        write_iops: Some(200),
        read_bytes_per_second: Some(Bytes::mib(3)),
        write_bytes_per_second: Some(Bytes::mib(4)),
    };
    limit(&machine, &pods, &image.uid, all);
    let line = io_max(&pods);
    assert!(
        line.starts_with("7:")
            && line.ends_with(" rbps=3145728 wbps=4194304 riops=100 wiops=200\n"),
        "{line}"
    );
    // The next round finds what it wants, and a change in the class is one line again.
    limit(&machine, &pods, &image.uid, all);
    assert_eq!(io_max(&pods), line);
    limit(&machine, &pods, &image.uid, IoLimits::NONE);
    assert_eq!(io_max(&pods), "");

    // Another program's device keeps its limits, and one that is bound to nothing loses them.
    let pools_own = machine.inventory().loops;
    let bound = must(Linux::new(machine.path("dev")).bound_loops());
    let other = bound
        .iter()
        .find(|it| it.backing_file.extension().is_some())
        .unwrap();
    let max = pods.0.join("io.max");
    fs::write(&max, format!("7:{} wiops=77", other.number)).unwrap();
    limit(&machine, &pods, &image.uid, all);
    unstage(&machine, &image.uid, &staging);
    assert_eq!(io_max(&pods).lines().count(), 2, "{pools_own:?}");
    limit(&machine, &pods, &image.uid, all);
    let left = io_max(&pods);
    assert!(
        left.contains("wiops=77") && left.lines().count() == 1,
        "{left}"
    );
}

#[test]
#[ignore = "needs cgroup v2, which the virtual machine has"]
fn a_limit_holds_for_two_pods_together_with_direct_and_with_buffered_writes() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let pods = Pods::new();
    let (image, staging) = staged(&machine, &pool);
    limit(&machine, &pods, &image.uid, written_at_most(Bytes::mib(4)));
    for (kind, flags) in [("direct", "oflag=direct"), ("buffered", "conv=fsync")] {
        let script = format!(
            "dd if=/dev/zero of={}/$1 bs=256k count=48 {flags} 2>/dev/null",
            staging.display()
        );
        let seconds = pods.run(&script);
        // 24 MiB at 4 MiB/s take 6 s. A slow machine takes longer, and a broken limit less.
        assert!(seconds >= 5.4, "{kind}: 24 MiB in {seconds:.1} s");
        run("sh", &["-c", &format!("rm {}/[ab]", staging.display())]);
    }
    limit(&machine, &pods, &image.uid, IoLimits::NONE);
    unstage(&machine, &image.uid, &staging);
}

#[test]
#[ignore = "needs cgroup v2, which the virtual machine has"]
fn the_operations_of_a_raw_block_volume_are_limited() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let pods = Pods::new();
    let request = ImageRequest {
        filesystem: None,
        uid: machine.uid("b"),
        ..request(
            "b",
            Bytes::mib(16),
            FilesystemType::Ext4,
            Provisioning::Thick,
        )
    };
    let image = must(pool.create_image(&request));
    let staging = machine.staging("s");
    must(pool.stage_block(&BlockStageRequest {
        image: &image.uid,
        volume: &request.volume,
        size: image.size,
        staging: &staging,
    }));
    let limits = IoLimits {
        read_iops: Some(50),
        ..IoLimits::NONE
    };
    limit(&machine, &pods, &image.uid, limits);
    let device = {
        let line = io_max(&pods);
        let minor = line.split([':', ' ']).nth(1).unwrap().to_owned();
        format!("/dev/loop{minor}")
    };
    let script = format!("dd if={device} of=/dev/null bs=4k count=150 iflag=direct 2>/dev/null");
    let seconds = pods.run(&script);
    // 300 reads at 50 each second take 6 s.
    assert!(seconds >= 5.4, "300 reads in {seconds:.1} s");
    limit(&machine, &pods, &image.uid, IoLimits::NONE);
    must(machine.root().unstage(&staging));
}
