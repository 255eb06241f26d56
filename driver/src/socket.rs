//! A UNIX socket to listen on, from its file to the end of the process.
//!
//! *Invariant:* the folder holds the socket and nothing else (FSY-02), and a socket that somebody
//! listens on is never taken away (PRT-07).

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use tokio::net::{UnixListener, UnixStream};

/// Why no socket can be listened on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process serves there.
    #[error("somebody listens on {path} already: end that process first")]
    Live {
        /// The socket.
        path: PathBuf,
    },
    /// The path leads to something of somebody else.
    #[error("{path} is not a socket: move it away")]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The kernel refuses.
    #[error("cannot listen on {path}")]
    Listen {
        /// The socket.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// A bound socket. Its file goes when this does.
#[derive(Debug)]
pub struct Socket {
    /// Connections come in here.
    pub listener: UnixListener,
    /// Unlinks the file.
    pub file: SocketFile,
}

/// The file of a socket, removed when dropped if it is still the same file.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

/// Listens at `path`, for root alone. What a crash left there is unlinked first, and the folder is
/// made if it alone is missing, as kubelet's folder for this driver is on a new node.
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
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(failed)
        }
        Err(error) => Err(failed(error)),
        Ok(_) => Err(Error::Live { path: path.into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    #[tokio::test]
    async fn prt_07_a_dead_socket_is_replaced_and_a_live_one_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("csi.sock");
        // What SIGKILL leaves: a file that nobody listens behind.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let socket = bind(&path).await.unwrap();
        assert!(matches!(bind(&path).await, Err(Error::Live { .. })));
        assert!(UnixStream::connect(&path).await.is_ok());
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(socket);
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
    async fn prt_02_the_folder_is_made_on_a_new_node_but_no_path_is_made_up() {
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
