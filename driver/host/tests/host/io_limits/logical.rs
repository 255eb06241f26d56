//! Limits of a logical volume, which are those of its own device.

use cistern_types::{Bytes, FilesystemType, IoLimits};

use super::{WRITES, assert_writes_are_limited, limit, written_at_most};
use crate::{
    cgroups::Pods,
    engines::fixture::Fixture,
    harness::{eventually, must},
};

#[test]
#[ignore = "needs cgroup v2 and device-mapper, which the virtual machine has"]
fn a_limit_of_a_logical_volume_is_one_of_its_device_and_goes_away_with_it() {
    let pool = Fixture::logical_volumes();
    let (machine, pods) = (&pool.machine, Pods::new());
    let image = pool.create("a", Bytes::mib(200), Some(FilesystemType::Ext4));
    let staging = machine.staging("a");
    must(pool.stage(&image, &staging));
    let limits = written_at_most(WRITES.into());
    limit(machine, &pods, &image.uid, limits);
    let device = pods.limited_device();
    let name = std::fs::read_to_string(format!("/sys/dev/block/{device}/dm/name")).unwrap();
    let volume = format!("-cistern--{}", image.uid.as_str().replace('-', "--"));
    assert!(name.trim().ends_with(&volume), "{name}");
    assert_writes_are_limited(&pods, &staging);
    limit(machine, &pods, &image.uid, IoLimits::NONE);
    assert_eq!(pods.io_max(), "");

    // It ends with the logical volume.
    limit(machine, &pods, &image.uid, limits);
    must(machine.root().unstage(&staging));
    pool.is_unused(&image);
    must(pool.engine.remove(&image.uid));
    eventually("the end of the limit", || pods.io_max().is_empty());
}
