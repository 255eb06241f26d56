//! Arguments of the commands that change a pool on a node, or give up a node: `cordon`, `uncordon`, `replace-disk` and
//! `forget-node`.

use std::time::Duration;

use clap::Args;
use humantime::parse_duration;

/// Arguments of `cordon` and `uncordon`.
#[derive(Args, Clone, Debug)]
pub struct Cordon {
    /// Name of the StoragePool
    pub pool: String,
    /// Name of the node
    pub node: String,
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
