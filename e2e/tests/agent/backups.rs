//! What a backup program asks: where snapshots hold data, and where they differ. The tests play the program. It asks Kubernetes'
//! sidecar ([`front`]), and that the controller; or the controller itself.

mod bases;
mod front;
mod objects;
mod refusals;

use std::{fmt::Write as _, net::SocketAddr, path::PathBuf};

use cistern_crds::{Bytes, PoolSnapshot, PoolVolume};
use cistern_e2e::{ControlPlane, Folder, eventually};
use cistern_proto::csi::v1::{
    BlockMetadata, GetMetadataAllocatedRequest, GetMetadataDeltaRequest,
    snapshot_metadata_client::SnapshotMetadataClient,
};
use cistern_transfer::{KeyPair, PublicKey, connect};
use kube::ResourceExt as _;
use tonic::{Code, Status};

use self::front::{AUDIENCE, Allocated, Delta, Front, PROGRAM};
use crate::{
    Fixture, SOON,
    transfers::requests::{publish_key, seen},
};

/// Maximum number of ranges in a message: a backup takes several.
const MOST: i32 = 2;

/// A backup of a raw block volume: a file with all of its bytes.
struct Backup {
    front: Front,
    folder: Folder,
    /// Handle of the snapshot that it has.
    last: Option<String>,
}

impl Backup {
    fn file(&self) -> PathBuf {
        self.folder.join("backup")
    }

    /// The ranges of a snapshot that the backup lacks.
    async fn lacks(&self, snapshot: &str) -> Vec<BlockMetadata> {
        let token = self.front.token(PROGRAM, Some(AUDIENCE)).await;
        let namespace = "default".to_owned();
        let (snapshot, offset, most) = (snapshot.to_owned(), 0, MOST);
        let ranges = match self.last.clone() {
            None => {
                let ask = Allocated {
                    token,
                    namespace,
                    snapshot,
                    offset,
                    most,
                };
                self.front.allocated(ask).await
            }
            Some(base) => {
                let ask = Delta {
                    token,
                    namespace,
                    base,
                    snapshot,
                    offset,
                    most,
                };
                self.front.changed(ask).await
            }
        };
        ranges.unwrap()
    }

    /// Takes over what a snapshot has, as far as it differs from the last one. Returns the number of bytes.
    async fn add(&mut self, node: &Fixture, snapshot: &PoolSnapshot) -> u64 {
        self.front.publish_ready(snapshot).await;
        let mut script = "truncate --size=$(stat --format=%s $0/$1) $2\n".to_owned();
        let mut bytes = 0;
        for BlockMetadata {
            byte_offset: at,
            size_bytes: count,
        } in self.lacks(&snapshot.name_any()).await
        {
            bytes += u64::try_from(count).unwrap();
            writeln!(
                script,
                "dd if=$0/$1 of=$2 bs=1M skip={at}B seek={at}B count={count}B iflag=fullblock conv=notrunc status=none"
            )
            .unwrap();
        }
        let (image, file) = (snapshot.uid().unwrap(), self.file());
        let arguments = [image.as_str(), file.to_str().unwrap()];
        node.shell(&script, &arguments).await;
        node.shell("cmp $0/$1 $2", &arguments).await;
        self.last = Some(snapshot.name_any());
        bytes
    }
}

/// The ranges of a snapshot that hold data.
async fn allocated(node: &Fixture, snapshot: &str) -> Result<Vec<BlockMetadata>, Status> {
    let mut client = node.driver.relayed_metadata_client().await;
    let request = GetMetadataAllocatedRequest {
        snapshot_id: snapshot.to_owned(),
        max_results: MOST,
        ..GetMetadataAllocatedRequest::default()
    };
    let mut messages = client.get_metadata_allocated(request).await?.into_inner();
    let mut all = Vec::new();
    while let Some(message) = messages.message().await? {
        all.extend(message.block_metadata);
    }
    Ok(all)
}

/// The ranges in which a snapshot differs from an earlier one.
async fn changed(node: &Fixture, base: &str, target: &str) -> Result<Vec<BlockMetadata>, Status> {
    let mut client = node.driver.relayed_metadata_client().await;
    let request = GetMetadataDeltaRequest {
        base_snapshot_id: base.to_owned(),
        target_snapshot_id: target.to_owned(),
        max_results: MOST,
        ..GetMetadataDeltaRequest::default()
    };
    let mut messages = client.get_metadata_delta(request).await?.into_inner();
    let mut all = Vec::new();
    while let Some(message) = messages.message().await? {
        all.extend(message.block_metadata);
    }
    Ok(all)
}

/// Writes to a volume that is not attached, at several places.
async fn write(node: &Fixture, volume: &PoolVolume, places: &[u32]) {
    for place in places {
        let script = format!(
            "dd if=/dev/urandom of=$0/$1 bs=64k count=3 seek={}K oflag=seek_bytes conv=notrunc,fsync status=none",
            place * 1024
        );
        node.shell(&script, &[&volume.uid().unwrap()]).await;
    }
}

#[tokio::test]
async fn a_full_backup_and_two_incremental_ones_restore_every_byte() {
    let control_plane = ControlPlane::start().await;
    let node = Fixture::start_with(&control_plane, "agent-backup").await;
    let volume = node.block_volume("v", Bytes::mib(64)).await;
    let mut backup = Backup {
        front: Front::start(&control_plane, &node).await,
        folder: Folder::new(),
        last: None,
    };
    write(&node, &volume, &[0, 5, 9, 20, 63]).await;
    let first = node.snapshot("first", &volume).await;
    let all = backup.add(&node, &first).await;
    assert!(all < 4 << 20, "{all}");
    write(&node, &volume, &[5, 30]).await;
    let second = node.snapshot("second", &volume).await;
    let some = backup.add(&node, &second).await;
    assert!(some < 2 << 20, "{some}");
    // What is discarded has changed to zeros.
    let discard = "fallocate --punch-hole --offset 20MiB --length 1MiB $0/$1 && sync $0/$1";
    node.shell(discard, &[&volume.uid().unwrap()]).await;
    let third = node.snapshot("third", &volume).await;
    let hole = backup.add(&node, &third).await;
    assert!((64 << 10..2 << 20).contains(&hole), "{hole}");
    node.remove_snapshots().await;
    node.remove(&volume.name_any()).await;
    node.finish().await;
}

#[tokio::test]
async fn a_snapshot_whose_node_is_down_or_gone_from_sight_is_refused_with_its_node() {
    let mut node = Fixture::start("agent-backup-down").await;
    let other = Fixture::start("agent-backup-other").await;
    let volume = node.block_volume("v", Bytes::mib(16)).await;
    let elsewhere = other.block_volume("w", Bytes::mib(16)).await;
    let snapshot = node.snapshot("s", &volume).await.name_any();
    let its_base = other.snapshot("b", &elsewhere).await.name_any();
    // Any controller reaches any node.
    allocated(&other, &snapshot).await.unwrap();
    for (answer, code, says) in [
        (allocated(&node, "none").await, Code::NotFound, "none"),
        (allocated(&node, "../s").await, Code::NotFound, "../s"),
        (
            changed(&node, &its_base, &snapshot).await,
            Code::NotFound,
            "it is on node agent-backup-other",
        ),
        (
            changed(&node, "none", &snapshot).await,
            Code::NotFound,
            "none",
        ),
    ] {
        let refused = answer.unwrap_err();
        assert_eq!(refused.code(), code, "{refused}");
        assert!(refused.message().contains(says), "{refused}");
    }
    node.driver.kill_node();
    let refused = allocated(&node, &snapshot).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    let message = refused.message();
    assert!(message.contains("node agent-backup-down"), "{message}");
    node.driver.start_node().await;
    eventually("the node to answer", SOON, async || {
        let answer = allocated(&node, &snapshot).await;
        answer.map(drop).map_err(|error| error.to_string())
    })
    .await;
    for (fixture, volume) in [(node, volume), (other, elsewhere)] {
        fixture.remove_snapshots().await;
        fixture.remove(&volume.name_any()).await;
        fixture.finish().await;
    }
}

/// How a node plugin answers who has these keys.
async fn asked(
    peer: (SocketAddr, PublicKey),
    keys: &KeyPair,
    snapshot: &str,
) -> Result<(), String> {
    let channel = connect(keys, peer).await;
    let mut client = SnapshotMetadataClient::new(channel.map_err(|error| error.to_string())?);
    let request = GetMetadataAllocatedRequest {
        snapshot_id: snapshot.to_owned(),
        ..GetMetadataAllocatedRequest::default()
    };
    let answer = client.get_metadata_allocated(request).await;
    answer
        .map(drop)
        .map_err(|error| format!("{:?}", error.code()))
}

#[tokio::test]
async fn a_node_plugin_tells_only_controllers_where_snapshots_hold_data() {
    let node = Fixture::start("agent-backup-keys").await;
    let volume = node.block_volume("v", Bytes::mib(16)).await;
    let snapshot = node.snapshot("s", &volume).await.name_any();
    let peer = seen(&node).await;
    let keys = KeyPair::generate().unwrap();
    asked(peer, &keys, &snapshot).await.unwrap_err();
    let controller = "another-controller";
    publish_key(&node, controller, Some(&keys.public())).await;
    eventually("the key to be known", SOON, async || {
        asked(peer, &keys, &snapshot).await
    })
    .await;
    publish_key(&node, controller, None).await;
    eventually("the key to be forgotten", SOON, async || {
        match asked(peer, &keys, &snapshot).await {
            Err(_) => Ok(()),
            Ok(()) => Err("it was answered".to_owned()),
        }
    })
    .await;
    node.remove_snapshots().await;
    node.remove(&volume.name_any()).await;
    node.finish().await;
}
