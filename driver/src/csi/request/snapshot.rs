//! Requests about snapshots as types.

use cistern_controller::snapshots::{NewSnapshot, SnapshotQuery};
use cistern_crds::SnapshotParameters;
use cistern_proto::csi::v1;

use super::{Error, map, name, page, required, string, topology};
use crate::csi::request::FromRequest;

impl FromRequest<v1::CreateSnapshotRequest> for NewSnapshot {
    type Error = Error;

    fn from_request(request: v1::CreateSnapshotRequest) -> Result<Self, Error> {
        let name = name(request.name)?;
        let source_volume = id("source_volume_id", request.source_volume_id)?;
        map("parameters", &request.parameters)?;
        let parameters = SnapshotParameters::parse(&request.parameters)?;
        Ok(Self {
            name,
            source_volume,
            consistency: parameters.consistency,
            keep_base: parameters.keep_base,
            requirement: topology::parse(request.accessibility_requirements)?,
        })
    }
}

/// Parses a request to delete a snapshot, and returns the snapshot id (DS-02). Fails if the id is
/// missing or too long.
pub fn delete_snapshot(request: v1::DeleteSnapshotRequest) -> Result<String, Error> {
    id("snapshot_id", request.snapshot_id)
}

/// Parses a request to read a snapshot, and returns the snapshot id (GS-02). Fails if the id is
/// missing or too long.
pub fn get_snapshot(request: v1::GetSnapshotRequest) -> Result<String, Error> {
    id("snapshot_id", request.snapshot_id)
}

/// Parses the filter and the pagination fields of a list of snapshots. Empty means not given
/// (FLD-08). Fails if an id is too long, the limit is negative or the token is unknown.
pub fn list_snapshots(request: v1::ListSnapshotsRequest) -> Result<SnapshotQuery, Error> {
    string("snapshot_id", &request.snapshot_id)?;
    string("source_volume_id", &request.source_volume_id)?;
    let given = |id: String| (!id.is_empty()).then_some(id);
    Ok(SnapshotQuery {
        snapshot: given(request.snapshot_id),
        source_volume: given(request.source_volume_id),
        page: page::parse(request.max_entries, &request.starting_token)?,
    })
}

fn id(field: &'static str, id: String) -> Result<String, Error> {
    required(field, id.is_empty())?;
    string(field, &id)?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use cistern_crds::{Consistency, snapshot_parameters};

    use super::*;

    fn request() -> v1::CreateSnapshotRequest {
        v1::CreateSnapshotRequest {
            name: "snapshot-1".to_owned(),
            source_volume_id: "pvc-1".to_owned(),
            parameters: [("consistency".to_owned(), "filesystem".to_owned())].into(),
            ..v1::CreateSnapshotRequest::default()
        }
    }

    fn refusal(change: impl FnOnce(&mut v1::CreateSnapshotRequest)) -> Error {
        let mut request = request();
        change(&mut request);
        NewSnapshot::from_request(request).unwrap_err()
    }

    // Shows: FLD-14.
    #[test]
    fn cs_02_cs_03_cs_17_a_snapshot_has_a_name_a_volume_and_known_parameters() {
        let read = NewSnapshot::from_request(request()).unwrap();
        assert_eq!(read.consistency, Consistency::Filesystem);
        assert_eq!(read.requirement.requisite, None);
        let missing = |field| Error::Missing { field };
        assert_eq!(refusal(|r| r.name.clear()), missing("name"));
        assert_eq!(
            refusal(|r| r.source_volume_id.clear()),
            missing("source_volume_id")
        );
        let unknown = refusal(|r| {
            r.parameters.insert("bogus".to_owned(), String::new());
        });
        assert!(
            matches!(
                unknown,
                Error::SnapshotParameters(snapshot_parameters::Error::Unknown { .. })
            ),
            "{unknown}"
        );
        for long in [
            refusal(|r| r.name = "x".repeat(129)),
            refusal(|r| r.source_volume_id = "x".repeat(129)),
        ] {
            assert!(matches!(long, Error::TooLong { .. }), "FLD-14: {long}");
        }
    }

    #[test]
    fn ds_02_gs_02_an_id_is_required() {
        let missing = Err(Error::Missing {
            field: "snapshot_id",
        });
        assert_eq!(
            delete_snapshot(v1::DeleteSnapshotRequest::default()),
            missing
        );
        assert_eq!(get_snapshot(v1::GetSnapshotRequest::default()), missing);
    }

    #[test]
    fn ls_06_an_empty_filter_is_none_and_pages_are_as_those_of_volumes() {
        let read = list_snapshots(v1::ListSnapshotsRequest::default()).unwrap();
        assert_eq!(read, SnapshotQuery::default());
        let negative = v1::ListSnapshotsRequest {
            max_entries: -1,
            ..v1::ListSnapshotsRequest::default()
        };
        assert!(matches!(
            list_snapshots(negative),
            Err(Error::Page(page::Error::Negative { .. }))
        ));
    }
}
