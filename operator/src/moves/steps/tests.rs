use cistern_crds::{MoveTakeover, VolumeMoveSpec, VolumeMoveStatus, testing::ready_volume};
use k8s_openapi::{
    api::core::v1::PersistentVolumeStatus, apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp,
};

use super::{super::volume::saved, *};
use crate::testing::moment;

fn object() -> VolumeMove {
    let spec = VolumeMoveSpec {
        volume_name: "pvc-1".to_owned(),
        to_node: Some("node-2".to_owned()),
        takeover: Some(MoveTakeover {
            from_node: "node-1".to_owned(),
            epoch: 1,
        }),
        ..VolumeMoveSpec::default()
    };
    let mut object = VolumeMove::new("pvc-1", spec);
    object.metadata.uid = Some("uid-of-the-move".to_owned());
    object
}

fn moved() -> PoolVolume {
    let mut volume = ready_volume();
    "node-2".clone_into(&mut volume.spec.node_name);
    volume.spec.epoch = 1;
    volume
}

fn persistent_volume(node: &str) -> PersistentVolume {
    serde_json::from_value(json!({
        "metadata": {
            "name": "pvc-1", "uid": "uid-of-the-pv", "resourceVersion": "7",
            "labels": {"team": "a"},
            "annotations": {"pv.kubernetes.io/provisioned-by": names::DRIVER},
            "finalizers": ["kubernetes.io/pv-protection"],
        },
        "spec": {
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": "fast",
            "mountOptions": ["noatime"],
            "csi": {"driver": names::DRIVER, "volumeHandle": "pvc-1"},
            "claimRef": {
                "namespace": "default", "name": "data", "uid": "uid-of-the-claim",
                "resourceVersion": "5",
            },
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": names::TOPOLOGY_KEY, "operator": "In", "values": [node]},
                {"key": "zone", "operator": "In", "values": ["a"]},
            ]}]}},
        },
    }))
    .unwrap()
}

fn step(object: &VolumeMove, found: Option<&PersistentVolume>) -> Step {
    next(&View {
        object,
        plan: &object.plan().unwrap(),
        volume: Some(&moved()),
        persistent_volume: found,
        claim: None,
        is_granted: true,
        pods: &[],
        now: moment(),
    })
}

fn waits_for(step: &Step) -> Option<Reason> {
    match step {
        Step::Wait(why) => Some(why.reason),
        _ => None,
    }
}

#[test]
fn a_persistent_volume_is_saved_before_anything_and_each_state_leads_to_the_next() {
    let (mut object, mut found) = (object(), persistent_volume("node-1"));
    let Step::Repoint(affinity) = step(&object, Some(&found)) else {
        panic!("it is pointed at the node, or saved");
    };
    assert_eq!(
        affinity.pointer("/required/nodeSelectorTerms/0/matchExpressions/0/values"),
        Some(&json!(["node-2"]))
    );
    object.status = Some(VolumeMoveStatus {
        persistent_volume: Some(saved(&found)),
        ..VolumeMoveStatus::default()
    });
    assert_eq!(step(&object, Some(&found)), Step::Retain);
    found
        .spec
        .as_mut()
        .unwrap()
        .persistent_volume_reclaim_policy = Some("Retain".to_owned());
    let mark = (names::MOVE_ANNOTATION.to_owned(), object.uid().unwrap());
    found.annotations_mut().extend([mark.clone()]);
    assert_eq!(step(&object, Some(&found)), Step::Delete);
    found.metadata.deletion_timestamp = Some(Time(Timestamp::default()));
    assert_eq!(step(&object, Some(&found)), Step::Strip);

    let Step::Create(again) = step(&object, None) else {
        panic!("it is created again");
    };
    assert_eq!(node_of(&again), Some("node-2"));
    let mut expected = persistent_volume("node-2");
    (expected.metadata.uid, expected.metadata.resource_version) = (None, None);
    expected.annotations_mut().extend([mark]);
    let spec = expected.spec.as_mut().unwrap();
    spec.persistent_volume_reclaim_policy = Some("Retain".to_owned());
    spec.claim_ref.as_mut().unwrap().resource_version = None;
    assert_eq!(*again, expected, "all but the node is as it was saved");
}

/// A PersistentVolume that was created again for the move, in a phase.
fn created_again(object: &VolumeMove, phase: &str) -> PersistentVolume {
    let saved = saved(&persistent_volume("node-1"));
    let mut again = super::again(&saved, Some("node-2"), &object.move_uid()).unwrap();
    again.metadata.uid = Some("uid-of-the-new-pv".to_owned());
    again.status = Some(PersistentVolumeStatus {
        phase: Some(phase.to_owned()),
        ..PersistentVolumeStatus::default()
    });
    again
}

#[test]
fn a_persistent_volume_has_its_reclaim_policy_again_once_it_is_bound_or_if_it_has_no_claim() {
    let mut object = object();
    object.status = Some(VolumeMoveStatus {
        persistent_volume: Some(saved(&persistent_volume("node-1"))),
        ..VolumeMoveStatus::default()
    });
    let (moved, claim) = (moved(), PersistentVolumeClaim::default());
    let step = |found: &PersistentVolume, claim, volume| {
        next(&View {
            object: &object,
            plan: &object.plan().unwrap(),
            volume,
            persistent_volume: Some(found),
            claim,
            is_granted: true,
            pods: &[],
            now: moment(),
        })
    };
    let restore = Step::Restore("Delete".to_owned());
    let pending = created_again(&object, "Pending");
    assert_eq!(step(&pending, Some(&claim), Some(&moved)), Step::AwaitBound);
    let mut bound = created_again(&object, "Bound");
    assert_eq!(step(&bound, Some(&claim), Some(&moved)), restore);
    assert_eq!(step(&bound, Some(&claim), None), restore, "without volume");
    let mut free = created_again(&object, "Available");
    free.spec.as_mut().unwrap().claim_ref = None;
    assert_eq!(step(&free, None, Some(&moved)), restore);
    // Its claim was deleted while it was replaced: the data stays.
    for phase in ["Pending", "Released"] {
        let left = created_again(&object, phase);
        assert_eq!(step(&left, None, Some(&moved)), Step::End, "{phase}");
    }
    bound.annotations_mut().remove(names::MOVE_ANNOTATION);
    assert_eq!(step(&bound, None, Some(&moved)), Step::End);
}

#[test]
fn a_persistent_volume_that_is_not_replaced_after_all_has_its_reclaim_policy_again() {
    let mut object = object();
    // The disk is back on its node, which has the volume now.
    let mut found = persistent_volume("node-2");
    object.status = Some(VolumeMoveStatus {
        persistent_volume: Some(saved(&found)),
        ..VolumeMoveStatus::default()
    });
    let mark = (names::MOVE_ANNOTATION.to_owned(), object.uid().unwrap());
    found.annotations_mut().extend([mark]);
    let spec = found.spec.as_mut().unwrap();
    spec.persistent_volume_reclaim_policy = Some("Retain".to_owned());
    let mut in_phase = |phase: &str| {
        found.status = Some(PersistentVolumeStatus {
            phase: Some(phase.to_owned()),
            ..PersistentVolumeStatus::default()
        });
        step(&object, Some(&found))
    };
    assert_eq!(in_phase("Released"), Step::End, "its claim was deleted");
    assert_eq!(in_phase("Bound"), Step::Restore("Delete".to_owned()));
    found.annotations_mut().remove(names::MOVE_ANNOTATION);
    assert_eq!(step(&object, Some(&found)), Step::End);
}

#[test]
fn a_persistent_volume_is_deleted_only_while_it_has_the_policy_retain() {
    let (mut object, mut found) = (object(), persistent_volume("node-1"));
    object.status = Some(VolumeMoveStatus {
        persistent_volume: Some(saved(&found)),
        ..VolumeMoveStatus::default()
    });
    let mark = (names::MOVE_ANNOTATION.to_owned(), object.uid().unwrap());
    found.annotations_mut().extend([mark]);
    // Somebody has changed the policy back.
    assert_eq!(step(&object, Some(&found)), Step::Retain);
    let spec = found.spec.as_mut().unwrap();
    spec.persistent_volume_reclaim_policy = Some("Retain".to_owned());
    assert_eq!(step(&object, Some(&found)), Step::Delete);
}

#[test]
fn a_persistent_volume_whose_claim_is_gone_is_replaced_only_if_it_is_kept() {
    let object = object();
    let mut found = persistent_volume("node-1");
    found.status = Some(PersistentVolumeStatus {
        phase: Some("Released".to_owned()),
        ..PersistentVolumeStatus::default()
    });
    assert_eq!(step(&object, Some(&found)), Step::End);
    let spec = found.spec.as_mut().unwrap();
    spec.persistent_volume_reclaim_policy = Some("Retain".to_owned());
    assert!(matches!(step(&object, Some(&found)), Step::Repoint(_)));
}

#[test]
fn a_move_begins_when_its_volume_has_moved_and_ends_when_it_will_not() {
    let (object, found, before) = (object(), persistent_volume("node-1"), ready_volume());
    let plan = object.plan().unwrap();
    let view = |is_granted| View {
        object: &object,
        plan: &plan,
        volume: Some(&before),
        persistent_volume: Some(&found),
        claim: None,
        is_granted,
        pods: &[],
        now: moment(),
    };
    assert_eq!(waits_for(&next(&view(true))), Some(Reason::Pending));
    assert_eq!(next(&view(false)), Step::End);
    let gone = View {
        volume: None,
        ..view(true)
    };
    assert_eq!(next(&gone), Step::End);
    // The volume has no PersistentVolume, or one that no node is named in.
    assert_eq!(step(&object, None), Step::End);
    let mut anywhere = persistent_volume("node-1");
    anywhere.spec.as_mut().unwrap().node_affinity = None;
    assert_eq!(step(&object, Some(&anywhere)), Step::End);
}

#[test]
fn a_persistent_volume_in_use_or_held_by_others_is_not_touched() {
    let object = object();
    let found = persistent_volume("node-1");
    let pods = ["default/web-0".to_owned()];
    let used = next(&View {
        object: &object,
        plan: &object.plan().unwrap(),
        volume: Some(&moved()),
        persistent_volume: Some(&found),
        claim: None,
        is_granted: true,
        pods: &pods,
        now: moment(),
    });
    assert_eq!(waits_for(&used), Some(Reason::PodsRemain));
    let mut held = found.clone();
    held.finalizers_mut().push("backup.example/hold".to_owned());
    let conflict = Some(Reason::PersistentVolumeConflict);
    assert_eq!(waits_for(&step(&object, Some(&held))), conflict);
    let mut deleted = found;
    deleted.metadata.deletion_timestamp = Some(Time(Timestamp::default()));
    assert_eq!(waits_for(&step(&object, Some(&deleted))), conflict);
}

#[test]
fn a_saved_persistent_volume_is_created_again_also_without_its_volume() {
    let mut object = object();
    object.status = Some(VolumeMoveStatus {
        persistent_volume: Some(saved(&persistent_volume("node-1"))),
        ..VolumeMoveStatus::default()
    });
    let without = |volume, is_granted| {
        let step = next(&View {
            object: &object,
            plan: &object.plan().unwrap(),
            volume,
            persistent_volume: None,
            claim: None,
            is_granted,
            pods: &[],
            now: moment(),
        });
        let Step::Create(again) = step else {
            panic!("{step:?}");
        };
        node_of(&again).map(str::to_owned)
    };
    assert_eq!(without(None, false).as_deref(), Some("node-1"));
    // A later takeover continues the move, and its volume has not moved yet.
    let before = ready_volume();
    assert_eq!(without(Some(&before), false).as_deref(), Some("node-1"));
}

#[test]
fn a_claim_that_is_not_bound_is_woken_once_its_new_persistent_volume_is_bound() {
    let mut object = object();
    object.status = Some(VolumeMoveStatus {
        persistent_volume: Some(saved(&persistent_volume("node-1"))),
        ..VolumeMoveStatus::default()
    });
    let mut found = persistent_volume("node-2");
    found.metadata.uid = Some("uid-of-the-new-pv".to_owned());
    let claim = |phase: &str, selected: &str| -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "metadata": {
                "name": "data", "annotations": {(names::SELECTED_NODE_ANNOTATION): selected},
            },
            "status": {"phase": phase},
        }))
        .unwrap()
    };
    let step = |found: &PersistentVolume, claim: Option<&PersistentVolumeClaim>| {
        next(&View {
            object: &object,
            plan: &object.plan().unwrap(),
            volume: Some(&moved()),
            persistent_volume: Some(found),
            claim,
            is_granted: true,
            pods: &[],
            now: moment(),
        })
    };
    let lost = claim("Lost", "node-1");
    assert_eq!(step(&found, Some(&lost)), Step::AwaitBound);
    found.status = Some(PersistentVolumeStatus {
        phase: Some("Bound".to_owned()),
        ..PersistentVolumeStatus::default()
    });
    let wake = Step::Wake {
        claim: Box::new(lost.clone()),
        node: "node-2".to_owned(),
    };
    assert_eq!(step(&found, Some(&lost)), wake);
    let (woken, bound) = (claim("Lost", "node-2"), claim("Bound", "node-1"));
    for claim in [Some(&woken), Some(&bound), None] {
        assert_eq!(step(&found, claim), Step::End);
    }
    // The claim may not be changed: kube-controller-manager has looked at it meanwhile.
    let age = |seconds| Some(time::to_kubernetes(moment() - TimeDelta::seconds(seconds)));
    found.metadata.creation_timestamp = age(20);
    assert_eq!(step(&found, Some(&lost)), wake);
    found.metadata.creation_timestamp = age(21);
    assert_eq!(step(&found, Some(&lost)), Step::End);
    found.status = None;
    assert_eq!(step(&found, Some(&lost)), Step::AwaitBound);
}
