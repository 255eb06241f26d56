//! Pods are scheduled to nodes where the pool has free capacity.

use cistern_crds::{Bytes, names};
use cistern_e2e::{
    Test,
    cluster::objects::Binding::{Immediate, WaitForFirstConsumer},
};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt as _;

#[tokio::test]
async fn a_pod_lands_on_a_node_of_the_pool_whichever_way_its_class_binds() {
    Test::run("placement", async |test| {
        let [first, second, _] = test.cluster.workers().await;
        let pool = test
            .pool("two-of-three", Bytes::gib(1), &[&first, &second])
            .await;
        for binding in [WaitForFirstConsumer, Immediate] {
            let class = format!("{binding:?}").to_lowercase();
            let class = test.class(&class, &pool, binding, &[]).await;
            for number in 1..=3 {
                let name = format!("{class}-{number}");
                test.claim(&name, &class, Bytes::mib(100)).await;
                test.writer(&name, &name).await;
                let node = test.running(&name).await;
                assert!([&first, &second].contains(&&node), "{name} runs on {node}");
                let volume = test.bound(&name).await;
                assert_eq!(
                    (&volume.spec.node_name, &volume.spec.pool_name),
                    (&node, &pool)
                );
                let volume = volume.name_any();
                assert_eq!(node_of_persistent_volume(test, &volume).await, node);
                // The provisioner repeats a successful call if its claim changes during the call.
                let calls = test.create_volume_calls().await;
                assert!(matches!(calls.get(&volume), Some(1..=2)), "{calls:?}");
            }
        }
    })
    .await;
}

/// Node in the node affinity of the PersistentVolume.
async fn node_of_persistent_volume(test: &Test, name: &str) -> String {
    let volume = test.all::<PersistentVolume>().get(name).await.unwrap();
    let affinity = volume.spec.unwrap().node_affinity.unwrap();
    let [term] = &affinity.required.unwrap().node_selector_terms[..] else {
        panic!("not one term");
    };
    let [expression] = &term.match_expressions.as_ref().unwrap()[..] else {
        panic!("not one expression");
    };
    assert_eq!(expression.key, names::TOPOLOGY_KEY);
    expression.values.as_ref().unwrap().join(",")
}

#[tokio::test]
async fn two_pools_of_different_size_on_one_node_are_distinguished() {
    Test::run("two-pools", async |test| {
        let [node, ..] = test.cluster.workers().await;
        let small = test.pool("small", Bytes::gib(1), &[&node]).await;
        let large = test.pool("large", Bytes::gib(2), &[&node]).await;
        // Fits only into the larger pool.
        let size = Bytes::mib(1200);
        for pool in [&small, &large] {
            let class = test
                .class(&pool["two-pools-".len()..], pool, WaitForFirstConsumer, &[])
                .await;
            test.claim(pool, &class, size).await;
            test.writer(pool, pool).await;
        }
        assert_eq!(test.running(&large).await, node);
        assert_eq!(test.bound(&large).await.spec.pool_name, large);
        test.event("PersistentVolumeClaim", &small, &[&small, "1200Mi", &node])
            .await;

        test.ledger_holds(&node, &large, size).await;
        test.ledger_holds(&node, &small, Bytes::ZERO).await;
    })
    .await;
}
