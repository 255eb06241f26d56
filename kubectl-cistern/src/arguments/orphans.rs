//! Flags of `orphans`.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use humantime::parse_duration;

use super::{Output, Selection};

/// Flags of `orphans`.
#[derive(Args, Clone, Debug)]
pub struct Orphans {
    /// Subcommand; the default is `list`.
    #[command(subcommand)]
    pub command: Option<OrphansCommand>,
    /// Pool and node to which the output is restricted.
    #[command(flatten)]
    pub only: Selection,
    /// Output format.
    #[command(flatten)]
    pub output: Output,
}

/// Subcommands of `orphans`.
#[derive(Clone, Debug, Subcommand)]
pub enum OrphansCommand {
    /// List orphaned images, drift on the nodes, and unclaimed volumes and snapshots
    List(OrphansList),
    /// Create the missing custom resource of an image so that its node adopts the image
    Adopt(Adopt),
    /// Permanently remove an image and its data
    Reclaim(Reclaim),
}

/// Flags of `orphans list`.
#[derive(Args, Clone, Debug)]
pub struct OrphansList {
    /// Pool and node to which the output is restricted.
    #[command(flatten)]
    pub only: Selection,
    /// Output format.
    #[command(flatten)]
    pub output: Output,
}

/// Arguments that select one orphan.
#[derive(Args, Clone, Debug)]
pub struct OrphanArguments {
    /// Name of the image, of the volume or snapshot recorded in it, or of an unclaimed volume or snapshot
    pub name: String,
    /// Pool and node, for a name that is not unique.
    #[command(flatten)]
    pub only: Selection,
    /// How long to wait for the node
    #[arg(long, default_value = "1m", value_parser = parse_duration, value_name = "DURATION")]
    pub timeout: Duration,
}

/// Flags of `orphans adopt`.
#[derive(Args, Clone, Debug)]
pub struct Adopt {
    /// Orphan to process.
    #[command(flatten)]
    pub orphan: OrphanArguments,
    /// Whether to print or create a PersistentVolume for the volume
    #[arg(long, value_enum, default_value_t = PersistentVolumeAction::None)]
    pub persistent_volume: PersistentVolumeAction,
    /// Claim to which the PersistentVolume is bound
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pub claim: Option<String>,
    /// StorageClass of the PersistentVolume and of its claim
    #[arg(long, default_value = "", value_name = "NAME")]
    pub storage_class: String,
}

/// Handling of the PersistentVolume of an adopted volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PersistentVolumeAction {
    /// Neither print nor create a PersistentVolume
    None,
    /// Print a manifest
    Print,
    /// Create the PersistentVolume
    Create,
}

/// Flags of `orphans reclaim`.
#[derive(Args, Clone, Debug)]
pub struct Reclaim {
    /// Orphan to process.
    #[command(flatten)]
    pub orphan: OrphanArguments,
    /// Skip the confirmation prompt
    #[arg(long, short)]
    pub yes: bool,
}
