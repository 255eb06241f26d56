//! Configuration of the operator: flags and environment variables, read only here.

use std::net::SocketAddr;

use cistern_client::logging;
use cistern_crds::unclaimed;
use clap::Parser;

/// Cistern's operator: pools to nodes, topology, capacity, and events for users.
#[derive(Clone, Debug, Parser)]
#[command(version)]
pub struct Config {
    /// Namespace of the operator, of the node plugin's pods and of the capacity objects
    #[arg(long, env = "NAMESPACE", default_value = "cistern-system")]
    pub namespace: String,

    /// Name of this pod, for the events that it writes
    #[arg(long, env = "POD_NAME", default_value = "cistern-operator")]
    pub pod_name: String,

    /// Address of /healthz, /readyz and /metrics; `[::]` is IPv4, too, and port 0 takes any
    #[arg(
        long,
        env = "HTTP_ADDRESS",
        default_value = "[::]:9808",
        value_name = "ADDRESS:PORT"
    )]
    pub http: SocketAddr,

    /// Minimum age of a volume or snapshot before it is reported as unclaimed, in seconds
    #[arg(
        long,
        env = "UNCLAIMED_AFTER_SECONDS",
        default_value_t = unclaimed::GRACE.num_seconds(),
        value_parser = clap::value_parser!(i64).range(1..=u32::MAX.into()),
        value_name = "SECONDS"
    )]
    pub unclaimed_after: i64,

    /// Logs
    #[command(flatten)]
    pub logging: logging::Options,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn env_05_the_image_sets_every_default() {
        let image = include_str!("../../Dockerfile");
        for option in Config::command().get_arguments() {
            let (Some(variable), [default]) = (option.get_env(), option.get_default_values())
            else {
                continue;
            };
            let line = format!("{}={}", variable.display(), default.display());
            assert!(image.contains(&line), "the Dockerfile lacks {line}");
        }
    }
}
