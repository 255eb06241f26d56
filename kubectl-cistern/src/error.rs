//! Errors of commands. If the user can act, the message suggests an action.

use std::{io, time::Duration};

use cistern_client::Rejection;
use kube::config::{InferConfigError, KubeconfigError};

use crate::{
    discover, forget_node, moving, orphans, replace_disk, storage_pool, support_bundle, top,
    unreadable::Unreadable,
};

/// Error of a command.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No kubeconfig was found.
    #[error("no cluster is configured: set --kubeconfig or KUBECONFIG, or check ~/.kube/config")]
    NoCluster(#[source] Box<InferConfigError>),
    /// The kubeconfig or the selected context is invalid.
    #[error(
        "the kubeconfig cannot be used: check --kubeconfig and --context, and `kubectl config get-contexts`"
    )]
    Kubeconfig(#[source] Box<KubeconfigError>),
    /// No client can be created from the kubeconfig.
    #[error("no client can be created from the kubeconfig")]
    Client(#[source] Box<kube::Error>),
    /// The API server cannot be reached.
    #[error(
        "the API server at {url} does not answer: check that the cluster is running and that --context is right"
    )]
    Unreachable {
        /// URL of the API server.
        url: String,
        /// Underlying error.
        #[source]
        source: Box<kube::Error>,
    },
    /// A request timed out.
    #[error("{what}: no answer within {} s (--request-timeout)", after.as_secs())]
    TimedOut {
        /// Description of the request.
        what: String,
        /// Timeout of the request.
        after: Duration,
    },
    /// An agent whose pod is not ready does not answer.
    #[error("{what}: its pod is not ready, and there is no answer within {} s", after.as_secs())]
    NotReady {
        /// Description of the request.
        what: String,
        /// Timeout of the request.
        after: Duration,
    },
    /// Cistern's CRDs are not installed.
    #[error(
        "Cistern is not installed in this cluster: it knows no {kind}; install it with `kubectl apply -k manifests`, \
         and see `kubectl cistern doctor`"
    )]
    NotInstalled {
        /// Requested kind.
        kind: String,
    },
    /// The API server denied the request.
    #[error(
        "{what}: not allowed; request the ClusterRole `view` (`edit` for changes), or use another --context"
    )]
    Denied {
        /// Description of the request.
        what: String,
        /// Error of the API server.
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server returned another error.
    #[error("{what}")]
    Api {
        /// Description of the request.
        what: String,
        /// Error of the API server.
        #[source]
        source: Box<kube::Error>,
    },
    /// The command is about an object that cannot be parsed.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// An object that cannot be parsed may be concerned.
    #[error("it is not known what all volumes and snapshots are: nothing was changed")]
    Incomplete(#[source] Unreadable),
    /// The server of `ui` cannot use its address.
    #[error(
        "the page cannot be served on {address}: choose another --port, or none for a free one"
    )]
    Listen {
        /// Address and port.
        address: std::net::SocketAddr,
        /// Underlying error.
        #[source]
        source: io::Error,
    },
    /// The server of `ui` ended by itself.
    #[error("the page can no longer be served: run the command again")]
    Serving(#[source] io::Error),
    /// Error of `orphans`.
    #[error(transparent)]
    Orphans(#[from] orphans::Error),
    /// No StoragePool can use the disks.
    #[error(transparent)]
    Discover(#[from] discover::NoDeclaration),
    /// A StoragePool is not changed.
    #[error(transparent)]
    StoragePool(#[from] storage_pool::Error),
    /// Error of `replace-disk`.
    #[error(transparent)]
    ReplaceDisk(#[from] replace_disk::Error),
    /// Error of `top`.
    #[error(transparent)]
    Top(#[from] top::TopError),
    /// Error of `support-bundle`.
    #[error(transparent)]
    SupportBundle(#[from] support_bundle::Error),
    /// Error of `forget-node`.
    #[error(transparent)]
    ForgetNode(#[from] forget_node::Error),
    /// Error of `move` and `drain`.
    #[error(transparent)]
    Moving(#[from] moving::Error),
    /// Standard output cannot be written.
    #[error("the output cannot be written")]
    Output(#[source] io::Error),
    /// A view cannot be rendered as JSON or YAML.
    #[error("the output cannot be rendered: please report this, with the command and its --output")]
    Rendering(#[source] io::Error),
    /// The process cannot wait for the signals that end it.
    #[error("the signals that end the command cannot be waited for")]
    Signals(#[source] io::Error),
}

impl Error {
    /// Converts the error of a request to the API server at `url`. `what` describes the request.
    pub fn asking(what: impl Into<String>, url: &str, source: kube::Error) -> Self {
        let what = what.into();
        let source = Box::new(source);
        match (&*source, Rejection::from(&*source)) {
            (_, Rejection::Denied) => Self::Denied { what, source },
            (kube::Error::Api(_) | kube::Error::SerdeError(_), _) => Self::Api { what, source },
            _ => Self::Unreachable {
                url: url.to_owned(),
                source,
            },
        }
    }

    /// Returns why the API server rejected the request; `None` for [`Self::Denied`] and for errors
    /// that are not answers of the API server.
    pub fn rejection(&self) -> Option<Rejection> {
        match self {
            Self::Api { source, .. } => Some(Rejection::from(&**source)),
            _ => None,
        }
    }

    /// Returns whether the reader of standard output closed the pipe.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_failed_write_of_the_output_is_called_one() {
        let closed = || io::Error::from(io::ErrorKind::BrokenPipe);
        let output = Error::Output(closed());
        assert!(output.is_broken_pipe());
        assert_eq!(output.to_string(), "the output cannot be written");
        for other in [Error::Rendering, Error::Signals, Error::Serving].map(|of| of(closed())) {
            assert!(!other.is_broken_pipe(), "{other}");
            assert!(!other.to_string().contains("written"), "{other}");
        }
    }
}
