//! Arguments of the commands that move and copy volumes: `move`, `drain`, `standby` and `promote`.

use cistern_crds::Cutover;
use clap::{ArgAction, Args, ValueEnum};

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
    #[arg(
        long,
        value_name = "SECONDS",
        conflicts_with = "remove",
        value_parser = clap::value_parser!(u32).range(10..=86400)
    )]
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
