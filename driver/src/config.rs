//! The configuration of a process: options, each also an environment variable (ENV-04).
//!
//! *Invariant:* nothing else reads the environment, and all values are checked here.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use cistern_client::logging;
use cistern_crds::pool::is_directory;
use clap::{Args, Parser, Subcommand};
use humantime::parse_duration;

use crate::csi::MAX_NODE_ID;

/// Node-local storage for Kubernetes: the CSI driver.
#[derive(Clone, Debug, Parser)]
#[command(name = "cistern-driver", version)]
pub struct Config {
    #[command(flatten)]
    /// Options of the logs.
    pub logging: logging::Options,
    /// Mode of the process.
    #[command(subcommand)]
    pub mode: Mode,
}

/// Mode of the process (LIF-02).
#[derive(Clone, Debug, Subcommand)]
pub enum Mode {
    /// Serve CSI Identity, Controller, GroupController and SnapshotMetadata
    Controller(Controller),
    /// Serve CSI Identity and Node on one node, and keep its pools and volumes
    Node(Node),
    /// Compare custom resources, images, loop devices and mounts of the node it runs on
    Fsck(Fsck),
}

/// Options of the controller.
#[derive(Args, Clone, Debug)]
pub struct Controller {
    #[command(flatten)]
    /// Options that the node plugin has, too.
    pub service: Service,
    /// Name of the pod, under which the key is published that node plugins answer
    #[arg(
        long,
        env = "POD_NAME",
        default_value = "cistern-controller",
        value_name = "NAME"
    )]
    pub pod_name: String,
}

/// Options of both modes that serve CSI.
#[derive(Args, Clone, Debug)]
pub struct Service {
    /// Socket to serve CSI on, as in `unix:///path/to/name.sock`
    // Required: there is no default (ENV-01).
    #[arg(long, env = "CSI_ENDPOINT", value_name = "URL")]
    pub endpoint: Endpoint,
    /// Address of /healthz, /readyz and /metrics; `[::]` is IPv4, too, and port 0 takes any
    #[arg(
        long,
        env = "HTTP_ADDRESS",
        default_value = "[::]:9808",
        value_name = "ADDRESS:PORT"
    )]
    pub http: SocketAddr,
}

/// Options of the node plugin.
#[derive(Args, Clone, Debug)]
pub struct Node {
    #[command(flatten)]
    /// Options that the controller has, too.
    pub service: Service,
    #[command(flatten)]
    /// The node and its directories.
    pub location: NodeLocation,
    /// Address for other nodes, which read the snapshots and moving volumes that they are permitted to copy, and for calls
    /// of the controller; port 0 takes any
    #[arg(
        long,
        env = "TRANSFER_ADDRESS",
        default_value = "[::]:9812",
        value_name = "ADDRESS:PORT"
    )]
    pub transfer: SocketAddr,
    /// Bytes per second that the node sends to other nodes at most, all copies together; 0 for no limit
    #[arg(
        long,
        env = "TRANSFER_BYTES_PER_SECOND",
        default_value_t = 0,
        value_name = "BYTES"
    )]
    pub transfer_bytes_per_second: u64,
    /// Directory in which kubelet discovers plugins; by default `plugins_registry` below --kubelet-root
    #[arg(long, env = "REGISTRATION_SOCKET_DIR", value_name = "PATH")]
    pub registration_socket_dir: Option<PathBuf>,
    /// Maximum number of volumes that pods on the node use at a time; 0 leaves it to Kubernetes
    // Each volume takes a loop device, two mounts and a journal thread of the kernel; a raw block
    // volume takes two loop devices, one of which is kubelet's lock. Twice the default pod limit of
    // kubelet is enough for a StatefulSet with two volumes per pod on one node.
    #[arg(long, env = "MAX_VOLUMES", default_value_t = 256, value_name = "COUNT")]
    pub max_volumes: u32,
    /// Share of a filesystem of the host that the image pools on it leave free, in percent
    #[arg(
        long,
        env = "KEEP_FREE_PERCENT",
        default_value_t = cistern_host::KEPT_PERCENT,
        value_parser = clap::value_parser!(u32).range(..100),
        value_name = "PERCENT"
    )]
    pub keep_free_percent: u32,
    /// Interval between health probes of pools and volumes, as in `15s`
    #[arg(long, env = "HEALTH_INTERVAL", default_value = "15s", value_parser = interval, value_name = "DURATION")]
    pub health_interval: Duration,
    /// Interval between comparisons of the node with its custom resources, as in `5m`
    #[arg(long, env = "DRIFT_INTERVAL", default_value = "5m", value_parser = interval, value_name = "DURATION")]
    pub drift_interval: Duration,
}

impl Node {
    /// The directory in which kubelet discovers plugins.
    pub fn registration_socket_dir(&self) -> PathBuf {
        self.registration_socket_dir
            .clone()
            .unwrap_or_else(|| self.location.kubelet_root.join("plugins_registry"))
    }
}

/// The node and its directories.
#[derive(Args, Clone, Debug)]
pub struct NodeLocation {
    /// Name of the Node
    #[arg(long, env = "NODE_NAME", value_parser = node_name, value_name = "NAME")]
    pub node_name: String,
    /// Folder of the pools, the same path inside and outside the container
    #[arg(long, env = "STORAGE_ROOT", default_value = "/var/lib/cistern", value_parser = absolute, value_name = "PATH")]
    pub root: PathBuf,
    /// Directories in which, and below which, a StoragePool may put its image file, separated by colons;
    /// the same paths inside and outside the container
    #[arg(long, env = "POOL_DIRECTORIES", value_delimiter = ':', value_parser = pool_directory, value_name = "PATHS")]
    pub pool_directories: Vec<PathBuf>,
    /// kubelet's root folder, the same path inside and outside the container
    #[arg(long, env = "KUBELET_ROOT", default_value = "/var/lib/kubelet", value_parser = absolute, value_name = "PATH")]
    pub kubelet_root: PathBuf,
}

/// Options of `fsck`.
#[derive(Args, Clone, Debug)]
pub struct Fsck {
    #[command(flatten)]
    /// The node and its directories.
    pub location: NodeLocation,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The path of a UNIX socket, read from `unix://<path>` (PRT-03, PRT-04).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(PathBuf);

impl Endpoint {
    /// Path of the socket.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl std::str::FromStr for Endpoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let path = text.strip_prefix("unix://").ok_or(Error::Scheme)?;
        if !path.starts_with('/') {
            return Err(Error::Relative);
        }
        let path = PathBuf::from(path);
        if path.extension() != Some("sock".as_ref()) {
            return Err(Error::Suffix);
        }
        // sockaddr_un holds 107 bytes and a NUL.
        if path.as_os_str().len() > 107 {
            return Err(Error::TooLong);
        }
        Ok(Self(path))
    }
}

/// Why a value is refused. Each message says what to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The endpoint is not a UNIX socket.
    #[error("only UNIX sockets are served: write unix:///path/to/name.sock")]
    Scheme,
    /// The path of the socket is relative.
    #[error("the path must be absolute, with three slashes in unix:///path/to/name.sock")]
    Relative,
    /// The socket lacks the suffix `.sock`.
    #[error("the socket's name must end in .sock")]
    Suffix,
    /// The path is longer than the kernel allows.
    #[error("the path of a UNIX socket has at most 107 bytes")]
    TooLong,
    /// The path of a directory is relative.
    #[error("the path must be absolute")]
    Path,
    /// The path of a directory for pools is not absolute, or has several spellings.
    #[error(
        "write absolute paths that are separated by colons, without '.', '..' and a slash at their end, as in \
         /data:/mnt/disks; / itself is not allowed"
    )]
    PoolDirectory,
    /// The interval is invalid or out of range.
    #[error("write a duration of 1s to 1h, as in 15s or 2m")]
    Interval,
    /// The name is not a valid CSI node id (FLD-03).
    #[error("a node's name has 1 to {MAX_NODE_ID} bytes")]
    NodeName,
}

fn absolute(text: &str) -> Result<PathBuf, Error> {
    let path = PathBuf::from(text);
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(Error::Path)
    }
}

fn pool_directory(text: &str) -> Result<PathBuf, Error> {
    if is_directory(text) {
        Ok(text.into())
    } else {
        Err(Error::PoolDirectory)
    }
}

fn interval(text: &str) -> Result<Duration, Error> {
    let allowed = Duration::from_secs(1)..=Duration::from_hours(1);
    let interval = parse_duration(text).ok();
    interval
        .filter(|interval| allowed.contains(interval))
        .ok_or(Error::Interval)
}

fn node_name(text: &str) -> Result<String, Error> {
    if (1..=MAX_NODE_ID).contains(&text.len()) {
        Ok(text.to_owned())
    } else {
        Err(Error::NodeName)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn prt_03_prt_04_only_absolute_unix_sockets_that_end_in_sock_are_endpoints() {
        let parse = |text: &str| text.parse::<Endpoint>();
        assert_eq!(
            parse("unix:///csi/csi.sock").unwrap().path(),
            Path::new("/csi/csi.sock")
        );
        assert_eq!(parse("tcp://127.0.0.1:1"), Err(Error::Scheme));
        assert_eq!(parse("/csi/csi.sock"), Err(Error::Scheme));
        assert_eq!(parse(""), Err(Error::Scheme));
        assert_eq!(parse("unix://csi.sock"), Err(Error::Relative));
        assert_eq!(parse("unix:///csi/csi"), Err(Error::Suffix));
        assert_eq!(parse("unix:///csi/.sock"), Err(Error::Suffix));
        let long = format!("unix:///{}.sock", "x".repeat(102));
        assert_eq!(parse(&long), Err(Error::TooLong));
    }

    #[test]
    fn an_interval_has_a_unit_and_is_1_second_to_1_hour() {
        assert_eq!(interval("15s"), Ok(Duration::from_secs(15)));
        assert_eq!(interval("2m"), Ok(Duration::from_mins(2)));
        assert_eq!(interval("1h"), Ok(Duration::from_hours(1)));
        for text in [
            "",
            "s",
            "15",
            "0s",
            "-1s",
            "3601s",
            "61m",
            "99999999999999999999m",
        ] {
            assert_eq!(interval(text), Err(Error::Interval), "{text}");
        }
    }

    #[test]
    fn pools_may_be_in_no_directory_unless_the_directories_are_listed() {
        let parse = |arguments: &[&str]| {
            let common = ["cistern-driver", "fsck", "--node-name=w1"];
            let config = Config::try_parse_from(common.iter().chain(arguments)).ok()?;
            let Mode::Fsck(fsck) = config.mode else {
                return None;
            };
            Some(fsck.location.pool_directories)
        };
        assert_eq!(parse(&[]), Some(Vec::new()));
        let both = vec!["/data".into(), "/mnt/disks".into()];
        assert_eq!(parse(&["--pool-directories=/data:/mnt/disks"]), Some(both));
        for text in ["/", "data", "/data:", "/data/", "/data/../etc"] {
            assert_eq!(
                parse(&[&format!("--pool-directories={text}")]),
                None,
                "{text}"
            );
        }
    }

    #[test]
    fn env_01_an_endpoint_is_never_guessed() {
        let error = Config::try_parse_from(["cistern-driver", "controller"]).unwrap_err();
        assert_eq!(
            error.kind(),
            clap::error::ErrorKind::MissingRequiredArgument
        );
    }

    #[test]
    fn env_02_env_04_every_option_is_also_a_variable_and_only_csis_own_starts_with_csi() {
        for mode in Config::command().get_subcommands() {
            for option in mode.get_arguments() {
                let id = option.get_id().as_str();
                if ["help", "version", "json"].contains(&id) {
                    continue;
                }
                let variable = option.get_env().unwrap_or_else(|| panic!("{id}"));
                let ours = !variable.to_string_lossy().starts_with("CSI_");
                assert!(ours || variable == "CSI_ENDPOINT", "{variable:?}");
            }
        }
    }

    #[test]
    fn fld_03_a_node_name_that_is_too_long_for_csi_is_refused_at_the_start() {
        assert!(node_name(&"n".repeat(256)).is_ok());
        assert_eq!(node_name(&"n".repeat(257)), Err(Error::NodeName));
        assert_eq!(node_name(""), Err(Error::NodeName));
    }

    #[test]
    fn env_05_the_image_sets_every_default() {
        let image = include_str!("../../Dockerfile");
        let mut command = Config::command();
        command.build();
        for option in command
            .get_subcommands()
            .flat_map(clap::Command::get_arguments)
        {
            let (Some(variable), [default]) = (option.get_env(), option.get_default_values())
            else {
                continue;
            };
            let line = format!("{}={}", variable.display(), default.display());
            assert!(image.contains(&line), "the Dockerfile lacks {line}");
        }
    }
}
