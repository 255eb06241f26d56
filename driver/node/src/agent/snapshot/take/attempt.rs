//! An attempt to take snapshots: which images it may make, and how it ends.

use chrono::{DateTime, Utc};
use cistern_client::Chain;
use cistern_crds::{Consistency, Explanation, PoolSnapshot, Reason};
use cistern_host::Uid;
use kube::ResourceExt;

use crate::{
    agent::{Agent, work::Error},
    blocking::Broken,
    image,
};

/// Whether snapshots are taken now, or were taken before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The snapshots are taken now, unless their images exist already.
    New(Consistency),
    /// The snapshots were taken before. A snapshot whose image is missing is not taken again, because
    /// its data would be of another moment.
    Existing,
}

/// The result of an attempt to take snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TakeResult {
    /// All snapshots exist and show this moment.
    Ready(DateTime<Utc>),
    /// No snapshot is taken, and none will be.
    Refused(Explanation),
    /// No snapshot is taken so far; the attempt is retried.
    NotYet(Explanation),
    /// Another operation holds one of the volumes; the attempt is retried soon.
    Busy,
    /// One of the objects has changed, and that change triggers the next reconcile.
    Overtaken,
}

/// The reason why an attempt ended early.
#[derive(Debug)]
pub(super) enum TakeError {
    Ended(TakeResult),
    Error(Error),
}

impl From<TakeResult> for TakeError {
    fn from(result: TakeResult) -> Self {
        Self::Ended(result)
    }
}

impl From<Error> for TakeError {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// The result of a disk error for all snapshots. None of them exists.
pub(super) fn failed(agent: &Agent, snapshots: &[PoolSnapshot], error: &image::Error) -> TakeError {
    agent.pools.suspect(error);
    let about = |snapshot: &&PoolSnapshot| {
        let uid = error.uid().map(Uid::as_str);
        uid.is_some()
            && (uid == Some(&snapshot.spec.source_image) || uid == snapshot.uid().as_deref())
    };
    let message = Chain(error).to_string();
    let message = match snapshots.iter().find(about) {
        Some(snapshot) => naming(snapshot, &message),
        None => message,
    };
    match error.reason() {
        _ if error.is_no_space() => refused_with(Reason::NoSpace, message),
        reason @ (Reason::TooManyExtents
        | Reason::SourceMissing
        | Reason::FreezeFailed
        | Reason::IdentityConflict
        | Reason::NotInVolumeGroup) => refused_with(reason, message),
        Reason::ProvisioningFailed => not_yet(Reason::SnapshotFailed, message),
        reason => not_yet(reason, message),
    }
}

/// The message for a group member names its volume, because the other members are refused with it.
fn naming(snapshot: &PoolSnapshot, message: &str) -> String {
    let spec = &snapshot.spec;
    match spec.group_name {
        Some(_) => format!("volume {}: {message}", spec.source_volume),
        None => message.to_owned(),
    }
}

/// The attempt ends because a snapshot is refused.
pub(super) fn refused(snapshot: &PoolSnapshot, why: &Explanation) -> TakeError {
    refused_with(why.reason, naming(snapshot, &why.message))
}

fn refused_with(reason: Reason, message: String) -> TakeError {
    TakeResult::Refused(Explanation::new(reason, message)).into()
}

/// The image of a snapshot that was taken before is missing. It may come back with its disk.
pub(super) fn lost(snapshot: &PoolSnapshot) -> TakeError {
    let message = "its group was taken before, and its image is not on the disk";
    not_yet(Reason::ImageMissing, naming(snapshot, message))
}

/// The attempt is retried.
pub(super) fn not_yet(reason: Reason, message: String) -> TakeError {
    TakeResult::NotYet(Explanation::new(reason, message)).into()
}

/// The work on the disk panicked.
pub(super) fn broken(snapshots: &[PoolSnapshot], source: Broken) -> Error {
    let names: Vec<String> = snapshots.iter().map(ResourceExt::name_any).collect();
    Error::Broken {
        object: format!("snapshots {}", names.join(", ")),
        source,
    }
}
