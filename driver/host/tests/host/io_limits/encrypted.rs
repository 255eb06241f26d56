//! Limits of an encrypted volume, which are those of its mapping.

use std::fs;

use cistern_types::{FilesystemType, IoLimits, Provisioning};

use super::{WRITES, assert_writes_are_limited, limit, written_at_most};
use crate::{
    cgroups::Pods,
    encryption::{encrypted, keys, mapping, stage},
    harness::{Machine, eventually, must, open_new, unstage},
    scenario::Volumes as _,
};

#[test]
#[ignore = "needs cgroup v2 and device-mapper, which the virtual machine has"]
fn a_limit_of_an_encrypted_volume_is_one_of_its_mapping_and_goes_away_with_it() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let pods = Pods::new();
    let wanted = encrypted(&machine, "a", FilesystemType::Ext4, Provisioning::Thick);
    let image = must(pool.new_image(&wanted));
    let (staging, mine) = (machine.staging("a"), keys(b'a'));
    must(stage(&pool, &image, &mine, &staging));
    let limits = written_at_most(WRITES.into());
    limit(&machine, &pods, &image.uid, limits);
    let device = pods.limited_device();
    let name = fs::read_to_string(format!("/sys/dev/block/{device}/dm/name")).unwrap();
    assert_eq!(mapping(&image).file_name().unwrap(), name.trim());
    assert_writes_are_limited(&pods, &staging);

    // It ends with the mapping, whose number the next one gets.
    unstage(&machine, &image.uid, &staging);
    eventually("the end of the limit", || pods.io_max().is_empty());
    must(stage(&pool, &image, &mine, &staging));
    assert_eq!(pods.io_max(), "");
    limit(&machine, &pods, &image.uid, limits);
    limit(&machine, &pods, &image.uid, IoLimits::NONE);
    assert_eq!(pods.io_max(), "");
    unstage(&machine, &image.uid, &staging);
}
