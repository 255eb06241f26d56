//! The steps into which faults are injected, in their order, with what each begins with.

use std::{fs, os::unix::fs::symlink};

use cistern_host::{Expectation, system::Fault};
use cistern_types::Bytes;

use super::{digest, known, reaches, walk, without_fault};
use crate::{
    device::Disk,
    harness::{Machine, must, unmount},
    scenario::{self, Step},
};

/// The lifecycle of a volume with a filesystem: each step and its inverse.
pub(super) const VOLUME: [(Step, Step); 6] = [
    (Step::Create, Step::Remove),
    (Step::Stage, Step::Unstage),
    (Step::Publish, Step::Unpublish),
    (Step::Unpublish, Step::Publish),
    (Step::Unstage, Step::Stage),
    (Step::Remove, Step::Create),
];
/// The lifecycle of a raw block volume: each step and its inverse.
pub(super) const BLOCK_VOLUME: [(Step, Step); 6] = [
    (Step::CreateDevice, Step::RemoveDevice),
    (Step::StageDevice, Step::Unstage),
    (Step::PublishDevice, Step::Unpublish),
    (Step::Unpublish, Step::PublishDevice),
    (Step::Unstage, Step::StageDevice),
    (Step::RemoveDevice, Step::CreateDevice),
];

/// Injects faults into the lifecycle of a volume, and undoes each step by its inverse.
pub(super) fn walk_life(fault: Fault, life: &[(Step, Step)]) {
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
pub(super) fn walk_growth(fault: Fault) {
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
pub(super) fn walk_provisioning(fault: Fault) {
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
pub(super) fn walk_snapshots(fault: Fault) {
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
pub(super) fn walk_restore(fault: Fault, step: Step) {
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
pub(super) fn walk_pool(fault: Fault) {
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
pub(super) fn walk_return(fault: Fault) {
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
pub(super) fn walk_device_return(fault: Fault) {
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
pub(super) fn walk_trash(fault: Fault) {
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
pub(super) fn walk_move(fault: Fault) {
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
pub(super) fn walk_pass(fault: Fault) {
    let (dismiss, prepare) = (Step::DismissPass, Step::PreparePass);
    walk_prepared(fault, [dismiss, prepare], &[Step::Pass, Step::Promote]);
}

/// A filesystem that a program has written to a raw block volume is adopted.
pub(super) fn walk_filesystem_adoption(fault: Fault) {
    let (dismiss, prepare) = (Step::DismissRaw, Step::PrepareRaw);
    walk_prepared(fault, [dismiss, prepare], &[Step::AdoptFilesystem]);
}

/// An encrypted volume is formatted when it is staged for the first time.
pub(super) fn walk_encryption(fault: Fault) {
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
pub(super) fn walk_device(fault: Fault) {
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
