//! What the node's errors are as gRPC codes.
//!
//! kubelet tries again whatever the code is. But after DEADLINE_EXCEEDED, UNAVAILABLE, ABORTED and
//! the like it takes the outcome for uncertain and undoes the call when the pod goes; after any
//! other it believes that nothing is mounted. Every error of the host is of the second kind because
//! a step that fails leaves nothing behind.
#![warn(clippy::wildcard_enum_match_arm)]

use cistern_client::Chain;
use cistern_host::{attach as host, grow, image, statistics};
use tonic::{Code, Status};

use super::request;
use crate::{
    attach::{self, expand},
    csi::capability,
};

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
        attach::Error::Busy { .. } | attach::Error::Checking { .. } => Code::Aborted,
        attach::Error::Unfinished { .. } => Code::DeadlineExceeded,
        attach::Error::NotFound { .. } => Code::NotFound,
        attach::Error::Starting | attach::Error::Api { .. } => Code::Unavailable,
        attach::Error::Refused { .. } => Code::FailedPrecondition,
        attach::Error::Different { .. } => Code::AlreadyExists,
        attach::Error::Options(_) | attach::Error::Contradicted { .. } => Code::InvalidArgument,
        attach::Error::NotChecked { .. } | attach::Error::Broken { .. } => Code::Internal,
        attach::Error::Host(error) => of_host(error),
        attach::Error::Statistics(error) => match error {
            statistics::Error::NotThere { .. } => Code::NotFound,
            statistics::Error::Hung { .. } => Code::DeadlineExceeded,
            statistics::Error::Failed { .. } => Code::Internal,
        },
    }
}

impl From<expand::Error> for Status {
    fn from(error: expand::Error) -> Self {
        Self::new(of_growth(&error), Chain(&error).to_string())
    }
}

/// kubelet gives up on FAILED_PRECONDITION until the volume is staged anew, and takes
/// INVALID_ARGUMENT, NOT_FOUND and OUT_OF_RANGE for "never". Whatever may pass is another code.
fn of_growth(error: &expand::Error) -> Code {
    match error {
        expand::Error::Attach(attach::Error::Refused { .. }) => Code::Unavailable,
        expand::Error::Attach(error) => code(error),
        expand::Error::OtherWay { .. } => Code::InvalidArgument,
        expand::Error::NoPath { .. } => Code::NotFound,
        expand::Error::Grow(error) => match error {
            grow::Error::Image(_) | grow::Error::Failed { .. } => Code::Internal,
            grow::Error::NotThere { .. } => Code::NotFound,
            grow::Error::OutOfRange { .. } => Code::OutOfRange,
            grow::Error::ReadOnly { .. }
            | grow::Error::OnlyUnmounted { .. }
            | grow::Error::TooLarge { .. } => Code::FailedPrecondition,
        },
    }
}

fn of_host(error: &host::Error) -> Code {
    match error {
        host::Error::Image(error) => match error {
            image::Error::Pool(_)
            | image::Error::Missing { .. }
            | image::Error::SourceMissing { .. }
            | image::Error::TooManyExtents { .. }
            | image::Error::IdentityConflict { .. }
            | image::Error::FilesystemConflict { .. }
            | image::Error::Damaged { .. }
            | image::Error::CheckNeeded { .. }
            | image::Error::TooLargeToCheck { .. }
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
    fn nev_04_nev_05_nev_06_nev_07_nev_14_every_error_of_a_growth_has_its_code() {
        let path = || std::path::PathBuf::from("/path");
        let image = || "uid-1".parse::<cistern_host::Uid>().unwrap();
        let grow = |error: grow::Error| expand::Error::Grow(error);
        for (error, code) in [
            (
                attach::Error::NotFound { volume: volume() }.into(),
                Code::NotFound,
            ),
            (
                attach::Error::Refused {
                    volume: volume(),
                    why: "its pool cannot be used".into(),
                }
                .into(),
                Code::Unavailable,
            ),
            (
                expand::Error::OtherWay {
                    volume: volume(),
                    why: "it has a filesystem".into(),
                },
                Code::InvalidArgument,
            ),
            (expand::Error::NoPath { volume: volume() }, Code::NotFound),
            (
                grow(grow::Error::Image(image::Error::Missing {
                    uid: image(),
                    pool: "fast".into(),
                })),
                Code::Internal,
            ),
            (
                grow(grow::Error::NotThere {
                    image: image(),
                    path: path(),
                }),
                Code::NotFound,
            ),
            (
                grow(grow::Error::OutOfRange {
                    image: image(),
                    size: cistern_crds::Bytes::gib(1),
                }),
                Code::OutOfRange,
            ),
            (
                grow(grow::Error::ReadOnly { path: path() }),
                Code::FailedPrecondition,
            ),
            (
                grow(grow::Error::OnlyUnmounted {
                    filesystem: FilesystemType::Ext4,
                }),
                Code::FailedPrecondition,
            ),
            (
                grow(grow::Error::Failed {
                    operation: "grow the filesystem",
                    image: image(),
                    source: io::Error::other("broken").into(),
                }),
                Code::Internal,
            ),
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
    fn a_check_that_goes_on_is_waited_for_and_one_that_failed_says_so() {
        let uid = "uid-1".parse::<cistern_host::Uid>().unwrap();
        let of_image = |error: image::Error| attach::Error::Host(host::Error::Image(error));
        for (error, code) in [
            (
                attach::Error::Checking {
                    volume: volume(),
                    why: "it is being checked".into(),
                },
                Code::Aborted,
            ),
            (
                attach::Error::NotChecked {
                    volume: volume(),
                    why: "broken".into(),
                },
                Code::Internal,
            ),
            (
                of_image(image::Error::TooLargeToCheck {
                    uid,
                    report: "out of memory".into(),
                }),
                Code::FailedPrecondition,
            ),
        ] {
            let status = Status::from(error);
            assert_eq!(status.code(), code, "{status:?}");
            assert!(!status.message().is_empty() && status.details().is_empty());
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
