//! Flags of the commands that examine nodes and the installation: `discover`, `ui`, `doctor`, `fsck` and
//! `support-bundle`.

use std::path::PathBuf;

use cistern_crds::pool::DeviceEngine;
use clap::{Args, ValueEnum};
use kube::core::Selector;

use super::Output;
use crate::selector;

/// Flags of `discover`.
#[derive(Args, Clone, Debug)]
pub struct Discover {
    /// Print a StoragePool of this name to apply, which uses the usable disks, as YAML or JSON
    #[arg(long, value_name = "NAME", conflicts_with = "no_headers")]
    pub pool: Option<String>,
    /// How volumes lie on the disks of the StoragePool
    #[arg(
        long,
        value_enum,
        default_value = "image",
        requires = "pool",
        value_name = "ENGINE"
    )]
    pub engine: Engine,
    /// Only show disks of this node
    #[arg(long, value_name = "NAME", conflicts_with = "selector")]
    pub node: Option<String>,
    /// Only show disks of Nodes with these labels, such as `storage=local`, which are also those of the StoragePool
    #[arg(long, short = 'l', value_name = "LABELS", value_parser = selector::parse)]
    pub selector: Option<Selector>,
    /// Output format.
    #[command(flatten)]
    pub output: Output,
    /// Print the table without its headings
    #[arg(long)]
    pub no_headers: bool,
}

/// How the volumes of a pool lie on its disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// Files on one disk of each node
    Image,
    /// Logical volumes in a volume group of all listed disks of each node, without snapshots
    LogicalVolume,
}

impl From<Engine> for DeviceEngine {
    fn from(engine: Engine) -> Self {
        match engine {
            Engine::Image => Self::Image,
            Engine::LogicalVolume => Self::LogicalVolume,
        }
    }
}

/// Flags of `ui`.
#[derive(Args, Clone, Copy, Debug)]
pub struct Ui {
    /// TCP port on the loopback address; 0 selects a free port
    #[arg(long, default_value_t = 0, value_name = "NUMBER")]
    pub port: u16,
    /// Listen on ::1 instead of 127.0.0.1
    #[arg(long)]
    pub ipv6: bool,
    /// Open the page in the default browser
    #[arg(long)]
    pub open: bool,
}

/// Flags of `doctor`.
#[derive(Args, Clone, Debug)]
pub struct Doctor {
    /// Output format.
    #[command(flatten)]
    pub output: Output,
}

/// Flags of `fsck`.
#[derive(Args, Clone, Debug, Default)]
#[command(
    after_help = "Exit codes: 0 no findings; 1 findings; 2 a node could not be asked; 3 the command failed.\n\
    Asks the agents through the API server: the right `get` of `pods/proxy` in Cistern's namespace."
)]
pub struct Fsck {
    /// Only ask the agent on this node
    #[arg(long, value_name = "NAME", conflicts_with = "selector")]
    pub node: Option<String>,
    /// Only ask the agents on Nodes with these labels, such as `zone=a,!old`
    #[arg(long, short = 'l', value_name = "LABELS", value_parser = selector::parse)]
    pub selector: Option<Selector>,
    /// Output format.
    #[command(flatten)]
    pub output: Output,
}

/// Flags of `support-bundle`.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Exit codes: 0 success; 1 something could not be collected, which index.json names; 3 the command failed."
)]
pub struct SupportBundle {
    /// File to write, which must not exist (default: cistern-support-bundle-TIME.tar.gz in this directory)
    #[arg(long, short, value_name = "FILE")]
    pub file: Option<PathBuf>,
}
