//! Injects a fault at every system call. A later run without a fault ends in the same state as if the
//! fault had not occurred (requirements R02, R06, R15).

mod clones;

use std::{
    fs,
    os::{
        fd::AsFd as _,
        unix::{fs::symlink, process::ExitStatusExt as _},
    },
    path::Path,
    sync::Arc,
};

use cistern_host::{
    Expectation, Uid,
    copy::IncomingCopy,
    system::{FailAt, Fault, OFlags},
};
use cistern_types::Bytes;

use crate::{
    device::Disk,
    harness::{Machine, comes, eventually, must, unmount},
    scenario::{self, Step},
};

/// Upper bound for the calls of any step.
const LIMIT: u64 = 500;

/// Runs a step without a fault. `expectation` is what the agent has recorded of the pool.
fn without_fault(machine: &Machine, step: Step, expectation: Expectation) {
    let system = Arc::clone(&machine.system);
    scenario::run(step, &machine.folder, system, expectation).unwrap_or_else(|error| {
        panic!(
            "{step:?} without a fault: {}",
            crate::harness::chain(&*error)
        )
    });
}

/// Runs a step with one fault; false if the step makes fewer calls.
fn with_fault(
    machine: &Machine,
    step: Step,
    expectation: Expectation,
    fault: Fault,
    at: u64,
) -> bool {
    if fault == Fault::Kill {
        return is_killed(machine, step, expectation, at);
    }
    let system = Arc::new(FailAt::new(Arc::clone(&machine.system), fault, at));
    let result = scenario::run(step, &machine.folder, Arc::clone(&system) as _, expectation);
    if !system.has_failed() {
        result.unwrap_or_else(|error| {
            let why = crate::harness::chain(&*error);
            panic!("{step:?}: an error without a fault: {why}")
        });
        return false;
    }
    true
}

fn is_killed(machine: &Machine, step: Step, expectation: Expectation, at: u64) -> bool {
    let expectation = match expectation {
        Expectation::New => "new".to_owned(),
        Expectation::Made => panic!("no step has this expectation"),
        Expectation::Known { filesystem_uuid } => filesystem_uuid.to_string(),
    };
    #[expect(clippy::disallowed_methods, reason = "a process that the fault kills")]
    let status = std::process::Command::new(env!("CARGO_BIN_EXE_step"))
        .arg(format!("{step:?}"))
        .arg(&machine.folder)
        .arg(expectation)
        .arg(at.to_string())
        .status()
        .unwrap();
    match (status.signal(), status.code()) {
        (Some(9), _) => true,
        (None, Some(0)) => false,
        _ => panic!("{step:?} at {at}: {status}"),
    }
}

/// The state of the machine, without UUIDs and numbers, which differ from run to run.
fn digest(machine: &Machine) -> String {
    let inventory = machine.inventory();
    let pools = inventory.pools.iter().map(|pool| {
        let images = pool.images.iter().map(|image| {
            let identity = image.identity.as_ref();
            let identity = identity.map(|it| {
                let filesystem = it.content.filesystem();
                (it.owner.to_string(), filesystem, it.provisioning)
            });
            // A mounted ext4 initializes its inode tables some time later, which punches small holes.
            // The agent allocates them again at its next reconcile.
            let is_allocated = image.allocated.0 >= image.size.0 / 10 * 9;
            let marks = marks(machine, &pool.mount_point, &image.uid);
            (&image.uid, identity, image.size, is_allocated, marks)
        });
        let images: Vec<_> = images.collect();
        let closed = pool.closed.iter().map(|it| (&it.image.uid, &it.by));
        let closed: Vec<_> = closed.collect();
        let discarded: Vec<_> = pool.discarded.iter().map(|it| &it.image.uid).collect();
        let is_mounted = pool.filesystem_uuid.is_some();
        let (uid, has_file) = (&pool.uid, pool.has_file);
        let incoming = pool.incoming.iter().map(IncomingCopy::file_name);
        let incoming: Vec<_> = incoming.collect();
        let others = (incoming, &pool.temporary, &pool.strays);
        format!("{uid} {closed:?} {discarded:?} {is_mounted} {has_file} {images:?} {others:?}")
    });
    let loops = inventory
        .loops
        .iter()
        .map(|bound| format!("loop {}", bound.backing_file.display()));
    let nodes = inventory.nodes.iter().map(|node| &node.mount);
    let mounts = inventory.mounts.iter().chain(nodes).map(|mount| {
        // A staged filesystem has grown to the same size.
        let staged = mount.mount_point.starts_with(machine.path("kubelet"));
        let blocks = staged.then(|| rustix::fs::statvfs(&mount.mount_point).unwrap().f_blocks);
        format!(
            "{} {:?} {} {blocks:?}",
            mount.mount_point.display(),
            mount.mount_options,
            mount.filesystem
        )
    });
    let kubelet = ["kubelet", "kubelet/globalmount"].into_iter();
    let kubelet = kubelet.filter_map(|folder| fs::read_dir(machine.path(folder)).ok());
    let kubelet = kubelet.flatten();
    let kubelet = kubelet.map(|entry| entry.unwrap().path().display().to_string());
    let strays = inventory
        .strays
        .iter()
        .map(|stray| format!("stray {}", stray.display()));
    let mut all: Vec<String> = loops.chain(mounts).chain(kubelet).chain(strays).collect();
    all.sort();
    pools.chain(all).collect::<Vec<_>>().join("\n")
}

/// Which extended attributes an image has besides its identity.
fn marks(machine: &Machine, pool: &Path, image: &Uid) -> Vec<&'static str> {
    let path = pool.join("images").join(image.as_str());
    let file = machine.system.open(&path, OFlags::RDONLY).unwrap();
    let mut names = vec!["trusted.cistern.fence", "trusted.cistern.copy"];
    names.retain(|name| {
        let value = machine.system.attribute(file.as_fd(), name).unwrap();
        value.is_some()
    });
    names
}

/// How many loop devices are bound after a step: the pool's, and the volume's while it is staged.
fn loops_after(step: Step) -> usize {
    match step {
        // The loop device of a device pool's disk belongs to the test.
        Step::MakeDevicePool | Step::AdoptDevicePool | Step::RemovePool => 0,
        Step::MakePool
        | Step::GrowPool
        | Step::Create
        | Step::Grow
        | Step::MakeThin
        | Step::MakeThick
        | Step::Unstage
        | Step::Dismiss
        | Step::CreateDevice
        | Step::RemoveDevice
        | Step::PrepareSource
        | Step::Restore
        | Step::Receive
        | Step::RemoveRestored
        | Step::RemoveSource
        | Step::Open
        | Step::AdoptPool
        | Step::Discard
        | Step::TakeBack
        | Step::RemoveDiscarded
        | Step::BeginClosing
        | Step::Close
        | Step::Reopen
        | Step::RemoveClosed
        | Step::PrepareCopy
        | Step::OpenCopy
        | Step::PreparePass
        | Step::Pass
        | Step::Promote
        | Step::DismissPass
        | Step::PrepareRaw
        | Step::AdoptFilesystem
        | Step::DismissRaw
        | Step::PrepareEncrypted
        | Step::DismissEncrypted
        | Step::PrepareEncryptedSource
        | Step::CloneEncrypted
        | Step::DismissClone
        | Step::StageEach
        | Step::DismissEncryptedSource
        | Step::Remove => 1,
        Step::SnapshotFrozen
        | Step::Stage
        | Step::AdoptUsed
        | Step::StageGrown
        | Step::Prepare
        | Step::Expand
        | Step::StageEncrypted
        | Step::StageClone
        | Step::StageDevice
        | Step::PublishDevice
        | Step::Publish
        | Step::Unpublish => 2,
        Step::PrepareGroup | Step::SnapshotGroup | Step::RemoveSnapshots | Step::DismissGroup => 3,
    }
}

/// Waits until the machine has the expected state. A process that inspects a loop device or is being
/// started keeps the device bound briefly.
#[track_caller]
fn reaches(machine: &Machine, expected: &str, what: &str) {
    let mut found = String::new();
    let reached = comes(|| {
        found = digest(machine);
        found == expected
    });
    assert!(reached, "{what}: found\n{found}\nexpected\n{expected}");
}

/// The first call of a step at which a fault is injected. The steps of volumes and pools cover the
/// calls that open a pool.
fn first_call(machine: &Machine, step: Step, expectation: Expectation) -> u64 {
    if !matches!(
        step,
        Step::SnapshotFrozen
            | Step::SnapshotGroup
            | Step::Restore
            | Step::Receive
            | Step::Pass
            | Step::Promote
            | Step::AdoptFilesystem
            | Step::StageEncrypted
            | Step::StageClone
    ) {
        return 1;
    }
    let system = FailAt::new(Arc::clone(&machine.system), Fault::Error, u64::MAX);
    let system = Arc::new(system);
    let opened = scenario::run(
        Step::Open,
        &machine.folder,
        Arc::clone(&system) as _,
        expectation,
    );
    opened.unwrap_or_else(|error| panic!("opening: {error}"));
    // Begin some calls earlier, because the number of loop devices of other tests varies.
    system.calls().saturating_sub(5)
}

/// Injects the fault at each call of a step. `before` prepares the initial state of each run.
fn walk(
    machine: &Machine,
    step: Step,
    fault: Fault,
    expectation: impl Fn() -> Expectation,
    before: impl Fn(),
) {
    before();
    without_fault(machine, step, expectation());
    let mut expected = String::new();
    eventually("the last user of every loop device", || {
        expected = digest(machine);
        expected.matches("loop ").count() == loops_after(step)
    });
    let first = first_call(machine, step, expectation());
    for at in first..LIMIT {
        before();
        let known = expectation();
        if !with_fault(machine, step, known, fault, at) {
            assert!(at > first + 3, "{step:?} made no calls");
            return;
        }
        if fault == Fault::Error {
            // After an error the agent does not restart, so nothing else thaws.
            let frozen = scenario::thaw(&machine.root()).unwrap();
            assert_eq!(frozen, [], "{step:?} with an error at call {at}");
        }
        without_fault(machine, step, known);
        reaches(
            machine,
            &expected,
            &format!("{step:?} with {fault:?} at call {at}"),
        );
    }
    panic!("{step:?} needs more than {LIMIT} calls");
}

fn known(machine: &Machine) -> Expectation {
    let pools = machine.inventory().pools;
    let found = pools.first().and_then(|pool| pool.filesystem_uuid);
    found.map_or(Expectation::New, |filesystem_uuid| Expectation::Known {
        filesystem_uuid,
    })
}

/// The lifecycle of a volume with a filesystem: each step and its inverse.
const VOLUME: [(Step, Step); 6] = [
    (Step::Create, Step::Remove),
    (Step::Stage, Step::Unstage),
    (Step::Publish, Step::Unpublish),
    (Step::Unpublish, Step::Publish),
    (Step::Unstage, Step::Stage),
    (Step::Remove, Step::Create),
];
/// The lifecycle of a raw block volume: each step and its inverse.
const BLOCK_VOLUME: [(Step, Step); 6] = [
    (Step::CreateDevice, Step::RemoveDevice),
    (Step::StageDevice, Step::Unstage),
    (Step::PublishDevice, Step::Unpublish),
    (Step::Unpublish, Step::PublishDevice),
    (Step::Unstage, Step::StageDevice),
    (Step::RemoveDevice, Step::CreateDevice),
];

/// Injects faults into the lifecycle of a volume, and undoes each step by its inverse.
fn walk_life(fault: Fault, life: &[(Step, Step)]) {
    let machine = Machine::new();
    machine.staging("globalmount");
    without_fault(&machine, Step::MakePool, Expectation::New);
    let empty = digest(&machine);
    let expectation = known(&machine);
    for &(step, undo) in life {
        let undo = || without_fault(&machine, undo, expectation);
        walk(&machine, step, fault, || expectation, undo);
    }
    reaches(&machine, &empty, "nothing left");
}

/// A volume grows: its image, then its filesystem, before and while it is mounted.
fn walk_growth(fault: Fault) {
    let machine = Machine::new();
    machine.staging("globalmount");
    without_fault(&machine, Step::MakePool, Expectation::New);
    let empty = digest(&machine);
    let expectation = known(&machine);
    let no_fault = |steps: &[Step]| {
        for step in steps {
            without_fault(&machine, *step, expectation);
        }
    };
    no_fault(&[Step::Create]);
    let anew = [Step::Unstage, Step::Remove, Step::Create];
    let grown = [&anew[..], &[Step::Grow]].concat();
    walk(
        &machine,
        Step::Grow,
        fault,
        || expectation,
        || no_fault(&anew),
    );
    walk(
        &machine,
        Step::StageGrown,
        fault,
        || expectation,
        || no_fault(&grown),
    );
    no_fault(&[Step::Unstage, Step::Remove]);
    let prepare = [Step::Dismiss, Step::Prepare];
    walk(
        &machine,
        Step::Expand,
        fault,
        || expectation,
        || no_fault(&prepare),
    );
    no_fault(&[Step::Dismiss]);
    reaches(&machine, &empty, "nothing left");
}

/// A volume becomes thin and thick.
fn walk_provisioning(fault: Fault) {
    let machine = Machine::new();
    without_fault(&machine, Step::MakePool, Expectation::New);
    let expectation = known(&machine);
    let no_fault = |step| without_fault(&machine, step, expectation);
    no_fault(Step::Create);
    for (step, before) in [
        (Step::MakeThin, Step::MakeThick),
        (Step::MakeThick, Step::MakeThin),
    ] {
        walk(&machine, step, fault, || expectation, || no_fault(before));
    }
}

/// Snapshots of a frozen filesystem, and of a group with a raw block volume.
fn walk_snapshots(fault: Fault) {
    let machine = Machine::new();
    machine.staging("globalmount");
    machine.staging("device");
    without_fault(&machine, Step::MakePool, Expectation::New);
    let empty = digest(&machine);
    let expectation = known(&machine);
    let no_fault = |step| without_fault(&machine, step, expectation);
    no_fault(Step::Create);
    no_fault(Step::Stage);
    let undo = || no_fault(Step::RemoveSnapshots);
    walk(&machine, Step::SnapshotFrozen, fault, || expectation, undo);
    no_fault(Step::RemoveSnapshots);
    no_fault(Step::PrepareGroup);
    walk(&machine, Step::SnapshotGroup, fault, || expectation, undo);
    for step in [
        Step::RemoveSnapshots,
        Step::DismissGroup,
        Step::Unstage,
        Step::Remove,
    ] {
        no_fault(step);
    }
    reaches(&machine, &empty, "nothing left");
}

/// A larger volume is restored from a snapshot, of its own pool or copied.
fn walk_restore(fault: Fault, step: Step) {
    let machine = Machine::new();
    without_fault(&machine, Step::MakePool, Expectation::New);
    let empty = digest(&machine);
    let expectation = known(&machine);
    let no_fault = |step| without_fault(&machine, step, expectation);
    no_fault(Step::PrepareSource);
    let undo = || no_fault(Step::RemoveRestored);
    walk(&machine, step, fault, || expectation, undo);
    no_fault(Step::RemoveRestored);
    no_fault(Step::RemoveSource);
    reaches(&machine, &empty, "nothing left");
}

/// The lifecycle of a pool: created, grown, removed.
fn walk_pool(fault: Fault) {
    let machine = Machine::new();
    let nothing = digest(&machine);
    let remove = || {
        let expectation = known(&machine);
        must(
            machine
                .root()
                .remove_pool(&scenario::pool(Bytes::gib(1)), expectation),
        );
    };
    let renew = || {
        remove();
        without_fault(&machine, Step::MakePool, Expectation::New);
    };
    walk(&machine, Step::MakePool, fault, || Expectation::New, remove);
    walk(&machine, Step::GrowPool, fault, || known(&machine), renew);
    walk(&machine, Step::RemovePool, fault, || known(&machine), renew);
    reaches(&machine, &nothing, "nothing left");
}

/// A pool is adopted under another UID, and under its first one again before each step.
fn walk_return(fault: Fault) {
    let machine = Machine::new();
    machine.staging("globalmount");
    let no_fault = |step| without_fault(&machine, step, Expectation::New);
    no_fault(Step::MakePool);
    let mounted = digest(&machine);
    no_fault(Step::Create);
    no_fault(Step::Stage);
    let first = || no_fault(Step::MakePool);
    walk(&machine, Step::AdoptUsed, fault, || Expectation::New, first);
    for step in [Step::MakePool, Step::Unstage, Step::Remove] {
        no_fault(step);
    }
    let reboot = || unmount(&machine.mount_point(&scenario::pool(Bytes::ZERO)));
    let first = || {
        no_fault(Step::MakePool);
        reboot();
    };
    walk(&machine, Step::AdoptPool, fault, || Expectation::New, first);
    no_fault(Step::MakePool);
    reaches(&machine, &mounted, "the initial state of the pool");
}

/// A pool on a device is adopted under another UID, and each adoption renames its mount point.
fn walk_device_return(fault: Fault) {
    let machine = Machine::new();
    let disk = Disk::new(&machine, "disk-file");
    symlink(&disk.device, machine.path("disk")).unwrap();
    let reboot = || {
        for pool in [scenario::pool(Bytes::ZERO), scenario::returned(Bytes::ZERO)] {
            let at = machine.mount_point(&pool);
            if machine.mounts().contains(&at) {
                unmount(&at);
            }
        }
    };
    let first = || {
        reboot();
        without_fault(&machine, Step::MakeDevicePool, Expectation::New);
        reboot();
    };
    let step = Step::AdoptDevicePool;
    walk(&machine, step, fault, || Expectation::New, first);
    reboot();
}

/// A volume is discarded, restored, and removed from the trash.
fn walk_trash(fault: Fault) {
    let machine = Machine::new();
    without_fault(&machine, Step::MakePool, Expectation::New);
    let expectation = known(&machine);
    let no_fault = |step| without_fault(&machine, step, expectation);
    let kept = || {
        no_fault(Step::TakeBack);
        no_fault(Step::Create);
    };
    let gone = || {
        kept();
        no_fault(Step::Discard);
    };
    walk(&machine, Step::Discard, fault, || expectation, kept);
    walk(&machine, Step::TakeBack, fault, || expectation, gone);
    walk(&machine, Step::RemoveDiscarded, fault, || expectation, gone);
    assert!(machine.inventory().pools[0].images.is_empty());
}

/// A volume is closed for a move, opened again, closed and removed; and it moves here.
fn walk_move(fault: Fault) {
    let machine = Machine::new();
    without_fault(&machine, Step::MakePool, Expectation::New);
    let empty = digest(&machine);
    let expectation = known(&machine);
    let no_fault = |steps: &[Step]| {
        for step in steps {
            without_fault(&machine, *step, expectation);
        }
    };
    let walk = |step, before: &[Step]| {
        walk(&machine, step, fault, || expectation, || no_fault(before));
    };
    let (closing, close) = (Step::BeginClosing, Step::Close);
    no_fault(&[Step::Create]);
    walk(closing, &[Step::Reopen]);
    walk(Step::Reopen, &[closing]);
    walk(close, &[Step::Reopen, closing]);
    walk(Step::Reopen, &[closing, close]);
    walk(Step::RemoveClosed, &[Step::Create, closing, close]);
    no_fault(&[Step::Create]);
    walk(Step::OpenCopy, &[Step::PrepareCopy]);
    no_fault(&[Step::Remove]);
    reaches(&machine, &empty, "nothing left");
}

/// A snapshot of a volume that is used while it moves here is copied over the one before, and the copy is made the volume.
fn walk_pass(fault: Fault) {
    let (dismiss, prepare) = (Step::DismissPass, Step::PreparePass);
    walk_prepared(fault, [dismiss, prepare], &[Step::Pass, Step::Promote]);
}

/// A filesystem that a program has written to a raw block volume is adopted.
fn walk_filesystem_adoption(fault: Fault) {
    let (dismiss, prepare) = (Step::DismissRaw, Step::PrepareRaw);
    walk_prepared(fault, [dismiss, prepare], &[Step::AdoptFilesystem]);
}

/// An encrypted volume is formatted when it is staged for the first time.
fn walk_encryption(fault: Fault) {
    let (dismiss, prepare) = (Step::DismissEncrypted, Step::PrepareEncrypted);
    walk_prepared(fault, [dismiss, prepare], &[Step::StageEncrypted]);
}

/// Walks steps, each of which begins with what another step prepares.
fn walk_prepared(fault: Fault, [dismiss, prepare]: [Step; 2], steps: &[Step]) {
    let machine = Machine::new();
    without_fault(&machine, Step::MakePool, Expectation::New);
    let empty = digest(&machine);
    let expectation = known(&machine);
    let no_fault = |step| without_fault(&machine, step, expectation);
    let anew = || {
        no_fault(dismiss);
        no_fault(prepare);
    };
    for step in steps {
        walk(&machine, *step, fault, || expectation, anew);
    }
    no_fault(dismiss);
    reaches(&machine, &empty, "nothing left");
}

/// A pool is created on a device, which is blank again each time.
fn walk_device(fault: Fault) {
    let machine = Machine::new();
    let disk = Disk::new(&machine, "disk-file");
    symlink(&disk.device, machine.path("disk")).unwrap();
    let nothing = digest(&machine);
    let at = machine.mount_point(&scenario::pool(Bytes::ZERO));
    let blank = || {
        if machine.mounts().contains(&at) {
            unmount(&at);
        }
        let _ = fs::remove_dir(&at);
        disk.clear();
    };
    walk(
        &machine,
        Step::MakeDevicePool,
        fault,
        || Expectation::New,
        blank,
    );
    blank();
    reaches(&machine, &nothing, "nothing left");
}

#[test]
fn r15_an_error_at_any_call_of_a_pool_adoption_is_recovered_by_the_next_attempt() {
    walk_return(Fault::Error);
    walk_device_return(Fault::Error);
}

#[test]
fn r02_death_at_any_call_of_a_pool_adoption_is_recovered_by_the_next_attempt() {
    walk_return(Fault::Kill);
    walk_device_return(Fault::Kill);
}

#[test]
fn r15_an_error_at_any_call_of_a_discard_and_restore_is_recovered_by_the_next_attempt() {
    walk_trash(Fault::Error);
}

#[test]
fn r02_death_at_any_call_of_a_discard_and_restore_is_recovered_by_the_next_attempt() {
    walk_trash(Fault::Kill);
}

#[test]
fn r15_an_error_at_any_call_of_a_move_is_recovered_by_the_next_attempt() {
    walk_move(Fault::Error);
}

#[test]
fn r02_death_at_any_call_of_a_move_is_recovered_by_the_next_attempt() {
    walk_move(Fault::Kill);
}

#[test]
fn r15_an_error_at_any_call_of_a_pass_of_a_move_is_recovered_by_the_next_attempt() {
    walk_pass(Fault::Error);
}

#[test]
fn r02_death_at_any_call_of_a_pass_of_a_move_is_recovered_by_the_next_attempt() {
    walk_pass(Fault::Kill);
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn r15_an_error_at_any_call_that_formats_an_encrypted_volume_is_recovered_by_the_next_attempt() {
    walk_encryption(Fault::Error);
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn r02_death_at_any_call_that_formats_an_encrypted_volume_is_recovered_by_the_next_attempt() {
    walk_encryption(Fault::Kill);
}

#[test]
fn r15_an_error_at_any_call_that_adopts_a_filesystem_is_recovered_by_the_next_attempt() {
    walk_filesystem_adoption(Fault::Error);
}

#[test]
fn r02_death_at_any_call_that_adopts_a_filesystem_is_recovered_by_the_next_attempt() {
    walk_filesystem_adoption(Fault::Kill);
}

#[test]
fn r15_an_error_at_any_call_that_makes_a_device_pool_leaves_no_trace() {
    walk_device(Fault::Error);
}

#[test]
fn r02_death_at_any_call_that_makes_a_device_pool_leaves_no_trace() {
    walk_device(Fault::Kill);
}

// Shows: NSV-16, NPV-22.
#[test]
fn r15_an_error_at_any_call_of_a_volumes_life_leaves_no_trace() {
    walk_life(Fault::Error, &VOLUME);
}

// Shows: NSV-16, NPV-22, NUS-07.
#[test]
fn r02_death_at_any_call_of_a_volumes_life_leaves_no_trace() {
    walk_life(Fault::Kill, &VOLUME);
}

#[test]
fn r15_an_error_at_any_call_of_a_growth_is_recovered_by_the_next_attempt() {
    walk_growth(Fault::Error);
}

#[test]
fn r02_death_at_any_call_of_a_growth_is_recovered_by_the_next_attempt() {
    walk_growth(Fault::Kill);
}

#[test]
fn r15_an_error_at_any_call_that_makes_a_volume_thin_or_thick_is_recovered_by_the_next_attempt() {
    walk_provisioning(Fault::Error);
}

#[test]
fn r02_death_at_any_call_that_makes_a_volume_thin_or_thick_is_recovered_by_the_next_attempt() {
    walk_provisioning(Fault::Kill);
}

// Shows: NSV-16, NPV-22.
#[test]
fn r15_an_error_at_any_call_of_a_raw_block_volumes_life_leaves_no_trace() {
    walk_life(Fault::Error, &BLOCK_VOLUME);
}

// Shows: NSV-16, NPV-22, NUS-07.
#[test]
fn r02_death_at_any_call_of_a_raw_block_volumes_life_leaves_no_trace() {
    walk_life(Fault::Kill, &BLOCK_VOLUME);
}

#[test]
fn r15_an_error_at_any_call_that_takes_snapshots_leaves_no_trace_and_nothing_frozen() {
    walk_snapshots(Fault::Error);
}

#[test]
fn r02_death_at_any_call_that_takes_snapshots_leaves_no_trace_and_nothing_frozen() {
    walk_snapshots(Fault::Kill);
}

#[test]
fn r15_an_error_at_any_call_that_clones_leaves_no_trace() {
    walk_restore(Fault::Error, Step::Restore);
}

#[test]
fn r02_death_at_any_call_that_clones_leaves_no_trace() {
    walk_restore(Fault::Kill, Step::Restore);
}

#[test]
fn r15_an_error_at_any_call_that_receives_a_copy_leaves_no_trace() {
    walk_restore(Fault::Error, Step::Receive);
}

#[test]
fn r02_death_at_any_call_that_receives_a_copy_leaves_no_trace() {
    walk_restore(Fault::Kill, Step::Receive);
}

#[test]
fn r15_an_error_at_any_call_of_a_pools_life_leaves_no_trace() {
    walk_pool(Fault::Error);
}

#[test]
fn r02_death_at_any_call_of_a_pools_life_leaves_no_trace() {
    walk_pool(Fault::Kill);
}
