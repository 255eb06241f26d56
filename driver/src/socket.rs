//! A UNIX socket that is removed at the end of the process.
//!
//! *Invariant:* the directory contains nothing but the socket (FSY-02). The socket of a process
//! that answers is never replaced (PRT-07). A process that waits for a hanging disk keeps its
//! sockets after SIGKILL but does not answer, so its sockets are replaced.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use cistern_proto::csi::v1::{ProbeRequest, identity_client::IdentityClient};
use tokio::{
    net::{UnixListener, UnixStream},
    time::{sleep, timeout},
};
use tonic::transport::Endpoint;

/// How long a listener on a socket may take to answer.
const ANSWER: Duration = Duration::from_secs(2);
/// How long to wait before another connection to a listener whose queue is full.
const STEP: Duration = Duration::from_millis(50);

/// Why the process cannot listen on a socket.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process serves on the path.
    #[error("another process serves on {path}: end it first")]
    Live {
        /// Path of the socket.
        path: PathBuf,
    },
    /// The path names a file that is not a socket.
    #[error("{path} is not a socket: move it away")]
    Foreign {
        /// Path of the file.
        path: PathBuf,
    },
    /// A system call failed.
    #[error("cannot listen on {path}")]
    Listen {
        /// Path of the socket.
        path: PathBuf,
        /// The error of the system call.
        #[source]
        source: io::Error,
    },
}

/// A bound socket. Dropping it removes its file.
#[derive(Debug)]
pub struct Socket {
    /// Accepts connections.
    pub listener: UnixListener,
    /// Removes the file when dropped.
    pub file: SocketFile,
}

/// The file of a socket, removed when dropped if it is still the same file.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

/// Listens at `path`, for root alone. First removes the socket of a process that has ended or does
/// not answer within two seconds. Creates the last directory of the path if it is missing, such as
/// kubelet's directory for this driver on a new node.
///
/// Fails if another process serves on the path, if the path names another file, or if a system call
/// fails.
pub async fn bind(path: &Path) -> Result<Socket, Error> {
    let failed = |source| Error::Listen {
        path: path.to_owned(),
        source,
    };
    if let Some(folder) = path.parent()
        && !folder.is_dir()
    {
        let mut builder = fs::DirBuilder::new();
        builder.mode(0o750).create(folder).map_err(failed)?;
    }
    remove_dead(path).await?;
    let listener = UnixListener::bind(path).map_err(failed)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
    let metadata = fs::symlink_metadata(path).map_err(failed)?;
    let file = SocketFile {
        path: path.to_owned(),
        identity: (metadata.dev(), metadata.ino()),
    };
    Ok(Socket { listener, file })
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let same = fs::symlink_metadata(&self.path)
            .is_ok_and(|now| (now.dev(), now.ino()) == self.identity);
        if same && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the socket");
        }
    }
}

async fn remove_dead(path: &Path) -> Result<(), Error> {
    let failed = |source| Error::Listen {
        path: path.to_owned(),
        source,
    };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(Error::Foreign { path: path.into() });
        }
        Ok(_) => {}
    }
    match timeout(ANSWER, is_served(path)).await {
        Ok(Ok(true)) => return Err(Error::Live { path: path.into() }),
        Ok(Ok(false)) => {}
        Ok(Err(error)) => return Err(failed(error)),
        Err(_) => tracing::warn!(
            path = %path.display(),
            "the process that listens there has not answered for {ANSWER:?} and loses the socket"
        ),
    }
    fs::remove_file(path).map_err(failed)
}

/// Whether a process listens at the path and answers. Never resolves if a process listens and does
/// not answer.
async fn is_served(path: &Path) -> io::Result<bool> {
    while let Err(error) = UnixStream::connect(path).await {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => return Ok(false),
            io::ErrorKind::WouldBlock => sleep(STEP).await,
            _ => return Err(error),
        }
    }
    let endpoint = Endpoint::from_shared(format!("unix://{}", path.display()));
    let channel = endpoint.map_err(io::Error::other)?.connect_lazy();
    // Any answer shows a listener: the registration socket knows no such call.
    let _ = IdentityClient::new(channel).probe(ProbeRequest {}).await;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use prometheus_client::registry::Registry;
    use tokio::sync::oneshot;
    use tonic::service::Routes;

    use super::*;
    use crate::server::{Operations, serve};

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    #[tokio::test]
    async fn prt_07_a_dead_socket_is_replaced_and_one_that_is_served_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("csi.sock");
        // What SIGKILL leaves: a socket file without a listener.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let socket = bind(&path).await.unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // It serves no call, and answers with an error.
        let operations = Operations::new(&mut Registry::default());
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = stopped.map(drop).shared();
        let server = tokio::spawn(serve(socket, Routes::default(), operations, stopped));
        assert!(matches!(bind(&path).await, Err(Error::Live { .. })));
        assert!(UnixStream::connect(&path).await.is_ok());
        drop(stop);
        server.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn prt_07_a_listener_that_does_not_answer_loses_its_socket() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("csi.sock");
        let hung = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let socket = bind(&path).await.unwrap();
        let (caller, taken) = tokio::join!(UnixStream::connect(&path), socket.listener.accept());
        assert!(caller.is_ok() && taken.is_ok());
        drop(hung);
        assert_eq!(names(folder.path()), ["csi.sock"]);
    }

    #[tokio::test]
    async fn fsy_02_the_folder_holds_only_the_socket_and_nothing_after_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let socket = bind(&folder.path().join("csi.sock")).await.unwrap();
        assert_eq!(names(folder.path()), ["csi.sock"]);
        drop(socket);
        assert!(names(folder.path()).is_empty());
    }

    #[tokio::test]
    async fn prt_02_only_the_last_folder_of_the_path_is_made() {
        let folder = tempfile::tempdir().unwrap();
        drop(bind(&folder.path().join("driver/csi.sock")).await.unwrap());
        assert_eq!(names(folder.path()), ["driver"]);
        let made_up = folder.path().join("no/such/csi.sock");
        assert!(matches!(bind(&made_up).await, Err(Error::Listen { .. })));
    }

    #[tokio::test]
    async fn a_file_that_is_no_socket_is_never_unlinked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("csi.sock");
        fs::write(&path, "precious").unwrap();
        assert!(matches!(bind(&path).await, Err(Error::Foreign { .. })));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[tokio::test]
    async fn a_socket_of_a_successor_survives_the_end_of_its_predecessor() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("csi.sock");
        let first = bind(&path).await.unwrap();
        fs::remove_file(&path).unwrap();
        let second = bind(&path).await.unwrap();
        drop(first);
        assert!(path.exists());
        drop(second);
    }
}
