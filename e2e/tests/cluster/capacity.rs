//! Claims that exceed the capacity, and claims that fit later.

use cistern_crds::{Bytes, PoolVolume, StoragePool};
use cistern_e2e::{
    Test,
    cluster::{PATIENCE, objects::Binding::WaitForFirstConsumer},
    eventually,
};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{
    ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;

#[tokio::test]
async fn a_claim_larger_than_any_pool_waits_with_an_event_and_is_bound_when_the_pool_grows() {
    Test::run("too-large", async |test| {
        let [node, ..] = test.cluster.workers().await;
        let pool = test.pool("pool", Bytes::gib(1), &[&node]).await;
        let class = test.class("class", &pool, WaitForFirstConsumer, &[]).await;
        test.claim("claim", &class, Bytes::mib(1500)).await;
        test.writer("pod", "claim").await;

        let status = test.pool_on(&pool, 1).await.status.unwrap();
        let largest = status.largest_volume.to_string();
        assert!(status.largest_volume < Bytes::gib(1), "{largest}");
        test.event(
            "PersistentVolumeClaim",
            "claim",
            &[&pool, "1500Mi", &largest],
        )
        .await;
        assert_eq!(phase(test, "claim").await, "Pending");

        let grown = json!({"spec": {"source": {"image": {"size": "2Gi"}}}});
        test.all::<StoragePool>()
            .patch(&pool, &PatchParams::default(), &Patch::Merge(grown))
            .await
            .unwrap();
        test.running("pod").await;
        assert_eq!(
            test.bound("claim").await.status.unwrap().size,
            Some(Bytes::mib(1500))
        );
    })
    .await;
}

#[tokio::test]
async fn of_20_concurrent_claims_with_capacity_for_10_exactly_10_are_bound() {
    Test::run("rush", async |test| {
        let [node, ..] = test.cluster.workers().await;
        let pool = test.pool("pool", Bytes::gib(1), &[&node]).await;
        let class = test.class("class", &pool, WaitForFirstConsumer, &[]).await;
        let room = test.pool_on(&pool, 1).await.status.unwrap().usable;
        let size = Bytes(room.0 / 10).round_down_to_mib();
        let names: Vec<String> = (1..=20).map(|number| format!("claim-{number}")).collect();
        futures::future::join_all(names.iter().map(async |name| {
            test.claim(name, &class, size).await;
            test.writer(name, name).await;
        }))
        .await;

        wait_for_bound(test, 10).await;
        // The other 10 are refused with an event: none is still being provisioned.
        let claims = test.namespaced::<PersistentVolumeClaim>();
        for claim in claims.list(&ListParams::default()).await.unwrap() {
            if !is_bound(&claim) {
                test.event("PersistentVolumeClaim", &claim.name_any(), &[&pool])
                    .await;
            }
        }
        wait_for_bound(test, 10).await;
        ledger_is_the_sum(test, &pool, &node, Bytes(10 * size.0)).await;

        // Another claim is bound after one is deleted.
        let list = claims.list(&ListParams::default()).await.unwrap();
        let leaving = list
            .iter()
            .find(|claim| is_bound(claim))
            .unwrap()
            .name_any();
        test.delete(
            &test.namespaced::<k8s_openapi::api::core::v1::Pod>(),
            &leaving,
        )
        .await;
        test.delete(&claims, &leaving).await;
        wait_for_bound(test, 10).await;
        ledger_is_the_sum(test, &pool, &node, Bytes(10 * size.0)).await;
    })
    .await;
}

async fn wait_for_bound(test: &Test, count: usize) {
    let claims = test.namespaced::<PersistentVolumeClaim>();
    eventually(&format!("{count} bound claims"), PATIENCE, async || {
        let list = claims.list(&ListParams::default()).await.unwrap();
        match list.iter().filter(|claim| is_bound(claim)).count() {
            bound if bound == count => Ok(()),
            bound => Err(format!("{bound} are bound")),
        }
    })
    .await;
}

async fn ledger_is_the_sum(test: &Test, pool: &str, node: &str, sum: Bytes) {
    let volumes = test.all::<PoolVolume>();
    eventually(&format!("{sum} to be reserved"), PATIENCE, async || {
        let list = volumes.list(&ListParams::default()).await;
        let list = list.map_err(|error| error.to_string())?;
        let of_pool = list.iter().filter(|volume| volume.spec.pool_name == pool);
        let reserved: Bytes = of_pool
            .filter_map(|volume| volume.status.as_ref()?.reserved)
            .sum();
        if reserved == sum {
            return Ok(());
        }
        Err(reserved.to_string())
    })
    .await;
    test.ledger_holds(node, pool, sum).await;
}

fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound")
}

async fn phase(test: &Test, claim: &str) -> String {
    let claim = test
        .namespaced::<PersistentVolumeClaim>()
        .get(claim)
        .await
        .unwrap();
    claim.status.unwrap().phase.unwrap()
}
