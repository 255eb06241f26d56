//! One of Cistern's processes, which a test can restart, kill and query.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tonic::transport::{Channel, Endpoint};

use crate::{Process, eventually};

/// An operator that lists 100,000 volumes on a busy machine needs more than 30 s.
const START: Duration = Duration::from_mins(5);

/// A process of Cistern with its health endpoint and, for the driver, its CSI socket.
#[derive(Debug)]
pub struct Service {
    name: String,
    log: PathBuf,
    socket: PathBuf,
    http: SocketAddr,
    process: Process,
}

impl Service {
    /// Starts it and waits until it is ready. Its log is in `folder`; it serves health at `http` and, if it is
    /// the driver, CSI at [`socket`].
    pub async fn start(name: &str, folder: &Path, http: SocketAddr, command: Command) -> Self {
        let log = folder.join(format!("{name}.log"));
        let mut this = Self {
            name: name.to_owned(),
            process: Process::start(name, &log, command),
            socket: socket(folder, name),
            log,
            http,
        };
        this.wait_until_ready().await;
        this
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Stops it with SIGTERM.
    ///
    /// # Panics
    /// When it ends with an error.
    pub async fn stop(&mut self) {
        let status = self.process.stop().await;
        assert!(status.success(), "{} ended with {status}", self.name);
    }

    /// Starts it after [`Self::kill`] or [`Self::stop`] and waits until it is ready.
    pub async fn start_again(&mut self, command: Command) {
        self.process = Process::start(&self.name, &self.log, command);
        self.wait_until_ready().await;
    }

    /// Connects to its CSI socket.
    pub async fn channel(&self) -> Channel {
        Endpoint::from_shared(format!("unix://{}", self.socket.display()))
            .expect("a path makes a URL")
            .connect()
            .await
            .unwrap_or_else(|error| panic!("{}: {error}", self.socket.display()))
    }

    /// Returns the path of its CSI socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the address of its health and metrics endpoint.
    pub fn http(&self) -> SocketAddr {
        self.http
    }

    /// Returns the process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Returns its response to `GET path` on the health endpoint: status line, headers and body.
    pub async fn get(&self, path: &str) -> std::io::Result<String> {
        get(self.http, path).await
    }

    /// Waits until its metrics contain such a line. The metrics come from its watches, which lag behind the API server.
    pub async fn shows(&self, metric: &str) {
        let what = format!("{} to show {metric}", self.name);
        eventually(&what, START, async || match self.get("/metrics").await {
            Ok(metrics) if metrics.lines().any(|line| line == metric) => Ok(()),
            Ok(metrics) => Err(metrics),
            Err(error) => Err(error.to_string()),
        })
        .await;
    }

    async fn wait_until_ready(&mut self) {
        let what = format!("{} to be ready", self.name);
        eventually(&what, START, async || {
            if let Some(status) = self.process.exited() {
                panic!("{} has ended: {status}", self.name);
            }
            match self.get("/readyz").await {
                Ok(answer) if answer.starts_with("HTTP/1.1 200 ") => Ok(()),
                Ok(answer) => Err(answer),
                Err(error) => Err(error.to_string()),
            }
        })
        .await;
    }
}

/// Returns the response to `GET path`: status line, headers and body.
pub async fn get(address: SocketAddr, path: &str) -> std::io::Result<String> {
    exchange(address, "GET", path, "").await
}

/// Returns the response to `POST path`: status line, headers and body.
pub async fn post(address: SocketAddr, path: &str, body: &str) -> std::io::Result<String> {
    exchange(address, "POST", path, body).await
}

async fn exchange(
    address: SocketAddr,
    method: &str,
    path: &str,
    body: &str,
) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// Returns the path of the CSI socket of the process of this name.
pub fn socket(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.sock"))
}
