//! Which groups are a pool, and whose.

use std::fs;

use cistern_host::{
    Expectation, UNSTOPPED,
    logical::{self, GroupSource, Unfit, VolumeGroup},
    pool::{self, Owner, PoolClaim},
};
use cistern_types::Bytes;

use super::{CONFIG, DISK, Group, block, claim};
use crate::{
    device::Disk,
    harness::{Machine, image_path, must, open_new, run},
    scenario::Volumes as _,
};

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn a_group_that_cannot_be_a_pool_is_refused_with_what_is_in_the_way() {
    let machine = Machine::new();
    let group = Group::new(&machine, 2);
    let missing = GroupSource::Named("no-such-group".to_owned());
    let error =
        VolumeGroup::open(&machine.root(), &missing, &claim(), Expectation::New).unwrap_err();
    assert!(error.to_string().contains("no-such-group"), "{error}");
    let error = group.open(&machine, Expectation::Made).unwrap_err();
    assert!(
        matches!(
            error,
            pool::Error::Group(logical::Error::Unfit {
                why: Unfit::NoPool(_),
                ..
            })
        ),
        "{error}"
    );
    group.lvm("vgexport", &[&group.name]);
    group.is_unfit(&machine, &Unfit::Exported);
    group.lvm("vgimport", &[&group.name]);
    group.lvm(
        "vgchange",
        &["--yes", "--systemid", "another-machine", &group.name],
    );
    group.is_unfit(&machine, &Unfit::OtherSystem);
    let of_that = format!(
        "{CONFIG} global {{ system_id_source=lvmlocal }} local {{ system_id=another-machine }}"
    );
    let devices = group.devices();
    let own = ["--config", &of_that, "--devices", &devices];
    let change = [
        &["vgchange", "--yes", "--systemid", ""][..],
        &own,
        &[&group.name],
    ]
    .concat();
    run("lvm", &change);
    // Another group gets its name, while the disks of this one are away.
    let other = Disk::of_size(&machine, "other", DISK);
    let own = ["--config", CONFIG, "--devices", other.path()];
    run(
        "lvm",
        &[&["pvcreate", "--yes"][..], &own, &[other.path()]].concat(),
    );
    let twice = [
        &["vgcreate", "--yes"][..],
        &own,
        &[&group.name, other.path()],
    ]
    .concat();
    run("lvm", &twice);
    for expectation in [Expectation::New, Expectation::Made] {
        let error = group.open(&machine, expectation).unwrap_err();
        assert!(
            matches!(error, pool::Error::Group(logical::Error::Ambiguous { .. })),
            "{error}"
        );
    }
    other.clear();
    let pool = group.pool(&machine);
    must(pool.check());
    let other = PoolClaim {
        name: "other".to_owned(),
        uid: machine.uid("other-pool"),
        ..claim()
    };
    for expectation in [Expectation::New, Expectation::Made] {
        let error = group
            .open_as(&machine.root(), &other, expectation)
            .unwrap_err();
        assert!(
            error.to_string().contains("pool fast of node w1"),
            "{error}"
        );
    }
    // The label of one of its two disks is lost.
    group.disks[1].clear_label();
    let error = pool.check().unwrap_err();
    assert!(
        error.to_string().contains("1 of its physical volumes"),
        "{error}"
    );
    group.is_unfit(&machine, &Unfit::MissingDisks(1));
    group.lvm("vgreduce", &["--removemissing", &group.name]);
    must(pool.check());
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn a_group_follows_its_pool_to_a_restored_cluster_and_by_a_grant_to_another_node() {
    let machine = Machine::new();
    let group = Group::blank(&machine, 1);
    let pool = group.pool(&machine);
    let request = block(&machine, "kept");
    let made = must(pool.create(&request, UNSTOPPED));
    let known = Expectation::Known {
        filesystem_uuid: pool.pool_uuid(),
    };
    let open = |claim: &PoolClaim, expectation| group.open_as(&machine.root(), claim, expectation);
    // The cluster was restored: the StoragePool is another object of the same name.
    let restored = PoolClaim {
        uid: machine.uid("restored"),
        ..claim()
    };
    let is_another_pools = PoolClaim {
        others: vec![claim().uid],
        ..restored.clone()
    };
    let error = open(&is_another_pools, Expectation::New).unwrap_err();
    assert!(error.to_string().contains("pool fast"), "{error}");
    let adopted = must(open(&restored, Expectation::New));
    assert_eq!(adopted.pool_uuid(), pool.pool_uuid());
    pool.check().unwrap_err();
    // Its disks are in another machine.
    let elsewhere = PoolClaim {
        node: Owner {
            node: "w2".to_owned(),
            machine: None,
        },
        ..restored
    };
    let error = open(&elsewhere, known).unwrap_err();
    let pool::Error::OtherNode { foreign, .. } = error else {
        panic!("{error}");
    };
    let granted = PoolClaim {
        take_over: Some(*foreign),
        ..elsewhere
    };
    let taken = must(open(&granted, known));
    assert_eq!(taken.takeovers(), 1);
    adopted.check().unwrap_err();
    assert_eq!(must(taken.volumes()), [made]);
    // The pool leaves the group when it is empty, and nothing of it stays.
    let release = || VolumeGroup::release(&machine.root(), &group.source(), &granted, known);
    let error = release().unwrap_err();
    assert!(error.to_string().contains("1 volumes"), "{error}");
    must(taken.remove(&request.uid));
    must(release());
    must(release());
    let tags = group.lvm(
        "vgs",
        &["--noheadings", "--options", "vg_tags", &group.name],
    );
    assert_eq!(tags.trim(), "");
}

/// A pod could write the label of another group with the same name.
#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn a_group_in_a_raw_block_volume_is_not_seen() {
    let machine = Machine::new();
    let group = Group::new(&machine, 1);
    let label = |path: &str, name: &str| {
        let own = ["--config", CONFIG, "--devices", path];
        for (verb, args) in [
            ("pvcreate", &["--yes", path][..]),
            ("vgcreate", &["--yes", name, path][..]),
        ] {
            run("lvm", &[&[verb][..], &own, args].concat());
        }
    };
    let images = open_new(&machine);
    let raw = block(&machine, "raw");
    must(images.new_image(&raw));
    let attached = Disk::attach(image_path(&machine, &raw.uid));
    label(attached.path(), &group.name);
    let pool = group.pool(&machine);
    assert!(must(pool.statistics()).size > Bytes::mib(300));
    // The device of a volume that is published: a logical volume, and kubelet's loop device over its node.
    let raw = block(&machine, "published");
    must(pool.create(&raw, UNSTOPPED));
    let number = must(pool.open_volume(&raw.uid)).0.number();
    let node = machine.path("kubelet/volumeDevices");
    fs::write(&node, "").unwrap();
    let device = format!("/dev/dm-{}", number.minor);
    run("mount", &["--bind", &device, node.to_str().unwrap()]);
    let kubelets = Disk::attach(node);
    let name = machine.uid("hidden").to_string();
    label(kubelets.path(), &name);
    let hidden = GroupSource::Named(name);
    let error = VolumeGroup::open(&machine.root(), &hidden, &claim(), Expectation::New);
    let error = error.unwrap_err();
    assert!(
        matches!(error, pool::Error::Group(logical::Error::Missing { .. })),
        "{error}"
    );
    must(pool.check());
    kubelets.clear_label();
    assert!(fs::exists(attached.path()).unwrap());
}
