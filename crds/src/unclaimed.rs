//! Detects volumes and snapshots without a Kubernetes object. Pure.
//!
//! A claim that is deleted while its volume is made leaves a PoolVolume without a PersistentVolume, and
//! so does an interrupted removal. No controller removes them, and they occupy space.
//!
//! *Invariant:* an object that is being made, moved or removed is never unclaimed: it is young, a Kubernetes
//! object still waits for it, or it has a VolumeMove.

use std::collections::BTreeSet;

use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{
    ResourceExt as _,
    core::{ApiResource, GroupVersionKind},
};
use serde_json::Value;

use crate::{
    condition, has_image::HasImage, names::DRIVER, reason::ConditionType, snapshot::PoolSnapshot,
    time, volume::PoolVolume,
};

/// Minimum age of an unclaimed object. A CSI call takes at most one minute, and a failed call is
/// repeated every five minutes.
pub const GRACE: TimeDelta = TimeDelta::minutes(15);

/// The Kubernetes objects that claim volumes or snapshots of Cistern, or wait for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owners {
    handles: BTreeSet<String>,
    waiting: BTreeSet<String>,
}

/// A Kubernetes object that claims a volume or snapshot of Cistern, or waits for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Claims the object with this handle.
    Handle(Box<str>),
    /// The claim or VolumeSnapshot with this UID waits for an object.
    WaitingUid(Box<str>),
}

impl Owner {
    /// A PersistentVolume of this driver.
    pub fn of_volume(volume: &PersistentVolume) -> Option<Self> {
        handle(volume).map(|handle| Self::Handle(handle.into()))
    }

    /// A VolumeSnapshotContent of this driver, without its metadata. One without a handle waits for its
    /// snapshot.
    pub fn of_content(content: &Value) -> Option<Self> {
        let waiting = content.pointer("/spec/volumeSnapshotRef/uid");
        match snapshot_handle(content) {
            Some(handle) => Some(Self::Handle(handle.into())),
            None if is_content_of_ours(content) => {
                Some(Self::WaitingUid(waiting?.as_str()?.into()))
            }
            None => None,
        }
    }
}

impl Owners {
    /// Adds an owner.
    pub fn add(&mut self, owner: Option<Owner>) {
        match owner {
            Some(Owner::Handle(handle)) => _ = self.handles.insert(handle.into()),
            Some(Owner::WaitingUid(uid)) => self.add_waiting(&uid),
            None => {}
        }
    }

    /// Adds a PersistentVolume of any origin.
    pub fn add_volume(&mut self, volume: &PersistentVolume) {
        self.add(Owner::of_volume(volume));
    }

    /// Adds a VolumeSnapshotContent of any origin, without its metadata.
    pub fn add_content(&mut self, content: &Value) {
        self.add(Owner::of_content(content));
    }

    /// Adds the UID of a claim that waits for its volume.
    pub fn add_waiting(&mut self, uid: &str) {
        if !uid.is_empty() {
            self.waiting.insert(uid.to_owned());
        }
    }

    /// Adds the VolumeMove of the volume with this name. While the move replaces the PersistentVolume of the
    /// volume, there is none. So VolumeMoves are listed before PersistentVolumes.
    pub fn add_move(&mut self, name: &str) {
        self.handles.insert(name.to_owned());
    }

    /// Whether a Kubernetes object claims the object with this name, or waits for the one of this CSI
    /// request.
    pub fn own(&self, name: &str, requested_name: &str) -> bool {
        // The names of CSI requests end in the UID of the claim or VolumeSnapshot.
        let mut waiting = self.waiting.iter();
        self.handles.contains(name) || waiting.any(|uid| requested_name.ends_with(uid.as_str()))
    }

    /// Whether no Kubernetes object claims an object or waits for it, regardless of its age.
    pub fn lack<K: Claimable>(&self, object: &K) -> bool {
        !self.own(&object.name_any(), object.requested_name()) && !object.is_under_way()
    }

    /// Whether an object is unclaimed. `grace` is [`GRACE`], except in tests.
    pub fn leave_unclaimed<K: Claimable>(
        &self,
        object: &K,
        now: DateTime<Utc>,
        grace: TimeDelta,
    ) -> bool {
        let created = object.meta().creation_timestamp.as_ref();
        let created = created.map(time::from_kubernetes);
        created.is_some_and(|created| now.signed_duration_since(created) >= grace)
            && self.lack(object)
    }
}

/// The volume handle of a PersistentVolume of this driver.
pub fn handle(volume: &PersistentVolume) -> Option<&str> {
    let source = volume.spec.as_ref()?.csi.as_ref()?;
    (source.driver == DRIVER).then_some(&source.volume_handle)
}

/// The API of VolumeSnapshotContents, which are not part of Kubernetes.
pub fn contents() -> ApiResource {
    let kind = GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", "VolumeSnapshotContent");
    ApiResource::from_gvk_with_plural(&kind, "volumesnapshotcontents")
}

/// The snapshot handle of a VolumeSnapshotContent of this driver, without its metadata; None until it is
/// set.
pub fn snapshot_handle(content: &Value) -> Option<&str> {
    let text = |path| content.pointer(path).and_then(Value::as_str);
    let handle = text("/status/snapshotHandle").or_else(|| text("/spec/source/snapshotHandle"));
    handle.filter(|_| is_content_of_ours(content))
}

fn is_content_of_ours(content: &Value) -> bool {
    content.pointer("/spec/driver").and_then(Value::as_str) == Some(DRIVER)
}

/// A kind that a Kubernetes object claims.
pub trait Claimable: HasImage {
    /// The kind of the Kubernetes object.
    const OWNER: &'static str;

    /// The name of the CSI request.
    fn requested_name(&self) -> &str;

    /// Whether it is being made without a Kubernetes object that waits for it.
    fn is_under_way(&self) -> bool;
}

impl Claimable for PoolVolume {
    const OWNER: &'static str = "PersistentVolume";

    fn requested_name(&self) -> &str {
        &self.spec.requested_name
    }

    fn is_under_way(&self) -> bool {
        false
    }
}

impl Claimable for PoolSnapshot {
    const OWNER: &'static str = "VolumeSnapshotContent";

    fn requested_name(&self) -> &str {
        &self.spec.requested_name
    }

    fn is_under_way(&self) -> bool {
        // The controller removes it when its volume is made.
        if self.spec.is_hidden() {
            return true;
        }
        // The VolumeSnapshotContents of a group are made after all of its snapshots.
        self.spec.group_name.is_some()
            && !self.spec.deletion_requested
            && !condition::holds(self.conditions(), ConditionType::Ready)
    }
}

/// Message for users about an unclaimed object, with the remedy.
pub fn advice<K: Claimable>(object: &K) -> String {
    let (kind, name, owner) = (K::kind(&()), object.name_any(), K::OWNER);
    let (pool, node) = (object.pool_name(), object.node_name());
    if object.deletion_requested() && object.reserved().is_none() {
        return format!(
            "the removal of {kind} {name} was interrupted and is not retried: its data is destroyed; \
             remove the rest with `kubectl cistern orphans reclaim {name}`"
        );
    }
    format!(
        "no {owner} references {kind} {name} in pool {pool} on node {node}: it is kept and occupies \
         space; remove it with `kubectl cistern orphans reclaim {name}`, or create a {owner} with the \
         handle {name}"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        Bytes, PoolSnapshotSpec,
        testing::{volume_spec, wanted_snapshot},
    };

    fn at(minute: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(minute * 60, 0).unwrap()
    }

    fn volume(name: &str, requested: &str) -> PoolVolume {
        let mut volume = PoolVolume::desired(name, volume_spec(requested, "node-1", "fast"));
        volume.metadata.creation_timestamp = Some(time::to_kubernetes(at(0)));
        volume
    }

    fn snapshot(name: &str, requested: &str) -> PoolSnapshot {
        let spec = PoolSnapshotSpec {
            requested_name: requested.to_owned(),
            ..wanted_snapshot().spec
        };
        let mut snapshot = PoolSnapshot::desired(name, spec);
        snapshot.metadata.creation_timestamp = Some(time::to_kubernetes(at(0)));
        snapshot
    }

    fn persistent_volume(driver: &str, handle: &str) -> PersistentVolume {
        let csi = json!({"driver": driver, "volumeHandle": handle});
        serde_json::from_value(json!({"metadata": {"name": "any"}, "spec": {"csi": csi}})).unwrap()
    }

    #[test]
    fn a_volume_is_unclaimed_when_it_is_old_and_no_persistent_volume_has_its_handle() {
        let volume = volume("pvc-1", "pvc-uid-1");
        let mut owners = Owners::default();
        owners.add_volume(&persistent_volume("another.driver", "pvc-1"));
        owners.add_volume(&persistent_volume(DRIVER, "pvc-2"));
        assert!(owners.leave_unclaimed(&volume, at(15), GRACE));
        assert!(!owners.leave_unclaimed(&volume, at(14), GRACE), "young");
        owners.add_volume(&persistent_volume(DRIVER, "pvc-1"));
        assert!(!owners.leave_unclaimed(&volume, at(15), GRACE));
    }

    #[test]
    fn a_volume_that_moves_is_claimed_while_its_persistent_volume_is_replaced() {
        let mut owners = Owners::default();
        owners.add_move("pvc-2");
        assert!(owners.lack(&volume("pvc-1", "pvc-uid-1")));
        owners.add_move("pvc-1");
        assert!(!owners.lack(&volume("pvc-1", "pvc-uid-1")));
    }

    #[test]
    fn a_volume_that_its_claim_waits_for_is_under_way_however_old() {
        let volume = volume("pvc-1", "pvc-uid-1");
        let mut owners = Owners::default();
        owners.add_waiting("uid-2");
        owners.add_waiting("");
        assert!(owners.lack(&volume));
        owners.add_waiting("uid-1");
        assert!(!owners.lack(&volume));
    }

    #[test]
    fn a_snapshot_is_claimed_by_the_content_with_its_handle_or_the_one_that_waits_for_it() {
        let content = |text: Value| {
            let mut owners = Owners::default();
            owners.add_content(&text);
            owners.lack(&snapshot("snap-1", "snapshot-uid-1"))
        };
        let made = json!({"spec": {"driver": DRIVER}, "status": {"snapshotHandle": "snap-1"}});
        assert!(!content(made));
        let by_hand = json!({"spec": {"driver": DRIVER, "source": {"snapshotHandle": "snap-1"}}});
        assert!(!content(by_hand));
        let waiting = json!({"spec": {"driver": DRIVER, "volumeSnapshotRef": {"uid": "uid-1"}}});
        assert!(!content(waiting));
        let others = json!({"spec": {"driver": "x"}, "status": {"snapshotHandle": "snap-1"}});
        assert!(content(others));
        assert!(content(json!({"spec": {"driver": DRIVER}})));
    }

    #[test]
    fn a_snapshot_of_a_group_that_is_being_taken_is_under_way() {
        let mut one = snapshot("snap-1", "groupsnapshot-uid-1");
        one.spec.group_name = Some("group-1".to_owned());
        assert!(!Owners::default().lack(&one));
        one.spec.deletion_requested = true;
        assert!(Owners::default().lack(&one));
    }

    #[test]
    fn the_advice_names_the_object_and_what_to_do() {
        let mut one = volume("pvc-1", "pvc-uid-1");
        one.status = serde_json::from_value(json!({"reserved": "1Gi"})).unwrap();
        let kept = advice(&one);
        assert!(
            kept.starts_with("no PersistentVolume references PoolVolume pvc-1"),
            "{kept}"
        );
        assert_eq!(one.reserved(), Some(Bytes::gib(1)));
        one.spec.deletion_requested = true;
        assert_eq!(advice(&one), kept, "its data still exists");
        one.status = None;
        assert!(advice(&one).contains("was interrupted"), "{}", advice(&one));
    }
}
