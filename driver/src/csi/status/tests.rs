use cistern_controller::objects::silence::Silence;
use cistern_crds::{Bytes, FilesystemType, PoolNames};

use super::*;
use crate::csi::request::{Difference, capacity_range::Minimum};

/// Codes after which external-provisioner calls again, even if the claim is gone.
const CALLED_AGAIN: [Code; 4] = [
    Code::Cancelled,
    Code::DeadlineExceeded,
    Code::Unavailable,
    Code::Aborted,
];

type Row = (volumes::Error, Code, bool);

/// Every error of the domain, its code, and whether a custom resource made by the failing call may
/// remain.
fn table() -> Vec<Row> {
    let mut table = of_objects();
    table.extend(of_volumes());
    table.extend(of_sources());
    table
}

fn of_objects() -> Vec<Row> {
    let object = || "volume pvc-1".to_owned();
    let rows = [
        (objects::Error::Starting, Code::Unavailable, false),
        (
            objects::Error::Api {
                action: "create PoolVolume pvc-1".into(),
                source: Box::new(kube::Error::LinesCodecMaxLineLengthExceeded),
            },
            Code::Unavailable,
            true,
        ),
        (
            objects::Error::Busy { object: object() },
            Code::Aborted,
            true,
        ),
        (
            objects::Error::Pending {
                object: object(),
                waits_for: "the agent".into(),
            },
            Code::Aborted,
            true,
        ),
        (
            objects::Error::Silent {
                object: object(),
                silence: Silence {
                    node: "n1".into(),
                    lasting: "5 min".into(),
                    message: "pod x is not ready".into(),
                },
            },
            Code::Aborted,
            true,
        ),
        (
            objects::Error::PoolNotReady {
                object: object(),
                node: "n1".into(),
                why: Explanation::new(Reason::ReadOnly, "pool fast: ReadOnly: the disk is gone"),
            },
            Code::Unavailable,
            true,
        ),
        (
            objects::Error::Different {
                object: object(),
                difference: "it is larger".into(),
            },
            Code::AlreadyExists,
            false,
        ),
        (
            objects::Error::NotFound { object: object() },
            Code::NotFound,
            false,
        ),
        (
            objects::Error::InUse {
                object: object(),
                node: "n1".into(),
                message: "staged".into(),
            },
            Code::FailedPrecondition,
            false,
        ),
    ];
    let of_volume = |(error, code, remains)| (volumes::Error::Object(error), code, remains);
    rows.map(of_volume).into()
}

fn attributes_refused(reason: Reason, message: &str) -> volumes::Error {
    volumes::Error::AttributesNotPossible {
        volume: "pvc-1".into(),
        attributes: Box::default(),
        why: cistern_crds::Explanation::new(reason, message),
    }
}

fn of_volumes() -> Vec<Row> {
    let placement = |error| volumes::Error::Placement(error);
    vec![
        (
            placement(PlacementError::NoRoom {
                pools: PoolNames::only("fast"),
                size: Bytes::gib(1),
                why: "full".into(),
            }),
            Code::ResourceExhausted,
            false,
        ),
        (
            placement(PlacementError::TooLarge {
                pools: PoolNames::only("fast"),
                size: Bytes::gib(2),
                largest: Bytes::gib(1),
            }),
            Code::OutOfRange,
            false,
        ),
        (
            placement(PlacementError::OverLimit {
                pools: PoolNames::only("fast"),
                size: Bytes::mib(17),
                limit: Bytes::mib(17),
                rounded: Bytes::mib(20),
            }),
            Code::OutOfRange,
            false,
        ),
        (
            placement(PlacementError::NotInVolumeGroup {
                why: "a volume group holds thick volumes only".into(),
            }),
            Code::InvalidArgument,
            false,
        ),
        (
            volumes::Error::SizeNotPossible {
                volume: "pvc-1".into(),
                why: "the volume can grow to 2Gi".into(),
            },
            Code::OutOfRange,
            false,
        ),
        (
            attributes_refused(Reason::NoSpace, "the pool lacks 2Gi"),
            Code::OutOfRange,
            false,
        ),
        (
            attributes_refused(Reason::LimitTooHigh, "the pool has at most readIOPS: 500"),
            Code::OutOfRange,
            false,
        ),
        (
            attributes_refused(Reason::Overcommitted, "the pool holds thin volumes only"),
            Code::InvalidArgument,
            false,
        ),
        (
            attributes_refused(Reason::NotInVolumeGroup, "the pool is a volume group"),
            Code::InvalidArgument,
            false,
        ),
    ]
}

fn of_sources() -> Vec<Row> {
    let origin = || "snapshot s-1".to_owned();
    let rows = [
        (
            SourceError::NotReady {
                origin: origin(),
                why: "it is not taken yet".into(),
            },
            Code::Unavailable,
        ),
        (
            SourceError::Unlike {
                origin: origin(),
                why: "it has xfs".into(),
            },
            Code::InvalidArgument,
        ),
        (
            SourceError::TooLarge {
                origin: origin(),
                size: Bytes::gib(2),
                limit: Bytes::gib(1),
            },
            Code::OutOfRange,
        ),
        (
            SourceError::NoRoom {
                origin: origin(),
                node: "n1".into(),
                size: Bytes::gib(1),
                why: "full".into(),
            },
            Code::FailedPrecondition,
        ),
        (
            SourceError::Refused {
                origin: origin(),
                node: "n1".into(),
                message: "too many extents".into(),
                advice: "raise the limit".into(),
            },
            Code::FailedPrecondition,
        ),
    ];
    let of_volume = |(error, code)| (volumes::Error::Source(error), code, false);
    rows.map(of_volume).into()
}

#[test]
fn gen_10_every_error_has_its_code_a_message_and_no_details() {
    for (error, code, _) in table() {
        let status = error.into_status();
        assert_eq!(status.code(), code, "{status}");
        assert!(
            !status.message().is_empty() && status.details().is_empty(),
            "{status}"
        );
    }
}

#[test]
fn k8s_04_a_code_is_final_exactly_if_the_call_leaves_nothing_behind() {
    for (error, code, remains) in table() {
        let called_again = CALLED_AGAIN.contains(&code);
        assert!(
            called_again || !remains,
            "{error}: {code:?} would leak what remains"
        );
        let waits = matches!(
            error,
            volumes::Error::Object(
                objects::Error::Starting
                    | objects::Error::Api { .. }
                    | objects::Error::Busy { .. }
                    | objects::Error::Pending { .. }
                    | objects::Error::Silent { .. }
                    | objects::Error::PoolNotReady { .. }
            ) | volumes::Error::Source(SourceError::NotReady { .. })
        );
        assert_eq!(called_again, waits, "{error}: {code:?}");
    }
}

#[test]
fn cs_08_cs_13_ds_05_errors_of_snapshots_have_their_codes() {
    use snapshots::Error;
    let refused = |reason| Error::Refused {
        volume: "pvc-1".into(),
        node: "n1".into(),
        why: Explanation::new(reason, "full"),
        advice: "make room".into(),
    };
    for (error, code) in [
        (Error::Object(objects::Error::Starting), Code::Unavailable),
        (refused(Reason::NoSpace), Code::FailedPrecondition),
        (
            refused(Reason::SnapshotLimitReached),
            Code::FailedPrecondition,
        ),
        (refused(Reason::TooManyExtents), Code::FailedPrecondition),
        (refused(Reason::NotInVolumeGroup), Code::FailedPrecondition),
        (refused(Reason::FreezeFailed), Code::FailedPrecondition),
        (refused(Reason::AgentMissing), Code::FailedPrecondition),
        (refused(Reason::SourceMissing), Code::NotFound),
        (
            Error::OutOfReach {
                volume: "pvc-1".into(),
                node: "n1".into(),
            },
            Code::ResourceExhausted,
        ),
        (
            Error::Member {
                snapshot: "snap-1".into(),
                group: "group-1".into(),
            },
            Code::InvalidArgument,
        ),
    ] {
        let status = error.into_status();
        assert_eq!(status.code(), code, "{status}");
        assert!(!status.message().is_empty() && status.details().is_empty());
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
        (
            Error::ContradictsClass {
                class: cistern_crds::FilesystemType::Ext4,
                capability: cistern_crds::FilesystemType::Xfs,
            },
            Code::InvalidArgument,
        ),
        (Error::TwoAccessTypes, Code::InvalidArgument),
        (
            Error::OtherWay {
                difference: Difference::AccessType(cistern_crds::AccessType::Block),
            },
            Code::InvalidArgument,
        ),
        (
            Error::Parameters(cistern_crds::parameters::ParametersError::PoolMissing),
            Code::InvalidArgument,
        ),
        (
            Error::Attributes(cistern_crds::attributes::Error::Unknown("bogus".into())),
            Code::InvalidArgument,
        ),
        (
            Error::SnapshotParameters(cistern_crds::snapshot_parameters::Error::Unknown {
                key: "bogus".into(),
            }),
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
                why: Minimum::Filesystem(FilesystemType::Ext4),
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
