//! What the operator is told: flags and environment, read here and nowhere else.

use std::net::SocketAddr;

use cistern_client::logging;
use clap::Parser;

/// Cistern's operator: pools to nodes, topology, capacity, and events for people.
#[derive(Clone, Debug, Parser)]
#[command(version)]
pub struct Config {
    /// Namespace of the operator, of the node plugin's pods and of the capacity objects
    #[arg(long, env = "NAMESPACE", default_value = "cistern-system")]
    pub namespace: String,

    /// Name of this pod, for the events that it writes
    #[arg(long, env = "POD_NAME", default_value = "cistern-operator")]
    pub pod_name: String,

    /// Address of /healthz, /readyz and /metrics; port 0 takes any
    #[arg(
        long,
        env = "HTTP_ADDRESS",
        default_value = "0.0.0.0:9808",
        value_name = "ADDRESS:PORT"
    )]
    pub http: SocketAddr,

    /// Logs
    #[command(flatten)]
    pub logging: logging::Options,
}
