//! People are told how volumes and pools are: in conditions, and in events once per change.

use cistern_crds::{
    Bytes, ConditionType, NodePoolStatus, PoolSeverity, PoolVolume, Reason,
    condition::{self, Finding},
    health::{PoolProblem, Problem, healthy},
    names, time,
};
use cistern_e2e::eventually;
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
    objects::{Objects, create, delete, told},
};

/// A claim with a pod that uses it; gives the UIDs of both.
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

/// The volume of a claim, as the provisioner and the driver's controller make it.
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
            "provisioning": "Thin",
            "claim": {"namespace": DEFAULT, "name": name},
        },
    });
    create(&api.volumes(), &volume).await;
}

/// What the agent says is wrong with a volume: severity, reason, and so many minutes ago.
async fn say(api: &Objects, volume: &str, problems: &[(&str, &str, i64)]) {
    let problem = |(severity, reason, minutes): &(&str, &str, i64)| {
        json!({
            "severity": severity,
            "reason": reason,
            "message": format!("it is {reason}: mend it"),
            "since": ago(*minutes).0,
        })
    };
    let problems: Vec<Value> = problems.iter().map(problem).collect();
    let patch = Patch::Merge(json!({"status": {"problems": problems}}));
    let (volumes, parameters) = (api.volumes(), PatchParams::default());
    let written = volumes.patch_status(volume, &parameters, &patch);
    written.await.unwrap();
}

fn ago(minutes: i64) -> Time {
    Time(Timestamp::now() - SignedDuration::from_mins(minutes))
}

/// Reason and note of each event about an object, oldest first.
async fn reasons(api: &Objects, uid: &str) -> Vec<String> {
    let events = api.events(uid).await.into_iter();
    events.map(|(reason, _)| reason).collect()
}

#[tokio::test]
async fn trouble_of_a_volume_is_told_once_on_its_claim_and_its_pods_and_so_is_its_end() {
    let api = Cluster::shared().await.api();
    let (claim, pod) = add_claim_in_use(&api, "told-used", "told-1").await;
    let (other, idle) = add_claim_in_use(&api, "told-other", "told-1").await;
    for (name, uid) in [("told-used", &claim), ("told-other", &other)] {
        add_volume(&api, (name, uid), "told-1").await;
    }
    let slow = ("Degraded", "FilesystemErrors", 0);
    say(&api, "told-used", &[slow]).await;
    let note = api.event(&claim, "VolumeDegraded").await;
    assert_eq!(
        note,
        "volume told-used on node told-1: it is FilesystemErrors: mend it"
    );
    assert_eq!(api.event(&pod, "VolumeDegraded").await, note);

    let lost = ("DataLoss", "ImageDeleted", 0);
    say(&api, "told-used", &[slow, lost]).await;
    api.event(&pod, "VolumeDataLoss").await;
    say(&api, "told-used", &[]).await;
    let note = api.event(&pod, "VolumeRecovered").await;
    assert!(note.ends_with("FilesystemErrors, ImageDeleted"), "{note}");
    let expected = ["VolumeDegraded", "VolumeDataLoss", "VolumeRecovered"];
    for uid in [&claim, &pod] {
        assert_eq!(reasons(&api, uid).await, expected);
    }
    for uid in [&other, &idle] {
        assert_eq!(reasons(&api, uid).await, [""; 0]);
    }
    assert_eq!(types(&api, &claim).await, ["Warning", "Warning", "Normal"]);
    for name in ["told-used", "told-other"] {
        delete(&api.volumes(), name).await;
    }
}

#[tokio::test]
async fn a_pod_whose_volume_is_being_checked_is_told_that_it_waits_for_that_and_when_it_has_ended()
{
    let api = Cluster::shared().await.api();
    let (claim, pod) = add_claim_in_use(&api, "checked", "checked-1").await;
    add_volume(&api, ("checked", &claim), "checked-1").await;
    let say = async |status: &str, reason: &str, message: &str| {
        let condition = json!({
            "type": "Checking", "status": status, "reason": reason, "message": message,
            "lastTransitionTime": ago(0).0,
        });
        let patch = Patch::Merge(json!({"status": {"conditions": [condition]}}));
        let (volumes, parameters) = (api.volumes(), PatchParams::default());
        let written = volumes.patch_status("checked", &parameters, &patch);
        written.await.unwrap();
    };
    let message = "the filesystem is being checked since noon";
    say("True", "CheckRunning", message).await;
    for uid in [&pod, &claim] {
        let note = api.event(uid, "VolumeChecking").await;
        assert!(note.contains(message), "{note}");
    }
    say("False", "NotChecking", "").await;
    api.event(&pod, "VolumeChecked").await;
    assert_eq!(types(&api, &pod).await, ["Normal", "Normal"]);
    delete(&api.volumes(), "checked").await;
}

/// `Normal` or `Warning` of each event about an object, oldest first.
async fn types(api: &Objects, uid: &str) -> Vec<String> {
    let events: Api<Event> = Api::namespaced(api.client.clone(), DEFAULT);
    let mut events = events.list(&ListParams::default()).await.unwrap().items;
    events.retain(|event| event.regarding.as_ref().unwrap().uid.as_deref() == Some(uid));
    events.sort_by_key(|event| event.event_time.as_ref().map(|time| time.0));
    let types = events.into_iter().map(|event| event.type_.unwrap());
    types.collect()
}

#[tokio::test]
async fn a_new_operator_tells_neither_what_was_told_nor_what_is_old_but_what_it_missed() {
    let mut cluster = Cluster::start().await;
    let api = cluster.api();
    let mut uids = Vec::new();
    for name in ["again-told", "again-old", "again-missed"] {
        let (claim, _) = add_claim_in_use(&api, name, "again-1").await;
        add_volume(&api, (name, &claim), "again-1").await;
        uids.push(claim);
    }
    let gone = |minutes| ("Inaccessible", "PoolNotReady", minutes);
    let told = gone(1);
    say(&api, "again-told", &[told]).await;
    api.event(&uids[0], "VolumeInaccessible").await;
    cluster.operator.kill();
    // Its event was forgotten by the API server long ago.
    say(&api, "again-old", &[gone(90)]).await;
    say(&api, "again-missed", &[gone(5)]).await;
    cluster
        .operator
        .start_again(cluster.operator_command())
        .await;
    api.event(&uids[2], "VolumeInaccessible").await;
    // What lasted over the restart ends, which comes after all that could be told of it.
    for name in ["again-told", "again-old"] {
        say(&api, name, &[]).await;
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

/// The agent says what is wrong with the pool; one that cannot be reached is not ready.
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
        None => Finding::new(ConditionType::Ready, true, Reason::AsDesired, "ready"),
        Some(problem) => {
            let reason = Reason::parse(&problem.reason).unwrap();
            Finding::new(ConditionType::Ready, false, reason, &*problem.message)
        }
    };
    for finding in [ready, healthy(&problems)] {
        condition::set(&mut status.conditions, &finding, None, now);
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

/// Waits until both objects are so, and gives what they say.
async fn are(api: &Objects, node: &str, pool: &str, (status, reason): (&str, &str)) -> [String; 2] {
    let what = format!("both to be {status} for {reason}");
    let of_node = api.storage_node(&what, node, |node| {
        let conditions = &node.status.as_ref()?.conditions;
        told(conditions, ConditionType::Healthy, status, reason)
    });
    let of_pool = api.pool(&what, pool, |pool| {
        let conditions = &pool.status.as_ref()?.conditions;
        told(conditions, ConditionType::Healthy, status, reason)
    });
    [of_node.await, of_pool.await]
}

/// Waits until so many GiB are published for a node; of the nodes of other tests there are none.
async fn publishes(api: &Objects, class: &str, node: &str, gib: u64) {
    let what = format!("{gib} GiB of {class} to be published for {node}");
    eventually(&what, SOON, async || {
        let found = api.capacities(class).await;
        let is_so = found
            .iter()
            .any(|(on, room, _)| on == node && *room == Bytes::gib(gib));
        is_so.then_some(()).ok_or_else(|| format!("{found:?}"))
    })
    .await;
}

#[tokio::test]
async fn a_sick_pool_is_told_on_pool_and_node_and_publishes_nothing_until_it_is_well() {
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
    are(&api, "sick-1", "sick", ("True", "AsDesired")).await;
    publishes(&api, "sick", "sick-1", 9).await;
    publishes(&api, "sick", "sick-2", 9).await;
    let carrier = api.storage_nodes().get("sick-1").await.unwrap();
    let carrier = carrier.uid().unwrap();

    let hung = problem(PoolSeverity::Unreachable, Reason::ProbeTimedOut);
    report(&api, "sick-1", "sick", vec![hung]).await;
    let [on_node, on_pool] = are(&api, "sick-1", "sick", ("False", "ProbeTimedOut")).await;
    assert_eq!(on_node, "pool sick: it is ProbeTimedOut: mend it");
    assert_eq!(on_pool, "sick-1: it is ProbeTimedOut: mend it");
    publishes(&api, "sick", "sick-1", 0).await;
    publishes(&api, "sick", "sick-2", 9).await;
    for uid in [&carrier, &pool] {
        let note = api.event(uid, "PoolUnreachable").await;
        assert_eq!(
            note,
            "pool sick on node sick-1: it is ProbeTimedOut: mend it"
        );
    }
    let full = problem(PoolSeverity::Degraded, Reason::NearlyFull);
    report(&api, "sick-1", "sick", vec![full]).await;
    are(&api, "sick-1", "sick", ("False", "NearlyFull")).await;
    publishes(&api, "sick", "sick-1", 9).await;
    publishes(&api, "sick", "sick-2", 9).await;
    report(&api, "sick-1", "sick", Vec::new()).await;
    are(&api, "sick-1", "sick", ("True", "AsDesired")).await;
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
    are(&api, "mute-1", "mute", ("True", "AsDesired")).await;
    api.set_agent_ready("mute-1", false).await;
    // Nothing new goes there at once; whether it is well is not in doubt yet.
    publishes(&api, "mute", "mute-1", 0).await;
    are(&api, "mute-1", "mute", ("True", "AsDesired")).await;
    silent_for(&api, "mute-1", 2).await;
    let [on_node, _] = are(&api, "mute-1", "mute", ("Unknown", "AgentNotReady")).await;
    for part in ["agent-mute-1", "nothing is deleted", "look at the node"] {
        assert!(on_node.contains(part), "{on_node}");
    }
    let node = api.storage_nodes().get("mute-1").await.unwrap();
    assert_eq!(node.spec.pools.len(), 1);
    let uid = node.uid().unwrap();
    api.event(&uid, "AgentSilent").await;
    assert!(api.volumes().get_opt("mute").await.unwrap().is_some());
    api.set_agent_ready("mute-1", true).await;
    are(&api, "mute-1", "mute", ("True", "AsDesired")).await;
    publishes(&api, "mute", "mute-1", 9).await;
    api.event(&uid, "AgentReporting").await;
    assert_eq!(reasons(&api, &uid).await, ["AgentSilent", "AgentReporting"]);
    api.remove::<PoolVolume>("mute").await;
}

/// Makes the agent's silence older, as if so many minutes had passed. It is written in the operator's
/// name, whose field it is.
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
