//! [`Consistency`]: which in-flight writes a snapshot contains.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Consistency of a snapshot's data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Consistency {
    /// Crash-consistent: the data that had reached the disk, as after a power loss.
    #[default]
    Crash,
    /// Filesystem-consistent: the filesystem is frozen, all written data is included, and no
    /// journal has to be replayed. Blocks the volume's writers a little longer.
    Filesystem,
}
