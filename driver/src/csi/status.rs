//! What the controller's errors are as gRPC codes. The only place that decides it.
//!
//! external-provisioner takes CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE and ABORTED for "may still
//! be going on" and calls again, also when the claim is gone by then; every other code for "surely
//! nothing is going on" (K8S-04). So a code of the second kind stands only where nothing of the
//! call is left behind.
//!
//! Details stay empty (GEN-03), and the message names the object and what to do (GEN-02).
#![warn(clippy::wildcard_enum_match_arm)]

use cistern_client::Chain;
use tonic::{Code, Status};

use super::request::{self, capacity_range, page};
use crate::volumes::{self, PlacementError};

impl From<request::Error> for Status {
    fn from(error: request::Error) -> Self {
        let code = match &error {
            request::Error::CapacityRange(error) => match error {
                capacity_range::Error::Negative { .. } | capacity_range::Error::Empty { .. } => {
                    Code::InvalidArgument
                }
                capacity_range::Error::Unsatisfiable { .. }
                | capacity_range::Error::TooLarge { .. } => Code::OutOfRange,
            },
            request::Error::Page(page::Error::Token) => Code::Aborted,
            request::Error::Missing { .. }
            | request::Error::TooLong { .. }
            | request::Error::ControlCharacter { .. }
            | request::Error::Unsupported { .. }
            | request::Error::Contradiction { .. }
            | request::Error::TwoAccessTypes
            | request::Error::Capability(_)
            | request::Error::OtherWay { .. }
            | request::Error::Parameters(_)
            | request::Error::Topology(_)
            | request::Error::Page(page::Error::Negative { .. }) => Code::InvalidArgument,
        };
        Self::new(code, Chain(&error).to_string())
    }
}

impl From<volumes::Error> for Status {
    fn from(error: volumes::Error) -> Self {
        Self::new(code(&error), Chain(&error).to_string())
    }
}

fn code(error: &volumes::Error) -> Code {
    match error {
        // Whether anything was done is not known, or nothing could be yet.
        volumes::Error::Api { .. } | volumes::Error::Starting => Code::Unavailable,
        volumes::Error::Busy { .. } | volumes::Error::Pending { .. } => Code::Aborted,
        volumes::Error::Different { .. } => Code::AlreadyExists,
        // Also for a pool that nobody carries: it may be declared any time, and INVALID_ARGUMENT
        // would make the provisioner look again only after five minutes. With late binding this
        // code sends the pod back to the scheduler, which is right for every kind of no room.
        volumes::Error::Placement(PlacementError::NoRoom { .. }) => Code::ResourceExhausted,
        // Of a growth this is final for external-resizer, which then lets people ask for less:
        // RESOURCE_EXHAUSTED would hold them to the size that does not fit.
        volumes::Error::Placement(PlacementError::TooLarge { .. })
        | volumes::Error::SizeNotPossible { .. } => Code::OutOfRange,
        volumes::Error::NotFound { .. } => Code::NotFound,
        volumes::Error::InUse { .. } => Code::FailedPrecondition,
    }
}

#[cfg(test)]
mod tests {
    use cistern_crds::Bytes;

    use super::*;

    /// Codes after which external-provisioner calls again, whatever happened to the claim.
    const CALLED_AGAIN: [Code; 4] = [
        Code::Cancelled,
        Code::DeadlineExceeded,
        Code::Unavailable,
        Code::Aborted,
    ];

    /// Every error of the domain, its code, and whether a custom resource made by the failing call
    /// may remain.
    fn table() -> Vec<(volumes::Error, Code, bool)> {
        let volume = || "pvc-1".to_owned();
        let placement = |error| volumes::Error::Placement(error);
        let api = kube::Error::LinesCodecMaxLineLengthExceeded;
        vec![
            (volumes::Error::Starting, Code::Unavailable, false),
            (
                volumes::Error::Api {
                    action: "create PoolVolume pvc-1".into(),
                    source: Box::new(api),
                },
                Code::Unavailable,
                true,
            ),
            (
                volumes::Error::Busy { volume: volume() },
                Code::Aborted,
                true,
            ),
            (
                volumes::Error::Pending {
                    volume: volume(),
                    waits_for: "the agent".into(),
                },
                Code::Aborted,
                true,
            ),
            (
                volumes::Error::Different {
                    volume: volume(),
                    difference: "it is larger".into(),
                },
                Code::AlreadyExists,
                false,
            ),
            (
                placement(PlacementError::NoRoom {
                    pool: "fast".into(),
                    size: Bytes::gib(1),
                    why: "full".into(),
                }),
                Code::ResourceExhausted,
                false,
            ),
            (
                placement(PlacementError::TooLarge {
                    pool: "fast".into(),
                    size: Bytes::gib(2),
                    largest: Bytes::gib(1),
                }),
                Code::OutOfRange,
                false,
            ),
            (
                volumes::Error::NotFound { volume: volume() },
                Code::NotFound,
                false,
            ),
            (
                volumes::Error::SizeNotPossible {
                    volume: volume(),
                    why: "the volume can grow to 2Gi".into(),
                },
                Code::OutOfRange,
                false,
            ),
            (
                volumes::Error::InUse {
                    volume: volume(),
                    node: "n1".into(),
                    message: "staged".into(),
                },
                Code::FailedPrecondition,
                false,
            ),
        ]
    }

    #[test]
    fn gen_10_every_error_has_its_code_a_message_and_no_details() {
        for (error, code, _) in table() {
            let status = Status::from(error);
            assert_eq!(status.code(), code, "{status}");
            assert!(
                !status.message().is_empty() && status.details().is_empty(),
                "{status}"
            );
        }
    }

    #[test]
    fn k8s_04_no_code_ends_the_caller_while_something_is_left_behind_and_no_end_is_left_open() {
        for (error, code, remains) in table() {
            let called_again = CALLED_AGAIN.contains(&code);
            assert!(
                called_again || !remains,
                "{error}: {code:?} would leak what remains"
            );
            let waits = matches!(
                error,
                volumes::Error::Starting
                    | volumes::Error::Api { .. }
                    | volumes::Error::Busy { .. }
                    | volumes::Error::Pending { .. }
            );
            assert_eq!(called_again, waits, "{error}: {code:?}");
        }
    }

    #[test]
    fn gen_05_lv_07_requests_are_invalid_or_out_of_range_and_a_bad_token_is_aborted() {
        use request::Error;
        let range = |error| Error::CapacityRange(error);
        for (error, code) in [
            (Error::Missing { field: "name" }, Code::InvalidArgument),
            (
                Error::TooLong {
                    field: "name",
                    limit: 128,
                },
                Code::InvalidArgument,
            ),
            (Error::ControlCharacter { code: 7 }, Code::InvalidArgument),
            (
                Error::Unsupported {
                    field: "mutable_parameters",
                },
                Code::InvalidArgument,
            ),
            (
                Error::Contradiction {
                    one: cistern_crds::FilesystemType::Ext4,
                    other: cistern_crds::FilesystemType::Xfs,
                },
                Code::InvalidArgument,
            ),
            (Error::TwoAccessTypes, Code::InvalidArgument),
            (
                Error::OtherWay {
                    why: "the volume's access type is Block".into(),
                },
                Code::InvalidArgument,
            ),
            (
                Error::Parameters(cistern_crds::parameters::ParametersError::PoolMissing),
                Code::InvalidArgument,
            ),
            (
                Error::Topology(request::topology::Error::EmptyTopology),
                Code::InvalidArgument,
            ),
            (
                Error::Page(page::Error::Negative { value: -1 }),
                Code::InvalidArgument,
            ),
            (Error::Page(page::Error::Token), Code::Aborted),
            (
                range(capacity_range::Error::Negative {
                    field: "limit_bytes",
                    value: -1,
                }),
                Code::InvalidArgument,
            ),
            (
                range(capacity_range::Error::Empty {
                    required: Bytes::gib(2),
                    limit: Bytes::gib(1),
                }),
                Code::InvalidArgument,
            ),
            (
                range(capacity_range::Error::Unsatisfiable {
                    required: Bytes::mib(1),
                    limit: Bytes::mib(2),
                    next: Bytes::mib(16),
                    why: "ext4 needs 16Mi".into(),
                }),
                Code::OutOfRange,
            ),
            (
                range(capacity_range::Error::TooLarge {
                    required: Bytes(u64::MAX),
                }),
                Code::OutOfRange,
            ),
        ] {
            let status = Status::from(error);
            assert_eq!(status.code(), code, "{status}");
            assert!(!status.message().is_empty() && status.details().is_empty());
        }
    }
}
