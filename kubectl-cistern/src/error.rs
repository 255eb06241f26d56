//! Why a command failed, and what to do.

use std::{io, time::Duration};

use cistern_client::Rejection;
use kube::config::{InferConfigError, KubeconfigError};

use crate::{forget_node, logs, orphans};

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing says which cluster.
    #[error(
        "there is no cluster to talk to: name a kubeconfig with --kubeconfig or KUBECONFIG, or check ~/.kube/config"
    )]
    NoCluster(#[source] Box<InferConfigError>),
    /// The kubeconfig, or a context in it.
    #[error(
        "the kubeconfig cannot be used: check --kubeconfig and --context, and `kubectl config get-contexts`"
    )]
    Kubeconfig(#[source] Box<KubeconfigError>),
    /// The kubeconfig describes a connection that cannot be made.
    #[error("the kubeconfig describes no connection that works")]
    Client(#[source] Box<kube::Error>),
    /// No answer.
    #[error(
        "the API server at {url} does not answer: is the cluster up, and is it the one that you mean?"
    )]
    Unreachable {
        /// Where it was looked for.
        url: String,
        /// What went wrong.
        #[source]
        source: Box<kube::Error>,
    },
    /// No answer in time.
    #[error("{what}: no answer within {} s (--request-timeout)", after.as_secs())]
    TimedOut {
        /// What was asked.
        what: String,
        /// For how long it was waited.
        after: Duration,
    },
    /// The API server knows none of Cistern's kinds.
    #[error(
        "Cistern is not installed in this cluster: it knows no {kind}; install it with `kubectl apply -k manifests`, \
         and see `kubectl cistern doctor`"
    )]
    NotInstalled {
        /// Kind that was asked for.
        kind: String,
    },
    /// Not allowed.
    #[error(
        "{what}: not allowed; ask for the role `view` in the whole cluster, or use another --context"
    )]
    Denied {
        /// What was asked.
        what: String,
        /// The API server's words.
        #[source]
        source: Box<kube::Error>,
    },
    /// Any other answer of the API server.
    #[error("{what}")]
    Api {
        /// What was asked.
        what: String,
        /// The API server's words.
        #[source]
        source: Box<kube::Error>,
    },
    /// Of `orphans`.
    #[error(transparent)]
    Orphans(#[from] orphans::Error),
    /// Of `forget-node`.
    #[error(transparent)]
    ForgetNode(#[from] forget_node::Error),
    /// Of `logs`.
    #[error(transparent)]
    Logs(#[from] logs::Error),
    /// Writing the answer.
    #[error("the answer cannot be written")]
    Output(#[from] io::Error),
}

impl Error {
    /// An error of the API server while `what` was asked, in words for whoever asked.
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

    /// What the API server says that is in the way, if it has answered.
    pub fn rejection(&self) -> Option<Rejection> {
        match self {
            Self::Api { source, .. } => Some(Rejection::from(&**source)),
            _ => None,
        }
    }

    /// Whether somebody has read as much as they wanted.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}
