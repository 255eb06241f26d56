//! Limits of the I/O of volumes, on a kernel with cgroup v2. The virtual machine of `e2e/vm` has it.

mod encrypted;
mod logical;

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use cistern_host::{
    BlockStageRequest, Image, ImageRequest, Pool, Uid,
    system::{Devices as _, Linux},
};
use cistern_types::{Bytes, FilesystemType, IoLimits, Provisioning};

use crate::{
    cgroups::Pods,
    harness::{Machine, Volume, eventually, must, open_new, request, run, unstage},
    scenario::Volumes as _,
};

fn limit(machine: &Machine, pods: &Pods, image: &Uid, limits: IoLimits) {
    let wanted = HashMap::from([(image.clone(), limits)]);
    let failed = machine.root().limit_io(&pods.controller(), &wanted);
    assert!(failed.as_ref().is_ok_and(HashMap::is_empty), "{failed:?}");
}

/// A limit in bytes per second.
const WRITES: u32 = 2 << 20;

fn written_at_most(bytes: u64) -> IoLimits {
    IoLimits {
        write_bytes_per_second: Some(Bytes(bytes)),
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
    let image = must(pool.new_image(&request));
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
    let line = pods.io_max();
    assert!(
        line.starts_with("7:")
            && line.ends_with(" rbps=3145728 wbps=4194304 riops=100 wiops=200\n"),
        "{line}"
    );
    // The next round finds what it wants, and a change in the class is one line again.
    limit(&machine, &pods, &image.uid, all);
    assert_eq!(pods.io_max(), line);
    limit(&machine, &pods, &image.uid, IoLimits::NONE);
    assert_eq!(pods.io_max(), "");

    // Another program's device keeps its limits, and one that is bound to nothing loses them.
    let pools_own = machine.inventory().loops;
    let bound = must(Linux::new(machine.path("dev")).bound_loops());
    let other = bound
        .iter()
        .find(|it| it.backing_file.extension().is_some())
        .unwrap();
    pods.set_io_max(&format!("7:{} wiops=77", other.number));
    limit(&machine, &pods, &image.uid, all);
    unstage(&machine, &image.uid, &staging);
    assert_eq!(pods.io_max().lines().count(), 2, "{pools_own:?}");
    // Another test may bind the device in the meantime, and then it is not this one's.
    eventually("the limits of the unbound device to be removed", || {
        limit(&machine, &pods, &image.uid, all);
        let bound = must(Linux::new(machine.path("dev")).bound_loops());
        let left = pods.io_max();
        left.contains("wiops=77")
            && left.lines().all(|line| {
                let is_on = |number| line.starts_with(&format!("7:{number} "));
                bound.iter().any(|it| is_on(it.number))
            })
    });
}

/// What two pods do to a limited device together.
#[derive(Debug)]
struct Measured {
    /// Amount of the pods' statistic in a second.
    rate: f64,
    /// Amount of the pods' statistic.
    amount: u64,
    /// Bytes written to the device by others than the pods: journal and metadata, which the kernel
    /// writes for all cgroups.
    others_wrote: u64,
}

/// Runs a script in both pods and measures a statistic of theirs.
fn measure(pods: &Pods, statistic: &str, script: &str) -> Measured {
    let device = pods.limited_device();
    let now = || pods.statistic(&device, statistic);
    let others = || written(&device) - pods.statistic(&device, "wbytes");
    let (begin, others_begin) = (now(), others());
    // From the first change to the last: starting the programs takes time as well. Each amount is of a time between two, as
    // the thread may lose its processor in between.
    let mut changes = vec![(Instant::now()..Instant::now(), begin)];
    thread::scope(|scope| {
        let pods = scope.spawn(|| pods.run(script));
        while !pods.is_finished() {
            let (before, amount) = (Instant::now(), now());
            if changes.last().is_some_and(|(_, last)| *last != amount) {
                changes.push((before..Instant::now(), amount));
            }
            thread::sleep(Duration::from_millis(10));
        }
    });
    let amount = now() - begin;
    // While the last processes end, less waits than the limit permits.
    changes.retain(|(_, at)| at - begin <= amount / 4 * 3);
    let ((from, first), (to, last)) = (&changes[1], &changes[changes.len() - 1]);
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let rate = (last - first) as f64 / (to.end - from.start).as_secs_f64();
    Measured {
        rate,
        amount,
        others_wrote: others() - others_begin,
    }
}

/// Number of processes in each pod: some always wait for the limit, so a slow machine reaches it.
const PROCESSES: u64 = 4;

/// A script that runs a command in several processes, with the number of each in `$process`.
fn at_once(command: &str) -> String {
    let numbers: Vec<_> = (0..PROCESSES).map(|it| it.to_string()).collect();
    format!(
        "for process in {}; do {command} & done; wait",
        numbers.join(" ")
    )
}

/// Bytes written to a device by everyone.
fn written(device: &str) -> u64 {
    let statistics = fs::read_to_string(format!("/sys/dev/block/{device}/stat")).unwrap();
    let sectors: u64 = statistics
        .split_whitespace()
        .nth(6)
        .unwrap()
        .parse()
        .unwrap();
    sectors * 512
}

/// Asserts that a limit is never exceeded by more than 10 %, and that at least 90 % of it are
/// reached. The kernel forgets what it could not dispatch in time, so a busy machine gets several
/// attempts for the second.
#[track_caller]
fn assert_is_limited(what: &str, limit: u32, mut measure: impl FnMut() -> Measured) {
    for _ in 0..10 {
        let measured = measure();
        let ratio = measured.rate / f64::from(limit);
        let (percent, others) = (100. * ratio, Bytes(measured.others_wrote));
        eprintln!("{what}: {percent:.1} % of the limit; journal and metadata apart: {others}");
        assert!(ratio <= 1.1, "{what}: {measured:?}");
        if ratio >= 0.9 {
            return;
        }
    }
    panic!("{what}: less than 90 % of the limit in every attempt");
}

#[test]
#[ignore = "needs cgroup v2, which the virtual machine has"]
fn a_limit_holds_for_two_pods_together_with_direct_and_with_buffered_writes() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let pods = Pods::new();
    let (image, staging) = staged(&machine, &pool);
    limit(&machine, &pods, &image.uid, written_at_most(WRITES.into()));
    assert_writes_are_limited(&pods, &staging);
    limit(&machine, &pods, &image.uid, IoLimits::NONE);
    unstage(&machine, &image.uid, &staging);
}

/// Asserts that two pods together write no faster than [`WRITES`], and that all they write counts.
#[track_caller]
fn assert_writes_are_limited(pods: &Pods, staging: &Path) {
    const DATA: u64 = 20 << 20;
    for (kind, flags) in [("direct", "oflag=direct"), ("buffered", "conv=fsync")] {
        let write = format!(
            "dd if=/dev/zero of={}/$1.$process bs=256k count={} {flags} 2>/dev/null",
            staging.display(),
            DATA / (256 << 10) / (2 * PROCESSES)
        );
        let script = at_once(&write);
        assert_is_limited(kind, WRITES, || {
            let measured = measure(pods, "wbytes", &script);
            // All data counts, and little else.
            let data = DATA..=DATA + (1 << 20);
            assert!(data.contains(&measured.amount), "{kind}: {measured:?}");
            run("sh", &["-c", &format!("rm {}/[ab].*", staging.display())]);
            measured
        });
    }
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
    let image = must(pool.new_image(&request));
    let staging = machine.staging("s");
    must(pool.stage_block(&BlockStageRequest {
        unlock: None,
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
    let minor = pods.limited_device().replace("7:", "");
    let read =
        format!("dd if=/dev/loop{minor} of=/dev/null bs=4k count=50 iflag=direct 2>/dev/null");
    assert_is_limited("reads", 50, || {
        let measured = measure(&pods, "rios", &at_once(&read));
        assert_eq!(measured.amount, 50 * 2 * PROCESSES);
        measured
    });
    limit(&machine, &pods, &image.uid, IoLimits::NONE);
    must(machine.root().unstage(&staging));
}
