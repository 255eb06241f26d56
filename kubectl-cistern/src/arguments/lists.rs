//! Flags of the commands that list what is in the cluster, and what several of them have in common.

use clap::{Args, ValueEnum};
use kube::core::Selector;

use crate::{output::Format, selector};

/// Flags that select the output format.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct Output {
    /// Output format
    #[arg(long = "output", short = 'o', value_enum, default_value_t = Format::Table)]
    pub format: Format,
}

/// Flags that select how a list is printed.
#[derive(Args, Clone, Copy, Debug)]
pub struct ListOutput {
    /// Output format.
    #[command(flatten)]
    pub output: Output,
    /// Print the table without its headings
    #[arg(long)]
    pub no_headers: bool,
    /// Print again after each change, until Ctrl-C
    #[arg(long, short)]
    pub watch: bool,
}

/// Flags that select objects by pool and node.
#[derive(Args, Clone, Debug, Default)]
pub struct Selection {
    /// Only show objects in this pool
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
    /// Only show objects on this node
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
}

/// Flags of `status`.
#[derive(Args, Clone, Debug)]
pub struct Status {
    /// Output format.
    #[command(flatten)]
    pub output: Output,
    /// Exit with 1 if there are warnings, and with 2 if there are errors
    #[arg(long, conflicts_with = "watch")]
    pub exit_code: bool,
    /// Print again after each change, until Ctrl-C
    #[arg(long, short)]
    pub watch: bool,
}

/// Flags of `pools`.
#[derive(Args, Clone, Debug)]
pub struct Pools {
    /// Pool and node to which the output is restricted.
    #[command(flatten)]
    pub only: Selection,
    /// Only show pools with these labels, such as `tier=fast,!old`
    #[arg(long, short = 'l', value_name = "LABELS", value_parser = selector::parse)]
    pub selector: Option<Selector>,
    /// Output format.
    #[command(flatten)]
    pub output: ListOutput,
}

/// Flags of `volumes`.
#[derive(Args, Clone, Debug)]
pub struct Volumes {
    /// Pool and node to which the output is restricted.
    #[command(flatten)]
    pub only: Selection,
    /// Only show volumes whose claim is in this namespace
    #[arg(long, short, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Sort order
    #[arg(long, value_enum, default_value_t = VolumeOrder::Claim)]
    pub sort: VolumeOrder,
    /// Only show volumes whose claim has these labels, such as `app=db,!old`
    #[arg(long, short = 'l', value_name = "LABELS", value_parser = selector::parse)]
    pub selector: Option<Selector>,
    /// Show the devices of attached volumes; requires the right `get` of `pods/proxy` in Cistern's namespace
    #[arg(long, conflicts_with = "watch")]
    pub devices: bool,
    /// Output format.
    #[command(flatten)]
    pub output: ListOutput,
}

/// Sort order of volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum VolumeOrder {
    /// By namespace and name of the claim
    Claim,
    /// By name of the volume
    Name,
    /// By node, then by claim
    Node,
    /// By pool, then by claim
    Pool,
    /// Largest first
    Size,
    /// Newest first
    Age,
}

/// Flags of `snapshots`.
#[derive(Args, Clone, Debug)]
pub struct Snapshots {
    /// Pool and node to which the output is restricted.
    #[command(flatten)]
    pub only: Selection,
    /// Only show the tree that contains this volume
    #[arg(long, value_name = "NAME")]
    pub volume: Option<String>,
    /// Also show volumes without snapshots and without a source
    #[arg(long)]
    pub all: bool,
    /// Output format.
    #[command(flatten)]
    pub output: ListOutput,
}

/// Flags of `transfers`.
#[derive(Args, Clone, Debug)]
pub struct Transfers {
    /// Pool that receives, and node that sends or receives, to which the output is restricted.
    #[command(flatten)]
    pub only: Selection,
    /// Output format.
    #[command(flatten)]
    pub output: ListOutput,
}
