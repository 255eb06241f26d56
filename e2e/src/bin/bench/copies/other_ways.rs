//! Other ways to copy a file from one pool to another: one TCP connection, and rsync. Both over loopback, and both
//! sync the copy.

use std::{
    fs::{self, File},
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::Path,
    time::{Duration, Instant},
};

use cistern_e2e::{Folder, Process, control_plane::free_addresses, eventually, process::output};

use super::{node::Node, snapshot::Snapshot};

/// What is read and written at a time.
const BUFFER: usize = 1 << 20;

/// Copies a file through a TCP connection, as it is; returns the seconds.
pub(crate) async fn tcp(from: &Path, to: &Path) -> f64 {
    let (from, to) = (from.to_owned(), to.to_owned());
    let copied = tokio::task::spawn_blocking(move || tcp_blocking(&from, &to));
    copied.await.expect("it does not panic")
}

fn tcp_blocking(from: &Path, to: &Path) -> f64 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has free ports");
    let address = listener.local_addr().expect("it is bound");
    let started = Instant::now();
    std::thread::scope(|threads| {
        threads.spawn(move || {
            let (stream, _) = listener.accept().expect("the sender connects");
            let file = File::create(to).expect("the folder is ours");
            pass(stream, &file);
            file.sync_all().expect("the disk works");
        });
        let stream = TcpStream::connect(address).expect("it listens");
        pass(File::open(from).expect("the image is there"), stream);
    });
    started.elapsed().as_secs_f64()
}

/// Reads to the end, and writes everything. Both are done in one thread, so they take turns.
fn pass(mut from: impl Read, mut to: impl Write) {
    let mut buffer = vec![0; BUFFER];
    loop {
        let length = from.read(&mut buffer).expect("it can be read");
        if length == 0 {
            return;
        }
        to.write_all(&buffer[..length]).expect("there is room");
    }
}

/// A daemon of rsync that receives files for a pool.
pub(crate) struct Rsync {
    address: SocketAddr,
    _daemon: Process,
    _folder: Folder,
}

impl Rsync {
    /// Starts it on a node.
    pub(crate) async fn start(node: &Node) -> Self {
        let folder = Folder::new();
        let [address] = free_addresses();
        let path = node.inside(&node.file(""));
        let configuration = format!(
            "use chroot = no\n[pool]\npath = {}\nread only = no\nuid = 0\ngid = 0\n",
            path.display()
        );
        let file = folder.join("rsyncd.conf");
        fs::write(&file, configuration).expect("the folder is ours");
        let mut daemon = node.driver.command_on_node("rsync");
        daemon
            .args(["--daemon", "--no-detach"])
            .arg(format!("--address={}", address.ip()))
            .arg(format!("--port={}", address.port()))
            .arg(format!("--config={}", file.display()));
        let daemon = Process::start("rsync", &folder.join("rsync.log"), daemon);
        eventually("rsync to listen", Duration::from_secs(30), async || {
            let connected = TcpStream::connect(address);
            connected.map(drop).map_err(|error| error.to_string())
        })
        .await;
        Self {
            address,
            _daemon: daemon,
            _folder: folder,
        }
    }

    /// Copies a snapshot of a node to a file of this name in the pool; returns the seconds.
    pub(crate) async fn copy(&self, node: &Node, snapshot: &Snapshot, name: &str) -> f64 {
        let mut rsync = node.driver.command_on_node("rsync");
        rsync
            .args(["--whole-file", "--fsync"])
            .arg(node.inside(&snapshot.file))
            .arg(format!("rsync://{}/pool/{name}", self.address));
        let started = Instant::now();
        output(rsync, Duration::from_mins(10)).await;
        started.elapsed().as_secs_f64()
    }
}
