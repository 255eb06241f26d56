//! Maps the errors of groups to gRPC codes, for the whole crate.
//!
//! csi-snapshotter assumes after RESOURCE_EXHAUSTED that the operation may still run, and a group that
//! is abandoned then could never be deleted. So every refusal is FAILED_PRECONDITION, also for lack of
//! space. A refused group leaves no snapshots.
#![warn(clippy::wildcard_enum_match_arm)]

use cistern_client::Chain;
use cistern_controller::groups;

use tonic::{Code, Status};

use super::request;
use crate::csi::status;
use crate::csi::status::IntoStatus;

impl From<request::Error> for Status {
    fn from(error: request::Error) -> Self {
        match error {
            request::Error::Field(error) => error.into(),
            request::Error::TooMany { .. }
            | request::Error::Twice { .. }
            | request::Error::Parameters(_) => Self::invalid_argument(Chain(&error).to_string()),
        }
    }
}

impl IntoStatus for groups::Error {
    fn into_status(self) -> Status {
        Status::new(code(&self), Chain(&self).to_string())
    }
}

fn code(error: &groups::Error) -> Code {
    match error {
        groups::Error::Object(error) => status::object(error),
        groups::Error::Refused { why, .. } => status::copy(why),
        groups::Error::OtherMembers { .. } => Code::InvalidArgument,
    }
}

#[cfg(test)]
mod tests {
    use cistern_crds::{Explanation, PoolVolume, Reason, snapshot_parameters};

    use super::*;
    use crate::csi;
    use cistern_controller::objects;

    // Shows: GEN-02, GEN-03.
    #[test]
    fn gen_10_every_error_of_a_group_has_its_code_a_message_and_no_details() {
        let group = || "daily".to_owned();
        let refused = |reason| groups::Error::Refused {
            group: group(),
            node: "n1".to_owned(),
            why: Explanation::new(reason, "need 1Gi, have 512Mi"),
            advice: "make room".to_owned(),
        };
        let others = groups::Error::OtherMembers {
            group: group(),
            why: "none are given".to_owned(),
        };
        let missing = objects::not_found::<PoolVolume>("pvc-1");
        let busy = objects::Error::Busy { object: group() };
        for (error, code) in [
            (refused(Reason::NoSpace), Code::FailedPrecondition),
            (refused(Reason::AgentMissing), Code::FailedPrecondition),
            (refused(Reason::SourceMissing), Code::NotFound),
            (others, Code::InvalidArgument),
            (missing.into(), Code::NotFound),
            (busy.into(), Code::Aborted),
        ] {
            let status = error.into_status();
            assert_eq!(status.code(), code, "{status}");
            assert!(!status.message().is_empty() && status.details().is_empty());
        }
    }

    #[test]
    fn gen_05_requests_for_groups_that_cannot_be_served_are_invalid() {
        let key = "bogus".to_owned();
        for error in [
            request::Error::from(csi::request::Error::Missing { field: "name" }),
            request::Error::TooMany { count: 65 },
            request::Error::Twice {
                volume: "pvc-1".to_owned(),
            },
            snapshot_parameters::Error::Unknown { key }.into(),
        ] {
            let status = Status::from(error);
            assert_eq!(status.code(), Code::InvalidArgument, "{status}");
            assert!(!status.message().is_empty() && status.details().is_empty());
        }
    }
}
