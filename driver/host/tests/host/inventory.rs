//! What `fsck` is told of a host.

use std::{fs, sync::Arc};

use cistern_host::{Expectation, Root};

use crate::harness::{Machine, POOL_SIZE, image_pool, open_new};

#[test]
fn r06_loop_devices_of_a_neighbour_are_not_ours_whatever_their_path() {
    let machine = Machine::new();
    // Nodes that are containers on one machine share its disk and its loop devices.
    let folder = machine.path("neighbour");
    fs::create_dir(&folder).unwrap();
    let neighbour = Root::new(&folder, Arc::clone(&machine.system));
    let (_ours, _theirs) = (
        open_new(&machine),
        neighbour
            .open_pool(&image_pool(POOL_SIZE), Expectation::New)
            .unwrap(),
    );
    let (ours, theirs) = (machine.inventory(), neighbour.inventory().unwrap());
    assert_eq!((ours.loops.len(), theirs.loops.len()), (1, 1));
    assert_ne!(ours.loops, theirs.loops);
    assert_eq!((ours.mounts.len(), theirs.mounts.len()), (1, 1));
}
