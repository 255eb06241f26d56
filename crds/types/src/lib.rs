//! Types that the API and the code for one Linux machine share: sizes, filesystems, and how the bytes of
//! volumes and snapshots are kept.
//!
//! *Invariant:* nothing here does I/O, and no Kubernetes crate is needed.

pub mod consistency;
pub mod encryption;
pub mod extent_limits;
pub mod extent_size;
pub mod filesystem;
pub mod io_limits;
pub mod mkfs_options;
pub mod provisioning;
pub mod size;

pub use consistency::Consistency;
pub use encryption::Encryption;
pub use extent_limits::ExtentLimits;
pub use extent_size::ExtentSize;
pub use filesystem::FilesystemType;
pub use io_limits::IoLimits;
pub use mkfs_options::MkfsOptions;
pub use provisioning::Provisioning;
pub use size::Bytes;

/// Whether a number is zero: serde then leaves its field out.
pub fn is_zero<T: Default + PartialEq>(number: &T) -> bool {
    *number == T::default()
}

/// Shortens user text to 64 characters for a message, because messages become conditions and events.
pub fn shorten(text: &str) -> String {
    text.chars().take(64).collect()
}
