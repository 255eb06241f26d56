//! Flags of `top`.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use humantime::parse_duration;
use kube::core::Selector;

use super::{ListOutput, Pools, Selection};
use crate::selector;

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
