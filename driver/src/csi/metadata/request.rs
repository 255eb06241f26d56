//! Requests of the SnapshotMetadata service as types.

use cistern_node::metadata::Query;
use cistern_proto::csi::v1;

use crate::csi::request::{self, required, string};

/// Maximum number of ranges in a message, also if the request allows more (SMD-08, SMD-15). A
/// message with this number is smaller than 32 KiB.
const MOST: usize = 1024;

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A field is missing or too long (GEN-04, FLD-14).
    #[error(transparent)]
    Field(#[from] request::Error),
    /// A negative limit (SMD-12).
    #[error("max_results is {value}: write 0 for no limit")]
    Negative {
        /// Value of the request.
        value: i32,
    },
    /// A negative offset. Its gRPC code differs from that of other invalid fields (SMD-11).
    #[error("starting_offset is {value}, before the beginning of the snapshot")]
    OutOfRange {
        /// Value of the request.
        value: i64,
    },
}

/// Parses a request for the ranges that hold data (MDA-02). Fails if the id is missing or too long,
/// or if the offset or the limit is negative.
pub(super) fn allocated(request: v1::GetMetadataAllocatedRequest) -> Result<Query, Error> {
    let target = id("snapshot_id", request.snapshot_id)?;
    query(None, target, request.starting_offset, request.max_results)
}

/// Parses a request for the changed ranges (MDD-02, MDD-03). Fails if an id is missing or too long,
/// or if the offset or the limit is negative.
pub(super) fn delta(request: v1::GetMetadataDeltaRequest) -> Result<Query, Error> {
    let base = id("base_snapshot_id", request.base_snapshot_id)?;
    let target = id("target_snapshot_id", request.target_snapshot_id)?;
    query(
        Some(base),
        target,
        request.starting_offset,
        request.max_results,
    )
}

fn id(field: &'static str, id: String) -> Result<String, Error> {
    required(field, id.is_empty())?;
    string(field, &id)?;
    Ok(id)
}

fn query(base: Option<String>, target: String, from: i64, most: i32) -> Result<Query, Error> {
    let most = match usize::try_from(most).map_err(|_| Error::Negative { value: most })? {
        // Zero means not given (FLD-08).
        0 => MOST,
        most => most.min(MOST),
    };
    let from = u64::try_from(from).map_err(|_| Error::OutOfRange { value: from })?;
    Ok(Query {
        base,
        target,
        from,
        most,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> v1::GetMetadataDeltaRequest {
        v1::GetMetadataDeltaRequest {
            base_snapshot_id: "monday".to_owned(),
            target_snapshot_id: "tuesday".to_owned(),
            starting_offset: 4096,
            max_results: 7,
            ..v1::GetMetadataDeltaRequest::default()
        }
    }

    fn refusal(change: impl FnOnce(&mut v1::GetMetadataDeltaRequest)) -> Error {
        let mut request = request();
        change(&mut request);
        delta(request).unwrap_err()
    }

    // Shows: FLD-14.
    #[test]
    fn mda_02_mdd_02_mdd_03_every_id_is_required_and_has_128_bytes() {
        let missing = |field| Error::Field(request::Error::Missing { field });
        let nothing = v1::GetMetadataAllocatedRequest::default();
        assert_eq!(allocated(nothing), Err(missing("snapshot_id")));
        assert_eq!(
            refusal(|r| r.base_snapshot_id.clear()),
            missing("base_snapshot_id")
        );
        assert_eq!(
            refusal(|r| r.target_snapshot_id.clear()),
            missing("target_snapshot_id")
        );
        let long = refusal(|r| r.target_snapshot_id = "x".repeat(129));
        assert!(
            matches!(long, Error::Field(request::Error::TooLong { .. })),
            "FLD-14: {long}"
        );
    }

    #[test]
    fn smd_08_smd_11_smd_12_limits_are_read_and_none_is_below_zero() {
        let read = delta(request()).unwrap();
        assert_eq!(
            (read.base.as_deref(), read.target.as_str()),
            (Some("monday"), "tuesday")
        );
        assert_eq!((read.from, read.most), (4096, 7));
        let most = |max_results| {
            let limited = v1::GetMetadataDeltaRequest {
                max_results,
                ..request()
            };
            delta(limited).unwrap().most
        };
        assert_eq!((most(0), most(i32::MAX)), (MOST, MOST));
        assert_eq!(
            refusal(|r| r.max_results = -1),
            Error::Negative { value: -1 }
        );
        assert_eq!(
            refusal(|r| r.starting_offset = -1),
            Error::OutOfRange { value: -1 }
        );
    }
}
