//! What the operator is told: flags and environment, read here and nowhere else.

use std::net::SocketAddr;

use cistern_client::logging;
use clap::Parser;

/// Cistern's operator: pools to nodes, topology, capacity, and events for people.
#[derive(Clone, Debug, Parser)]
#[command(version)]
pub struct Config {
    /// Namespace of the operator, of the node plugin's pods and of the capacity objects
    #[arg(long, env = "POD_NAMESPACE", default_value = "cistern-system")]
    pub namespace: String,

    /// Name of this pod, for the events that it writes
    #[arg(long, env = "POD_NAME", default_value = "cistern-operator")]
    pub pod_name: String,

    /// Where health and metrics are served
    #[arg(long, env = "HTTP_ADDRESS", default_value = "0.0.0.0:8080")]
    pub http_address: SocketAddr,

    /// Logs
    #[command(flatten)]
    pub logging: logging::Options,
}
