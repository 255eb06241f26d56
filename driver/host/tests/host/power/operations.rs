//! The operations during which power is cut, and what each promises.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
};

use chrono::Utc;
use cistern_host::{
    ExpandRequest, Expectation, Image, ImageRequest, Member, Pool, Root, SnapshotRequest, grow,
};
use cistern_types::{Bytes, Consistency, FilesystemType, Provisioning};

use super::recording::Progress;
use crate::{
    harness::{Machine, Volume, eventually, known, must, request},
    scenario::{Volumes as _, thaw},
    snapshot::{SIZE, from, snapshot_of},
};

/// Size of the volume after its expansion.
const GROWN: Bytes = Bytes::mib(340);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Creates a volume.
    Create,
    /// Stages it, writes a file and syncs that.
    Write,
    /// Takes a snapshot.
    TakeSnapshot,
    /// Writes another file and syncs that.
    WriteAgain,
    /// Creates a volume from the snapshot.
    Clone,
    /// Expands the first volume while it is staged.
    Expand,
    DeleteClone,
    DeleteSnapshot,
    /// Unstages and deletes the first volume.
    Delete,
}

/// All operations in their order.
pub(crate) const ALL: [Operation; 9] = [
    Operation::Create,
    Operation::Write,
    Operation::TakeSnapshot,
    Operation::WriteAgain,
    Operation::Clone,
    Operation::Expand,
    Operation::DeleteClone,
    Operation::DeleteSnapshot,
    Operation::Delete,
];

/// The operations on one pool.
pub(crate) struct Operations<'a> {
    machine: &'a Machine,
    root: &'a Root,
    pool: Pool,
    filesystem: FilesystemType,
    staging: PathBuf,
}

impl<'a> Operations<'a> {
    pub(crate) fn new(
        machine: &'a Machine,
        root: &'a Root,
        pool: Pool,
        filesystem: FilesystemType,
    ) -> Self {
        Self {
            machine,
            root,
            pool,
            filesystem,
            staging: machine.staging("volume"),
        }
    }

    pub(crate) fn expectation(&self) -> Expectation {
        known(&self.pool)
    }

    /// Runs an operation, which succeeds also after an interrupted attempt.
    pub(crate) fn run(&self, operation: Operation) {
        match operation {
            Operation::Create => drop(must(self.pool.new_image(&self.volume("a", SIZE)))),
            Operation::Write => self.write("first"),
            Operation::TakeSnapshot => self.take_snapshot(),
            Operation::WriteAgain => self.write("second"),
            Operation::Clone => drop(self.clone("c")),
            Operation::Expand => self.expand(),
            Operation::DeleteClone => must(self.pool.remove_image(&self.machine.uid("c"))),
            Operation::DeleteSnapshot => must(self.pool.remove_image(&self.machine.uid("s"))),
            Operation::Delete => {
                self.unstage();
                must(self.pool.remove_image(&self.machine.uid("a")));
            }
        }
    }

    /// Compares the pool after a power cut, when the first `done` operations were acknowledged. Then it repeats the
    /// one that was interrupted.
    pub(crate) fn compare(&self, done: usize) {
        thaw(self.root).unwrap();
        must(self.pool.sweep());
        self.compare_images(Progress { all: &ALL, done });
        if let Some(interrupted) = ALL.get(done) {
            self.run(*interrupted);
            self.unstage();
            self.compare_images(Progress {
                all: &ALL,
                done: done + 1,
            });
        }
        let inventory = must(self.root.inventory(&[]));
        let [pool] = inventory.pools.as_slice() else {
            panic!("{inventory:?}");
        };
        assert!(
            pool.temporary.is_empty() && pool.incoming.is_empty() && pool.strays.is_empty(),
            "{pool:?}"
        );
    }

    fn compare_images(&self, progress: Progress<Operation>) {
        let images = must(self.pool.images());
        let find = |name, made, removed| {
            let uid = self.machine.uid(name);
            let image = images.iter().find(|image| image.uid == uid);
            if let (Some(made), Some(removed)) =
                (progress.is_done(&made), progress.is_done(&removed))
            {
                assert_eq!(image.is_some(), made && !removed, "{name}: {images:?}");
            }
            image
        };
        let volume = find("a", Operation::Create, Operation::Delete);
        let snapshot = find("s", Operation::TakeSnapshot, Operation::DeleteSnapshot);
        let clone = find("c", Operation::Clone, Operation::DeleteClone);
        let found = [volume, snapshot, clone].into_iter().flatten().count();
        assert_eq!(images.len(), found, "{images:?}");
        if let Some(volume) = volume {
            self.compare_volume(volume, progress);
        }
        let as_of_snapshot = |has: &dyn Fn(&str) -> bool| assert!(has("first") && !has("second"));
        if snapshot.is_some() {
            let copy = self.clone("d");
            self.with_files(&copy, as_of_snapshot);
            must(self.pool.remove_image(&copy.uid));
        }
        if let Some(clone) = clone {
            self.with_files(clone, as_of_snapshot);
        }
    }

    fn compare_volume(&self, volume: &Image, progress: Progress<Operation>) {
        if let Some(is_expanded) = progress.is_done(&Operation::Expand) {
            let size = if is_expanded { GROWN } else { SIZE };
            assert_eq!(volume.size, size);
        }
        self.with_files(volume, |has| {
            let written = [Operation::Write, Operation::WriteAgain];
            for (name, operation) in ["first", "second"].into_iter().zip(written) {
                if let Some(is_written) = progress.is_done(&operation) {
                    assert_eq!(has(name), is_written, "{name}");
                }
            }
        });
    }

    /// Calls `compare` with what tells whether the volume has a file in full.
    fn with_files(&self, image: &Image, compare: impl FnOnce(&dyn Fn(&str) -> bool)) {
        self.stage(image);
        compare(&|name| match fs::read(self.staging.join(name)) {
            Ok(content) => content == content_of(name),
            Err(_) => false,
        });
        self.unstage();
    }

    fn volume(&self, name: &str, size: Bytes) -> ImageRequest {
        ImageRequest {
            uid: self.machine.uid(name),
            ..request(name, size, self.filesystem, Provisioning::Thin)
        }
    }

    fn existing(&self, name: &str) -> Image {
        must(self.pool.image(&self.machine.uid(name))).unwrap()
    }

    fn stage(&self, image: &Image) {
        must(self.pool.stage(&Volume::new(image).stage(&self.staging)));
    }

    /// Unstages, and waits until the image has no loop device: between fork and exec, a process that another test
    /// starts keeps one that was just detached.
    fn unstage(&self) {
        must(self.root.unstage(&self.staging));
        eventually("the loop device to be detached", || {
            let loops = must(self.root.inventory(&[])).loops;
            let images = Path::new("images");
            !loops.iter().any(|bound| {
                bound
                    .backing_file
                    .parent()
                    .is_some_and(|folder| folder.ends_with(images))
            })
        });
    }

    fn write(&self, name: &str) {
        self.stage(&self.existing("a"));
        let mut file = fs::File::create(self.staging.join(name)).unwrap();
        file.write_all(&content_of(name)).unwrap();
        file.sync_all().unwrap();
    }

    fn take_snapshot(&self) {
        let request = SnapshotRequest {
            uid: self.machine.uid("s"),
            ..snapshot_of(&self.existing("a"), "s")
        };
        let member = Member {
            pool: &self.pool,
            request,
        };
        must(
            self.root
                .take_snapshots(&[member], Consistency::Filesystem, Utc::now),
        );
    }

    fn clone(&self, name: &str) -> Image {
        let request = from(&self.existing("s"), self.volume(name, GROWN));
        must(self.pool.new_image(&request))
    }

    fn expand(&self) {
        self.stage(&self.existing("a"));
        must(self.pool.grow_image(&self.machine.uid("a"), GROWN));
        let expanded = self.pool.expand(&ExpandRequest {
            keys: None,
            image: &self.machine.uid("a"),
            filesystem: Some(self.filesystem),
            path: &self.staging,
            required: GROWN,
            limit: None,
        });
        match expanded {
            Ok(size) => assert_eq!(size, GROWN),
            // A mounted ext4 does not grow on every machine.
            Err(error) => assert!(
                matches!(error, grow::Error::OnlyUnmounted { .. }),
                "{error}"
            ),
        }
    }
}

/// More than one block.
fn content_of(name: &str) -> Vec<u8> {
    name.repeat(40_000).into_bytes()
}
