//! One step, with a fault at each of its calls.

use std::{os::unix::process::ExitStatusExt as _, sync::Arc};

use cistern_host::{
    Expectation,
    system::{FailAt, Fault},
};

use super::state::{digest, loops_after, reaches};
use crate::{
    harness::{Machine, chain, eventually},
    scenario::{self, Step},
};

/// Upper bound for the calls of any step.
const LIMIT: u64 = 500;

/// Runs a step without a fault. `expectation` is what the agent has recorded of the pool.
pub(super) fn without_fault(machine: &Machine, step: Step, expectation: Expectation) {
    let system = Arc::clone(&machine.system);
    scenario::run(step, &machine.folder, system, expectation)
        .unwrap_or_else(|error| panic!("{step:?} without a fault: {}", chain(&*error)));
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
            let why = chain(&*error);
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
pub(super) fn walk(
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

pub(super) fn known(machine: &Machine) -> Expectation {
    let pools = machine.inventory().pools;
    let found = pools.first().and_then(|pool| pool.filesystem_uuid);
    found.map_or(Expectation::New, |filesystem_uuid| Expectation::Known {
        filesystem_uuid,
    })
}
