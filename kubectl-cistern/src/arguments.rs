//! Command-line flags and environment variables of the plugin. No other module reads them.

mod command;
mod examine;
mod lists;
mod moves;
mod nodes;
mod orphans;
mod top;

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Args, Parser};
use humantime::parse_duration;

pub use self::{
    command::Command,
    examine::{Discover, Doctor, Engine, Fsck, SupportBundle, Ui},
    lists::{
        ListOutput, Output, Pools, Selection, Snapshots, Status, Transfers, VolumeOrder, Volumes,
    },
    moves::{Claims, Drain, Move, Promote, Standby, When},
    nodes::{Cordon, ForgetNode, ReplaceDisk},
    orphans::{
        Adopt, OrphanArguments, Orphans, OrphansCommand, OrphansList, PersistentVolumeAction,
        Reclaim,
    },
    top::{Top, TopOrder, TopSubject, TopVolumes},
};

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

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::output::Format;

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
