//! Command-line flags and environment variables of the plugin. No other module reads them.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use cistern_crds::{Cutover, pool::DeviceEngine};
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use humantime::parse_duration;
use kube::core::Selector;

use crate::{output::Format, selector};

/// Inspect and repair Cistern storage in a cluster.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "kubectl-cistern",
    bin_name = "kubectl cistern",
    version,
    after_help = "Exit codes: 0 success; 1 warnings found; 2 errors found (1 and 2: doctor, and status \
    --exit-code);\n3 the command failed: cluster unreachable, access denied, or invalid flags.\n\
    Other commands: see their help."
)]
pub struct Arguments {
    /// Cluster and user.
    #[command(flatten)]
    pub connection: Connection,

    /// Disable colored output; the environment variable NO_COLOR has the same effect
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

    /// Subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// Flags that select the cluster and the user, with the same meaning as in kubectl.
#[derive(Args, Clone, Debug)]
pub struct Connection {
    /// Path to the kubeconfig file (default: KUBECONFIG, ~/.kube/config, or the pod's service account)
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Name of the kubeconfig context to use
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,

    /// Username to impersonate
    #[arg(long = "as", global = true, value_name = "USER")]
    pub impersonate: Option<String>,

    /// Namespace in which Cistern is installed
    #[arg(
        long,
        global = true,
        default_value = "cistern-system",
        value_name = "NAME"
    )]
    pub system_namespace: String,

    /// Timeout of a single request to the API server
    #[arg(long, global = true, default_value = "30s", value_parser = parse_duration, value_name = "DURATION")]
    pub request_timeout: Duration,
}

/// The subcommands.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Show a summary of pools, nodes, capacity and problems
    Status(Status),
    /// List pools and their capacity on each node
    Pools(Pools),
    /// List volumes with their claim, node, image, device and pods
    Volumes(Volumes),
    /// Show volumes, their snapshots, and the volumes created from them as a tree
    Snapshots(Snapshots),
    /// List the copies of snapshots and of moving volumes to other nodes, with their progress or why they wait
    Transfers(Transfers),
    /// List the disks of the nodes, and print a StoragePool that uses the blank ones; changes nothing
    Discover(Discover),
    /// Show the space that pools and volumes use, and what they read and write each second
    Top(Top),
    /// Serve a live page with pools, nodes, volumes and problems to a browser on this machine
    Ui(Ui),
    /// Check the installation and suggest fixes
    Doctor(Doctor),
    /// Compare the disks and mounts of all nodes with the custom resources; changes nothing
    Fsck(Fsck),
    /// Collect what others need to understand a problem in one file
    SupportBundle(SupportBundle),
    /// List, adopt or reclaim images that no volume or snapshot claims
    Orphans(Orphans),
    /// Make a pool take no new volumes on a node; its volumes there keep working
    Cordon(Cordon),
    /// Make a pool take new volumes on a node again
    Uncordon(Cordon),
    /// Move the volumes of claims to another node, with those that pods use together with them
    #[command(
        after_help = "A volume moves once no pod uses it: scale its workload down, or delete its pods. With --cutover automatic, its data is \
        copied while pods use it, and they are evicted when little is left to copy. The command \
        waits until the volumes have moved; Ctrl-C leaves the moves as they are, and the same command goes on with them.\n\
        Exit codes: 0 the volumes have moved; 1 a move was undone, or --undo was too late; 3 the command failed."
    )]
    Move(Move),
    /// Move all volumes of a node to other nodes; its pools take no new volumes any more
    #[command(
        after_help = "Cordons the pools on the node. A volume moves once no pod uses it: evict the pods, for example with `kubectl drain`, or \
        use --cutover automatic. \
        Snapshots stay, and so do volumes that cannot move, or whose moves are undone. The command ends when the node has no \
        other volumes; Ctrl-C leaves the moves as they are, and a second run goes on with them.\n\
        Exit codes: 0 the node has no volumes; 1 some stay, or would stay; 3 the command failed."
    )]
    Drain(Drain),
    /// Keep copies of the volumes of claims on another node, which are renewed at an interval
    #[command(
        after_help = "The copy has the data of a moment in the past. It becomes the volume only with `promote`, after the node of the volume is \
        lost. It takes twice the size of the volume. The command waits until the copies are complete; Ctrl-C leaves them as they are.\n\
        Exit codes: 0 the copies are complete, or removed; 1 a copy has ended; 3 the command failed."
    )]
    Standby(Standby),
    /// Promote standby copies after their node is lost; asks for confirmation
    #[command(
        after_help = "What was written to the volumes after their last copy is lost. The Node has to be gone, or to have the taint \
        node.kubernetes.io/out-of-service.\n\
        Exit codes: 0 the volumes are on their new node; 1 the promotion was undone; 3 the command failed, or was not confirmed."
    )]
    Promote(Promote),
    /// Replace the disk of a pool on a node; asks for confirmation before it gives up volumes on a dead disk
    #[command(
        after_help = "The disk is listed in spec.replacedDisks of the StoragePool. The node then creates the pool on \
        another blank disk that the StoragePool lists or selects, once the former disk is removed from the machine, cannot \
        be read, or is empty. Nothing on it is changed. The command refuses while the pool works and has volumes or snapshots."
    )]
    ReplaceDisk(ReplaceDisk),
    /// Release the volumes and snapshots of a node that is permanently lost
    ForgetNode(ForgetNode),
    /// Print the completion script of a shell
    #[command(
        after_help = "This script completes kubectl-cistern itself. For kubectl, link kubectl_complete-cistern to kubectl-cistern in the PATH."
    )]
    Completion {
        /// Name of the shell
        shell: Shell,
    },
}

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

/// Flags of `top`.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Reads the metrics of the agents through the API server: the right `get` of `pods/proxy` \
    in Cistern's namespace."
)]
pub struct Top {
    /// What to show.
    #[command(subcommand)]
    pub subject: TopSubject,
    /// Time between the two samples, over which rates are measured
    #[arg(long, global = true, default_value = "2s", value_parser = interval, value_name = "DURATION")]
    pub interval: Duration,
    /// Sort order
    #[arg(long, global = true, value_enum, default_value_t = TopOrder::Name)]
    pub sort: TopOrder,
}

/// What `top` shows.
#[derive(Clone, Debug, Subcommand)]
pub enum TopSubject {
    /// Show pools, in total and on each node
    Pools(Pools),
    /// Show volumes
    Volumes(TopVolumes),
}

/// Flags of `top volumes`.
#[derive(Args, Clone, Debug)]
pub struct TopVolumes {
    /// Pool and node to which the output is restricted.
    #[command(flatten)]
    pub only: Selection,
    /// Only show volumes whose claim is in this namespace
    #[arg(long, short, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Only show volumes whose claim has these labels, such as `app=db,!old`
    #[arg(long, short = 'l', value_name = "LABELS", value_parser = selector::parse)]
    pub selector: Option<Selector>,
    /// Output format.
    #[command(flatten)]
    pub output: ListOutput,
}

impl Top {
    /// Returns the node to which the output is restricted; `None` for all nodes.
    pub fn node(&self) -> Option<&str> {
        let (TopSubject::Pools(Pools { only, .. }) | TopSubject::Volumes(TopVolumes { only, .. })) =
            &self.subject;
        only.node.as_deref()
    }

    /// Returns the flags that select how the list is printed.
    pub const fn output(&self) -> ListOutput {
        match &self.subject {
            TopSubject::Pools(pools) => pools.output,
            TopSubject::Volumes(volumes) => volumes.output,
        }
    }
}

/// Sort order of `top`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TopOrder {
    /// By name of the pool, or of the claim
    Name,
    /// Most reads and writes first
    Operations,
    /// Most bytes read and written first
    Throughput,
    /// Most space first
    Used,
}

/// Parses the time between two samples. Fails with a message for the user if the text is not a
/// duration, or if it is zero.
fn interval(text: &str) -> Result<Duration, String> {
    let interval = parse_duration(text).map_err(|error| error.to_string())?;
    if interval.is_zero() {
        return Err("rates need some time between two samples".to_owned());
    }
    Ok(interval)
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

/// Arguments of `cordon` and `uncordon`.
#[derive(Args, Clone, Debug)]
pub struct Cordon {
    /// Name of the StoragePool
    pub pool: String,
    /// Name of the node
    pub node: String,
}

/// Arguments of `move`.
#[derive(Args, Clone, Debug)]
pub struct Move {
    /// The volumes.
    #[command(flatten)]
    pub claims: Claims,
    /// Name of the node to move to (default: the node with the most room)
    #[arg(long, value_name = "NODE", conflicts_with = "undo")]
    pub to: Option<String>,
    /// When the volumes leave the pods that use them (default: when-unused; moves that exist stay as they are)
    #[arg(long, value_enum, value_name = "WHEN", conflicts_with = "undo")]
    pub cutover: Option<When>,
    /// Undo the moves of these volumes, as long as they are on their former node
    #[arg(long)]
    pub undo: bool,
    /// Wait until the volumes have moved
    #[arg(long, default_value_t = true, action = ArgAction::Set, value_name = "BOOL")]
    pub wait: bool,
}

/// Arguments that name volumes.
#[derive(Args, Clone, Debug)]
pub struct Claims {
    /// Names of claims, as NAME or NAMESPACE/NAME, or of PoolVolumes
    #[arg(required = true, value_name = "CLAIM")]
    pub claims: Vec<String>,
    /// Namespace of the claims (default: that of the context)
    #[arg(long, short, value_name = "NAME")]
    pub namespace: Option<String>,
}

/// Arguments of `standby`.
#[derive(Args, Clone, Debug)]
pub struct Standby {
    /// The volumes.
    #[command(flatten)]
    pub claims: Claims,
    /// Name of the node that keeps the copies (default: the node with the most room)
    #[arg(long, value_name = "NODE", conflicts_with = "remove")]
    pub to: Option<String>,
    /// Seconds between two copies, 10 to 86400 (default: 60)
    #[arg(long, value_name = "SECONDS", conflicts_with = "remove", value_parser = clap::value_parser!(u32).range(10..=86400))]
    pub interval: Option<u32>,
    /// Remove the copies
    #[arg(long)]
    pub remove: bool,
    /// Wait until the copies are complete, or removed
    #[arg(long, default_value_t = true, action = ArgAction::Set, value_name = "BOOL")]
    pub wait: bool,
}

/// Arguments of `promote`.
#[derive(Args, Clone, Debug)]
pub struct Promote {
    /// The volumes.
    #[command(flatten)]
    pub claims: Claims,
    /// Continue although the copies of volumes that pods use together have the data of different moments
    #[arg(long)]
    pub different_moments: bool,
    /// Wait until the volumes are on their new node
    #[arg(long, default_value_t = true, action = ArgAction::Set, value_name = "BOOL")]
    pub wait: bool,
}

/// When a volume that moves leaves the pods that use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum When {
    /// Once they have ended; nothing is copied before
    WhenUnused,
    /// Copied while they run; they are evicted within their budgets once little is left to copy
    Automatic,
    /// Copied while they run, until they have ended or this is set to automatic
    Manual,
}

impl From<When> for Cutover {
    fn from(when: When) -> Self {
        match when {
            When::WhenUnused => Self::WhenUnused,
            When::Automatic => Self::Automatic,
            When::Manual => Self::Manual,
        }
    }
}

/// Arguments of `drain`.
#[derive(Args, Clone, Debug)]
pub struct Drain {
    /// Name of the node
    pub node: String,
    /// Name of the node to move to (default: for each volume, the node with the most room)
    #[arg(long, value_name = "NODE")]
    pub to: Option<String>,
    /// When the volumes leave the pods that use them (moves that exist stay as they are)
    #[arg(long, value_enum, default_value = "when-unused", value_name = "WHEN")]
    pub cutover: When,
    /// How many groups of volumes that pods use together move at a time; with when-unused, those that pods still use do
    /// not begin
    #[arg(long, default_value = "4", value_parser = at_once, value_name = "NUMBER")]
    pub at_once: usize,
    /// Print what would move, and change nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// Parses how many groups are copied at a time. Fails with a message for the user.
fn at_once(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("nothing would move".to_owned()),
        Ok(number) => Ok(number),
        Err(error) => Err(std::num::ParseIntError::to_string(&error)),
    }
}

/// Arguments of `replace-disk`.
#[derive(Args, Clone, Debug)]
pub struct ReplaceDisk {
    /// Name of the StoragePool
    pub pool: String,
    /// Name of the node
    pub node: String,
    /// Continue although other nodes have complete copies of lost volumes; the copies can no longer be promoted
    #[arg(long)]
    pub give_up_copies: bool,
}

/// Flags of `forget-node`.
#[derive(Args, Clone, Debug)]
pub struct ForgetNode {
    /// Name of the node
    pub node: String,
    /// Release only this pool, whose disk on the node has failed; the node may be running
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
    /// Continue although other nodes have complete copies of lost volumes; the copies can no longer be promoted
    #[arg(long)]
    pub give_up_copies: bool,
    /// How long to wait for the operator to remove the StorageNode
    #[arg(long, default_value = "1m", value_parser = parse_duration, value_name = "DURATION")]
    pub timeout: Duration,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_definition_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn global_flags_are_accepted_before_and_after_the_subcommand() {
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
        assert_eq!(volumes.output.output.format, Format::Json);
        let words = ["kubectl-cistern", "top", "pools", "--interval", "0s"];
        assert!(Arguments::try_parse_from(words).is_err());
        let words = ["kubectl-cistern", "status", "--context=a", "--no-color"];
        let read = Arguments::try_parse_from(words).unwrap();
        assert!(read.no_color.is_some());
    }
}
