//! Removing Cistern with its data and without, by the commands of `docs/uninstall.md`.

use cistern_crds::Bytes;
use cistern_e2e::{
    Harness, Page, Test,
    cluster::{NAMESPACE, objects::Binding::WaitForFirstConsumer},
};
use k8s_openapi::{
    api::core::v1::{Namespace, Node, Pod, Secret},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;

use crate::installed::{Manifests, and_then_install};

const SECTIONS: [&str; 4] = [
    "Uninstall",
    "Keep the data",
    "Install it again",
    "Remove the data",
];

/// A Secret that is not of Cistern's manifests, as one for pulling images.
const SECRET: &str = "registry";

async fn page(manifests: &Manifests) -> Page {
    let page = Page::read("docs/uninstall.md").await;
    page.with("MANIFESTS", manifests.path())
}

/// Removes Cistern with all pools. No volume may be left.
pub(crate) async fn remove_everything(manifests: &Manifests) {
    page(manifests).await.run_section("Remove the data").await;
}

#[tokio::test]
async fn cistern_is_removed_without_its_data_and_then_with_it_as_the_document_says() {
    let Some(harness) = Harness::or_skip("the removal of Cistern") else {
        return;
    };
    Test::run_alone("uninstall", async |test| {
        test.no_failed_test_keeps_volumes().await;
        let manifests = Manifests::of_this_version();
        and_then_install(&test.cluster, async || {
            let page = page(&manifests).await;
            assert_eq!(page.headings(), SECTIONS);
            let [node, ..] = test.cluster.workers().await;
            let pool = test.pool("pool", Bytes::gib(1), &[&node]).await;
            let class = test.class("class", &pool, WaitForFirstConsumer, &[]).await;
            test.claim("claim", &class, Bytes::mib(64)).await;
            test.writer("writer", "claim").await;
            test.running("writer").await;
            test.writes_go_on("writer").await;
            let snapshots = test.snapshot_class("snapshots", json!({})).await;
            test.snapshot("snapshot", &snapshots, "claim").await;

            let secrets = remove_and_keep_the_data(test, &manifests).await;
            let before = test.writes_go_on("writer").await;
            page.run_section("Install it again").await;
            secrets.get(SECRET).await.unwrap();
            test.writes_go_on("writer").await;
            test.delete(&test.namespaced::<Pod>(), "writer").await;
            test.writer("writer", "claim").await;
            test.running("writer").await;
            test.writes_go_on_after("writer", before).await;

            let all = "pod,pvc,volumesnapshot,volumegroupsnapshot";
            let namespace = ["--all", "--namespace", &test.namespace];
            let delete = ["delete", all].into_iter().chain(namespace);
            test.cluster.kubectl(delete).await;
            page.run_section("Remove the data").await;
            nothing_is_left(test, harness).await;
        })
        .await;
    })
    .await;
}

/// Removes Cistern without its data. The namespace stays with the Secret of an administrator, which is returned.
pub(crate) async fn remove_and_keep_the_data(test: &Test, manifests: &Manifests) -> Api<Secret> {
    let secrets = secret_of_an_administrator(test).await;
    page(manifests).await.run_section("Keep the data").await;
    no_process_is_left(test).await;
    secrets.get(SECRET).await.unwrap();
    secrets
}

/// Creates the Secret in the namespace of Cistern.
async fn secret_of_an_administrator(test: &Test) -> Api<Secret> {
    let secrets: Api<Secret> = Api::namespaced(test.cluster.client(), NAMESPACE);
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}});
    let (parameters, secret) = (PatchParams::apply("administrator"), Patch::Apply(secret));
    let applied = secrets.patch(SECRET, &parameters, &secret).await;
    applied.unwrap();
    secrets
}

/// No pod of Cistern, also none that is ending: a new node plugin must not start beside an old one.
async fn no_process_is_left(test: &Test) {
    let pods: Api<Pod> = Api::namespaced(test.cluster.client(), NAMESPACE);
    let ours = ListParams::default().labels("app.kubernetes.io/part-of=cistern");
    let left = pods.list(&ours).await.unwrap().items;
    assert!(left.is_empty(), "{left:?}");
}

/// No definition and no namespace, and on the nodes no pool: an empty folder of pools stays.
async fn nothing_is_left(test: &Test, harness: Harness) {
    let namespaces = test.all::<Namespace>();
    assert_eq!(namespaces.get_opt(NAMESPACE).await.unwrap(), None);
    let definitions = test.all::<CustomResourceDefinition>();
    let definitions = definitions.list(&ListParams::default()).await.unwrap();
    let ours = definitions
        .iter()
        .filter(|it| it.spec.group == "cistern.storage");
    assert_eq!(ours.count(), 0);
    for node in test
        .all::<Node>()
        .list(&ListParams::default())
        .await
        .unwrap()
    {
        let node = node.name_any();
        let find = "find /var/lib/cistern -mindepth 2; mount | grep /var/lib/cistern/ || true";
        assert_eq!(harness.shell(&node, find).await.trim(), "", "on {node}");
    }
}
