//! Maps the node's errors to gRPC codes.
//!
//! kubelet retries after every code. After DEADLINE_EXCEEDED, UNAVAILABLE, ABORTED and the like it treats
//! the outcome as uncertain and undoes the call when the pod is deleted. After any other code it
//! assumes that nothing is mounted. Every error of the host has a code of the second kind, because a
//! failed step leaves nothing mounted.
#![warn(clippy::wildcard_enum_match_arm)]

use cistern_client::Chain;
use cistern_host::{grow, image, mounting as host, statistics};
use cistern_node::mounting::{self, expand};
use tonic::{Code, Status};

use super::request;
use crate::csi::capability;
use crate::csi::status::IntoStatus;

impl From<request::Error> for Status {
    fn from(error: request::Error) -> Self {
        let code = match &error {
            request::Error::Field(_) | request::Error::Path { .. } | request::Error::Keys(_) => {
                Code::InvalidArgument
            }
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

impl IntoStatus for mounting::Error {
    fn into_status(self) -> Status {
        Status::new(code(&self), Chain(&self).to_string())
    }
}

fn code(error: &mounting::Error) -> Code {
    match error {
        mounting::Error::Busy { .. }
        | mounting::Error::Checking { .. }
        | mounting::Error::NotAdopted { .. } => Code::Aborted,
        mounting::Error::Unfinished { .. } => Code::DeadlineExceeded,
        mounting::Error::NotFound { .. } => Code::NotFound,
        mounting::Error::Starting | mounting::Error::Api { .. } => Code::Unavailable,
        mounting::Error::Refused { .. } => Code::FailedPrecondition,
        mounting::Error::Different { .. } => Code::AlreadyExists,
        mounting::Error::Options(_) | mounting::Error::Contradicted { .. } => Code::InvalidArgument,
        mounting::Error::NotChecked { .. } | mounting::Error::Broken { .. } => Code::Internal,
        mounting::Error::Host(error) => of_host(error),
        mounting::Error::Statistics(error) => match error {
            statistics::Error::NotThere { .. } => Code::NotFound,
            statistics::Error::Hung { .. } => Code::DeadlineExceeded,
            statistics::Error::Failed { .. } => Code::Internal,
        },
    }
}

impl IntoStatus for expand::Error {
    fn into_status(self) -> Status {
        Status::new(of_growth(&self), Chain(&self).to_string())
    }
}

/// After FAILED_PRECONDITION kubelet does not retry until the volume is staged again; INVALID_ARGUMENT,
/// NOT_FOUND and OUT_OF_RANGE are final. A transient error has another code.
fn of_growth(error: &expand::Error) -> Code {
    match error {
        expand::Error::Mounting(mounting::Error::Refused { .. }) => Code::Unavailable,
        expand::Error::Mounting(error) => code(error),
        expand::Error::OtherWay { .. } => Code::InvalidArgument,
        expand::Error::NoPath { .. } => Code::NotFound,
        expand::Error::Grow(error) => match error {
            // GEN-07.
            grow::Error::Image(image::Error::WrongKey { .. }) => Code::Unauthenticated,
            grow::Error::Image(_) | grow::Error::Failed { .. } => Code::Internal,
            grow::Error::NotThere { .. } => Code::NotFound,
            grow::Error::OutOfRange { .. } => Code::OutOfRange,
            grow::Error::ReadOnly { .. }
            | grow::Error::OnlyUnmounted { .. }
            | grow::Error::KeyNeeded { .. }
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
            | image::Error::StallTooLong { .. }
            | image::Error::IdentityConflict { .. }
            | image::Error::FilesystemConflict { .. }
            | image::Error::NotAdoptable { .. }
            | image::Error::EncryptionConflict { .. }
            | image::Error::Damaged { .. }
            | image::Error::CheckNeeded { .. }
            | image::Error::TooLargeToCheck { .. }
            | image::Error::InUse { .. }
            | image::Error::Moving { .. }
            | image::Error::NotClosing { .. }
            | image::Error::Unsupported { .. } => Code::FailedPrecondition,
            // GEN-07.
            image::Error::KeyNeeded { .. } | image::Error::WrongKey { .. } => Code::Unauthenticated,
            image::Error::NoSpace { .. } => Code::ResourceExhausted,
            image::Error::Failed { .. } => Code::Internal,
        },
        host::Error::PathMissing { .. }
        | host::Error::NotStaged { .. }
        | host::Error::StillPublished { .. }
        | host::Error::Held { .. }
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
    use cistern_node::usage::Unusable;

    use super::*;
    use crate::csi::request as fields;

    #[test]
    fn gen_07_a_request_without_the_key_of_a_volume_is_not_authenticated() {
        let uid: cistern_host::Uid = "uid-1".parse().unwrap();
        for error in [
            image::Error::KeyNeeded { uid: uid.clone() },
            image::Error::WrongKey { uid },
        ] {
            assert_eq!(of_host(&error.into()), Code::Unauthenticated);
        }
    }

    fn volume() -> String {
        "pvc-1".into()
    }

    #[test]
    fn gen_04_gen_05_npv_05_requests_fail_with_the_code_of_their_table() {
        let missing = || fields::Error::Missing { field: "volume_id" };
        let mode = || capability::Error::AccessMode {
            mode: "MULTI_NODE_MULTI_WRITER".into(),
        };
        let filesystem = || ParametersError::from("ntfs".parse::<FilesystemType>().unwrap_err());
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
                mounting::Error::NotFound { volume: volume() }.into(),
                Code::NotFound,
            ),
            (
                mounting::Error::Refused {
                    volume: volume(),
                    why: Unusable::NotReady.into(),
                }
                .into(),
                Code::Unavailable,
            ),
            (
                expand::Error::OtherWay {
                    volume: volume(),
                    why: Unusable::HasFilesystem,
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
                grow(grow::Error::Image(image::Error::WrongKey { uid: image() })),
                Code::Unauthenticated,
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
            let status = error.into_status();
            assert_eq!(status.code(), code, "{status:?}");
            assert!(!status.message().is_empty() && status.details().is_empty());
        }
    }

    #[test]
    fn gen_10_every_error_of_the_node_has_the_code_of_its_table() {
        let path = || std::path::PathBuf::from("/path");
        let uid = || "uid-1".parse::<cistern_host::Uid>().unwrap();
        let host = |error: host::Error| mounting::Error::Host(error);
        let of_image = |error: image::Error| host(host::Error::Image(error));
        let api = kube::Error::LinesCodecMaxLineLengthExceeded;
        for (error, code) in [
            (mounting::Error::Busy { volume: volume() }, Code::Aborted),
            (
                mounting::Error::NotFound { volume: volume() },
                Code::NotFound,
            ),
            (mounting::Error::Starting, Code::Unavailable),
            (
                mounting::Error::Api {
                    volume: volume(),
                    source: api.into(),
                },
                Code::Unavailable,
            ),
            (
                mounting::Error::Refused {
                    volume: volume(),
                    why: Unusable::NotReady.into(),
                },
                Code::FailedPrecondition,
            ),
            (
                mounting::Error::Different {
                    volume: volume(),
                    path: path(),
                    why: Unusable::HasFilesystem,
                },
                Code::AlreadyExists,
            ),
            (
                mounting::Error::Options(options::Unsupported {
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
                    why: image::FilesystemConflict::Missing,
                }),
                Code::FailedPrecondition,
            ),
            (
                host(host::Error::NotStaged {
                    path: path(),
                    why: host::NotStaged::Nothing,
                }),
                Code::FailedPrecondition,
            ),
            (
                host(host::Error::Conflict {
                    path: path(),
                    difference: host::Difference::OtherVolume,
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
                mounting::Error::Statistics(statistics::Error::NotThere {
                    image: uid(),
                    path: path(),
                }),
                Code::NotFound,
            ),
            (
                mounting::Error::Statistics(statistics::Error::Hung {
                    path: path(),
                    deadline: std::time::Duration::from_secs(1),
                }),
                Code::DeadlineExceeded,
            ),
        ] {
            let status = error.into_status();
            assert_eq!(status.code(), code, "{status:?}");
            assert!(!status.message().is_empty() && status.details().is_empty());
            assert!(!status.message().contains("MARKER"));
        }
    }

    #[test]
    fn a_running_check_is_retried_and_a_failed_one_is_reported() {
        let uid = "uid-1".parse::<cistern_host::Uid>().unwrap();
        let of_image = |error: image::Error| mounting::Error::Host(host::Error::Image(error));
        for (error, code) in [
            (
                mounting::Error::Checking {
                    volume: volume(),
                    why: "it is being checked".into(),
                },
                Code::Aborted,
            ),
            (
                mounting::Error::NotChecked {
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
            let status = error.into_status();
            assert_eq!(status.code(), code, "{status:?}");
            assert!(!status.message().is_empty() && status.details().is_empty());
        }
    }

    #[test]
    fn a_volume_published_with_other_parameters_is_a_failed_precondition() {
        let path = || std::path::PathBuf::from("/path");
        for error in [
            host::Error::StillPublished { path: path() },
            host::Error::Held {
                path: path(),
                holders: vec![],
            },
            host::Error::Writability { path: path() },
            host::Error::Busy { path: path() },
        ] {
            let status = mounting::Error::Host(error).into_status();
            assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
            assert!(status.message().contains("/path"), "{status:?}");
        }
    }
}
