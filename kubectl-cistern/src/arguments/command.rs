//! The subcommands, in the order of the help text.

use clap::Subcommand;
use clap_complete::Shell;

use super::{
    Cordon, Discover, Doctor, Drain, ForgetNode, Fsck, Move, Orphans, Pools, Promote, ReplaceDisk,
    Snapshots, Standby, Status, SupportBundle, Top, Transfers, Ui, Volumes,
};

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
        after_help = "A volume moves once no pod uses it: scale its workload down, or delete its pods. With \
        --cutover automatic, its data is copied while pods use it, and they are evicted when little is left to copy. \
        The command waits until the volumes have moved; Ctrl-C leaves the moves as they are, and the same command \
        goes on with them.\n\
        Exit codes: 0 the volumes have moved; 1 a move was undone, or --undo was too late; 3 the command failed."
    )]
    Move(Move),
    /// Move all volumes of a node to other nodes; its pools take no new volumes any more
    #[command(
        after_help = "Cordons the pools on the node. A volume moves once no pod uses it: evict the pods, for example \
        with `kubectl drain`, or use --cutover automatic. Snapshots stay, and so do volumes that cannot move, or \
        whose moves are undone. The command ends when the node has no other volumes; Ctrl-C leaves the moves as they \
        are, and a second run goes on with them.\n\
        Exit codes: 0 the node has no volumes; 1 some stay, or would stay; 3 the command failed."
    )]
    Drain(Drain),
    /// Keep copies of the volumes of claims on another node, which are renewed at an interval
    #[command(
        after_help = "The copy has the data of a moment in the past. It becomes the volume only with `promote`, \
        after the node of the volume is lost. It takes twice the size of the volume. The command waits until the \
        copies are complete; Ctrl-C leaves them as they are.\n\
        Exit codes: 0 the copies are complete, or removed; 1 a copy has ended; 3 the command failed."
    )]
    Standby(Standby),
    /// Promote standby copies after their node is lost; asks for confirmation
    #[command(
        after_help = "What was written to the volumes after their last copy is lost. The Node has to be gone, or to \
        have the taint node.kubernetes.io/out-of-service.\n\
        Exit codes: 0 the volumes are on their new node; 1 the promotion was undone; 3 the command failed, or was \
        not confirmed."
    )]
    Promote(Promote),
    /// Replace the disk of a pool on a node; asks for confirmation before it gives up volumes on a dead disk
    #[command(
        after_help = "The disk is listed in spec.replacedDisks of the StoragePool. The node then creates the pool on \
        another blank disk that the StoragePool lists or selects, once the former disk is removed from the machine, \
        cannot be read, or is empty. Nothing on it is changed. The command refuses while the pool works and has \
        volumes or snapshots."
    )]
    ReplaceDisk(ReplaceDisk),
    /// Release the volumes and snapshots of a node that is permanently lost
    ForgetNode(ForgetNode),
    /// Print the completion script of a shell
    #[command(
        after_help = "This script completes kubectl-cistern itself. For kubectl, link kubectl_complete-cistern to \
        kubectl-cistern in the PATH."
    )]
    Completion {
        /// Name of the shell
        shell: Shell,
    },
}
