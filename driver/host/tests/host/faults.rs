//! Injects a fault at every system call. A later run without a fault ends in the same state as if the
//! fault had not occurred (requirements R02, R06, R15).

mod clones;
mod injection;
mod state;
mod walks;

use cistern_host::system::Fault;

use self::{
    injection::{known, walk, without_fault},
    state::{digest, reaches},
    walks::{
        BLOCK_VOLUME, VOLUME, walk_device, walk_device_return, walk_encryption,
        walk_filesystem_adoption, walk_growth, walk_life, walk_move, walk_pass, walk_pool,
        walk_provisioning, walk_restore, walk_return, walk_snapshots, walk_trash,
    },
};
use crate::scenario::Step;

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
