//! Volumes are bound to loop devices concurrently, and a slow one delays no other.

use std::{
    fs,
    path::Path,
    sync::{Arc, Barrier, mpsc},
    thread,
};

use cistern_host::{Expectation, ImageRequest, PoolDeclaration};
use cistern_types::{Bytes, FilesystemType, Provisioning};
use failing_disk::Mode;
use rustix::thread::{Pid, gettid};

use crate::{
    failing::FailingDevice,
    harness::{
        Machine, POOL_SIZE, Volume, device_pool, eventually, image_pool, must, open_new, request,
    },
    scenario::Volumes as _,
};

/// Number of volumes that are staged concurrently: more than the free loop devices of a new machine.
const AT_ONCE: usize = 12;

fn small(machine: &Machine, name: &str) -> ImageRequest {
    ImageRequest {
        uid: machine.uid(name),
        ..request(
            name,
            Bytes::mib(16),
            FilesystemType::Ext4,
            Provisioning::Thin,
        )
    }
}

/// A disk that hangs until this is dropped, so that threads that wait for it always end.
struct Hang<'a>(&'a FailingDevice);

impl<'a> Hang<'a> {
    fn begin(disk: &'a FailingDevice) -> Self {
        disk.set(Mode::Hang);
        Self(disk)
    }
}

impl Drop for Hang<'_> {
    fn drop(&mut self) {
        self.0.set(Mode::Ok);
    }
}

/// Whether a thread of this process waits for a disk and cannot be interrupted.
fn waits_for_a_disk(thread: Pid) -> bool {
    let status = format!("/proc/self/task/{}/status", thread.as_raw_nonzero());
    let status = fs::read_to_string(status).unwrap_or_default();
    status.contains("State:\tD")
}

#[test]
fn r16_staging_on_a_hanging_disk_does_not_delay_volumes_of_another_pool() {
    let machine = Machine::new();
    let disk = FailingDevice::new(&machine);
    let root = machine.root();
    let open = |declaration| Arc::new(must(root.open_pool(&declaration, Expectation::New)));
    let declaration = device_pool([disk.path.clone()]);
    let hanging = open(declaration.clone());
    let other = open(PoolDeclaration {
        uid: machine.uid("other-pool"),
        name: "other".to_owned(),
        ..image_pool(POOL_SIZE)
    });
    let hung = must(hanging.new_image(&small(&machine, "hung")));
    let free = must(other.new_image(&small(&machine, "free")));
    let staging = ["of-hung", "of-free"].map(|name| machine.staging(name));
    // Its metadata is cached from now on, so its stage waits only when a device is bound to it.
    let file = machine.mount_point(&declaration).join("images");
    fs::read(file.join(hung.uid.as_ref())).unwrap();

    thread::scope(|scope| {
        let until = Hang::begin(&disk);
        let (sender, id) = mpsc::channel();
        let waiting = scope.spawn({
            let (hanging, hung, staging) = (&hanging, &hung, &staging[0]);
            move || {
                sender.send(gettid()).unwrap();
                hanging.stage(&Volume::new(hung).stage(staging)).map(drop)
            }
        });
        let id = id.recv().unwrap();
        eventually("the volume to wait for its disk", || waits_for_a_disk(id));
        let staged = scope.spawn(|| {
            other
                .stage(&Volume::new(&free).stage(&staging[1]))
                .map(drop)
        });
        eventually("the other volume to be staged", || staged.is_finished());
        must(staged.join().unwrap());
        assert!(!waiting.is_finished());
        drop(until);
        must(waiting.join().unwrap());
    });
    for staging in &staging {
        must(root.unstage(staging));
    }
}

#[test]
fn volumes_that_are_staged_concurrently_have_a_device_each() {
    let machine = Machine::new();
    let pool = Arc::new(open_new(&machine));
    let names: Vec<_> = (0..AT_ONCE).map(|number| format!("v{number}")).collect();
    let images: Vec<_> = names
        .iter()
        .map(|name| must(pool.new_image(&small(&machine, name))))
        .collect();
    let stagings: Vec<_> = names.iter().map(|name| machine.staging(name)).collect();
    let start = Barrier::new(AT_ONCE);
    thread::scope(|scope| {
        for (image, staging) in images.iter().zip(&stagings) {
            let (pool, start) = (&pool, &start);
            scope.spawn(move || {
                start.wait();
                must(pool.stage(&Volume::new(image).stage(staging)));
            });
        }
    });
    for (name, staging) in names.iter().zip(&stagings) {
        fs::write(staging.join("name"), name).unwrap();
    }
    let read = |staging: &Path| fs::read_to_string(staging.join("name")).unwrap();
    let found: Vec<_> = stagings.iter().map(|staging| read(staging)).collect();
    assert_eq!(found, names);
    for staging in &stagings {
        must(machine.root().unstage(staging));
    }
}
