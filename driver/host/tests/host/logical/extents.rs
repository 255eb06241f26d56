//! Which extents a volume gets.

use std::{
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use cistern_host::{Expectation, ImageRequest, UNSTOPPED, image::Error};
use cistern_types::Bytes;

use super::{Group, Grow as _, block, encrypted};
use crate::{
    device::Disk,
    harness::{Machine, must},
};

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn a_disk_on_which_lvm_shall_allocate_nothing_is_no_room_for_volumes() {
    let machine = Machine::new();
    let group = Group::blank(&machine, 2);
    let pool = group.pool(&machine);
    let both = must(pool.statistics());
    let second = group.disks.last().map(Disk::path).unwrap();
    group.lvm("pvchange", &["--allocatable", "n", second]);
    let one = must(pool.statistics());
    assert_eq!(one.available.0, both.available.0 / 2);
    assert_eq!(one.size, both.size);
    let request = |name: &str, size| ImageRequest {
        size,
        ..block(&machine, name)
    };
    let large = request("large", one.available.saturating_add(Bytes::mib(4)));
    let error = pool.create(&large, UNSTOPPED).unwrap_err();
    assert!(matches!(error, Error::NoSpace { .. }), "{error}");
    let made = must(pool.create(&request("all", one.available), UNSTOPPED));
    assert_eq!(made.size, one.available);
    assert_eq!(must(pool.statistics()).available, Bytes::ZERO);
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn what_a_raw_block_volume_grows_by_goes_to_no_other_volume_between_the_two_changes() {
    let machine = Machine::new();
    let group = Group::blank(&machine, 1);
    let pool = Arc::new(group.pool(&machine));
    let (system, faulty) = machine.faulty();
    let faulty = must(group.open_by(&faulty, Expectation::Made));
    let (raw, other) = (block(&machine, "raw"), encrypted(&machine, "other"));
    let mut size = must(pool.create(&raw, UNSTOPPED)).size;
    must(pool.create(&other, UNSTOPPED));
    // After the extents are free, and before the volume has them.
    for at in [11, 13, 15] {
        size = size.saturating_add(Bytes::mib(16));
        // All that is free, with these extents.
        let all = other.size.saturating_add(must(pool.statistics()).available);
        let growth = must(faulty.prepare_growth(&raw.uid, size, UNSTOPPED));
        let (done, is_done) = mpsc::channel();
        let (pool_there, uid) = (Arc::clone(&pool), other.uid.clone());
        system.meanwhile_in(at, move || {
            let (grown, is_grown) = mpsc::channel();
            let growing = thread::spawn(move || {
                let result = pool_there.grow(&uid, all, UNSTOPPED);
                // The hook has stopped waiting if this is late.
                let _ = grown.send(());
                result
            });
            // It waits for the other growth.
            let _ = is_grown.recv_timeout(Duration::from_secs(3));
            done.send(growing).unwrap();
        });
        let grown = must(faulty.finish_growth(&raw.uid, size, growth));
        assert_eq!(grown.size, size, "call {at}");
        let Ok(growing) = is_done.try_recv() else {
            panic!("the growth has fewer than {at} calls");
        };
        let error = growing.join().unwrap().unwrap_err();
        assert!(matches!(error, Error::NoSpace { .. }), "{error}");
    }
}
