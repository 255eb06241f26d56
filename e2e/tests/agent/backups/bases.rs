//! Snapshots that a backup program has deleted, and that the next incremental backup is compared with.

use cistern_crds::{Bytes, PoolVolume};
use cistern_e2e::{eventually, requests::create_volume};
use cistern_proto::csi::v1::{
    CreateSnapshotRequest, CreateVolumeRequest, DeleteSnapshotRequest, ListSnapshotsRequest,
    VolumeContentSource,
    volume_content_source::{SnapshotSource, Type},
};
use kube::ResourceExt as _;
use tonic::{Code, Status};

use super::{allocated, changed, write};
use crate::{Fixture, SOON};

/// A backup program whose class keeps bases.
struct Program<'a> {
    node: &'a Fixture,
    volume: &'a PoolVolume,
}

impl Program<'_> {
    /// Takes a snapshot, and returns its id.
    async fn take(&self, name: &str, keeps: &str) -> Result<String, Status> {
        let request = CreateSnapshotRequest {
            source_volume_id: self.volume.name_any(),
            name: format!("{}-{name}", self.node.name),
            parameters: [("keepBaseForIncrementals".to_owned(), keeps.to_owned())].into(),
            ..CreateSnapshotRequest::default()
        };
        let mut client = self.node.driver.controller_client().await;
        let answer = client.create_snapshot(request).await?.into_inner();
        Ok(answer.snapshot.unwrap().snapshot_id)
    }

    async fn delete(&self, snapshot: &str) {
        let request = DeleteSnapshotRequest {
            snapshot_id: snapshot.to_owned(),
            ..DeleteSnapshotRequest::default()
        };
        let mut client = self.node.driver.controller_client().await;
        client.delete_snapshot(request).await.unwrap();
    }

    /// The ids of all snapshots of the volume.
    async fn list(&self) -> Vec<String> {
        let request = ListSnapshotsRequest {
            source_volume_id: self.volume.name_any(),
            ..ListSnapshotsRequest::default()
        };
        let mut client = self.node.driver.controller_client().await;
        let listed = client.list_snapshots(request).await.unwrap().into_inner();
        let ids = listed.entries.into_iter();
        ids.map(|entry| entry.snapshot.unwrap().snapshot_id)
            .collect()
    }

    /// How a volume is made from a snapshot.
    async fn restore(&self, snapshot: &str) -> Status {
        let source = SnapshotSource {
            snapshot_id: snapshot.to_owned(),
        };
        let name = format!("{}-restored", self.node.name);
        let request = CreateVolumeRequest {
            volume_content_source: Some(VolumeContentSource {
                r#type: Some(Type::Snapshot(source)),
            }),
            ..create_volume(&name, &self.node.name, Bytes::mib(64))
        };
        let mut client = self.node.driver.controller_client().await;
        client.create_volume(request).await.unwrap_err()
    }

    /// Waits until a base is removed with its image.
    async fn until_removed(&self, snapshot: &str, image: &str) {
        eventually(
            &format!("base {snapshot} to be removed"),
            SOON,
            async || match self.node.snapshots().get_opt(snapshot).await.unwrap() {
                None => Ok(()),
                Some(found) => Err(format!("{found:#?}")),
            },
        )
        .await;
        self.node.shell("! test -e $0/$1", &[image]).await;
    }
}

#[tokio::test]
async fn a_deleted_snapshot_is_hidden_and_kept_as_the_base_of_the_next_incremental_backup() {
    let node = Fixture::start("agent-backup-base").await;
    let volume = node.block_volume("v", Bytes::mib(64)).await;
    let program = Program {
        node: &node,
        volume: &volume,
    };
    write(&node, &volume, &[0, 5, 9]).await;
    let wrong = program.take("wrong", "yes").await.unwrap_err();
    assert_eq!(wrong.code(), Code::InvalidArgument, "{wrong}");
    let first = program.take("first", "true").await.unwrap();
    write(&node, &volume, &[5, 30]).await;
    let second = program.take("second", "true").await.unwrap();
    let ranges = changed(&node, &first, &second).await.unwrap();
    assert!(!ranges.is_empty());

    for _ in 0..2 {
        program.delete(&first).await;
    }
    assert_eq!(program.list().await, std::slice::from_ref(&second));
    let hidden = allocated(&node, &first).await.unwrap_err();
    assert_eq!(hidden.code(), Code::NotFound, "{hidden}");
    let restored = program.restore(&first).await;
    assert_eq!(restored.code(), Code::NotFound, "{restored}");
    let again = program.take("first", "true").await.unwrap_err();
    assert_eq!(again.code(), Code::AlreadyExists, "{again}");
    let kept = changed(&node, &first, &second).await.unwrap();
    assert_eq!(kept, ranges, "it can be compared with");
    node.driver.fsck().await;

    // A volume has one base.
    let image = node.get_snapshot(&first).await.uid().unwrap();
    program.delete(&second).await;
    program.until_removed(&first, &image).await;
    let third = program.take("third", "false").await.unwrap();
    changed(&node, &second, &third).await.unwrap();
    // Without the parameter, nothing is kept.
    program.delete(&third).await;
    assert!(node.snapshots().get_opt(&third).await.unwrap().is_none());
    let base = node.get_snapshot(&second).await;
    assert!(base.spec.is_kept_as_base());
    node.remove_snapshots().await;
    node.remove(&volume.name_any()).await;
    node.finish().await;
}
