//! Invalid StorageClasses are reported in events on class and claim, and leave nothing behind.

use cistern_crds::{Bytes, PoolVolume};
use cistern_e2e::{
    Test,
    cluster::objects::Binding::{self, Immediate, WaitForFirstConsumer},
};
use kube::api::ListParams;
use serde_json::json;

#[tokio::test]
async fn a_wrong_class_is_reported_on_class_and_claim_whichever_way_it_binds() {
    Test::run("wrong-class", async |test| {
        let [node, ..] = test.cluster.workers().await;
        let pool = test.pool("pool", Bytes::gib(1), &[&node]).await;
        let wrong = [
            ("parameter", json!({"pool": pool, "bogus": "x"}), "bogus"),
            ("pool", json!({"pool": "no-such-pool"}), "no-such-pool"),
            (
                "fstype",
                json!({"pool": pool, "csi.storage.k8s.io/fstype": "ntfs"}),
                "ntfs",
            ),
            (
                "mkfs",
                json!({"pool": pool, "mkfsOptions": "-b 1024"}),
                "-b 1024",
            ),
        ];
        for binding in [WaitForFirstConsumer, Immediate] {
            for (name, parameters, _) in &wrong {
                let name = named(name, binding);
                let class = test.class_of(&name, binding, parameters.clone()).await;
                let claim = test.claim(&name, &class, Bytes::mib(100)).await;
                test.writer(&name, &name).await;
                if binding == Immediate {
                    test.may_repeat(&claim);
                }
            }
        }
        for binding in [WaitForFirstConsumer, Immediate] {
            for (name, _, says) in &wrong {
                let name = named(name, binding);
                test.event("PersistentVolumeClaim", &name, &[says]).await;
                test.event("StorageClass", &test.own(&name), &[says]).await;
            }
        }
        let volumes = test
            .all::<PoolVolume>()
            .list(&ListParams::default())
            .await
            .unwrap();
        let left = volumes.iter().filter(|volume| {
            let claim = volume.spec.claim.as_ref();
            claim.is_some_and(|claim| claim.namespace == test.namespace)
        });
        assert_eq!(left.count(), 0, "{volumes:#?}");
    })
    .await;
}

fn named(what: &str, binding: Binding) -> String {
    format!("{what}-{}", format!("{binding:?}").to_lowercase())
}
