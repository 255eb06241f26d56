//! A device of the machine that does not answer.

use std::{sync::Arc, time::Duration};

use cistern_host::UNSTOPPED;
use failing_disk::Mode;

use super::{Group, block, open, reads_zero};
use crate::{
    device::Disk,
    failing::FailingDevice,
    harness::{Machine, Probes as _, eventually, must},
};

/// Longer than any probe of these tests takes.
const PATIENCE: Duration = Duration::from_mins(2);

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn r16_a_group_works_beside_a_device_that_does_not_answer() {
    let machine = Machine::new();
    let beside = FailingDevice::new(&machine);
    let group = Group::blank(&machine, 1);
    let pool = Arc::new(group.pool(&machine));
    beside.set(Mode::Hang);
    let vitals = pool.vitals(PATIENCE);
    assert_eq!(vitals.troubles, []);
    assert!(vitals.fill.is_some());
    let request = block(&machine, "raw");
    let made = must(pool.create(&request, UNSTOPPED));
    reads_zero(&open(&pool, &request), made.size);
    must(pool.check());
    must(pool.remove(&request.uid));
    // Once it answers, copies of the disks are looked for on all devices again.
    beside.set(Mode::Ok);
    let copy = Disk::attach(machine.path("disk-0"));
    eventually("a copy of the disk to be found", || pool.check().is_err());
    copy.detach();
    eventually("the copy to be away", || pool.check().is_ok());
}
