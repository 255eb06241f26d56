//! Conditions: what the types and reasons mean, and how a list of them is changed.
//!
//! Reasons are for programs and messages for people. No gRPC code is ever stored: the driver's
//! edge maps reasons to codes.

use std::fmt;

use chrono::{DateTime, Utc};
pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::{JsonSchema as _, Schema, SchemaGenerator, json_schema};

use crate::{bounds, time};

/// Declares an enum whose variants are written as their own names.
macro_rules! names {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$doc])* $variant,)+ }

        impl $name {
            /// As it stands in the custom resource.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant),)+ }
            }

            /// Read back; none for a name that this version does not know.
            pub fn parse(name: &str) -> Option<Self> {
                match name { $(stringify!($variant) => Some(Self::$variant),)+ _ => None }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

names! {
    /// What a condition is about.
    ConditionType {
        /// The summary of every kind: the object is what its spec asks for and can be used.
        Ready,
        /// PoolVolume, StoragePool, StorageNode, and a pool on a node: nothing is known to be wrong
        /// with it. `Unknown` where nobody can tell.
        Healthy,
        /// PoolVolume, PoolSnapshot: the node's ledger holds its bytes.
        Admitted,
        /// PoolVolume: the growth that was asked for last is done, down to its filesystem.
        Expanded,
        /// PoolVolume: its filesystem is being checked before it is used, or waits for that.
        Checking,
        /// PoolVolume, PoolSnapshot: its image is gone because `spec.deletionRequested` asked for it.
        Reclaimed,
        /// PoolVolume, StoragePool, StorageNode: the object is marked for deletion, and something
        /// holds it.
        DeletionHeld,
        /// StoragePool: the `overcommitPercent` of the spec is in force.
        OvercommitApplied,
        /// StorageNode: CSINode and the Node's label show the driver and its topology.
        TopologyRegistered,
        /// StorageNode: the node plugin's pod on this node is ready.
        AgentReporting,
    }
}

names! {
    /// Why a condition has its status.
    Reason {
        /// Nobody has looked yet.
        Pending,
        /// All is as the spec asks.
        AsDesired,

        // Volumes.
        /// The pool has not enough room left for the volume.
        NoSpace,
        /// The volume is larger than the pool could hold even when empty.
        TooLarge,
        /// The pool holds as many volumes as its limit allows.
        VolumeLimitReached,
        /// The pool may promise more than it has, so it holds thin volumes only.
        Overcommitted,
        /// The node does not carry the pool.
        PoolUnknown,
        /// The pool on this node cannot be used now; its own conditions say why.
        PoolNotReady,
        /// Making the image failed; it is tried again.
        ProvisioningFailed,
        /// Growing the image failed; it is tried again.
        ExpansionFailed,
        /// The pool on this node takes no growth of its volumes.
        PoolClosed,
        /// The image has grown and its filesystem has not: it grows when the volume is staged next.
        FilesystemSmaller,
        /// The image that the status describes is not on the disk.
        ImageMissing,
        /// What lies on the disk under this identity belongs to something else.
        IdentityConflict,
        /// The filesystem in the image is not the one that was made there.
        FilesystemConflict,
        /// The filesystem in the image is damaged, and a person has to mend it.
        FilesystemDamaged,
        /// Checking the filesystem takes more of the node than a check may, and a person has to see to
        /// it.
        TooLargeToCheck,
        /// The filesystem has to be checked, and waits for its turn.
        CheckWaiting,
        /// The filesystem is being checked; the message says since when and how far.
        CheckRunning,
        /// The filesystem is not being checked.
        NotChecking,
        /// Nothing asked for the volume's data to be deleted.
        NotRequested,
        /// `spec.deletionRequested` is set and the image is being removed.
        DeletionRequested,
        /// The volume is still staged, published or attached on the node.
        InUse,
        /// Removing the image failed; it is tried again.
        ReclaimFailed,
        /// The object is not being deleted.
        NotDeleting,
        /// The object is being deleted but its data is not asked to be: it is kept.
        DeletionNotRequested,

        // Snapshots, and volumes made from them.
        /// The pool, or the volume, has as many snapshots as its limit allows.
        SnapshotLimitReached,
        /// The image lies in more pieces than the pool's limit allows to copy.
        TooManyExtents,
        /// What the snapshot or volume is to be made from is not on the disk.
        SourceMissing,
        /// A filesystem could not be held still in time, or the writers of two raw block volumes
        /// cannot be at all.
        NotHeldStill,
        /// Cutting the snapshot failed; it is tried again.
        CutFailed,

        // A pool on a node.
        /// The pool's image file or device is not there.
        BackingMissing,
        /// The pool's image file or device holds something that is not this pool.
        BackingForeign,
        /// The pool that is there belongs to another node, as its marker says.
        BelongsToOtherNode,
        /// None of the listed devices is blank or this pool's own.
        NoUsableDevice,
        /// The pool's filesystem is not mounted, or something else is mounted in its place.
        NotMounted,
        /// The pool's filesystem is read-only.
        ReadOnly,
        /// The image would leave too little room on the filesystem that holds it.
        HostFilesystemFull,
        /// The filesystem that would hold the image gives files no space of their own, or has no direct
        /// I/O.
        HostFilesystemUnfit,
        /// An operation on the pool failed; the message says which.
        PoolFailed,
        /// The pool no longer belongs to this node and goes when it is empty.
        Retiring,
        /// Volumes or images remain, so the pool stays.
        VolumesRemain,

        // Health. Of a volume:
        /// The image was removed while the volume is in use: what is in it goes when its last user
        /// ends.
        ImageDeleted,
        /// The image is smaller than the volume.
        ImageTooSmall,
        /// The volume's loop device is gone, or bound to something else.
        DeviceMissing,
        /// The volume's loop device takes no writes, and should.
        DeviceReadOnly,
        /// The volume is not mounted where it is staged.
        MountMissing,
        /// The volume's filesystem was remounted read-only.
        MountReadOnly,
        /// A thick volume lacks blocks, and they could not be allocated again.
        BlocksMissing,
        // Of a volume or a pool:
        /// The filesystem has counted errors.
        FilesystemErrors,
        /// The filesystem has shut itself down after an error, until it is mounted anew.
        FilesystemShutDown,
        // Of a pool:
        /// What was written to the pool could not be read back.
        ProbeFailed,
        /// The pool's disk does not answer.
        ProbeTimedOut,
        /// The block device under the pool has counted errors.
        DeviceErrors,
        /// The pool's filesystem is nearly full.
        NearlyFull,
        /// Part of the pool's file has no space on the node's disk, and others can take it.
        NotAllocated,
        /// The node's disk has no room for the pool's file as it is declared: the pool keeps its size.
        GrowthDoesNotFit,
        /// Something that this version has no name for; the message tells.
        OtherProblem,

        // Nodes and pools, seen from the operator.
        /// kubelet has not registered the driver on the node.
        DriverNotRegistered,
        /// The Node's topology label is missing or has another value.
        LabelMissing,
        /// There is no Node of this name.
        NodeMissing,
        /// The Node is gone, and nobody can tell of what was on it.
        NodeGone,
        /// No pod of the node plugin runs on the node.
        AgentMissing,
        /// The node plugin's pod on the node is not ready.
        AgentNotReady,
        /// Some nodes of the pool are not ready.
        NodesNotReady,
        /// The selector matches no node.
        NoNodes,
        /// The spec cannot be carried out as it is; the message says what to change.
        InvalidSpec,
        /// The pool holds thick volumes, or snapshots of them, so it promises no more than it has.
        ThickVolumesPresent,
    }
}

impl Reason {
    /// Whether it is for good that a volume does not grow as asked: the wish has to be taken back.
    pub const fn refuses_growth(self) -> bool {
        matches!(self, Self::NoSpace | Self::TooLarge | Self::PoolClosed)
    }

    /// Whether it is for good that a snapshot, or a group of them, is not taken as asked: nothing of
    /// it is left, and the wish has to be withdrawn.
    pub const fn refuses_snapshot(self) -> bool {
        matches!(
            self,
            Self::NoSpace
                | Self::Overcommitted
                | Self::SnapshotLimitReached
                | Self::TooManyExtents
                | Self::SourceMissing
                | Self::NotHeldStill
                | Self::PoolUnknown
                | Self::PoolNotReady
                | Self::IdentityConflict
        )
    }
}

/// `status` of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    /// It is so.
    True,
    /// It is not so.
    False,
    /// Nobody can tell.
    Unknown,
}

impl ConditionStatus {
    /// As it stands in the custom resource.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for ConditionStatus {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

/// One condition to be set: everything but the time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What it is about.
    pub kind: ConditionType,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// Why, for programs.
    pub reason: Reason,
    /// Why, for people: a sentence.
    pub message: String,
}

impl Finding {
    /// A finding of any status.
    pub fn new(
        kind: ConditionType,
        status: impl Into<ConditionStatus>,
        reason: Reason,
        message: impl Into<String>,
    ) -> Self {
        Self {
            kind,
            status: status.into(),
            reason,
            message: message.into(),
        }
    }
}

/// Puts a finding into a list. The transition time moves only when the status does.
pub fn set(
    conditions: &mut Vec<Condition>,
    finding: &Finding,
    generation: Option<i64>,
    now: DateTime<Utc>,
) {
    let position = conditions
        .iter()
        .position(|c| c.type_ == finding.kind.as_str());
    let before = position.map(|index| conditions.swap_remove(index));
    let last_transition_time = match &before {
        Some(before) if before.status == finding.status.as_str() => {
            before.last_transition_time.clone()
        }
        _ => time::to_kubernetes(now),
    };
    let message = bounds::cut(finding.message.clone(), bounds::MESSAGE);
    conditions.push(Condition {
        type_: finding.kind.as_str().to_owned(),
        status: finding.status.as_str().to_owned(),
        reason: finding.reason.as_str().to_owned(),
        message,
        observed_generation: generation,
        last_transition_time,
    });
    conditions.sort_by_key(|c| ConditionType::parse(&c.type_).map_or(u8::MAX, |kind| kind as u8));
}

/// The condition of a type, if it is in the list.
pub fn find(conditions: &[Condition], kind: ConditionType) -> Option<&Condition> {
    conditions.iter().find(|c| c.type_ == kind.as_str())
}

/// The condition of a type, if it is in the list and `True`.
pub fn holding(conditions: &[Condition], kind: ConditionType) -> Option<&Condition> {
    find(conditions, kind).filter(|c| c.status == ConditionStatus::True.as_str())
}

/// Whether the condition of a type is there and `True`.
pub fn holds(conditions: &[Condition], kind: ConditionType) -> bool {
    holding(conditions, kind).is_some()
}

/// Schema of a list of conditions: a map keyed by `type`, so that server-side apply merges it.
pub fn list_schema(generator: &mut SchemaGenerator) -> Schema {
    let mut items = Condition::json_schema(generator);
    items.remove("description");
    let limits = [
        ("type", bounds::NAME),
        ("reason", bounds::NAME),
        ("message", bounds::MESSAGE),
        ("status", 7),
    ];
    let properties = items
        .get_mut("properties")
        .and_then(|properties| properties.as_object_mut());
    for (name, property) in properties.into_iter().flatten() {
        let Some(property) = property.as_object_mut() else {
            continue;
        };
        property.remove("description");
        if let Some((_, limit)) = limits.iter().find(|(limited, _)| limited == name) {
            property.insert("maxLength".to_owned(), (*limit).into());
        }
    }
    json_schema!({
        "type": "array",
        "items": items,
        "maxItems": bounds::CONDITIONS,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transition_time_moves_only_with_the_status() {
        let mut list = Vec::new();
        let at = |second| DateTime::from_timestamp(second, 0).unwrap();
        let ready = |status: bool, message: &str| {
            Finding::new(ConditionType::Ready, status, Reason::Pending, message)
        };
        set(&mut list, &ready(false, "a"), Some(1), at(10));
        set(&mut list, &ready(false, "b"), Some(2), at(20));
        assert_eq!(time::from_kubernetes(&list[0].last_transition_time), at(10));
        assert_eq!(
            (list[0].message.as_str(), list[0].observed_generation),
            ("b", Some(2))
        );
        set(&mut list, &ready(true, "c"), Some(2), at(30));
        assert_eq!(time::from_kubernetes(&list[0].last_transition_time), at(30));
        assert_eq!(list.len(), 1);
    }

    #[test]
    fn the_summary_stands_first_and_long_messages_are_cut_at_a_character() {
        let mut list = Vec::new();
        let now = DateTime::from_timestamp(0, 0).unwrap();
        for kind in [
            ConditionType::Reclaimed,
            ConditionType::Admitted,
            ConditionType::Ready,
        ] {
            set(
                &mut list,
                &Finding::new(kind, true, Reason::AsDesired, "ü".repeat(2000)),
                None,
                now,
            );
        }
        assert_eq!(list[0].type_, "Ready");
        assert_eq!(list[0].message.len(), bounds::MESSAGE);
    }
}
