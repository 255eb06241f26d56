//! `StoragePool`: a pool that an administrator declares.
//!
//! *Invariant:* an administrator writes the spec, and the operator the status.

mod device;
mod limits;
mod node_selector;
mod replaced_disk;
mod source;
mod spec;
mod status;

pub(crate) use self::replaced_disk::replaced_schema;
pub use self::{
    device::{DeviceEngine, DeviceSource, DiskSelector},
    limits::PoolLimits,
    replaced_disk::ReplacedDisk,
    source::{ImageSource, PoolSource, VolumeGroupSource, is_directory, is_volume_group_name},
    spec::{PoolAutoscaling, StoragePool, StoragePoolSpec, usable_of},
    status::StoragePoolStatus,
};
