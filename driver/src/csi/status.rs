//! Maps the controller's errors to gRPC codes, for the whole crate.
//!
//! After CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE and ABORTED external-provisioner assumes that the
//! operation may still run and calls again, also when the claim is gone by then. After every other
//! code it assumes that the operation has ended (K8S-04). So a code of the second kind is returned
//! only if the call has left nothing behind.
//!
//! Details stay empty (GEN-03), and the message names the object and what to do (GEN-02).
#![warn(clippy::wildcard_enum_match_arm)]

use cistern_client::Chain;
use cistern_controller::{
    objects, snapshots,
    volumes::{self, PlacementError, SourceError},
};
use cistern_crds::{Explanation, Reason};
use tonic::{Code, Status};

use super::request::{self, capacity_range, page};

/// An error of the controller or the node that can be returned to a caller.
pub(super) trait IntoStatus {
    /// The gRPC code, and the chain of the error's messages.
    fn into_status(self) -> Status;
}

/// The result of a call.
pub(super) trait OrStatus<T> {
    /// Converts the error to a status.
    fn or_status(self) -> Result<T, Status>;
}

impl<T, E: IntoStatus> OrStatus<T> for Result<T, E> {
    fn or_status(self) -> Result<T, Status> {
        self.map_err(IntoStatus::into_status)
    }
}

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
            | request::Error::ContradictsClass { .. }
            | request::Error::TwoAccessTypes
            | request::Error::MountFlags { .. }
            | request::Error::Capability(_)
            | request::Error::OtherWay { .. }
            | request::Error::Parameters(_)
            | request::Error::Attributes(_)
            | request::Error::SnapshotParameters(_)
            | request::Error::Topology(_)
            | request::Error::Page(page::Error::Negative { .. }) => Code::InvalidArgument,
        };
        Self::new(code, Chain(&error).to_string())
    }
}

impl IntoStatus for volumes::Error {
    fn into_status(self) -> Status {
        Status::new(volume(&self), Chain(&self).to_string())
    }
}

impl IntoStatus for snapshots::Error {
    fn into_status(self) -> Status {
        Status::new(snapshot(&self), Chain(&self).to_string())
    }
}

/// Maps errors that all kinds of objects share to gRPC codes.
pub(super) fn object(error: &objects::Error) -> Code {
    match error {
        // The outcome is unknown, or the process or the pool is not ready yet.
        objects::Error::Api { .. }
        | objects::Error::Starting
        | objects::Error::PoolNotReady { .. } => Code::Unavailable,
        objects::Error::Busy { .. }
        | objects::Error::Pending { .. }
        | objects::Error::Silent { .. } => Code::Aborted,
        objects::Error::Different { .. } => Code::AlreadyExists,
        objects::Error::NotFound { .. } => Code::NotFound,
        objects::Error::InUse { .. } => Code::FailedPrecondition,
    }
}

pub(super) fn volume(error: &volumes::Error) -> Code {
    match error {
        volumes::Error::Object(error) => object(error),
        // Also for a pool that no node carries: it may be created any time, and INVALID_ARGUMENT
        // would delay the provisioner's retry by five minutes. With late binding this code sends the
        // pod back to the scheduler, which is right for every lack of room.
        volumes::Error::Placement(PlacementError::NoRoom { .. }) => Code::ResourceExhausted,
        // For an expansion this code is final to external-resizer, which then lets users request a
        // smaller size. With RESOURCE_EXHAUSTED they could not lower a size that does not fit.
        volumes::Error::Placement(
            PlacementError::TooLarge { .. } | PlacementError::OverLimit { .. },
        )
        | volumes::Error::Source(SourceError::TooLarge { .. })
        | volumes::Error::SizeNotPossible { .. } => Code::OutOfRange,
        // INVALID_ARGUMENT is infeasible to external-resizer, which then waits for another class. A
        // pool that is full now may have room soon.
        volumes::Error::AttributesNotPossible { why, .. } => {
            if matches!(why.reason, Reason::Overcommitted | Reason::NotInVolumeGroup) {
                Code::InvalidArgument
            } else {
                Code::OutOfRange
            }
        }
        // Nothing was started, and the source may be ready soon.
        volumes::Error::Source(SourceError::NotReady { .. }) => Code::Unavailable,
        // The parameters of the class are wrong for its pools.
        volumes::Error::Placement(PlacementError::NotInVolumeGroup { .. })
        | volumes::Error::Source(SourceError::Unlike { .. }) => Code::InvalidArgument,
        // Also for lack of room: RESOURCE_EXHAUSTED would send the pod back to the scheduler, which
        // does not know the source and chooses the same node again, without a back-off.
        volumes::Error::Source(SourceError::NoRoom { .. } | SourceError::Refused { .. }) => {
            Code::FailedPrecondition
        }
    }
}

/// After RESOURCE_EXHAUSTED csi-snapshotter assumes that the operation may still run, and keeps a
/// deleted VolumeSnapshot until there is room (K8S-04). So a full pool does not have that code,
/// although CS-08 names it.
fn snapshot(error: &snapshots::Error) -> Code {
    match error {
        snapshots::Error::Object(error) => object(error),
        snapshots::Error::Refused { why, .. } => copy(why),
        snapshots::Error::OutOfReach { .. } => Code::ResourceExhausted,
        snapshots::Error::Member { .. } => Code::InvalidArgument,
    }
}

/// Maps a node's refusal to copy an image to a gRPC code.
pub(super) fn copy(why: &Explanation) -> Code {
    if why.reason == Reason::SourceMissing {
        Code::NotFound
    } else {
        Code::FailedPrecondition
    }
}

#[cfg(test)]
mod tests;
