use cistern_crds::{Explanation, StorageNodeSpec, StorageNodeStatus, condition::ConditionUpdate};

use super::*;
use crate::{
    objects::ensure::Request as _,
    testing::{at, ready_snapshot, ready_volume, wanted_snapshot, wanted_volume},
    volumes::request::tests::wanted,
};

fn reference(kind: SourceKind) -> SourceReference {
    let id = match kind {
        SourceKind::Snapshot => "snapshot-1",
        SourceKind::Volume => "pvc-1",
    };
    SourceReference {
        kind,
        id: id.into(),
    }
}

/// A snapshot of 1 GiB of ext4 in pool `fast` on `node-1`.
fn source() -> Source {
    let mut snapshot = ready_snapshot();
    let ready = ConditionUpdate::new(ConditionType::Ready, true, Reason::Reconciled, "cut");
    let conditions = &mut snapshot.status.as_mut().unwrap().conditions;
    condition::set(conditions, &ready, None, at(300));
    of_snapshot(&reference(SourceKind::Snapshot), &snapshot).unwrap()
}

/// A request for a copy that leaves open what can be left open.
fn copy() -> NewVolume {
    let mut copy = wanted("pvc-2");
    copy.filesystem = None;
    copy.size.required = Bytes::ZERO;
    copy.size.chosen = Bytes::ZERO;
    copy.source = Some(reference(SourceKind::Snapshot));
    copy
}

// Shows: CV-06.
#[test]
fn vcs_10_what_a_request_leaves_open_is_as_the_source_has_it() {
    let completed = source().complete(&copy()).unwrap();
    assert_eq!(completed.size.chosen, Bytes::gib(1));
    assert_eq!(completed.filesystem, Some(FilesystemType::Ext4));
    let object = completed.in_pool("fast", "node-1", Some(source().content("node-1")));
    let content = object.spec.content_source.as_ref().unwrap();
    assert_eq!(
        (content.kind, content.name.as_str(), content.image.as_str()),
        (SourceKind::Snapshot, "snapshot-1", "uid-of-snapshot-1")
    );
    assert_eq!(content.node_name, None);
    assert_eq!(copy().difference(&object), None, "CV-06: found by a repeat");
}

#[test]
fn vcs_07_vcs_08_a_copy_is_never_smaller_and_may_be_larger() {
    let size = |required: u64, limit: Option<u64>| {
        let mut copy = copy();
        copy.size.required = Bytes::mib(required);
        copy.size.chosen = Bytes::mib(required);
        copy.size.limit = limit.map(Bytes::mib);
        source().complete(&copy).map(|copy| copy.size.chosen)
    };
    assert_eq!(size(0, None).unwrap(), Bytes::gib(1));
    assert_eq!(size(16, Some(1024)).unwrap(), Bytes::gib(1));
    assert_eq!(size(2048, None).unwrap(), Bytes::gib(2));
    let error = size(16, Some(1023)).unwrap_err();
    assert!(
        matches!(error, super::super::Error::Source(Error::TooLarge { .. })),
        "{error}"
    );
}

#[test]
fn vcs_04_what_a_copy_cannot_be_is_refused_with_what_to_ask_for() {
    type Change = fn(&mut NewVolume);
    let changes: [(&str, Change); 2] = [
        ("use a class of fast", |w| {
            w.pools = "slow,slower".parse().unwrap();
        }),
        ("fstype is ext4", |w| {
            w.filesystem = Some(FilesystemType::Xfs);
        }),
    ];
    for (named, change) in changes {
        let mut other = copy();
        change(&mut other);
        let error = source().complete(&other).unwrap_err();
        assert!(error.to_string().contains(named), "{error}");
    }
}

#[test]
fn a_snapshot_of_a_filesystem_is_restored_to_a_device_and_nothing_else_changes_its_kind() {
    let mut device = copy();
    device.access_type = AccessType::Block;
    let completed = source().complete(&device).unwrap();
    assert_eq!(completed.filesystem, None);
    let object = completed.in_pool("fast", "node-1", Some(source().content("node-1")));
    assert_eq!(device.difference(&object), None, "CV-06: found by a repeat");

    let mut clone = device.clone();
    clone.source = Some(reference(SourceKind::Volume));
    let volume = of_volume(&reference(SourceKind::Volume), &ready_volume()).unwrap();
    let error = volume.complete(&clone).unwrap_err().to_string();
    assert!(
        error.contains("a block device is asked for: take a snapshot"),
        "{error}"
    );
    let mut raw = source();
    (raw.access_type, raw.filesystem) = (AccessType::Block, None);
    let error = raw.complete(&copy()).unwrap_err().to_string();
    assert!(error.contains("a filesystem is asked for"), "{error}");
}

#[test]
fn a_copy_goes_to_its_source_whatever_is_preferred_if_the_request_allows_that() {
    let mut asked = copy();
    asked.requirement = Requirement {
        requisite: Some(vec!["node-2".to_owned(), "node-1".to_owned()]),
        preferred: vec!["node-2".to_owned()],
    };
    let beside = source().beside(&asked).unwrap();
    assert_eq!(
        beside.requirement,
        Requirement {
            requisite: Some(vec!["node-1".to_owned()]),
            preferred: Vec::new(),
        }
    );
    asked.requirement.requisite = Some(vec!["node-2".to_owned()]);
    let error = source().beside(&asked).unwrap_err();
    assert!(matches!(error, Error::NoRoom { .. }), "{error}");
}

#[test]
fn a_source_is_copied_between_nodes_that_can_and_a_volume_from_a_snapshot_of_it() {
    let node = |name: &str, key: Option<&str>| {
        let mut node = StorageNode::new(name, StorageNodeSpec::default());
        node.status = Some(StorageNodeStatus {
            transfer_key: key.map(str::to_owned),
            ..StorageNodeStatus::default()
        });
        Arc::new(node)
    };
    let nodes = [
        node("node-1", Some("a")),
        node("node-2", Some("b")),
        node("node-3", None),
        node("node-4", Some("d")),
    ];
    let mut asked = copy();
    asked.requirement = Requirement {
        requisite: Some(["node-3", "node-1", "node-2"].map(str::to_owned).to_vec()),
        preferred: ["node-3", "node-2"].map(str::to_owned).to_vec(),
    };
    let elsewhere = source().elsewhere(&asked, &nodes).unwrap();
    let expected = Requirement {
        requisite: Some(vec!["node-2".to_owned()]),
        preferred: vec!["node-2".to_owned()],
    };
    assert_eq!(elsewhere.requirement, expected, "node-3 has an older agent");
    let content = source().content("node-2");
    assert_eq!(content.node_name.as_deref(), Some("node-1"));
    let object = elsewhere.in_pool("fast", "node-2", Some(content));
    assert_eq!(asked.difference(&object), None, "CV-06: found by a repeat");

    assert_eq!(
        source().elsewhere(&asked, &nodes[1..]),
        None,
        "its own agent"
    );
    assert!(!source().needs_snapshot("node-2"));
    let mut live = source();
    live.reference = reference(SourceKind::Volume);
    assert!(!live.needs_snapshot("node-1") && live.needs_snapshot("node-2"));
    let taken = Source {
        size: Bytes::gib(2),
        image: "uid-of-snapshot-2".to_owned(),
        ..source()
    };
    let pinned = live.as_of("snapshot-2", taken);
    assert_eq!(pinned.complete(&asked).unwrap().size.chosen, Bytes::gib(2));
    let content = pinned.content("node-2");
    assert_eq!(content.name, *live.reference.id);
    assert_eq!(content.copied_snapshot(), Some("snapshot-2"));
    assert_eq!(content.image, "uid-of-snapshot-2");
}

#[test]
fn a_copy_stays_in_the_pool_of_its_source_which_must_be_one_of_its_class() {
    let mut several = copy();
    several.pools = "slow,fast".parse().unwrap();
    let beside = source().beside(&several).unwrap();
    assert_eq!(beside.pools, PoolNames::only("fast"));
}

#[test]
fn a_copy_without_room_at_its_source_names_the_node_and_keeps_the_reason() {
    let full = placement::Error::NoRoom {
        pools: PoolNames::only("fast"),
        size: Bytes::gib(2),
        why: "node-1 has room for 1Gi".to_owned(),
    };
    let error = source().misplaced(full.into()).to_string();
    for said in ["snapshot snapshot-1", "on node node-1", "has room for 1Gi"] {
        assert!(error.contains(said), "{error}");
    }
    let too_large = placement::Error::TooLarge {
        pools: PoolNames::only("fast"),
        size: Bytes::gib(2),
        largest: Bytes::gib(1),
    };
    let error = source().misplaced(too_large.into());
    assert!(
        matches!(error, super::super::Error::Placement(_)),
        "no node could ever hold it: {error}"
    );
}

#[test]
fn vcs_13_what_is_not_ready_is_no_source() {
    let snapshot = reference(SourceKind::Snapshot);
    for unready in [wanted_snapshot(), ready_snapshot()] {
        let error = of_snapshot(&snapshot, &unready).unwrap_err();
        assert!(matches!(error, Error::NotReady { .. }), "{error}");
    }
    let volume = reference(SourceKind::Volume);
    assert!(of_volume(&volume, &wanted_volume()).is_err());
    assert_eq!(
        of_volume(&volume, &ready_volume()).unwrap().size,
        Bytes::gib(1)
    );
}

#[test]
fn vcs_03_what_is_to_go_is_not_there() {
    let mut volume = ready_volume();
    volume.spec.deletion_requested = true;
    let reference = reference(SourceKind::Volume);
    assert!(existing(&reference, Some(volume)).is_err());
    assert!(existing(&reference, None::<PoolVolume>).is_err());
}

#[test]
fn only_refusals_that_no_other_try_would_change_end_a_copy() {
    let ends = |reason| {
        let refusal = Refusal {
            node: "node-1".to_owned(),
            pool: "fast".to_owned(),
            why: Explanation::new(reason, "the agent's words"),
        };
        refused(&reference(SourceKind::Snapshot), &refusal).map(|error| error.to_string())
    };
    assert_eq!(
        ends(Reason::SourceMissing).unwrap(),
        "there is no snapshot snapshot-1"
    );
    let extents = ends(Reason::TooManyExtents).unwrap();
    assert!(extents.contains("limits.maximumExtents"), "{extents}");
    let of_group = ends(Reason::NotInVolumeGroup).unwrap();
    assert!(of_group.contains("engine Image"), "{of_group}");
    assert_eq!(
        (ends(Reason::NoSpace), ends(Reason::AgentMissing)),
        (None, None)
    );
}
