//! Copies between nodes are permitted while their volumes wait for them. The tests act as the agents.

use cistern_crds::{
    ContentSource, ImageTransfer, PoolVolume, SourceKind, TransferPurpose, testing::volume_spec,
};
use cistern_e2e::{
    eventually,
    objects::{change, write_status},
};
use kube::{Api, Resource as _, ResourceExt as _};
use serde_json::json;

use crate::{
    cluster::{Cluster, SOON},
    objects::{Objects, create},
};

const IMAGE: &str = "6b3f1a52-0000-4000-8000-00000000000a";

/// A volume on a node whose snapshot is on another one.
async fn add_copy(api: &Objects, name: &str, (pool, node): (&str, &str), snapshot: &str) {
    let mut spec = volume_spec(name, node, pool);
    spec.content_source = Some(ContentSource {
        kind: SourceKind::Snapshot,
        name: snapshot.to_owned(),
        image: IMAGE.to_owned(),
        node_name: Some("transfer-source".to_owned()),
        snapshot_name: None,
    });
    let volume = PoolVolume::desired(name, spec);
    create(&api.volumes(), &json!(volume)).await;
}

async fn until_gone(transfers: &Api<ImageTransfer>, name: &str) {
    eventually(
        &format!("the end of {name}"),
        SOON,
        async || match transfers.get_opt(name).await.unwrap() {
            None => Ok(()),
            Some(transfer) => Err(format!("{transfer:#?}")),
        },
    )
    .await;
}

async fn until_permitted(transfers: &Api<ImageTransfer>, name: &str) -> ImageTransfer {
    eventually(&format!("the permission of {name}"), SOON, async || {
        let found = transfers.get_opt(name).await.unwrap();
        found.ok_or_else(|| "none".to_owned())
    })
    .await
}

#[tokio::test]
async fn a_copy_is_permitted_from_the_reservation_of_its_volume_until_that_is_made() {
    let api = Cluster::shared().await.api();
    let pool = "transfer";
    for node in ["transfer-source", "transfer-target"] {
        api.add_node(node, &[(pool, "yes")]).await;
    }
    api.add_pool(pool, &[(pool, "yes")]).await;
    api.add_snapshot("transfer-snapshot", pool, "transfer-source")
        .await;
    let transfers = Api::<ImageTransfer>::all(api.volumes().into_client());
    let at = (pool, "transfer-target");
    for name in ["transfer-made", "transfer-left", "transfer-waits"] {
        add_copy(&api, name, at, "transfer-snapshot").await;
    }
    for name in ["transfer-made", "transfer-left"] {
        write_status(&api.volumes(), name, json!({"reserved": "1Gi"})).await;
        let permitted = until_permitted(&transfers, name).await;
        let spec = &permitted.spec;
        assert_eq!(
            (spec.source_node.as_str(), spec.target_node.as_str()),
            ("transfer-source", "transfer-target")
        );
        assert_eq!(spec.snapshot_name.as_deref(), Some("transfer-snapshot"));
        assert_eq!(
            (spec.image.as_str(), spec.volume_name.as_str()),
            (IMAGE, name)
        );
        assert_eq!(spec.purpose, TransferPurpose::Restore);
        let volume = api.volumes().get(name).await.unwrap();
        assert_eq!(permitted.owner_references()[0].uid, volume.uid().unwrap());
        assert_eq!(permitted.owner_references()[0].kind, PoolVolume::kind(&()));
    }
    // Nothing is reserved for this one.
    assert_eq!(transfers.get_opt("transfer-waits").await.unwrap(), None);

    write_status(
        &api.volumes(),
        "transfer-made",
        json!({"reserved": "1Gi", "size": "1Gi"}),
    )
    .await;
    until_gone(&transfers, "transfer-made").await;
    let leaves = json!({"spec": {"deletionRequested": true}});
    change(&api.volumes(), "transfer-left", leaves).await;
    until_gone(&transfers, "transfer-left").await;

    // Somebody removes one that is needed.
    write_status(&api.volumes(), "transfer-waits", json!({"reserved": "1Gi"})).await;
    let first = until_permitted(&transfers, "transfer-waits").await;
    transfers
        .delete("transfer-waits", &kube::api::DeleteParams::default())
        .await
        .unwrap();
    eventually("another permission", SOON, async || {
        match transfers.get_opt("transfer-waits").await.unwrap() {
            Some(found) if found.uid() != first.uid() => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

#[tokio::test]
async fn the_address_of_an_agent_is_published_for_other_nodes() {
    let api = Cluster::shared().await.api();
    api.add_node("transfer-address", &[("transfer-address", "yes")])
        .await;
    api.add_pool("transfer-address", &[("transfer-address", "yes")])
        .await;
    let address = json!({"podIP": "10.1.2.3", "podIPs": [{"ip": "10.1.2.3"}]});
    write_status(&api.pods(), "agent-transfer-address", address).await;
    api.storage_node("the address", "transfer-address", |node| {
        (node.spec.transfer_endpoint.as_deref() == Some("10.1.2.3:9812")).then_some(())
    })
    .await;
}
