//! [`StageRequest`]: a request to stage a volume with a filesystem.

use std::path::Path;

use cistern_types::{Bytes, FilesystemType, Provisioning};

use crate::{
    check::Checking,
    encryption::Unlock,
    id::{Uid, Uuid},
    options::MountOptions,
};

/// A request to stage a volume with a filesystem.
#[derive(Clone, Debug)]
pub struct StageRequest<'a> {
    /// Name of the image.
    pub image: &'a Uid,
    /// Name of the PoolVolume.
    pub volume: &'a str,
    /// The filesystem in it.
    pub filesystem: FilesystemType,
    /// The filesystem's UUID.
    pub filesystem_uuid: Uuid,
    /// Size of the volume. The image may be larger, if an expansion was interrupted, but not
    /// smaller.
    pub size: Bytes,
    /// Whether the image is allocated in full.
    pub provisioning: Provisioning,
    /// Mount options.
    pub options: &'a MountOptions,
    /// Mounts read-only, regardless of the options.
    pub read_only: bool,
    /// Whether this call may check its filesystem in full, and grow it before it is mounted.
    pub checking: Checking<'a>,
    /// What opens the volume if it is encrypted; none if it is not.
    pub unlock: Option<Unlock<'a>>,
    /// Staging path: an existing directory.
    pub staging: &'a Path,
}
