//! The state of the machine, which has to be the same whether a fault occurred or not.

use std::{fs, os::fd::AsFd as _, path::Path};

use cistern_host::{Uid, copy::IncomingCopy, system::OFlags};

use crate::{
    harness::{Machine, comes},
    scenario::Step,
};

/// The state of the machine, without UUIDs and numbers, which differ from run to run.
pub(super) fn digest(machine: &Machine) -> String {
    let inventory = machine.inventory();
    let pools = inventory.pools.iter().map(|pool| {
        let images = pool.images.iter().map(|image| {
            let identity = image.identity.as_ref();
            let identity = identity.map(|it| {
                let filesystem = it.content.filesystem();
                (it.owner.to_string(), filesystem, it.provisioning)
            });
            // A mounted ext4 initializes its inode tables some time later, which punches small holes.
            // The agent allocates them again at its next reconcile.
            let is_allocated = image.allocated.0 >= image.size.0 / 10 * 9;
            let marks = marks(machine, &pool.mount_point, &image.uid);
            (&image.uid, identity, image.size, is_allocated, marks)
        });
        let images: Vec<_> = images.collect();
        let closed = pool.closed.iter().map(|it| (&it.image.uid, &it.by));
        let closed: Vec<_> = closed.collect();
        let discarded: Vec<_> = pool.discarded.iter().map(|it| &it.image.uid).collect();
        let is_mounted = pool.filesystem_uuid.is_some();
        let (uid, has_file) = (&pool.uid, pool.has_file);
        let incoming = pool.incoming.iter().map(IncomingCopy::file_name);
        let incoming: Vec<_> = incoming.collect();
        let others = (incoming, &pool.temporary, &pool.strays);
        format!("{uid} {closed:?} {discarded:?} {is_mounted} {has_file} {images:?} {others:?}")
    });
    let loops = inventory
        .loops
        .iter()
        .map(|bound| format!("loop {}", bound.backing_file.display()));
    let nodes = inventory.nodes.iter().map(|node| &node.mount);
    let mounts = inventory.mounts.iter().chain(nodes).map(|mount| {
        // A staged filesystem has grown to the same size.
        let staged = mount.mount_point.starts_with(machine.path("kubelet"));
        let blocks = staged.then(|| rustix::fs::statvfs(&mount.mount_point).unwrap().f_blocks);
        format!(
            "{} {:?} {} {blocks:?}",
            mount.mount_point.display(),
            mount.mount_options,
            mount.filesystem
        )
    });
    let kubelet = ["kubelet", "kubelet/globalmount"].into_iter();
    let kubelet = kubelet.filter_map(|folder| fs::read_dir(machine.path(folder)).ok());
    let kubelet = kubelet.flatten();
    let kubelet = kubelet.map(|entry| entry.unwrap().path().display().to_string());
    let strays = inventory
        .strays
        .iter()
        .map(|stray| format!("stray {}", stray.display()));
    let mut all: Vec<String> = loops.chain(mounts).chain(kubelet).chain(strays).collect();
    all.sort();
    pools.chain(all).collect::<Vec<_>>().join("\n")
}

/// Which extended attributes an image has besides its identity.
fn marks(machine: &Machine, pool: &Path, image: &Uid) -> Vec<&'static str> {
    let path = pool.join("images").join(image.as_str());
    let file = machine.system.open(&path, OFlags::RDONLY).unwrap();
    let mut names = vec!["trusted.cistern.fence", "trusted.cistern.copy"];
    names.retain(|name| {
        let value = machine.system.attribute(file.as_fd(), name).unwrap();
        value.is_some()
    });
    names
}

/// How many loop devices are bound after a step: the pool's, and the volume's while it is staged.
pub(super) fn loops_after(step: Step) -> usize {
    match step {
        // The loop device of a device pool's disk belongs to the test.
        Step::MakeDevicePool | Step::AdoptDevicePool | Step::RemovePool => 0,
        Step::MakePool
        | Step::GrowPool
        | Step::Create
        | Step::Grow
        | Step::MakeThin
        | Step::MakeThick
        | Step::Unstage
        | Step::Dismiss
        | Step::CreateDevice
        | Step::RemoveDevice
        | Step::PrepareSource
        | Step::Restore
        | Step::Receive
        | Step::RemoveRestored
        | Step::RemoveSource
        | Step::Open
        | Step::AdoptPool
        | Step::Discard
        | Step::TakeBack
        | Step::RemoveDiscarded
        | Step::BeginClosing
        | Step::Close
        | Step::Reopen
        | Step::RemoveClosed
        | Step::PrepareCopy
        | Step::OpenCopy
        | Step::PreparePass
        | Step::Pass
        | Step::Promote
        | Step::DismissPass
        | Step::PrepareRaw
        | Step::AdoptFilesystem
        | Step::DismissRaw
        | Step::PrepareEncrypted
        | Step::DismissEncrypted
        | Step::PrepareEncryptedSource
        | Step::CloneEncrypted
        | Step::DismissClone
        | Step::StageEach
        | Step::DismissEncryptedSource
        | Step::Remove => 1,
        Step::SnapshotFrozen
        | Step::Stage
        | Step::AdoptUsed
        | Step::StageGrown
        | Step::Prepare
        | Step::Expand
        | Step::StageEncrypted
        | Step::StageClone
        | Step::StageDevice
        | Step::PublishDevice
        | Step::Publish
        | Step::Unpublish => 2,
        Step::PrepareGroup | Step::SnapshotGroup | Step::RemoveSnapshots | Step::DismissGroup => 3,
    }
}

/// Waits until the machine has the expected state. A process that inspects a loop device or is being
/// started keeps the device bound briefly.
#[track_caller]
pub(super) fn reaches(machine: &Machine, expected: &str, what: &str) {
    let mut found = String::new();
    let reached = comes(|| {
        found = digest(machine);
        found == expected
    });
    assert!(reached, "{what}: found\n{found}\nexpected\n{expected}");
}
