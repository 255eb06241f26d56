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
                capability::Error::AccessMode { .. } => Code::FailedPrecondition,
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
            | image::Error::Damaged { .. }
            | image::Error::InUse { .. } => Code::FailedPrecondition,
            image::Error::NoSpace { .. } => Code::ResourceExhausted,
            image::Error::Failed { .. } => Code::Internal,
        },
        host::Error::PathMissing { .. }
        | host::Error::NotStaged { .. }
        | host::Error::StillPublished { .. }
        | host::Error::Writability { .. }
        | host::Error::Busy { .. }
        | host::Error::NotRemoved { .. } => Code::FailedPrecondition,
        host::Error::Conflict { .. } => Code::AlreadyExists,
        host::Error::Failed { .. } => Code::Internal,
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use cistern_crds::{FilesystemType, parameters::ParametersError};
    use cistern_host::options;

    use super::*;
    use crate::csi::request as fields;

    fn volume() -> String {
        "pvc-1".into()
    }

    #[test]
    fn gen_04_gen_05_npv_05_requests_fail_with_the_code_of_their_table() {
        let missing = || fields::Error::Missing { field: "volume_id" };
        let mode = || capability::Error::AccessMode {
            mode: "MULTI_NODE_MULTI_WRITER".into(),
        };
        let filesystem = || ParametersError::Filesystem {
            value: "ntfs".into(),
        };
        for (error, code) in [
            (request::Error::Field(missing()), Code::InvalidArgument),
            (
                request::Error::Path {
                    field: "target_path",
                },
                Code::InvalidArgument,
            ),
            (request::Error::NotStaged, Code::FailedPrecondition),
            (
                capability::Error::Missing {
                    part: "access mode",
                }
                .into(),
                Code::InvalidArgument,
            ),
            (
                capability::Error::MountFlagsTooLong.into(),
                Code::InvalidArgument,
            ),
            (capability::Error::MountGroup.into(), Code::InvalidArgument),
            (
                capability::Error::Filesystem(filesystem()).into(),
                Code::InvalidArgument,
            ),
            (mode().into(), Code::FailedPrecondition),
        ] {
            let status = Status::from(error);
            assert_eq!(status.code(), code, "{status:?}");
            assert!(!status.message().is_empty() && status.details().is_empty());
        }
    }

    #[test]
    fn gen_10_every_error_of_the_node_has_the_code_of_its_table() {
        let path = || std::path::PathBuf::from("/path");
        let uid = || "uid-1".parse::<cistern_host::Uid>().unwrap();
        let host = |error: host::Error| attach::Error::Host(error);
        let of_image = |error: image::Error| host(host::Error::Image(error));
        let api = kube::Error::LinesCodecMaxLineLengthExceeded;
        for (error, code) in [
            (attach::Error::Busy { volume: volume() }, Code::Aborted),
            (attach::Error::NotFound { volume: volume() }, Code::NotFound),
            (attach::Error::Starting, Code::Unavailable),
            (
                attach::Error::Api {
                    volume: volume(),
                    source: api.into(),
                },
                Code::Unavailable,
            ),
            (
                attach::Error::Refused {
                    volume: volume(),
                    why: "full".into(),
                },
                Code::FailedPrecondition,
            ),
            (
                attach::Error::Different {
                    volume: volume(),
                    path: path(),
                    why: "read-only".into(),
                },
                Code::AlreadyExists,
            ),
            (
                attach::Error::Options(options::Unsupported {
                    option: "MARKER".into(),
                    filesystem: FilesystemType::Ext4,
                }),
                Code::InvalidArgument,
            ),
            (
                of_image(image::Error::Missing {
                    uid: uid(),
                    pool: "fast".into(),
                }),
                Code::FailedPrecondition,
            ),
            (
                of_image(image::Error::FilesystemConflict {
                    uid: uid(),
                    why: "none".into(),
                }),
                Code::FailedPrecondition,
            ),
            (
                host(host::Error::NotStaged {
                    path: path(),
                    why: "nothing".into(),
                }),
                Code::FailedPrecondition,
            ),
            (
                host(host::Error::Conflict {
                    path: path(),
                    why: "other".into(),
                }),
                Code::AlreadyExists,
            ),
            (
                host(host::Error::Failed {
                    operation: "mount".into(),
                    source: io::Error::other("no").into(),
                }),
                Code::Internal,
            ),
            (
                attach::Error::Statistics(statistics::Error::NotThere {
                    image: uid(),
                    path: path(),
                }),
                Code::NotFound,
            ),
            (
                attach::Error::Statistics(statistics::Error::Hung {
                    path: path(),
                    deadline: std::time::Duration::from_secs(1),
                }),
                Code::DeadlineExceeded,
            ),
        ] {
            let status = Status::from(error);
            assert_eq!(status.code(), code, "{status:?}");
            assert!(!status.message().is_empty() && status.details().is_empty());
            assert!(!status.message().contains("MARKER"));
        }
    }

    #[test]
    fn what_a_pod_still_has_in_another_way_is_a_precondition_that_fails() {
        let path = || std::path::PathBuf::from("/path");
        for error in [
            host::Error::StillPublished { path: path() },
            host::Error::Writability { path: path() },
            host::Error::Busy { path: path() },
        ] {
            let status = Status::from(attach::Error::Host(error));
            assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
            assert!(status.message().contains("/path"), "{status:?}");
        }
    }
}
