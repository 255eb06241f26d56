//! What the plugin is told: flags and environment, read here and nowhere else.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::{duration, output::Format};

/// What Cistern does in a cluster, what is wrong with it, and what to do.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "kubectl-cistern",
    bin_name = "kubectl cistern",
    version,
    after_help = "Exit codes: 0 done, and nothing is wrong; 1 a warning; 2 something is wrong (doctor, and \
                  status --exit-code);\n3 the command failed: no cluster, not allowed, wrong flags."
)]
pub struct Arguments {
    /// Which cluster.
    #[command(flatten)]
    pub connection: Connection,

    /// Plain text even on a terminal; the variable NO_COLOR does the same
    #[arg(
        long,
        global = true,
        env = "NO_COLOR",
        hide_env = true,
        num_args = 0..=1,
        default_missing_value = "1",
        require_equals = true,
        hide_possible_values = true,
        value_name = "ANY"
    )]
    pub no_color: Option<OsString>,

    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Which cluster, and as whom: as kubectl takes it.
#[derive(Args, Clone, Debug)]
pub struct Connection {
    /// Path of the kubeconfig; otherwise KUBECONFIG, ~/.kube/config, or the pod's own account
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig to use
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,

    /// User to act as
    #[arg(long = "as", global = true, value_name = "USER")]
    pub impersonate: Option<String>,

    /// Namespace that Cistern is installed in
    #[arg(
        long,
        global = true,
        default_value = "cistern-system",
        value_name = "NAME"
    )]
    pub system_namespace: String,

    /// How long one answer of the API server may take
    #[arg(long, global = true, default_value = "30s", value_parser = duration::parse, value_name = "DURATION")]
    pub request_timeout: Duration,
}

/// The subcommands.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// One screen: pools, nodes, how full they are, and what is wrong
    Status(Status),
    /// Pools, and what each node has of them
    Pools(Pools),
    /// Volumes: claim, node, image, device, pods
    Volumes(Volumes),
    /// What was made from what: volumes, their snapshots, the volumes made from those, and so on
    Snapshots(Snapshots),
    /// Checks the installation, and says what to do
    Doctor(Doctor),
    /// Images that no volume or snapshot claims: list them, take them back, or have them removed
    Orphans(Orphans),
    /// Gives up a node that is gone for good, with the volumes and snapshots on it
    ForgetNode(ForgetNode),
    /// Logs of Cistern's own pods, also of all that has to do with one volume
    Logs(Logs),
    /// Prints the completion script of a shell
    #[command(
        after_help = "kubectl completes plugins by a program kubectl_complete-cistern in the PATH; this script completes kubectl-cistern itself."
    )]
    Completion {
        /// Which shell
        shell: Shell,
    },
}

/// How to write.
#[derive(Args, Clone, Copy, Debug)]
pub struct Output {
    /// How to write it
    #[arg(long = "output", short = 'o', value_enum, default_value_t = Format::Table)]
    pub format: Format,
}

/// Flags of `status`.
#[derive(Args, Clone, Debug)]
pub struct Status {
    /// How to write it.
    #[command(flatten)]
    pub output: Output,
    /// End with 1 or 2 where something is wrong
    #[arg(long)]
    pub exit_code: bool,
}

/// Which pools, nodes and volumes.
#[derive(Args, Clone, Debug, Default)]
pub struct Selection {
    /// Only of this pool
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
    /// Only on this node
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
}

/// Flags of `pools`.
#[derive(Args, Clone, Debug)]
pub struct Pools {
    /// Only these.
    #[command(flatten)]
    pub only: Selection,
    /// How to write it.
    #[command(flatten)]
    pub output: Output,
}

/// Flags of `volumes`.
#[derive(Args, Clone, Debug)]
pub struct Volumes {
    /// Only these.
    #[command(flatten)]
    pub only: Selection,
    /// Only volumes of claims in this namespace
    #[arg(long, short, value_name = "NAME")]
    pub namespace: Option<String>,
    /// What comes first
    #[arg(long, value_enum, default_value_t = VolumeOrder::Claim)]
    pub sort: VolumeOrder,
    /// Ask the nodes for their loop devices, which takes the right to exec into Cistern's pods
    #[arg(long)]
    pub devices: bool,
    /// How to write it.
    #[command(flatten)]
    pub output: Output,
}

/// In which order volumes are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum VolumeOrder {
    /// Namespace and name of the claim
    Claim,
    /// Name of the volume
    Name,
    /// Node, then claim
    Node,
    /// Pool, then claim
    Pool,
    /// The largest first
    Size,
    /// The newest first
    Age,
}

/// Flags of `snapshots`.
#[derive(Args, Clone, Debug)]
pub struct Snapshots {
    /// Only these.
    #[command(flatten)]
    pub only: Selection,
    /// Only the family of this volume
    #[arg(long, value_name = "NAME")]
    pub volume: Option<String>,
    /// Also volumes that neither have a snapshot nor were made from anything
    #[arg(long)]
    pub all: bool,
    /// How to write it.
    #[command(flatten)]
    pub output: Output,
}

/// Flags of `doctor`.
#[derive(Args, Clone, Debug)]
pub struct Doctor {
    /// How to write it.
    #[command(flatten)]
    pub output: Output,
}

/// Flags of `orphans`.
#[derive(Args, Clone, Debug)]
pub struct Orphans {
    /// What to do with them; without it they are listed.
    #[command(subcommand)]
    pub command: Option<OrphansCommand>,
    /// Only these.
    #[command(flatten)]
    pub only: Selection,
    /// How to write it.
    #[command(flatten)]
    pub output: Output,
}

/// What to do with orphans.
#[derive(Clone, Debug, Subcommand)]
pub enum OrphansCommand {
    /// Lists them, and what else does not belong together on the nodes
    List(OrphansList),
    /// Makes the custom resource that an image is missing, so that its node takes it up again
    Adopt(Adopt),
    /// Has an image removed for good
    Reclaim(Reclaim),
}

/// Flags of `orphans list`.
#[derive(Args, Clone, Debug)]
pub struct OrphansList {
    /// Only these.
    #[command(flatten)]
    pub only: Selection,
    /// How to write it.
    #[command(flatten)]
    pub output: Output,
}

/// Which orphan.
#[derive(Args, Clone, Debug)]
pub struct Chosen {
    /// Name of the image, or of the volume or snapshot that it says it is; or of a volume or snapshot that nobody claims
    pub name: String,
    /// Where there are several of this name: of this pool, on this node.
    #[command(flatten)]
    pub only: Selection,
    /// How long the node may take
    #[arg(long, default_value = "1m", value_parser = duration::parse, value_name = "DURATION")]
    pub timeout: Duration,
}

/// Flags of `orphans adopt`.
#[derive(Args, Clone, Debug)]
pub struct Adopt {
    /// Which.
    #[command(flatten)]
    pub chosen: Chosen,
    /// What to do about a PersistentVolume for it
    #[arg(long, value_enum, default_value_t = PersistentVolumeWish::None)]
    pub persistent_volume: PersistentVolumeWish,
    /// Claim that the PersistentVolume is for
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pub claim: Option<String>,
    /// StorageClass of the PersistentVolume and its claim
    #[arg(long, default_value = "", value_name = "NAME")]
    pub storage_class: String,
}

/// What to do about a PersistentVolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PersistentVolumeWish {
    /// Nothing
    None,
    /// Print one, to be applied by hand
    Print,
    /// Create it
    Create,
}

/// Flags of `orphans reclaim`.
#[derive(Args, Clone, Debug)]
pub struct Reclaim {
    /// Which.
    #[command(flatten)]
    pub chosen: Chosen,
    /// Do it without asking
    #[arg(long, short)]
    pub yes: bool,
}

/// Flags of `forget-node`.
#[derive(Args, Clone, Debug)]
pub struct ForgetNode {
    /// Name of the node
    pub node: String,
    /// Only what is in this pool, whose disk on the node is dead; the node itself may be well
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
    /// How long the operator may take to remove the StorageNode
    #[arg(long, default_value = "1m", value_parser = duration::parse, value_name = "DURATION")]
    pub timeout: Duration,
}

/// Flags of `logs`.
#[derive(Args, Clone, Debug)]
pub struct Logs {
    /// Only lines about this volume, and without other flags those of the controller and of its node
    #[arg(long, value_name = "NAME")]
    pub volume: Option<String>,
    /// Of the node plugin on this node
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Of these parts
    #[arg(long, value_enum, value_delimiter = ',')]
    pub component: Vec<Component>,
    /// Also of the sidecars
    #[arg(long)]
    pub sidecars: bool,
    /// Go on as lines come
    #[arg(long, short)]
    pub follow: bool,
    /// Nothing older than this
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    pub since: Option<Duration>,
    /// Look at no more than the last lines of each container
    #[arg(long, value_name = "LINES")]
    pub tail: Option<i64>,
    /// Also of containers that ran before the last restart
    #[arg(long, conflicts_with = "follow")]
    pub previous: bool,
}

/// A part of Cistern, as the label of its pods names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Component {
    /// Pools to nodes, capacity, events
    Operator,
    /// CSI's controller
    Controller,
    /// CSI's node service and the agent
    Node,
}

impl Component {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Operator, Self::Controller, Self::Node];

    /// Value of the label on its pods.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Controller => "controller",
            Self::Node => cistern_crds::names::NODE_COMPONENT,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_flags_agree_with_one_another() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn flags_stand_before_or_behind_the_subcommand() {
        let words = [
            "kubectl-cistern",
            "--context",
            "a",
            "volumes",
            "-n",
            "b",
            "-o",
            "json",
        ];
        let read = Arguments::try_parse_from(words).unwrap();
        assert_eq!(read.connection.context.as_deref(), Some("a"));
        let Command::Volumes(volumes) = read.command else {
            panic!("{:?}", read.command);
        };
        assert_eq!(volumes.namespace.as_deref(), Some("b"));
        assert_eq!(volumes.output.format, Format::Json);
        let words = ["kubectl-cistern", "status", "--context=a", "--no-color"];
        let read = Arguments::try_parse_from(words).unwrap();
        assert!(read.no_color.is_some());
    }
}
