use std::sync::Arc;

use cistern_crds::{Bytes, bounds, pool::ReplacedDisk};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;

use super::*;
use crate::{
    contents::Count,
    testing::{node, pool, storage_node, uid},
};

const FAST: &[(&str, &str)] = &[("disk", "nvme")];

/// One node called `w1` and all that is declared.
#[derive(Default)]
struct Case {
    node: Option<Node>,
    storage_node: Option<StorageNode>,
    pools: Vec<Arc<DeserializeGuard<StoragePool>>>,
    agent: bool,
    endpoint: Option<SocketAddr>,
    kept: Contents,
    granted: Granted,
    thick: Count,
}

impl Case {
    fn labelled(labels: &[(&str, &str)]) -> Self {
        Self {
            node: Some(node("w1", labels)),
            agent: true,
            ..Self::default()
        }
    }

    fn declaring(mut self, pool: StoragePool) -> Self {
        self.pools.push(Arc::new(DeserializeGuard(Ok(pool))));
        self
    }

    fn having(mut self, node: StorageNode) -> Self {
        self.storage_node = Some(node);
        self
    }

    fn holding(mut self, pool: &str, count: Count) -> Self {
        self.kept.add(Some(pool), count);
        self
    }

    fn plan(&self) -> StorageNodeAction {
        plan(&View {
            name: "w1",
            node: self.node.as_ref(),
            storage_node: self.storage_node.as_ref(),
            pools: &self.pools,
            agent: self.agent,
            endpoint: self.endpoint,
            kept: &&self.kept,
            granted: &self.granted,
            thick_in: &|_| self.thick,
        })
    }

    /// The pools of the spec that is to be written, as `name` or `name!` where retiring.
    fn written(&self) -> Vec<String> {
        let (StorageNodeAction::Create(spec) | StorageNodeAction::Write(spec)) = self.plan() else {
            panic!("nothing is written: {:?}", self.plan());
        };
        let mark = |retiring| if retiring { "!" } else { "" };
        let pools = spec.pools.iter();
        pools
            .map(|entry| format!("{}{}", entry.name, mark(entry.retiring)))
            .collect()
    }
}

fn deleted(mut pool: StoragePool) -> StoragePool {
    pool.metadata.deletion_timestamp = Some(Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH));
    pool
}

fn deleted_node(mut node: StorageNode) -> StorageNode {
    node.metadata.deletion_timestamp = Some(Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH));
    node
}

/// The StorageNode `w1`, which carries `fast` without problems.
fn carrying() -> StorageNode {
    storage_node("w1")
        .carrying("fast")
        .with_room("fast", Bytes::gib(10))
        .build()
}

#[test]
fn the_address_of_the_agent_is_written_and_kept_while_no_agent_runs() {
    let mut case = Case::labelled(FAST).declaring(pool("fast", FAST));
    case.endpoint = "10.0.0.7:9812".parse().ok();
    let StorageNodeAction::Create(spec) = case.plan() else {
        panic!("{:?}", case.plan())
    };
    assert_eq!(spec.transfer_endpoint.as_deref(), Some("10.0.0.7:9812"));
    let mut node = new("w1", spec);
    case.endpoint = None;
    case = case.having(node.clone());
    assert_eq!(case.plan(), StorageNodeAction::Keep);
    case.endpoint = "10.0.0.8:9812".parse().ok();
    node.spec.transfer_endpoint = Some("10.0.0.8:9812".to_owned());
    assert_eq!(case.plan(), StorageNodeAction::Write(node.spec));
}

#[test]
fn a_node_that_a_selector_matches_gets_the_pool_and_others_an_object_without_pools() {
    let case = Case::labelled(FAST).declaring(pool("fast", FAST));
    let StorageNodeAction::Create(spec) = case.plan() else {
        panic!("{:?}", case.plan());
    };
    assert_eq!(spec.topology[names::TOPOLOGY_KEY], "w1");
    assert_eq!(spec.pools[0].uid, uid("fast"));
    let other = Case::labelled(&[("disk", "hdd")]).declaring(pool("fast", FAST));
    assert!(other.written().is_empty());
}

#[test]
fn a_node_with_an_agent_has_an_object_that_needs_no_finalizer_before_its_first_pool() {
    let mut case = Case::labelled(FAST);
    case.endpoint = "10.0.0.7:9812".parse().ok();
    let StorageNodeAction::Create(spec) = case.plan() else {
        panic!("{:?}", case.plan());
    };
    let bare = new("w1", spec);
    assert!(bare.spec.pools.is_empty() && bare.finalizers().is_empty());
    let mut case = case.having(bare.clone());
    assert_eq!(case.plan(), StorageNodeAction::Keep);

    // Another change adds no finalizer either; the first pool does.
    case.endpoint = "10.0.0.8:9812".parse().ok();
    assert!(case.written().is_empty());
    assert!(finalizers(Some(&bare), &bare.spec).is_empty());
    let case = case.declaring(pool("fast", FAST));
    let StorageNodeAction::Write(spec) = case.plan() else {
        panic!("{:?}", case.plan());
    };
    assert_eq!(finalizers(Some(&bare), &spec), [names::FINALIZER]);
}

#[test]
fn without_a_node_or_its_agent_no_object_is_created() {
    let mut no_agent = Case::labelled(FAST);
    no_agent.agent = false;
    assert_eq!(no_agent.plan(), StorageNodeAction::Keep);
    let no_node = Case {
        agent: true,
        ..Case::default()
    };
    assert_eq!(no_node.plan(), StorageNodeAction::Keep);
}

#[test]
fn an_empty_selector_matches_every_node_and_pools_are_sorted() {
    let case = Case::labelled(&[])
        .declaring(pool("slow", &[]))
        .declaring(pool("fast", &[]));
    assert_eq!(case.written(), ["fast", "slow"]);
}

#[test]
fn r05_what_is_as_it_should_be_is_not_written() {
    let case = Case::labelled(FAST)
        .declaring(pool("fast", FAST))
        .having(carrying());
    assert_eq!(case.plan(), StorageNodeAction::Keep);
}

#[test]
fn a_pool_without_our_finalizer_is_not_spread() {
    let mut unheld = pool("fast", FAST);
    unheld.metadata.finalizers = None;
    let case = Case::labelled(FAST).declaring(unheld);
    assert!(case.written().is_empty());
}

#[test]
fn a_changed_pool_reaches_the_node() {
    let mut grown = pool("fast", FAST);
    grown.spec.reserved_percent = 10;
    let case = Case::labelled(FAST).declaring(grown).having(carrying());
    assert_eq!(case.written(), ["fast"]);
}

#[test]
fn a_pool_is_cordoned_on_the_nodes_that_its_spec_names_and_on_no_other() {
    let mut elsewhere = pool("fast", FAST);
    elsewhere.spec.cordoned_nodes = vec!["w2".to_owned()];
    let case = Case::labelled(FAST).declaring(elsewhere).having(carrying());
    assert_eq!(case.plan(), StorageNodeAction::Keep);
    let mut here = pool("fast", FAST);
    here.spec.cordoned_nodes = vec!["w2".to_owned(), "w1".to_owned()];
    let case = Case::labelled(FAST).declaring(here).having(carrying());
    let StorageNodeAction::Write(spec) = case.plan() else {
        panic!("{:?}", case.plan());
    };
    assert!(spec.pools[0].cordoned && !spec.pools[0].retiring);
}

#[test]
fn a_pool_that_no_longer_matches_or_is_deleted_retires_and_comes_back() {
    let unlabelled = Case::labelled(&[])
        .declaring(pool("fast", FAST))
        .having(carrying());
    assert_eq!(unlabelled.written(), ["fast!"]);
    let gone = Case::labelled(FAST)
        .declaring(deleted(pool("fast", FAST)))
        .having(carrying());
    assert_eq!(gone.written(), ["fast!"]);
    let retiring = storage_node("w1").carrying("fast").retiring("fast");
    let retiring = retiring.with_room("fast", Bytes::ZERO).build();
    let back = Case::labelled(FAST)
        .declaring(pool("fast", FAST))
        .having(retiring);
    assert_eq!(back.written(), ["fast"]);
}

#[test]
fn a_pool_whose_disk_is_replaced_retires_until_the_agent_no_longer_reports_that_disk() {
    let listed = |node: &str, filesystem: &str| {
        let mut pool = pool("fast", FAST);
        pool.spec.replaced_disks = vec![ReplacedDisk {
            node: node.to_owned(),
            filesystem_uuid: filesystem.to_owned(),
            device_identity: None,
        }];
        Case::labelled(FAST).declaring(pool)
    };
    let mut on_disk = carrying();
    on_disk.status.as_mut().unwrap().pools[0].filesystem_uuid = Some("dead".to_owned());
    let case = listed("w2", "other").having(on_disk.clone());
    assert_eq!(case.plan(), StorageNodeAction::Keep);
    let mut case = listed("w1", "dead").having(on_disk);
    let StorageNodeAction::Write(spec) = case.plan() else {
        panic!("{:?}", case.plan());
    };
    assert!(spec.pools[0].retiring);
    assert_eq!(spec.pools[0].replaced_disks[0].filesystem_uuid, "dead");
    let current = case.storage_node.as_mut().unwrap();
    current.spec = spec;
    assert_eq!(case.plan(), StorageNodeAction::Keep);

    let current = case.storage_node.as_mut().unwrap();
    current.status.as_mut().unwrap().pools.clear();
    let StorageNodeAction::Write(spec) = case.plan() else {
        panic!("{:?}", case.plan());
    };
    assert!(!spec.pools[0].retiring);
    assert_eq!(spec.pools[0].replaced_disks.len(), 1);
}

#[test]
fn a_retiring_pool_is_dropped_only_when_agent_volumes_and_snapshots_no_longer_refer_to_it() {
    let retiring = storage_node("w1")
        .carrying("fast")
        .retiring("fast")
        .answered();
    let reported = retiring.clone().with_room("fast", Bytes::ZERO).build();
    let case = Case::labelled(&[]).declaring(pool("fast", FAST));
    assert_eq!(case.having(reported).plan(), StorageNodeAction::Keep);
    let case = Case::labelled(&[])
        .declaring(pool("fast", FAST))
        .having(retiring.build());
    assert!(case.written().is_empty());
    let with_snapshot = case.holding("fast", Count::SNAPSHOT);
    assert_eq!(with_snapshot.plan(), StorageNodeAction::Keep);
    let without_source = Case {
        kept: Contents::default(),
        ..with_snapshot
    };
    let with_volume = without_source.holding("fast", Count::VOLUME);
    assert_eq!(with_volume.plan(), StorageNodeAction::Keep);
}

#[test]
fn a_pool_that_the_agent_may_be_making_is_not_dropped_before_it_answers() {
    let entry = storage_node("w1").carrying("fast");
    let case = |node: StorageNode| {
        let gone = deleted(pool("fast", FAST));
        Case::labelled(FAST).declaring(gone).having(node)
    };
    // The agent has not reported yet, or it reported before the pool was retiring.
    assert_eq!(case(entry.clone().build()).written(), ["fast!"]);
    assert_eq!(case(entry.clone().answered().build()).written(), ["fast!"]);
    let retiring = entry.retiring("fast");
    assert_eq!(
        case(retiring.clone().build()).plan(),
        StorageNodeAction::Keep
    );
    assert!(
        case(retiring.clone().answered().build())
            .written()
            .is_empty()
    );
    // Without an agent, no pool is being created.
    let no_agent = Case {
        agent: false,
        ..case(retiring.build())
    };
    assert!(no_agent.written().is_empty());
}

#[test]
fn r22_a_volume_or_snapshot_that_cannot_be_read_keeps_every_pool() {
    for unreadable in [Count::VOLUME, Count::SNAPSHOT] {
        let retiring = storage_node("w1").carrying("fast").retiring("fast");
        let mut case = Case::labelled(&[])
            .declaring(pool("fast", FAST))
            .having(retiring.answered().build());
        case.kept.add(None, unreadable);
        assert_eq!(case.plan(), StorageNodeAction::Keep);
    }
}

#[test]
fn r21_a_pool_whose_spec_makes_no_sense_changes_nothing_on_its_nodes() {
    let unreadable: DeserializeGuard<StoragePool> = serde_json::from_value(json!({
        "apiVersion": "cistern.storage/v1alpha1",
        "kind": "StoragePool",
        "metadata": {"name": "fast", "uid": uid("fast")},
        "spec": {"nodeSelector": {}, "source": {"image": {"size": "1e12"}}},
    }))
    .unwrap();
    assert!(unreadable.0.is_err());
    let mut case = Case::labelled(&[]).having(carrying());
    case.pools.push(Arc::new(unreadable));
    assert_eq!(case.plan(), StorageNodeAction::Keep);
}

#[test]
fn a_pool_with_a_limit_that_the_schema_refuses_keeps_no_other_from_a_new_node() {
    let mut limited = pool("fast", FAST);
    limited.spec.limits.volume_io.read_bytes_per_second = Some(Bytes(100));
    let slow = pool("slow", FAST);
    let case = Case::labelled(FAST).declaring(limited.clone());
    assert_eq!(case.declaring(slow).written(), ["slow"]);
    let present = Case::labelled(FAST).declaring(limited).having(carrying());
    assert_eq!(present.plan(), StorageNodeAction::Keep);
}

#[test]
fn a_pool_whose_object_is_gone_retires_until_the_agent_has_put_it_away() {
    assert_eq!(Case::labelled(FAST).having(carrying()).written(), ["fast!"]);
    let put_away = storage_node("w1")
        .carrying("fast")
        .retiring("fast")
        .answered();
    assert!(
        Case::labelled(FAST)
            .having(put_away.build())
            .written()
            .is_empty()
    );
}

#[test]
fn a_new_pool_of_an_old_name_waits_until_the_old_one_is_put_away() {
    let mut successor = pool("fast", FAST);
    successor.metadata.uid = Some("successor".to_owned());
    let waiting = Case::labelled(FAST)
        .declaring(successor.clone())
        .having(carrying());
    assert_eq!(waiting.written(), ["fast!"]);
    let put_away = storage_node("w1")
        .carrying("fast")
        .retiring("fast")
        .answered()
        .build();
    let case = Case::labelled(FAST).declaring(successor).having(put_away);
    let StorageNodeAction::Write(spec) = case.plan() else {
        panic!("{:?}", case.plan());
    };
    assert_eq!(
        (spec.pools[0].uid.as_str(), spec.pools[0].retiring),
        ("successor", false)
    );
}

#[test]
fn a_pool_that_was_restored_with_its_volumes_takes_the_place_that_it_had() {
    let mut restored = pool("fast", FAST);
    restored.metadata.uid = Some("restored".to_owned());
    let retiring = storage_node("w1").carrying("fast").retiring("fast");
    for before in [carrying(), retiring.with_room("fast", Bytes::ZERO).build()] {
        let case = Case::labelled(FAST).declaring(restored.clone());
        let case = case.having(before).holding("fast", Count::VOLUME);
        let StorageNodeAction::Write(spec) = case.plan() else {
            panic!("{:?}", case.plan());
        };
        let entry = &spec.pools[0];
        assert_eq!((entry.uid.as_str(), entry.retiring), ("restored", false));
    }
}

#[test]
fn what_the_agent_reports_and_the_spec_lacks_is_taken_up_as_retiring() {
    let reported = storage_node("w1").with_room("fast", Bytes::gib(1)).build();
    let case = Case::labelled(&[])
        .declaring(pool("fast", FAST))
        .having(reported);
    assert_eq!(case.written(), ["fast!"]);
}

#[test]
fn a_storage_node_is_emptied_and_never_removed_while_its_node_exists() {
    let empty = storage_node("w1").build();
    assert_eq!(
        Case::labelled(FAST).having(empty).plan(),
        StorageNodeAction::Keep
    );
}

#[test]
fn a_storage_node_goes_with_its_node_once_nothing_is_left() {
    let gone = |node: StorageNode| Case::default().declaring(pool("fast", FAST)).having(node);
    assert_eq!(
        gone(storage_node("w1").build()).plan(),
        StorageNodeAction::Delete
    );
    // Its pool is empty, regardless of the agent's last report.
    assert_eq!(gone(carrying()).plan(), StorageNodeAction::Delete);
    let never_made = storage_node("w1").carrying("fast").build();
    assert_eq!(gone(never_made.clone()).plan(), StorageNodeAction::Delete);
    // A node with data may return with its disks, so nothing is retired meanwhile.
    for node in [never_made, carrying()] {
        for count in [Count::VOLUME, Count::SNAPSHOT] {
            let case = gone(node.clone()).holding("fast", count);
            assert_eq!(case.plan(), StorageNodeAction::Keep);
        }
    }
}

#[test]
fn of_the_pools_of_a_node_that_is_gone_only_those_with_data_stay() {
    let both = storage_node("w1")
        .carrying("fast")
        .with_room("fast", Bytes::gib(1))
        .carrying("slow")
        .with_room("slow", Bytes::gib(1))
        .build();
    let case = Case::default()
        .declaring(deleted(pool("fast", FAST)))
        .declaring(pool("slow", FAST))
        .having(both)
        .holding("slow", Count::VOLUME);
    assert_eq!(case.written(), ["slow"]);
}

#[test]
fn a_deleted_storage_node_is_released_only_without_data() {
    let gone = |node: StorageNode| Case::default().having(deleted_node(node));
    assert_eq!(
        gone(storage_node("w1").build()).plan(),
        StorageNodeAction::Release
    );
    // With the Node gone, deleting the object gives its disks up, but never a volume or snapshot.
    assert_eq!(gone(carrying()).plan(), StorageNodeAction::Release);
    for count in [Count::VOLUME, Count::SNAPSHOT] {
        let case = gone(carrying()).holding("fast", count);
        assert_eq!(case.plan(), StorageNodeAction::Keep);
    }
    let mut living = Case::labelled(FAST).declaring(pool("fast", FAST));
    living = living.having(deleted_node(carrying()));
    assert_eq!(living.plan(), StorageNodeAction::Keep);
}

#[test]
fn the_machine_of_a_node_is_noted_and_kept_when_the_node_is_gone() {
    use k8s_openapi::api::core::v1::{NodeStatus, NodeSystemInfo};
    let mut machine = node("w1", FAST);
    let info = NodeSystemInfo {
        machine_id: "m1".to_owned(),
        ..NodeSystemInfo::default()
    };
    machine.status = Some(NodeStatus {
        node_info: Some(info),
        ..NodeStatus::default()
    });
    let mut case = Case::labelled(FAST).declaring(pool("fast", FAST));
    case.node = Some(machine);
    let mut case = case.having(carrying());
    let StorageNodeAction::Write(spec) = case.plan() else {
        panic!("{:?}", case.plan());
    };
    assert_eq!(spec.machine_id.as_deref(), Some("m1"));
    case.storage_node.as_mut().unwrap().spec = spec;
    assert_eq!(case.plan(), StorageNodeAction::Keep);
    case.node = Some(node("w1", FAST));
    assert_eq!(case.plan(), StorageNodeAction::Keep);
}

#[test]
fn what_a_node_may_take_over_stands_in_its_spec_as_long_as_it_may() {
    let owner = cistern_crds::PoolOwner {
        node: "w0".to_owned(),
        machine_id: None,
        pool_uid: uid("fast"),
        filesystem_uuid: "filesystem".to_owned(),
    };
    let mut case = Case::labelled(FAST)
        .declaring(pool("fast", FAST))
        .having(carrying());
    case.granted.insert(uid("fast"), owner.clone());
    let StorageNodeAction::Write(spec) = case.plan() else {
        panic!("{:?}", case.plan());
    };
    assert_eq!(spec.pools[0].take_over, Some(owner));
    case.storage_node.as_mut().unwrap().spec = spec;
    assert_eq!(case.plan(), StorageNodeAction::Keep);
    case.granted.clear();
    assert_eq!(case.written(), ["fast"]);
}

#[test]
fn a_finalizer_that_was_removed_is_added_again() {
    let mut bare = carrying();
    bare.metadata.finalizers = None;
    let case = Case::labelled(FAST)
        .declaring(pool("fast", FAST))
        .having(bare);
    assert_eq!(case.written(), ["fast"]);
}

#[test]
fn a_node_is_not_overcommitted_while_its_pool_holds_thick_volumes() {
    let mut fast = pool("fast", FAST);
    fast.spec.overcommit_percent = 200;
    let mut case = Case::labelled(FAST).declaring(fast);
    let percent = |case: &Case| match case.plan() {
        StorageNodeAction::Create(spec) => spec.pools[0].overcommit_percent,
        other => panic!("{other:?}"),
    };
    assert_eq!(percent(&case), 200);
    case.thick = Count::SNAPSHOT;
    assert_eq!(percent(&case), 100);
}

#[test]
fn a_node_with_the_maximum_number_of_pools_takes_another_once_one_has_left() {
    let names: Vec<String> = (0..bounds::POOLS + 2)
        .map(|it| format!("p{it:02}"))
        .collect();
    let mut case = Case::labelled(FAST);
    for name in &names {
        case = case.declaring(pool(name, FAST));
    }
    // In the order of the names, and first those that hold something.
    assert_eq!(case.written(), names[..bounds::POOLS]);
    let case = case.holding("p17", Count::VOLUME);
    let first = [&names[..bounds::POOLS - 1], &names[17..]].concat();
    assert_eq!(case.written(), first);

    // Those that the node carries stay, and a place that becomes free is taken.
    let carried = |names: &[String]| {
        let mut node = storage_node("w1");
        for name in names {
            node = node.carrying(name);
        }
        node.build()
    };
    let last = &names[2..];
    let mut case = Case {
        storage_node: Some(carried(last)),
        ..case
    };
    case.kept = Contents::default();
    assert_eq!(pools_of(&case), last);
    let case = case.having(carried(&names[3..]));
    assert_eq!(pools_of(&case), [&names[..1], &names[3..]].concat());
}

/// Names of the pools that the node is to carry.
fn pools_of(case: &Case) -> Vec<String> {
    match case.plan() {
        StorageNodeAction::Create(spec) | StorageNodeAction::Write(spec) => {
            spec.pools.into_iter().map(|entry| entry.name).collect()
        }
        StorageNodeAction::Keep => {
            let node = case.storage_node.as_ref().unwrap();
            node.spec
                .pools
                .iter()
                .map(|entry| entry.name.clone())
                .collect()
        }
        other => panic!("{other:?}"),
    }
}
