//! Power cuts. A disk records what it is asked to write during some operations. Then each test makes the disks
//! that a cut can leave: all that was flushed, with nothing, a beginning or a random part of what was written after
//! that. On each the pool opens, an operation that was acknowledged has happened, and an interrupted one has happened
//! in full or not at all, and succeeds when it is repeated.

pub(crate) mod cuts;
mod killed;
mod operations;
pub(crate) mod recording;

use std::{fs, path::PathBuf};

use cistern_host::{Expectation, PoolDeclaration, Root};
use cistern_types::{Bytes, FilesystemType};

use self::{cuts::Chance, operations::Operations, recording::Recording};
use crate::{
    failing::{FailingDevice, SIZE, text},
    harness::{Machine, POOL_SIZE, device_pool, image_pool, must, root, run, unmount},
};

/// Where the pool lies on the disk that loses power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// The pool is the filesystem of the disk.
    Device,
    /// The pool is a file in an ext4 on the disk.
    Image,
}

/// The disk while it is in use.
struct Powered<'a> {
    machine: &'a Machine,
    layout: Layout,
    root: Root,
    declaration: PoolDeclaration,
}

impl<'a> Powered<'a> {
    fn new(machine: &'a Machine, layout: Layout, device: &str) -> Self {
        let (root, declaration) = match layout {
            Layout::Device => (machine.root(), device_pool([PathBuf::from(device)])),
            Layout::Image => {
                let folder = machine.path("powered");
                fs::create_dir_all(&folder).unwrap();
                run("mount", &[device, text(&folder)]);
                fs::create_dir_all(folder.join("root")).unwrap();
                let system = machine.system.clone();
                (root(&folder, system), image_pool(POOL_SIZE))
            }
        };
        Self {
            machine,
            layout,
            root,
            declaration,
        }
    }

    fn operations(
        &'a self,
        filesystem: FilesystemType,
        expectation: Expectation,
    ) -> Operations<'a> {
        let pool = must(self.root.open_pool(&self.declaration, expectation));
        Operations::new(self.machine, &self.root, pool, filesystem)
    }

    /// Unmounts everything, as a reboot does.
    fn end(self) {
        unmount(&self.root.mount_point(&self.declaration.uid));
        if self.layout == Layout::Image {
            unmount(&self.machine.path("powered"));
        }
    }
}

/// Runs all operations on a disk that records. The pool exists before.
fn record(
    machine: &Machine,
    layout: Layout,
    filesystem: FilesystemType,
) -> (Expectation, Recording) {
    let size = match layout {
        Layout::Device => 2 * SIZE,
        Layout::Image => Bytes::gib(2).0,
    };
    let device = FailingDevice::with_size(machine, size);
    let path = text(&device.path);
    if layout == Layout::Image {
        run("mkfs.ext4", &["-q", path]);
    }
    let powered = Powered::new(machine, layout, path);
    let operations = powered.operations(filesystem, Expectation::New);
    let mount_point = powered.root.mount_point(&powered.declaration.uid);
    run("sync", &["--file-system", text(&mount_point)]);
    let run = |operation| operations.run(operation);
    let recording = Recording::of(machine, &device, &operations::ALL, run);
    let expectation = operations.expectation();
    drop(operations);
    powered.end();
    (expectation, recording)
}

/// Cuts power during all operations, and compares what each cut leaves.
fn cut_power(layout: Layout, filesystem: FilesystemType) {
    let machine = Machine::new();
    let (expectation, recording) = record(&machine, layout, filesystem);
    eprintln!("{layout:?}, {filesystem}");
    let chance = Chance {
        tries: 1,
        at_most: usize::MAX,
        ordered: 0,
    };
    recording.cut(&machine, chance, |disk, done| {
        let powered = Powered::new(&machine, layout, disk.path());
        let operations = powered.operations(filesystem, expectation);
        operations.compare(done);
        drop(operations);
        powered.end();
    });
}

#[test]
fn r02_a_device_pool_with_ext4_volumes_survives_power_cuts() {
    cut_power(Layout::Device, FilesystemType::Ext4);
}

#[test]
fn r02_a_device_pool_with_xfs_volumes_survives_power_cuts() {
    cut_power(Layout::Device, FilesystemType::Xfs);
}

#[test]
fn r02_an_image_pool_with_ext4_volumes_survives_power_cuts() {
    cut_power(Layout::Image, FilesystemType::Ext4);
}

#[test]
fn r02_an_image_pool_with_xfs_volumes_survives_power_cuts() {
    cut_power(Layout::Image, FilesystemType::Xfs);
}
