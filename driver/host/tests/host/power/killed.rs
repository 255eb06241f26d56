//! A machine that is killed while it works: `e2e/vm/run-killed` starts this test in a virtual machine, kills that, and starts
//! it again with what a power cut leaves of its disk.
//!
//! The test says on the console how many operations it has acknowledged, and with `CISTERN_ACKNOWLEDGED` the script says that
//! to the next run.

use std::{env, io, path::PathBuf};

use cistern_host::Expectation;
use cistern_types::FilesystemType;

use super::{Layout, Powered, operations::ALL};
use crate::harness::Machine;

/// The disk whose cache is volatile.
const DISK: &str = "/dev/vda";

#[test]
#[ignore = "needs a machine that e2e/vm/run-killed kills and starts again"]
fn r02_a_machine_that_is_killed_while_it_works_has_all_that_was_acknowledged() {
    let acknowledged = number("CISTERN_ACKNOWLEDGED");
    let end = number("CISTERN_OPERATIONS").unwrap();
    let machine = Machine::at(PathBuf::from("/machine"));
    let powered = Powered::new(&machine, Layout::Device, DISK);
    // Before anything was acknowledged there may be no pool.
    let expectation = acknowledged.map_or(Expectation::New, |_| Expectation::Made);
    let operations = powered.operations(FilesystemType::Ext4, expectation);
    let mut done = acknowledged.unwrap_or(0);
    if acknowledged.is_some() {
        // It repeats the operation that was interrupted.
        operations.compare(done % ALL.len());
        done += 1;
    }
    acknowledge(done);
    // After the last of all operations, nothing is staged.
    while done < end || !done.is_multiple_of(ALL.len()) {
        operations.run(ALL[done % ALL.len()]);
        done += 1;
        acknowledge(done);
    }
    drop(operations);
    powered.end();
}

#[expect(clippy::disallowed_methods, reason = "the script has no other way")]
fn number(variable: &str) -> Option<usize> {
    let text = env::var(variable).ok()?;
    Some(text.parse().unwrap())
}

/// Says how many operations have ended. Returns once the console has it.
#[expect(clippy::print_stdout, reason = "the script reads it")]
fn acknowledge(done: usize) {
    println!("acknowledged {done} operations");
    // A test of another machine has no terminal.
    let _ = rustix::termios::tcdrain(io::stdout());
}
