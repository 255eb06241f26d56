//! All operations on one Linux host: pools, volume images, loop devices and mounts.
//!
//! [`Root`] is the folder of Cistern on the host and the entry point: [`Root::open_pool`] makes a
//! pool usable, [`Pool`] makes, removes, stages and publishes volumes, and [`Root`] unpublishes and
//! unstages them and takes their snapshots. All calls are synchronous and idempotent: each asks the
//! kernel which steps are done already.
//!
//! *Invariants:* no Kubernetes or gRPC crate is used here; no state is kept between calls, but for what
//! only a tool can say of a device (`known_volumes.rs`); and every effect on the machine goes through
//! [`system::System`].

pub mod changes;
pub mod check;
pub mod command;
pub mod copy;
pub mod encryption;
pub mod engine;
pub mod fence;
pub mod grow;
pub mod health;
pub mod image;
pub mod inventory;
pub mod io_counters;
pub mod io_limits;
pub mod logical;
pub mod loopdev;
pub mod mounting;
pub mod options;
pub mod pool;
pub mod snapshot;
pub mod statistics;
pub mod system;
pub mod udev;

mod allocation;
mod attached;
mod base_device;
mod cause;
mod device_nodes;
mod freezes;
mod id;
mod ioctl;
mod known_volumes;
mod layout;
mod mkfs;
mod mount_target;
mod patience;
mod pending_paths;
mod progress;
mod renew;
mod resize;
mod root;
mod stage_request;
mod stray;
mod strays;
mod superblock;
mod volume_device;

pub use self::{
    cause::Cause,
    changes::Changes,
    check::Checking,
    encryption::{EncryptionState, InvalidKey, Key, Keys, Unlock},
    engine::Engine,
    fence::{ClosedImage, Fence},
    grow::ExpandRequest,
    id::{InvalidUid, Uid, Uuid},
    image::{
        AdoptionRequest, Content, Discarded, Identity, Image, ImageRequest, Owner, SnapshotRecord,
        SourceImage,
    },
    inventory::{Inventory, LoopCount, PoolInventory},
    mounting::{BlockPublishRequest, BlockStageRequest, PublishRequest, Staged},
    options::MountOptions,
    pool::{Expectation, Pool, PoolDeclaration, PoolStatistics, Source},
    progress::{Progress, Stoppable, UNSTOPPED, percent},
    root::{KEPT_PERCENT, Root},
    snapshot::{Member, SnapshotRequest},
    stage_request::StageRequest,
    statistics::{FilesystemStatistics, VolumeStatistics},
    stray::Stray,
    system::{Linux, System},
};
