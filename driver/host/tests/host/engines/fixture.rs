//! A pool of one engine, and its volumes.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use cistern_host::{
    BlockPublishRequest, BlockStageRequest, Engine, Expectation, Image, ImageRequest, Keys, Root,
    Staged, UNSTOPPED, Uid, Unlock, mounting::Error,
};
use cistern_types::{Bytes, Encryption, FilesystemType, Provisioning};

use crate::{
    encryption::{keys, unlock},
    harness::{Machine, POOL_SIZE, Volume, eventually, image_pool, must, request},
    logical::{Group, claim},
};

/// Disks of a volume group.
const DISKS: usize = 2;

/// A pool of one engine on a machine of its own.
pub(crate) struct Fixture {
    pub(crate) engine: Arc<dyn Engine>,
    group: Option<Group>,
    keys: Option<Keys>,
    pub(crate) machine: Machine,
}

impl Fixture {
    /// A pool of image files.
    pub(crate) fn images() -> Self {
        Self::new(Machine::new(), None)
    }

    /// A volume group.
    pub(crate) fn logical_volumes() -> Self {
        let machine = Machine::new();
        let group = Group::blank(&machine, DISKS);
        Self::new(machine, Some(group))
    }

    fn new(machine: Machine, group: Option<Group>) -> Self {
        Self {
            engine: open(&machine.root(), group.as_ref(), Expectation::New),
            group,
            keys: None,
            machine,
        }
    }

    /// Encrypts all volumes.
    pub(crate) fn encrypted(self) -> Self {
        Self {
            keys: Some(keys(b'k')),
            ..self
        }
    }

    /// Opens the pool by another root.
    pub(super) fn open_by(&self, root: &Root) -> Arc<dyn Engine> {
        let expectation = Expectation::Known {
            filesystem_uuid: self.engine.pool_uuid(),
        };
        open(root, self.group.as_ref(), expectation)
    }

    /// What opens the volumes; none without encryption.
    pub(super) fn volume_unlock(&self) -> Option<Unlock<'_>> {
        self.keys.as_ref().map(unlock)
    }

    /// Makes a volume; a raw block volume without a filesystem.
    pub(crate) fn create(
        &self,
        name: &str,
        size: Bytes,
        filesystem: Option<FilesystemType>,
    ) -> Image {
        self.create_as(self.machine.uid(name), name, size, filesystem)
    }

    /// Makes a volume with this UID.
    pub(crate) fn create_as(
        &self,
        uid: Uid,
        name: &str,
        size: Bytes,
        filesystem: Option<FilesystemType>,
    ) -> Image {
        let request = ImageRequest {
            uid,
            filesystem,
            encryption: self.keys.as_ref().map(|_| Encryption::Luks2),
            ..request(name, size, FilesystemType::Ext4, Provisioning::Thick)
        };
        must(
            self.engine
                .create(&request, cistern_host::Checking::UNSEEN, UNSTOPPED),
        )
    }

    pub(super) fn volume<'a>(&'a self, image: &'a Image) -> Volume<'a> {
        Volume {
            unlock: self.volume_unlock(),
            ..Volume::new(image)
        }
    }

    pub(crate) fn stage(&self, image: &Image, staging: &Path) -> Result<Staged, Error> {
        self.stage_by(&*self.engine, image, staging)
    }

    pub(super) fn stage_by(
        &self,
        engine: &dyn Engine,
        image: &Image,
        staging: &Path,
    ) -> Result<Staged, Error> {
        engine.stage(&self.volume(image).stage(staging))
    }

    /// Stages a volume and publishes it, and returns the target path.
    pub(super) fn start_pod(&self, image: &Image, staging: &Path) -> PathBuf {
        let staged = must(self.stage(image, staging));
        assert!(staged.not_grown.is_none(), "{:?}", staged.not_grown);
        let target = staging.with_extension("pod");
        must(
            self.machine
                .root()
                .publish(&self.volume(image).publish(staging, &target)),
        );
        target
    }

    pub(crate) fn stage_block(&self, image: &Image, staging: &Path) -> Result<Staged, Error> {
        self.engine.stage_block(&BlockStageRequest {
            image: &image.uid,
            volume: image.identity.as_ref().unwrap().owner.volume().unwrap(),
            size: image.size,
            unlock: self.volume_unlock(),
            staging,
        })
    }

    /// Stages a raw block volume and publishes it, and returns the target path.
    pub(crate) fn start_block_pod(&self, image: &Image, staging: &Path) -> PathBuf {
        must(self.stage_block(image, staging));
        let target = staging.with_extension("pod");
        must(self.machine.root().publish_block(&BlockPublishRequest {
            image: &image.uid,
            read_only: false,
            staging,
            target: &target,
        }));
        target
    }

    /// Unpublishes a volume and unstages it, and waits until nothing uses it.
    pub(super) fn end_pod(&self, image: &Image, staging: &Path) {
        let root = self.machine.root();
        must(root.unpublish(&staging.with_extension("pod")));
        must(root.unstage(staging));
        self.is_unused(image);
    }

    /// Which calls a walk of faults takes: each, but a sample of a stage that takes seconds. Every call of a first stage, which
    /// formats, has walks of its own.
    pub(super) fn stride(&self) -> u32 {
        match (&self.keys, &self.group) {
            (Some(_), _) => 5,
            // A command of LVM takes long in the guest.
            (None, Some(_)) => 3,
            (None, None) => 1,
        }
    }

    pub(crate) fn is_unused(&self, image: &Image) {
        eventually("the end of the use", || {
            self.engine.check_unused(&image.uid).is_ok()
        });
    }
}

fn open(root: &Root, group: Option<&Group>, expectation: Expectation) -> Arc<dyn Engine> {
    match group {
        None => Arc::new(must(root.open_pool(&image_pool(POOL_SIZE), expectation))),
        Some(group) => Arc::new(must(group.open_as(root, &claim(), expectation))),
    }
}
