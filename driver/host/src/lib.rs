//! Everything that touches one Linux host: pools, volume images, loop devices and mounts.
//!
//! [`Root`] is the folder of Cistern on the host and the way in: [`Root::open_pool`] makes a pool
//! usable, [`Pool`] makes, removes, stages and publishes volumes, and [`Root`] takes them back and
//! cuts snapshots of them.
//! All of it is synchronous. Every call is idempotent and asks the kernel what is so already.
//!
//! *Invariants:* nothing here knows Kubernetes or gRPC (of `cistern-crds` it uses the words for
//! sizes, filesystems and provisioning); nothing is remembered between calls; and everything that
//! is done to the machine goes through [`system::System`].

pub mod changes;
pub mod check;
pub mod command;
pub mod grow;
pub mod health;
pub mod image;
pub mod inventory;
pub mod loopdev;
pub mod mountinfo;
pub mod mounting;
pub mod options;
pub mod pool;
pub mod snapshot;
pub mod statistics;
pub mod system;

mod allocation;
mod cause;
mod id;
mod ioctl;
mod mkfs;
mod patience;
mod place;
mod renew;
mod root;
mod stray;
mod superblock;

pub use self::{
    cause::Cause,
    changes::Changes,
    check::Checking,
    grow::ExpandRequest,
    id::{InvalidUid, InvalidUuid, Uid, Uuid},
    image::{Content, Cut, Discarded, Identity, Image, ImageRequest, Owner, SourceImage},
    inventory::{Inventory, LoopCount, PoolInventory},
    mounting::{BlockPublishRequest, BlockStageRequest, PublishRequest, StageRequest, Staged},
    options::MountOptions,
    pool::{Expectation, Pool, PoolDeclaration, PoolStatistics, Source},
    root::{KEPT_PERCENT, Root},
    snapshot::{Member, SnapshotRequest},
    statistics::{FilesystemStatistics, VolumeStatistics},
    stray::Stray,
    system::{Linux, System},
};
