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
use cistern_controller::{
    objects, snapshots,
    volumes::{self, PlacementError, SourceError},
};
use cistern_crds::Reason;
use tonic::{Code, Status};

use super::request::{self, capacity_range, page};

/// An error of the controller or the node as the answer to a call.
pub(super) trait IntoStatus {
    /// The gRPC code, and the chain of the error's messages.
    fn into_status(self) -> Status;
}

/// The answer to a call that may have failed.
pub(super) trait OrStatus<T> {
    /// What succeeded, or the error as a status.
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
            | request::Error::TwoAccessTypes
            | request::Error::Capability(_)
            | request::Error::OtherWay { .. }
            | request::Error::Parameters(_)
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

/// What goes for objects of every kind.
pub(super) fn object(error: &objects::Error) -> Code {
    match error {
        // Whether anything was done is not known, or nothing could be yet.
        objects::Error::Api { .. } | objects::Error::Starting => Code::Unavailable,
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
        // Also for a pool that nobody carries: it may be declared any time, and INVALID_ARGUMENT
        // would make the provisioner look again only after five minutes. With late binding this
        // code sends the pod back to the scheduler, which is right for every kind of no room.
        volumes::Error::Placement(PlacementError::NoRoom { .. }) => Code::ResourceExhausted,
        // Of a growth this is final for external-resizer, which then lets people ask for less:
        // RESOURCE_EXHAUSTED would hold them to the size that does not fit.
        volumes::Error::Placement(PlacementError::TooLarge { .. })
        | volumes::Error::Source(SourceError::TooLarge { .. })
        | volumes::Error::SizeNotPossible { .. } => Code::OutOfRange,
        // Nothing was begun; but it will be ready any moment.
        volumes::Error::Source(SourceError::NotReady { .. }) => Code::Unavailable,
        volumes::Error::Source(SourceError::Unlike { .. }) => Code::InvalidArgument,
        // Also for want of room: RESOURCE_EXHAUSTED would send the pod back to the scheduler, which
        // knows nothing of sources and chooses the same node again, without a back-off.
        volumes::Error::Source(SourceError::NoRoom { .. } | SourceError::Refused { .. }) => {
            Code::FailedPrecondition
        }
    }
}

/// csi-snapshotter takes RESOURCE_EXHAUSTED for "may still be going on", too, and keeps a
/// VolumeSnapshot whose end is asked for until there is room (K8S-04). So a pool that is full is no
/// reason for that code, although CS-08 has it.
fn snapshot(error: &snapshots::Error) -> Code {
    match error {
        snapshots::Error::Object(error) => object(error),
        snapshots::Error::Refused { reason, .. } => match reason {
            Some(Reason::SourceMissing) => Code::NotFound,
            Some(_) | None => Code::FailedPrecondition,
        },
        snapshots::Error::OutOfReach { .. } => Code::ResourceExhausted,
        snapshots::Error::Member { .. } => Code::InvalidArgument,
    }
}

#[cfg(test)]
mod tests;
