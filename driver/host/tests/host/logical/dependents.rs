//! Snapshots of volumes that an administrator makes with LVM.

use cistern_host::{UNSTOPPED, image::Error};
use cistern_types::Bytes;

use super::{Group, Grow as _, block};
use crate::harness::{Machine, chain, must};

/// What is made by hand.
const BY_HAND: &str = "by-hand";

impl Group {
    fn make_snapshot(&self, of: &str) {
        let of = format!("{}/{of}", self.name);
        let args = ["--yes", "--snapshot", "-l", "5", "-n", BY_HAND, &of];
        self.lvm("lvcreate", &args);
    }

    fn remove_snapshot(&self) {
        let name = format!("{}/{BY_HAND}", self.name);
        self.lvm("lvremove", &["--yes", &name]);
    }
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn a_volume_with_a_snapshot_is_not_removed_and_the_error_names_it() {
    let machine = Machine::new();
    let group = Group::blank(&machine, 1);
    let pool = group.pool(&machine);
    let request = block(&machine, "raw");
    must(pool.create(&request, UNSTOPPED));
    let volume = format!("cistern-{}", request.uid);
    group.make_snapshot(&volume);
    for error in [
        pool.check_unused(&request.uid).unwrap_err(),
        pool.remove(&request.uid).unwrap_err(),
    ] {
        assert!(matches!(error, Error::InUse { .. }), "{error}");
        let expected = format!("the origin of {BY_HAND}");
        assert!(error.to_string().contains(&expected), "{error}");
    }
    assert_eq!(group.names(), [BY_HAND.to_owned(), volume]);
    group.remove_snapshot();
    must(pool.check_unused(&request.uid));
    must(pool.remove(&request.uid));
    assert_eq!(group.names(), Vec::<String>::new());
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn a_snapshot_of_what_a_volume_grows_by_stays_and_stops_the_growth() {
    let machine = Machine::new();
    let group = Group::blank(&machine, 1);
    let pool = group.pool(&machine);
    let request = block(&machine, "raw");
    let size = must(pool.create(&request, UNSTOPPED)).size;
    let grown = size.saturating_add(Bytes::mib(8));
    let growth = must(pool.prepare_growth(&request.uid, grown, UNSTOPPED));
    group.make_snapshot(&format!("cistern-{}-growth", request.uid));
    let error = pool.finish_growth(&request.uid, grown, growth).unwrap_err();
    assert!(chain(&error).contains(BY_HAND), "{}", chain(&error));
    assert_eq!(must(pool.sweep()), 0);
    assert_eq!(group.names().len(), 3);
    assert_eq!(must(pool.volume(&request.uid)).unwrap().size, size);
    group.remove_snapshot();
    assert_eq!(must(pool.grow(&request.uid, grown, UNSTOPPED)).size, grown);
    assert_eq!(group.names().len(), 1);
}
