//! Requests of the GroupController service as types.
//!
//! *Invariant:* missing fields are reported before invalid ones, as in [`crate::csi::request`]. Only
//! missing `snapshot_ids` are reported later, because a group that does not exist has none (SAN-06).

use std::collections::BTreeSet;

use cistern_controller::groups::{GroupQuery, NewGroup};
use cistern_crds::{
    SnapshotParameters, snapshot_group::MAX_MEMBERS, snapshot_parameters::Error as ParametersError,
};
use cistern_proto::csi::v1;

use crate::csi::request::FromRequest;
use crate::csi::request::{self, map, name, required, string};

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An invalid field.
    #[error(transparent)]
    Field(#[from] request::Error),
    /// More volumes than a group can have.
    #[error("source_volume_ids has {count} volumes, and a group has at most {MAX_MEMBERS}")]
    TooMany {
        /// Number of volumes in the request.
        count: usize,
    },
    /// A duplicate volume.
    #[error("volume {volume} is duplicate in source_volume_ids")]
    Twice {
        /// The id of the duplicate volume.
        volume: String,
    },
    /// Invalid parameters of the snapshots (CS-17).
    #[error(transparent)]
    Parameters(#[from] ParametersError),
}

impl FromRequest<v1::CreateVolumeGroupSnapshotRequest> for NewGroup {
    type Error = Error;

    fn from_request(request: v1::CreateVolumeGroupSnapshotRequest) -> Result<Self, Error> {
        required("name", request.name.is_empty())?;
        let ids = request.source_volume_ids;
        required("source_volume_ids", ids.is_empty())?;
        required("source_volume_ids", ids.iter().any(String::is_empty))?;
        let name = name(request.name)?;
        map("parameters", &request.parameters)?;
        if ids.len() > MAX_MEMBERS {
            return Err(Error::TooMany { count: ids.len() });
        }
        let mut volumes = BTreeSet::new();
        for volume in ids {
            string("source_volume_ids", &volume)?;
            if let Some(volume) = volumes.replace(volume) {
                return Err(Error::Twice { volume });
            }
        }
        let parameters = SnapshotParameters::parse(&request.parameters)?;
        if parameters.keep_base {
            return Err(ParametersError::KeepBaseOfGroup.into());
        }
        Ok(Self {
            name,
            volumes,
            consistency: parameters.consistency,
        })
    }
}

/// Parses a request to delete a group (DGS-02). Fails if the group id is missing, or if an id is
/// too long.
pub(super) fn delete(request: v1::DeleteVolumeGroupSnapshotRequest) -> Result<GroupQuery, Error> {
    query(request.group_snapshot_id, request.snapshot_ids)
}

/// Parses a request to read a group (GGS-02). Fails if the group id is missing, or if an id is too
/// long.
pub(super) fn get(request: v1::GetVolumeGroupSnapshotRequest) -> Result<GroupQuery, Error> {
    query(request.group_snapshot_id, request.snapshot_ids)
}

fn query(id: String, snapshots: Vec<String>) -> Result<GroupQuery, Error> {
    required("group_snapshot_id", id.is_empty())?;
    string("group_snapshot_id", &id)?;
    for snapshot in &snapshots {
        string("snapshot_ids", snapshot)?;
    }
    let snapshots = snapshots.into_iter().collect();
    Ok(GroupQuery { id, snapshots })
}

#[cfg(test)]
mod tests {
    use cistern_crds::Consistency;

    use super::*;

    fn valid() -> v1::CreateVolumeGroupSnapshotRequest {
        v1::CreateVolumeGroupSnapshotRequest {
            name: "group-1".to_owned(),
            source_volume_ids: vec!["pvc-2".to_owned(), "pvc-1".to_owned()],
            ..v1::CreateVolumeGroupSnapshotRequest::default()
        }
    }

    type Change = fn(&mut v1::CreateVolumeGroupSnapshotRequest);

    fn parse(change: Change) -> Result<NewGroup, Error> {
        let mut request = valid();
        change(&mut request);
        NewGroup::from_request(request)
    }

    fn missing(field: &'static str) -> Error {
        request::Error::Missing { field }.into()
    }

    #[test]
    fn cgs_15_the_order_of_the_volumes_means_nothing() {
        let one = parse(|_| {}).unwrap();
        assert_eq!(parse(|r| r.source_volume_ids.reverse()).unwrap(), one);
        assert_eq!(one.consistency, Consistency::Crash);
    }

    // Shows: SAN-07, GEN-04, GEN-13.
    #[test]
    fn cgs_02_cgs_03_missing_fields_are_reported_before_invalid_ones() {
        let changes: [(&str, Change); 4] = [
            ("name", |r| r.name.clear()),
            ("name", |r| {
                r.name.clear();
                r.source_volume_ids.push("pvc-1".to_owned());
            }),
            ("source_volume_ids", |r| {
                r.name = "nul\0".to_owned();
                r.source_volume_ids.clear();
            }),
            ("source_volume_ids", |r| {
                r.parameters.insert("bogus".to_owned(), String::new());
                r.source_volume_ids.push(String::new());
            }),
        ];
        for (field, change) in changes {
            assert_eq!(parse(change), Err(missing(field)));
        }
    }

    fn many(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("pvc-{number}")).collect()
    }

    // Shows: FLD-12, FLD-14, CS-17.
    #[test]
    fn fld_14_long_excess_duplicate_or_unknown_values_are_refused() {
        let field = |field, limit| Error::from(request::Error::TooLong { field, limit });
        assert_eq!(parse(|r| r.name = "x".repeat(129)), Err(field("name", 128)));
        assert_eq!(
            parse(|r| r.source_volume_ids.push("x".repeat(129))),
            Err(field("source_volume_ids", 128))
        );
        assert_eq!(
            parse(|r| drop(r.parameters.insert("k".to_owned(), "v".repeat(4096)))),
            Err(field("parameters", 4096))
        );
        let volume = "pvc-1".to_owned();
        assert_eq!(
            parse(|r| r.source_volume_ids.push("pvc-1".to_owned())),
            Err(Error::Twice { volume })
        );
        assert!(parse(|r| r.source_volume_ids = many(MAX_MEMBERS)).is_ok());
        assert_eq!(
            parse(|r| r.source_volume_ids = many(MAX_MEMBERS + 1)),
            Err(Error::TooMany { count: 65 })
        );
        assert!(matches!(
            parse(|r| r.name = "bell\u{7}".to_owned()),
            Err(Error::Field(request::Error::ControlCharacter { .. }))
        ));
        assert!(matches!(
            parse(|r| drop(r.parameters.insert("bogus".to_owned(), String::new()))),
            Err(Error::Parameters(_))
        ));
    }

    #[test]
    fn san_06_only_the_group_id_is_required_before_the_lookup() {
        let asked = |id: &str, snapshots: &[&str]| {
            get(v1::GetVolumeGroupSnapshotRequest {
                group_snapshot_id: id.to_owned(),
                snapshot_ids: snapshots.iter().map(|id| (*id).to_owned()).collect(),
                ..v1::GetVolumeGroupSnapshotRequest::default()
            })
        };
        assert!(asked("group-1", &[]).unwrap().snapshots.is_empty());
        assert_eq!(asked("", &["snap-1"]), Err(missing("group_snapshot_id")));
        let long = "x".repeat(129);
        assert!(asked(&long, &[]).is_err() && asked("group-1", &[&long]).is_err());
        let request = v1::DeleteVolumeGroupSnapshotRequest::default();
        assert_eq!(delete(request), Err(missing("group_snapshot_id")));
    }
}
