//! Two replicas of the operator: the holder of the Lease leads, and the other takes over.

use std::time::Duration;

use cistern_e2e::eventually;
use k8s_openapi::api::{apps::v1::Deployment, coordination::v1::Lease, core::v1::PodSpec};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::{
    cluster::{Cluster, SYSTEM},
    objects::change,
};

const LEADS: &str = "cistern_operator_leading 1";
const WAITS: &str = "cistern_operator_leading 0";
const LEASE: &str = "cistern-operator";
/// Timeout for a Lease to expire and to be acquired.
const EXPIRY: Duration = Duration::from_mins(5);

fn leases(cluster: &Cluster) -> Api<Lease> {
    Api::namespaced(cluster.control_plane.client(), SYSTEM)
}

async fn holder(cluster: &Cluster) -> Option<String> {
    let lease = leases(cluster).get(LEASE).await.unwrap();
    lease.spec.and_then(|spec| spec.holder_identity)
}

/// Waits until this pod holds the Lease.
async fn held_by(cluster: &Cluster, pod: &str) {
    eventually(
        &format!("{pod} to hold the Lease"),
        EXPIRY,
        async || match holder(cluster).await {
            Some(holder) if holder == pod => Ok(()),
            other => Err(format!("{other:?}")),
        },
    )
    .await;
}

#[tokio::test]
async fn one_of_two_operators_leads_and_the_other_takes_over_when_it_ends() {
    let mut cluster = Cluster::start().await;
    let api = cluster.api();
    cluster.operator.shows(LEADS).await;
    held_by(&cluster, "the-operator").await;
    // A replica that does not lead is ready, because a rollout waits for that.
    let mut second = cluster.another_operator("second").await;
    second.shows(WAITS).await;
    api.add_node("two-1", &[("two", "yes")]).await;
    api.add_pool("two", &[("two", "yes")]).await;
    api.carried("two-1", "two").await;
    // Only the leader serves these series, so each exists once.
    let reporting = "cistern_operator_agent_reporting{node=\"two-1\"} 1";
    cluster.operator.shows(reporting).await;
    let metrics = second.get("/metrics").await.unwrap();
    assert!(!metrics.contains(reporting), "{metrics}");
    assert!(
        !metrics.contains("cistern_operator_reconciles_total{"),
        "{metrics}"
    );

    // The leader is killed, and its Lease expires.
    cluster.operator.kill();
    held_by(&cluster, "second").await;
    second.shows(LEADS).await;
    api.add_pool("two-later", &[("two", "yes")]).await;
    api.carried("two-1", "two-later").await;

    // A leader that is terminated releases the Lease, so the next one need not wait for its expiry.
    second.stop().await;
    assert_eq!(holder(&cluster).await, None);
    let command = cluster.operator_command();
    cluster.operator.start_again(command).await;
    held_by(&cluster, "the-operator").await;
    let lease = leases(&cluster).get(LEASE).await.unwrap();
    assert_eq!(lease.spec.unwrap().lease_transitions, Some(2));
    cluster.operator.stop().await;
}

#[tokio::test]
async fn an_operator_that_loses_its_lease_stops_its_controllers_and_competes_again() {
    let mut cluster = Cluster::start().await;
    let api = cluster.api();
    cluster.operator.shows(LEADS).await;
    let stolen = json!({"spec": {"holderIdentity": "somebody-else", "leaseDurationSeconds": 5}});
    change(&leases(&cluster), LEASE, stolen).await;
    cluster.operator.shows(WAITS).await;
    eventually("the log to say so", EXPIRY, async || {
        let log = cluster.operator.process().log();
        let says = log.contains("this replica no longer leads");
        says.then_some(()).ok_or(log)
    })
    .await;
    api.add_pool("lease", &[("lease", "yes")]).await;
    // The operator writes nothing while another identity holds the Lease.
    eventually("the Lease to expire", EXPIRY, async || {
        let pool = api.pools().get("lease").await.unwrap();
        if holder(&cluster).await.as_deref() == Some("somebody-else") {
            assert!(pool.finalizers().is_empty(), "{pool:?}");
            return Err("another identity holds it".to_owned());
        }
        Ok(())
    })
    .await;
    held_by(&cluster, "the-operator").await;
    api.pool_is("lease", "False", "NoNodes").await;
    cluster.operator.stop().await;
}

/// Pod spec of the operator in the manifests.
fn installed() -> PodSpec {
    let manifest = include_str!("../../../manifests/base/operator.yaml");
    let deployment = manifest.split("\n---\n").next().unwrap();
    let deployment: Deployment = serde_saphyr::from_str(deployment).unwrap();
    let spec = deployment.spec;
    assert_eq!(spec.replicas, Some(2));
    spec.template.spec.unwrap()
}

#[test]
fn the_replicas_prefer_different_nodes() {
    let affinity = installed().affinity.and_then(|it| it.pod_anti_affinity);
    let preferred = affinity.and_then(|it| it.preferred_during_scheduling_ignored_during_execution);
    let keys: Vec<String> = preferred
        .into_iter()
        .flatten()
        .map(|term| term.pod_affinity_term.topology_key)
        .collect();
    assert_eq!(keys, ["kubernetes.io/hostname"]);
}

#[test]
fn a_replica_on_a_lost_node_is_replaced_after_half_a_minute() {
    let tolerations = installed().tolerations.unwrap_or_default();
    for condition in ["not-ready", "unreachable"] {
        let key = format!("node.kubernetes.io/{condition}");
        let mut evictions = tolerations.iter().filter(|it| {
            it.key.as_ref() == Some(&key) && it.effect.as_deref() == Some("NoExecute")
        });
        let seconds = evictions.next().and_then(|it| it.toleration_seconds);
        assert_eq!(seconds, Some(30), "{key}");
    }
}
