//! What the node's errors are as gRPC codes.
//!
//! kubelet tries again whatever the code is. But after DEADLINE_EXCEEDED, UNAVAILABLE, ABORTED and
//! the like it takes the outcome for uncertain and undoes the call when the pod goes; after any
//! other it believes that nothing is mounted. Every error of the host is of the second kind because
//! a step that fails leaves nothing behind.
#![warn(clippy::wildcard_enum_match_arm)]

use cistern_client::Chain;
use cistern_host::{attach as host, image, statistics};
use tonic::{Code, Status};

use super::request;
use crate::{attach, csi::capability};

impl From<request::Error> for Status {
    fn from(error: request::Error) -> Self {
        let code = match &error {
            request::Error::Field(_) | request::Error::Path { .. } => Code::InvalidArgument,
            request::Error::NotStaged => Code::FailedPrecondition,
            request::Error::Capability(error) => match error {
                capability::Error::Missing { .. }
                | capability::Error::MountFlagsTooLong
                | capability::Error::Filesystem(_)
                | capability::Error::MountGroup => Code::InvalidArgument,
                // NSV-08, NPV-09.
                capability::Error::AccessMode { .. } | capability::Error::Block => {
                    Code::FailedPrecondition
                }
            },
        };
        Self::new(code, Chain(&error).to_string())
    }
}

impl From<attach::Error> for Status {
    fn from(error: attach::Error) -> Self {
        Self::new(code(&error), Chain(&error).to_string())
    }
}

fn code(error: &attach::Error) -> Code {
    match error {
        attach::Error::Busy { .. } => Code::Aborted,
        attach::Error::NotFound { .. } => Code::NotFound,
        attach::Error::Starting | attach::Error::Api { .. } => Code::Unavailable,
        attach::Error::Refused { .. } => Code::FailedPrecondition,
        attach::Error::Different { .. } => Code::AlreadyExists,
        attach::Error::Options(_) => Code::InvalidArgument,
        attach::Error::Broken { .. } => Code::Internal,
        attach::Error::Host(error) => of_host(error),
        attach::Error::Statistics(error) => match error {
            statistics::Error::NotThere { .. } => Code::NotFound,
            statistics::Error::Hung { .. } => Code::DeadlineExceeded,
            statistics::Error::Failed { .. } => Code::Internal,
        },
    }
}

fn of_host(error: &host::Error) -> Code {
    match error {
        host::Error::Image(error) => match error {
            image::Error::Pool(_)
            | image::Error::Missing { .. }
            | image::Error::IdentityConflict { .. }
            | image::Error::FilesystemConflict { .. }
            | image::Error::InUse { .. } => Code::FailedPrecondition,
            image::Error::NoSpace { .. } => Code::ResourceExhausted,
            image::Error::Failed { .. } => Code::Internal,
        },
        host::Error::PathMissing { .. }
        | host::Error::NotStaged { .. }
        | host::Error::Busy { .. }
        | host::Error::NotRemoved { .. } => Code::FailedPrecondition,
        host::Error::Conflict { .. } => Code::AlreadyExists,
        host::Error::Failed { .. } => Code::Internal,
    }
}
