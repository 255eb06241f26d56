//! The health of volumes and pools: conditions, and one event for each change.

use cistern_crds::{
    Bytes, ConditionType, NodePoolStatus, PoolSeverity, PoolVolume, Reason,
    condition::{self, ConditionUpdate},
    health::{PoolProblem, Problem, healthy},
    names, time,
};
use cistern_e2e::{eventually, objects::write_status};
use k8s_openapi::{
    api::{core::v1::Pod, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{SignedDuration, Timestamp},
};
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, DEFAULT, SOON},
    objects::{Objects, condition_message, create, delete},
};

/// Creates a claim and a pod that uses it, and returns the UIDs of both.
async fn add_claim_in_use(api: &Objects, name: &str, node: &str) -> (String, String) {
    api.add_claim(name, "nobody-made-it", "1Gi").await;
    let claim = api.claims().get(name).await.unwrap().uid().unwrap();
    let pods: Api<Pod> = Api::namespaced(api.client.clone(), DEFAULT);
    let pod = json!({
        "metadata": {"name": name},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "database", "image": "x"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": name}}],
        },
    });
    let pod = create(&pods, &pod).await.uid().unwrap();
    (claim, pod)
}

/// Creates the volume of a claim, as the provisioner and the driver's controller do.
async fn add_volume(api: &Objects, claim: (&str, &str), node: &str) {
    let (name, uid) = claim;
    let volume = json!({
        "metadata": {"name": name},
        "spec": {
            "requestedName": format!("pvc-{uid}"),
            "nodeName": node,
            "poolName": "nobody-made-it",
            "size": "1Gi",
            "accessType": "Filesystem",
            "filesystem": "ext4",
            "accessModes": ["SingleNodeWriter"],
            "attributes": {"provisioning": "Thin"},
            "claim": {"namespace": DEFAULT, "name": name},
        },
    });
    create(&api.volumes(), &volume).await;
}

/// Writes the problems of a volume as the agent does: severity, reason and age in minutes.
async fn set_problems(api: &Objects, volume: &str, problems: &[(&str, &str, i64)]) {
    let problem = |(severity, reason, minutes): &(&str, &str, i64)| {
        json!({
            "severity": severity,
            "reason": reason,
            "message": format!("it is {reason}: mend it"),
            "since": ago(*minutes).0,
        })
    };
    let problems: Vec<Value> = problems.iter().map(problem).collect();
    write_status(&api.volumes(), volume, json!({"problems": problems})).await;
}

fn ago(minutes: i64) -> Time {
    Time(Timestamp::now() - SignedDuration::from_mins(minutes))
}

/// Returns the reasons of the events about an object, oldest first.
async fn reasons(api: &Objects, uid: &str) -> Vec<String> {
    let events = api.events(uid).await.into_iter();
    events.map(|(reason, _)| reason).collect()
}

#[tokio::test]
async fn a_volume_problem_is_reported_once_on_its_claim_and_its_pods_and_so_is_its_end() {
    let api = Cluster::shared().await.api();
    let (claim, pod) = add_claim_in_use(&api, "reported-used", "reported-1").await;
    let (other, idle) = add_claim_in_use(&api, "reported-other", "reported-1").await;
    for (name, uid) in [("reported-used", &claim), ("reported-other", &other)] {
        add_volume(&api, (name, uid), "reported-1").await;
    }
    let slow = ("Degraded", "FilesystemErrors", 0);
    set_problems(&api, "reported-used", &[slow]).await;
    let note = api.event(&claim, "VolumeDegraded").await;
    assert_eq!(
        note,
        "volume reported-used on node reported-1: it is FilesystemErrors: mend it"
    );
    assert_eq!(api.event(&pod, "VolumeDegraded").await, note);

    let lost = ("DataLoss", "ImageDeleted", 0);
    set_problems(&api, "reported-used", &[slow, lost]).await;
    for uid in [&claim, &pod] {
        api.event(uid, "VolumeDataLoss").await;
    }
    set_problems(&api, "reported-used", &[]).await;
    let expected = ["VolumeDegraded", "VolumeDataLoss", "VolumeRecovered"];
    for uid in [&claim, &pod] {
        let note = api.event(uid, "VolumeRecovered").await;
        assert!(note.ends_with("FilesystemErrors, ImageDeleted"), "{note}");
        assert_eq!(reasons(&api, uid).await, expected);
    }
    for uid in [&other, &idle] {
        assert_eq!(reasons(&api, uid).await, [""; 0]);
    }
    assert_eq!(types(&api, &claim).await, ["Warning", "Warning", "Normal"]);
    for name in ["reported-used", "reported-other"] {
        delete(&api.volumes(), name).await;
    }
}

#[tokio::test]
async fn a_pod_whose_volume_is_being_checked_gets_events_at_the_start_and_the_end() {
    let runs = ("True", "CheckRunning");
    let ended = ("False", "NotChecking");
    let events = ("VolumeChecking", "VolumeChecked");
    begins_and_ends("checked", "Checking", [runs, ended], events).await;
}

#[tokio::test]
async fn a_pod_whose_volume_is_being_allocated_gets_events_at_the_start_and_the_end() {
    let runs = ("False", "Allocating");
    let ended = ("True", "Reconciled");
    let events = ("VolumeAllocating", "VolumeAllocated");
    begins_and_ends("thickened", "AttributesApplied", [runs, ended], events).await;
}

/// Sets a condition of a volume to a status and reason, and then to others. Pod and claim get an event
/// for each, and no warning.
async fn begins_and_ends(
    name: &str,
    kind: &str,
    [begun, ended]: [(&str, &str); 2],
    (begins, ends): (&str, &str),
) {
    let api = Cluster::shared().await.api();
    let worker = format!("{name}-1");
    let (claim, pod) = add_claim_in_use(&api, name, &worker).await;
    add_volume(&api, (name, &claim), &worker).await;
    let set_condition = async |(status, reason): (&str, &str), message: &str| {
        let condition = json!({
            "type": kind, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": ago(0).0,
        });
        write_status(&api.volumes(), name, json!({"conditions": [condition]})).await;
    };
    let message = "it goes on since noon";
    set_condition(begun, message).await;
    for uid in [&pod, &claim] {
        let note = api.event(uid, begins).await;
        assert!(note.contains(message), "{note}");
    }
    // A later step of the progress is no event.
    set_condition(begun, "it goes on since noon: 35 % are done").await;
    set_condition(ended, "").await;
    api.event(&pod, ends).await;
    assert_eq!(types(&api, &pod).await, ["Normal", "Normal"]);
    delete(&api.volumes(), name).await;
}

/// Returns the types of the events about an object, `Normal` or `Warning`, oldest first.
async fn types(api: &Objects, uid: &str) -> Vec<String> {
    let events: Api<Event> = Api::namespaced(api.client.clone(), DEFAULT);
    let mut events = events.list(&ListParams::default()).await.unwrap().items;
    events.retain(|event| event.regarding.as_ref().unwrap().uid.as_deref() == Some(uid));
    events.sort_by_key(|event| event.event_time.as_ref().map(|time| time.0));
    let types = events.into_iter().map(|event| event.type_.unwrap());
    types.collect()
}

#[tokio::test]
async fn a_restarted_operator_reports_only_recent_problems_that_it_missed() {
    let mut cluster = Cluster::start().await;
    let api = cluster.api();
    let mut uids = Vec::new();
    for name in ["again-reported", "again-old", "again-missed"] {
        let (claim, _) = add_claim_in_use(&api, name, "again-1").await;
        add_volume(&api, (name, &claim), "again-1").await;
        uids.push(claim);
    }
    let gone = |minutes| ("Inaccessible", "PoolNotReady", minutes);
    let published = gone(1);
    set_problems(&api, "again-reported", &[published]).await;
    api.event(&uids[0], "VolumeInaccessible").await;
    cluster.operator.kill();
    // The API server has expired its event long ago.
    set_problems(&api, "again-old", &[gone(90)]).await;
    set_problems(&api, "again-missed", &[gone(5)]).await;
    cluster
        .operator
        .start_again(cluster.operator_command())
        .await;
    api.event(&uids[2], "VolumeInaccessible").await;
    // Ends the problems that lasted over the restart; that event comes after any other about them.
    for name in ["again-reported", "again-old"] {
        set_problems(&api, name, &[]).await;
    }
    for uid in &uids[..2] {
        api.event(uid, "VolumeRecovered").await;
    }
    let expected = ["VolumeInaccessible", "VolumeRecovered"];
    assert_eq!(reasons(&api, &uids[0]).await, expected);
    assert_eq!(reasons(&api, &uids[1]).await, ["VolumeRecovered"]);
    assert_eq!(reasons(&api, &uids[2]).await, ["VolumeInaccessible"]);
    cluster.operator.stop().await;
}

/// Writes the problems of a pool as the agent does. An unreachable pool is not ready.
async fn report(api: &Objects, node: &str, pool: &str, problems: Vec<PoolProblem>) {
    let now = time::from_kubernetes(&ago(0));
    let entry = api.carried(node, pool).await;
    let unreachable = problems
        .iter()
        .find(|problem| problem.severity == PoolSeverity::Unreachable);
    let room = if unreachable.is_some() { 0 } else { 9 };
    let mut status = NodePoolStatus {
        name: pool.to_owned(),
        uid: entry.uid,
        size: Bytes::gib(10),
        usable: Bytes::gib(9),
        thin_room: Bytes::gib(room),
        thick_room: Bytes::gib(room),
        ..NodePoolStatus::default()
    };
    let ready = match unreachable {
        None => ConditionUpdate::new(ConditionType::Ready, true, Reason::Reconciled, "ready"),
        Some(problem) => {
            let reason = Reason::parse(&problem.reason).unwrap();
            ConditionUpdate::new(ConditionType::Ready, false, reason, &*problem.message)
        }
    };
    for update in [ready, healthy(&problems)] {
        condition::set(&mut status.conditions, &update, None, now);
    }
    status.problems = problems;
    api.report_pools(node, &[status]).await;
}

fn problem(severity: PoolSeverity, reason: Reason) -> PoolProblem {
    Problem {
        severity,
        reason: reason.to_string(),
        message: format!("it is {reason}: mend it"),
        since: time::from_kubernetes(&ago(0)),
    }
}

/// Waits until `Healthy` of node and pool has this status and reason, and returns both messages.
async fn health_is(
    api: &Objects,
    node: &str,
    pool: &str,
    (status, reason): (&str, &str),
) -> [String; 2] {
    let what = format!("both to be {status} for {reason}");
    let of_node = api.storage_node(&what, node, |node| {
        let conditions = &node.status.as_ref()?.conditions;
        condition_message(conditions, ConditionType::Healthy, status, reason)
    });
    let of_pool = api.pool(&what, pool, |pool| {
        let conditions = &pool.status.as_ref()?.conditions;
        condition_message(conditions, ConditionType::Healthy, status, reason)
    });
    [of_node.await, of_pool.await]
}

/// Waits until the published capacity of a class on a node is `gib` GiB. Other tests have other nodes.
async fn capacity_is(api: &Objects, class: &str, node: &str, gib: u64) {
    let what = format!("{gib} GiB of {class} to be published for {node}");
    eventually(&what, SOON, async || {
        let found = api.capacities(class).await;
        let matches = found
            .iter()
            .any(|(on, room, _)| on == node && *room == Bytes::gib(gib));
        matches.then_some(()).ok_or_else(|| format!("{found:?}"))
    })
    .await;
}

#[tokio::test]
async fn an_unhealthy_pool_is_reported_on_pool_and_node_and_publishes_nothing_until_it_recovers() {
    let api = Cluster::shared().await.api();
    for node in ["sick-1", "sick-2"] {
        api.add_node(node, &[("sick", "yes")]).await;
    }
    let pool = api
        .add_pool("sick", &[("sick", "yes")])
        .await
        .uid()
        .unwrap();
    api.add_class("sick", json!({"pool": "sick"})).await;
    for node in ["sick-1", "sick-2"] {
        api.carried(node, "sick").await;
        report(&api, node, "sick", Vec::new()).await;
    }
    health_is(&api, "sick-1", "sick", ("True", "Reconciled")).await;
    capacity_is(&api, "sick", "sick-1", 9).await;
    capacity_is(&api, "sick", "sick-2", 9).await;
    let carrier = api.storage_nodes().get("sick-1").await.unwrap();
    let carrier = carrier.uid().unwrap();

    let hung = problem(PoolSeverity::Unreachable, Reason::ProbeTimedOut);
    report(&api, "sick-1", "sick", vec![hung]).await;
    let [on_node, on_pool] = health_is(&api, "sick-1", "sick", ("False", "ProbeTimedOut")).await;
    assert_eq!(on_node, "pool sick: it is ProbeTimedOut: mend it");
    assert_eq!(on_pool, "sick-1: it is ProbeTimedOut: mend it");
    capacity_is(&api, "sick", "sick-1", 0).await;
    capacity_is(&api, "sick", "sick-2", 9).await;
    for uid in [&carrier, &pool] {
        let note = api.event(uid, "PoolUnreachable").await;
        assert_eq!(
            note,
            "pool sick on node sick-1: it is ProbeTimedOut: mend it"
        );
    }
    let full = problem(PoolSeverity::Degraded, Reason::NearlyFull);
    report(&api, "sick-1", "sick", vec![full]).await;
    health_is(&api, "sick-1", "sick", ("False", "NearlyFull")).await;
    for uid in [&carrier, &pool] {
        api.event(uid, "PoolDegraded").await;
    }
    capacity_is(&api, "sick", "sick-1", 9).await;
    capacity_is(&api, "sick", "sick-2", 9).await;
    report(&api, "sick-1", "sick", Vec::new()).await;
    health_is(&api, "sick-1", "sick", ("True", "Reconciled")).await;
    for uid in [&carrier, &pool] {
        api.event(uid, "PoolRecovered").await;
        let expected = ["PoolUnreachable", "PoolDegraded", "PoolRecovered"];
        assert_eq!(reasons(&api, uid).await, expected);
    }
}

#[tokio::test]
async fn the_pools_of_a_silent_agent_are_unknown_after_a_minute_and_nothing_is_deleted() {
    let api = Cluster::shared().await.api();
    api.add_node("mute-1", &[("mute", "yes")]).await;
    api.add_pool("mute", &[("mute", "yes")]).await;
    api.add_class("mute", json!({"pool": "mute"})).await;
    api.carried("mute-1", "mute").await;
    report(&api, "mute-1", "mute", Vec::new()).await;
    api.add_volume("mute", "mute", "mute-1").await;
    health_is(&api, "mute-1", "mute", ("True", "Reconciled")).await;
    api.set_agent_ready("mute-1", false).await;
    // Its capacity drops to 0 immediately, but its reported health is kept for a minute.
    capacity_is(&api, "mute", "mute-1", 0).await;
    health_is(&api, "mute-1", "mute", ("True", "Reconciled")).await;
    silent_for(&api, "mute-1", 2).await;
    let [on_node, _] = health_is(&api, "mute-1", "mute", ("Unknown", "AgentNotReady")).await;
    for part in ["agent-mute-1", "nothing is deleted", "look at the node"] {
        assert!(on_node.contains(part), "{on_node}");
    }
    let node = api.storage_nodes().get("mute-1").await.unwrap();
    assert_eq!(node.spec.pools.len(), 1);
    let uid = node.uid().unwrap();
    api.event(&uid, "AgentSilent").await;
    assert!(api.volumes().get_opt("mute").await.unwrap().is_some());
    api.set_agent_ready("mute-1", true).await;
    health_is(&api, "mute-1", "mute", ("True", "Reconciled")).await;
    capacity_is(&api, "mute", "mute-1", 9).await;
    api.event(&uid, "AgentReporting").await;
    assert_eq!(reasons(&api, &uid).await, ["AgentSilent", "AgentReporting"]);
    api.remove::<PoolVolume>("mute").await;
}

/// Moves the start of the agent's silence `minutes` into the past, with the field manager of the
/// operator, which owns the field.
async fn silent_for(api: &Objects, node: &str, minutes: i64) {
    eventually("the silence to be older", SOON, async || {
        let seen = api.storage_nodes().get(node).await.unwrap();
        let mut conditions = seen.status.unwrap_or_default().conditions;
        let reporting = ConditionType::AgentReporting.as_str();
        let silent = conditions
            .iter_mut()
            .find(|condition| condition.type_ == reporting && condition.status == "False");
        let Some(silent) = silent else {
            return Err(format!("{conditions:?}"));
        };
        silent.last_transition_time = ago(minutes);
        let body = json!({
            "apiVersion": "cistern.storage/v1alpha1",
            "kind": "StorageNode",
            "metadata": {"name": node, "resourceVersion": seen.metadata.resource_version},
            "status": {"conditions": conditions},
        });
        let parameters = PatchParams::apply(names::OPERATOR_MANAGER);
        let (nodes, patch) = (api.storage_nodes(), Patch::Apply(body));
        let written = nodes.patch_status(node, &parameters, &patch).await;
        written.map(drop).map_err(|error| error.to_string())
    })
    .await;
}
