//! Faults while the clone of an encrypted volume gets a key of its own.

use cistern_host::{Expectation, system::Fault};

use super::{digest, known, reaches, walk, without_fault};
use crate::{
    harness::{Machine, image_path, run},
    scenario::{Step, uid},
};

/// A clone is staged for the first time, with a key of its own and the one of its source. The source is not changed.
fn walk_clone(fault: Fault) {
    let machine = Machine::new();
    without_fault(&machine, Step::MakePool, Expectation::New);
    let empty = digest(&machine);
    let expectation = known(&machine);
    let no_fault = |step| without_fault(&machine, step, expectation);
    no_fault(Step::PrepareEncryptedSource);
    let sources = [machine.uid("e"), uid("uid-s")].map(|it| image_path(&machine, &it));
    let sums = || {
        sources
            .each_ref()
            .map(|path| run("cksum", &[path.to_str().unwrap()]))
    };
    let before = sums();
    let anew = || {
        no_fault(Step::DismissClone);
        no_fault(Step::CloneEncrypted);
    };
    walk(&machine, Step::StageClone, fault, || expectation, anew);
    assert_eq!(sums(), before, "the source is not changed");
    for step in [
        Step::StageEach,
        Step::DismissClone,
        Step::DismissEncryptedSource,
    ] {
        no_fault(step);
    }
    reaches(&machine, &empty, "nothing left");
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn r15_an_error_at_any_call_that_gives_an_encrypted_clone_its_key_is_recovered_by_the_next_attempt()
{
    walk_clone(Fault::Error);
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn r02_death_at_any_call_that_gives_an_encrypted_clone_its_key_is_recovered_by_the_next_attempt() {
    walk_clone(Fault::Kill);
}
