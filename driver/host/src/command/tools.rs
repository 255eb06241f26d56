//! Which tools the machine has to have.

use std::path::Path;

use super::PATH;

/// All tools that this crate starts, without that of encrypted volumes, which a node may lack.
const TOOLS: [&str; 8] = [
    "mkfs.ext4",
    "mkfs.xfs",
    "mkfs.btrfs",
    "blkid",
    "e2fsck",
    "resize2fs",
    "xfs_db",
    "prlimit",
];

/// A tool is not installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{tool} is missing: install its package")]
pub struct MissingTool {
    /// Name of the program.
    pub tool: &'static str,
}

/// Fails if a tool is not installed. Checks file names only.
pub fn check_tools() -> Result<(), MissingTool> {
    match TOOLS.into_iter().find(|tool| !is_installed(tool)) {
        Some(tool) => Err(MissingTool { tool }),
        None => Ok(()),
    }
}

/// Whether a tool is installed, by the name of its file.
pub(crate) fn is_installed(tool: &str) -> bool {
    let mut folders = PATH.split(':').map(Path::new);
    folders.any(|folder| folder.join(tool).is_file())
}
