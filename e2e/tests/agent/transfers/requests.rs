//! What a node answers to nodes that ask for its snapshots. The tests act as these nodes.

use std::net::SocketAddr;

use cistern_crds::{
    Bytes, ImageTransfer, ImageTransferSpec, PoolSnapshot, PoolVolume, StorageNode,
    StorageNodeSpec, TransferPurpose, controller_keys,
};
use cistern_e2e::{
    eventually,
    objects::{change, write_status},
};
use cistern_host::copy::Chunk;
use cistern_transfer::{Error, KeyPair, PublicKey, fetch};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, PostParams},
};
use serde_json::json;
use tonic::Code;

use super::transfers;
use crate::{Fixture, SOON};

/// A node that the test plays.
struct Peer {
    name: String,
    keys: KeyPair,
}

impl Peer {
    /// Publishes a key in a new StorageNode.
    async fn start(nodes: &Api<StorageNode>, name: &str) -> Self {
        let node = StorageNode::new(name, StorageNodeSpec::default());
        nodes.create(&PostParams::default(), &node).await.unwrap();
        let peer = Self {
            name: name.to_owned(),
            keys: KeyPair::generate().unwrap(),
        };
        peer.publish(nodes, &peer.keys).await;
        peer
    }

    async fn publish(&self, nodes: &Api<StorageNode>, keys: &KeyPair) {
        let status = json!({"transferKey": keys.public().to_string()});
        write_status(nodes, &self.name, status).await;
    }
}

/// The source as other nodes see it.
pub(crate) async fn seen(source: &Fixture) -> (SocketAddr, PublicKey) {
    let node = source.driver.storage_node().await;
    let key = node.status.unwrap().transfer_key.unwrap();
    let address = node.spec.transfer_endpoint.unwrap();
    (address.parse().unwrap(), key.parse().unwrap())
}

/// Publishes the key of a controller that a test plays, or takes it back.
pub(crate) async fn publish_key(node: &Fixture, controller: &str, key: Option<&PublicKey>) {
    let api = Api::<ConfigMap>::default_namespaced(node.volumes.clone().into_client());
    // Controllers remove the oldest entries when they start, and other tests start many.
    let entry = key.map(|key| format!("2999-01-01T00:00:00Z {key}"));
    let data = json!({"data": {controller: entry}});
    change(&api, controller_keys::CONFIG_MAP, data).await;
}

/// How a source answers a request for all data from an offset.
async fn answer(
    peer: (SocketAddr, PublicKey),
    keys: &KeyPair,
    transfer: &str,
    from: u64,
) -> Result<Vec<Chunk>, String> {
    answer_over(peer, keys, (transfer, None), from).await
}

/// How a source answers a request for what differs from a base.
async fn answer_over(
    (address, key): (SocketAddr, PublicKey),
    keys: &KeyPair,
    (transfer, base): (&str, Option<&str>),
    from: u64,
) -> Result<Vec<Chunk>, String> {
    let said = |error: Error| match error {
        Error::Answer(status) if status.code() != Code::Unavailable => {
            format!("{:?}", status.code())
        }
        other => other.to_string(),
    };
    let fetched = fetch(keys, (address, key), transfer, base)
        .await
        .map_err(said)?;
    let mut chunks = fetched.read(from).await.map_err(said)?;
    let mut all = Vec::new();
    while let Some(chunk) = chunks.next().await {
        all.push(chunk.map_err(said)?);
    }
    Ok(all)
}

async fn until_refused(what: &str, peer: (SocketAddr, PublicKey), keys: &KeyPair) {
    eventually(what, SOON, async || {
        match answer(peer, keys, "asked-mine", 0).await {
            Err(_) => Ok(()),
            Ok(_) => Err("it was answered".to_owned()),
        }
    })
    .await;
}

/// A node with a raw block volume that has 3 MiB of data at 5 MiB, and its snapshot.
async fn with_a_snapshot() -> (Fixture, PoolSnapshot, PoolVolume) {
    let source = Fixture::start("agent-transfer-source").await;
    let volume = source.block_volume("source", Bytes::mib(16)).await;
    source
        .shell(
            "dd if=/dev/urandom of=$0/$1 bs=1M count=3 seek=5 conv=notrunc,fsync status=none",
            &[&volume.uid().unwrap()],
        )
        .await;
    let snapshot = source.snapshot("s", &volume).await;
    (source, snapshot, volume)
}

/// Permits copies of a snapshot, and of another one that is hidden, to one node and to another.
async fn permit_all(
    source: &Fixture,
    [snapshot, hidden]: [&PoolSnapshot; 2],
    [permitted, other]: [&Peer; 2],
) {
    let permit = async |name: &str, change: &dyn Fn(&mut ImageTransferSpec)| {
        let mut spec = ImageTransferSpec {
            source_node: source.name.clone(),
            target_node: permitted.name.clone(),
            snapshot_name: Some(snapshot.name_any()),
            move_uid: None,
            image: snapshot.uid().unwrap(),
            base_image: None,
            volume_name: name.to_owned(),
            purpose: TransferPurpose::Restore,
        };
        change(&mut spec);
        let transfer = ImageTransfer::new(name, spec);
        let api = transfers(source);
        api.create(&PostParams::default(), &transfer).await.unwrap();
    };
    permit("asked-mine", &|_| {}).await;
    permit("asked-theirs", &|it| it.target_node.clone_from(&other.name)).await;
    permit("asked-elsewhere", &|it| {
        "another".clone_into(&mut it.source_node);
    })
    .await;
    permit("asked-image", &|it| {
        it.image = hidden.uid().unwrap();
    })
    .await;
    permit("asked-changes", &|it| {
        it.purpose = TransferPurpose::Move;
        it.move_uid = Some("move-1".to_owned());
        it.base_image = hidden.uid();
    })
    .await;
    permit("asked-nothing", &|it| {
        it.snapshot_name = Some("none".to_owned());
    })
    .await;
    permit("asked-absent", &|it| {
        "none".clone_into(&mut it.target_node);
    })
    .await;
}

/// Only what is named as the base is compared: otherwise the answer would tell what the images share.
async fn refuses_other_bases(
    peer: (SocketAddr, PublicKey),
    permitted: &Peer,
    hidden: &PoolSnapshot,
) {
    let hidden = hidden.uid().unwrap();
    for (transfer, base, chunks) in [
        ("asked-changes", hidden.as_str(), 0),
        ("asked-changes", "none", 3),
        ("asked-mine", hidden.as_str(), 3),
    ] {
        let changes = eventually("the changes", SOON, async || {
            answer_over(peer, &permitted.keys, (transfer, Some(base)), 0).await
        })
        .await;
        assert_eq!(changes.len(), chunks, "{transfer} {base}");
    }
}

#[tokio::test]
async fn a_node_sends_what_is_permitted_to_the_node_that_is_named_and_nothing_else() {
    let (source, snapshot, volume) = with_a_snapshot().await;
    let hidden = source.snapshot("hidden", &volume).await;
    let nodes: Api<StorageNode> = Api::all(source.volumes.clone().into_client());
    let permitted = Peer::start(&nodes, "agent-transfer-permitted").await;
    let other = Peer::start(&nodes, "agent-transfer-other").await;
    permit_all(&source, [&snapshot, &hidden], [&permitted, &other]).await;

    let peer = seen(&source).await;
    let data = eventually("the data", SOON, async || {
        answer(peer, &permitted.keys, "asked-mine", 0).await
    })
    .await;
    assert_eq!(data.len(), 3);
    assert!(data.iter().all(|chunk| chunk.offset >= 5 << 20));
    eventually("the data of the other", SOON, async || {
        answer(peer, &other.keys, "asked-theirs", 0).await
    })
    .await;

    refuses_other_bases(peer, &permitted, &hidden).await;

    let denied = "PermissionDenied";
    let long = "a".repeat(1 << 20);
    for (transfer, from, expected) in [
        ("asked-theirs", 0, denied),
        ("asked-elsewhere", 0, denied),
        ("asked-image", 0, denied),
        ("asked-nothing", 0, "cannot be read now"),
        ("asked-absent", 0, denied),
        ("asked-unknown", 0, denied),
        ("", 0, denied),
        ("../asked-mine", 0, denied),
        ("asked-mine\0", 0, denied),
        (long.as_str(), 0, denied),
        ("asked-mine", (16 << 20) + 1, "OutOfRange"),
        ("asked-mine", u64::MAX, "OutOfRange"),
    ] {
        let refused = answer(peer, &permitted.keys, transfer, from).await;
        let said = refused.unwrap_err();
        let name: String = transfer.chars().take(20).collect();
        assert!(said.contains(expected), "{name} {from}: {said}");
    }
    let refused = answer(peer, &other.keys, "asked-mine", 0)
        .await
        .unwrap_err();
    assert_eq!(refused, denied);
    let stranger = KeyPair::generate().unwrap();
    for transfer in ["asked-mine", "asked-absent"] {
        let refused = answer(peer, &stranger, transfer, 0).await.unwrap_err();
        assert_ne!(refused, denied, "it gets no answer at all");
    }
    // Nobody else has the key of the source.
    let pretended = (peer.0, stranger.public());
    let refused = answer(pretended, &permitted.keys, "asked-mine", 0).await;
    assert!(refused.unwrap_err().contains("cannot connect"));

    // The node starts again with another key, and the old one ends.
    let renewed = KeyPair::generate().unwrap();
    permitted.publish(&nodes, &renewed).await;
    until_refused("the end of the old key", peer, &permitted.keys).await;
    assert_eq!(answer(peer, &renewed, "asked-mine", 0).await, Ok(data));
    let (api, parameters) = (transfers(&source), DeleteParams::default());
    let names = [
        "mine",
        "theirs",
        "elsewhere",
        "image",
        "changes",
        "nothing",
        "absent",
    ];
    for transfer in names {
        let name = format!("asked-{transfer}");
        api.delete(&name, &parameters).await.unwrap();
    }
    until_refused("the end of the permission", peer, &renewed).await;
    for peer in [&permitted, &other] {
        nodes.delete(&peer.name, &parameters).await.unwrap();
    }
    source.remove_snapshots().await;
    source.finish().await;
}
