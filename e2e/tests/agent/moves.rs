//! Volumes that move to another node. The tests act as the operator, which declares, commits and undoes moves.

mod created_again;
mod encryption;
mod passes;
mod thick;

use std::{path::PathBuf, time::Duration};

use cistern_crds::{
    Bytes, ConditionType, FenceState, FilesystemType, HasImage as _, ImageTransfer,
    ImageTransferSpec, MoveTarget, NodePoolStatus, PoolReplica, PoolReplicaSpec, PoolVolume,
    Provisioning, Reason, ReplicaPurpose, TransferPurpose, condition,
};
use cistern_e2e::{ControlPlane, driver::Options, eventually, objects::change};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};

use crate::{
    Fixture, SOON, has_condition,
    snapshots::{stage, sums, unstage, write},
    status,
};

/// How long a copy may take on a busy disk.
const COPIED: Duration = Duration::from_mins(5);
/// UID of the VolumeMove, which no agent reads.
const MOVE: &str = "0f0e0d0c-0b0a-4908-8706-050403020100";

/// Two nodes that carry one pool, and a volume of it that moves from the first to the second.
struct Moving {
    source: Fixture,
    target: Fixture,
    pool: String,
    volume: PoolVolume,
    replicas: Api<PoolReplica>,
}

impl Moving {
    /// Starts the nodes `agent-NAME-1` and `agent-NAME-2`, and makes the volume.
    async fn new(name: &str, adapt: impl FnOnce(&mut PoolVolume)) -> Self {
        Self::with_rate(name, 0, adapt).await
    }

    /// The same with a first node that sends `rate` bytes per second at most.
    async fn with_rate(name: &str, rate: u64, adapt: impl FnOnce(&mut PoolVolume)) -> Self {
        let (first, second) = (format!("agent-{name}-1"), format!("agent-{name}-2"));
        let options = Options {
            transfer_rate: rate,
            ..Options::default()
        };
        let (source, target) = tokio::join!(
            Fixture::start_as(ControlPlane::shared().await, &first, options),
            Fixture::start(&second)
        );
        let pool = format!("agent-{name}");
        for node in [&source, &target] {
            node.driver.add_image_pool(&pool, Bytes::gib(1)).await;
        }
        let mut desired = source.desired_volume("v", Bytes::mib(320));
        desired.spec.pool_name.clone_from(&pool);
        adapt(&mut desired);
        let volume = source.create_ready(&desired).await;
        let replicas = Api::all(source.volumes.clone().into_client());
        Self {
            source,
            target,
            pool,
            volume,
            replicas,
        }
    }

    fn name(&self) -> String {
        self.volume.name_any()
    }

    /// Ends both nodes.
    async fn finish(self) {
        self.source.finish().await;
        self.target.finish().await;
    }

    async fn get(&self) -> PoolVolume {
        self.source.get(&self.name()).await
    }

    async fn create_replica(&self, purpose: ReplicaPurpose) -> String {
        let volume = self.get().await;
        let size = volume.reserved().unwrap();
        self.create_replica_of(purpose, size.saturating_add(volume.header()))
            .await
    }

    async fn create_replica_of(&self, purpose: ReplicaPurpose, size: Bytes) -> String {
        let volume = self.get().await;
        let (node, epoch) = match purpose {
            ReplicaPurpose::Retained => (&self.source, volume.spec.epoch),
            ReplicaPurpose::Incoming => (&self.target, volume.spec.epoch + 1),
        };
        let replica = PoolReplica::desired(PoolReplicaSpec {
            volume_name: self.name(),
            image: volume.image().unwrap().uid.clone(),
            node_name: node.name.clone(),
            pool_name: self.pool.clone(),
            epoch,
            purpose,
            move_uid: MOVE.to_owned(),
            size,
            provisioning: volume.spec.attributes.provisioning,
            extent_size: None,
            deletion_requested: false,
        });
        let created = self.replicas.create(&PostParams::default(), &replica).await;
        created.unwrap();
        let name = replica.name_any();
        self.replica_until(&name, "to be admitted", |it| it.reserved().is_some())
            .await;
        name
    }

    async fn replica_until(
        &self,
        name: &str,
        what: &str,
        is: impl Fn(&PoolReplica) -> bool,
    ) -> PoolReplica {
        eventually(&format!("replica {name} {what}"), COPIED, async || {
            let found = self.replicas.get(name).await.unwrap();
            if is(&found) {
                Ok(found)
            } else {
                Err(format!("{:#?}", found.status))
            }
        })
        .await
    }

    /// Creates the replicas and declares the target. Returns the names of the replicas.
    async fn declare(&self) -> (String, String) {
        let retained = self.create_replica(ReplicaPurpose::Retained).await;
        let incoming = self.create_replica(ReplicaPurpose::Incoming).await;
        self.declare_target().await;
        (retained, incoming)
    }

    async fn declare_target(&self) {
        let target = json!({"nodeName": self.target.name, "moveUID": MOVE});
        self.patch(json!({"target": target})).await;
    }

    async fn patch(&self, spec: Value) {
        self.source.patch(&self.name(), json!({"spec": spec})).await;
    }

    /// Waits until the image is closed this far.
    async fn fenced(&self, state: FenceState) -> PoolVolume {
        let is = |volume: &PoolVolume| {
            let fence = status(volume).fence;
            fence.is_some_and(|fence| fence.state == state && fence.move_uid == MOVE)
        };
        let what = format!("to be {state:?}");
        self.source.until(&self.name(), &what, is).await
    }

    /// Permits the copy, and waits until it is complete.
    async fn copy(&self, incoming: &str) {
        self.permit(|_| {}).await;
        self.replica_until(incoming, "to be complete", PoolReplica::is_complete)
            .await;
        self.forbid().await;
    }

    fn transfers(&self) -> Api<ImageTransfer> {
        Api::all(self.source.volumes.clone().into_client())
    }

    /// Permits the copy of the closed volume, or what a function makes of that.
    async fn permit(&self, adapt: impl FnOnce(&mut ImageTransferSpec)) {
        let mut spec = ImageTransferSpec {
            source_node: self.source.name.clone(),
            target_node: self.target.name.clone(),
            snapshot_name: None,
            move_uid: Some(MOVE.to_owned()),
            image: self.volume.image().unwrap().uid.clone(),
            base_image: None,
            volume_name: self.name(),
            purpose: TransferPurpose::Move,
        };
        adapt(&mut spec);
        let transfer = ImageTransfer::new(&self.name(), spec);
        let (transfers, parameters) = (self.transfers(), PostParams::default());
        transfers.create(&parameters, &transfer).await.unwrap();
    }

    async fn forbid(&self) {
        let (name, parameters) = (self.name(), DeleteParams::default());
        self.transfers().delete(&name, &parameters).await.unwrap();
    }

    /// Writes the next epoch without the target, and waits until the volume is ready on the node.
    async fn end(&self, node: &Fixture) -> PoolVolume {
        let epoch = self.get().await.spec.epoch + 1;
        let spec = json!({"nodeName": node.name, "epoch": epoch, "target": null});
        self.patch(spec).await;
        let is = |volume: &PoolVolume| {
            let ready = has_condition(ConditionType::Ready, "True", "Reconciled");
            status(volume).epoch == epoch && ready(volume)
        };
        node.until(&self.name(), "to be ready in its epoch", is)
            .await
    }

    async fn request_removal(&self, replica: &str) {
        change(
            &self.replicas,
            replica,
            json!({"spec": {"deletionRequested": true}}),
        )
        .await;
    }

    /// Removes a replica with its image.
    async fn remove(&self, replica: &str) {
        self.request_removal(replica).await;
        let is_removed = |it: &PoolReplica| it.reserved().is_none();
        self.replica_until(replica, "to be removed", is_removed)
            .await;
        self.hand_over(replica).await;
    }

    /// Removes a replica only.
    async fn hand_over(&self, replica: &str) {
        change(
            &self.replicas,
            replica,
            json!({"metadata": {"finalizers": []}}),
        )
        .await;
        let parameters = DeleteParams::default();
        self.replicas.delete(replica, &parameters).await.unwrap();
    }

    /// Writes a file to the volume on the first node. Returns the checksums of its files.
    async fn written(&self) -> String {
        let mounted = stage(&self.source, &self.volume, "before").await;
        write(&self.source, &mounted, "data", 5).await;
        let checksums = sums(&self.source, &mounted).await;
        unstage(&self.source, &self.volume, "before").await;
        checksums
    }

    /// The files of the volume in a folder of its pool on a node.
    async fn files(&self, node: &Fixture, folder: &str) -> String {
        let folder = self.folder(node, folder);
        let script = "ls $1 2>/dev/null || true";
        node.shell(script, &[folder.to_str().unwrap()]).await
    }

    /// A folder of the pool, as a node sees it.
    fn folder(&self, node: &Fixture, folder: &str) -> PathBuf {
        let pool = node.driver.storage_root().join("pools");
        pool.join(format!("uid-of-{}", self.pool)).join(folder)
    }

    async fn reserves(&self, node: &Fixture, bytes: Bytes) {
        let what = format!("to reserve {bytes}");
        self.reserves_as(node, &what, |reserved| reserved == bytes)
            .await;
    }

    async fn reserves_as(&self, node: &Fixture, what: &str, is: impl Fn(Bytes) -> bool) {
        eventually(&format!("node {} {what}", node.name), SOON, async || {
            let pools = node.driver.storage_node().await.status.unwrap().pools;
            let is_it = |pool: &&NodePoolStatus| pool.name == self.pool;
            let reserved = pools.iter().find(is_it).unwrap().reserved;
            is(reserved)
                .then_some(())
                .ok_or_else(|| reserved.to_string())
        })
        .await;
    }
}

/// Checks that a volume on a node has files with these checksums.
async fn has_files(node: &Fixture, volume: &PoolVolume, checksums: &str) {
    let mounted = stage(node, volume, "after").await;
    assert_eq!(sums(node, &mounted).await, checksums);
    unstage(node, volume, "after").await;
}

fn ready_message(volume: &PoolVolume) -> String {
    let conditions = status(volume).conditions;
    let ready = condition::find(&conditions, ConditionType::Ready).unwrap();
    assert_eq!(ready.reason, Reason::Moving.as_str());
    ready.message.clone()
}

#[tokio::test]
async fn a_volume_moves_with_its_data_and_leaves_nothing_on_the_node_that_it_left() {
    let moving = Moving::new("moves", |volume| {
        volume.spec.filesystem = Some(FilesystemType::Xfs);
        volume.spec.attributes.provisioning = Provisioning::Thick;
    })
    .await;
    let (source, target) = (&moving.source, &moving.target);
    let size = Bytes::mib(320);
    let mounted = stage(source, &moving.volume, "before").await;
    write(source, &mounted, "data", 20).await;
    let checksums = sums(source, &mounted).await;
    let (retained, incoming) = moving.declare().await;
    let closing = moving.fenced(FenceState::Closing).await;
    let says = "the pods that use it keep it";
    assert!(ready_message(&closing).contains(says));
    // It counts once on each node.
    moving.reserves(source, size).await;
    moving.reserves(target, size).await;
    write(source, &mounted, "data", 20).await;
    let written = sums(source, &mounted).await;
    assert_ne!(written, checksums);
    unstage(source, &moving.volume, "before").await;
    moving.fenced(FenceState::Closed).await;
    let waiting = moving
        .replica_until(&incoming, "to wait", |it| {
            let ready = condition::find(it.conditions(), ConditionType::Ready);
            ready.is_some_and(|ready| ready.reason == Reason::Copying.as_str())
        })
        .await;
    assert!(!waiting.is_complete());
    moving.copy(&incoming).await;
    // The source has the only image that may be used until the commit.
    moving.request_removal(&retained).await;
    let kept = moving
        .replica_until(&retained, "to be kept", |it| {
            condition::failing(it.conditions(), ConditionType::Reclaimed)
                .is_some_and(|it| it.reason == Reason::InUse.as_str())
        })
        .await;
    assert_eq!(kept.reserved(), Some(size));

    let moved = moving.end(target).await;
    let found = moved.image().unwrap();
    assert_eq!(found.uid, moving.volume.image().unwrap().uid);
    assert_ne!(found.pool_uuid, moving.volume.image().unwrap().pool_uuid);
    assert_eq!(status(&moved).fence, None);
    moving.hand_over(&incoming).await;
    moving.reserves(target, size).await;
    let mounted = stage(target, &moved, "after").await;
    assert_eq!(sums(target, &mounted).await, written);
    write(target, &mounted, "more", 1).await;
    unstage(target, &moved, "after").await;
    moving.remove(&retained).await;
    moving.reserves(source, Bytes::ZERO).await;
    for folder in ["images", "closed", "incoming"] {
        assert_eq!(moving.files(source, folder).await, "", "{folder}");
    }
    assert_eq!(moving.files(target, "incoming").await, "");
    source.driver.fsck().await;
    target.driver.fsck().await;
    target.remove(&moved.name_any()).await;
    moving.finish().await;
}

#[tokio::test]
async fn a_move_that_is_undone_gives_the_volume_back_as_it_was() {
    let moving = Moving::new("undone", |_| {}).await;
    let (source, target) = (&moving.source, &moving.target);
    let checksums = moving.written().await;
    let (retained, incoming) = moving.declare().await;
    moving.fenced(FenceState::Closed).await;
    moving.copy(&incoming).await;
    let undone = moving.end(source).await;
    assert_eq!(status(&undone).fence, None);
    moving.remove(&incoming).await;
    moving.remove(&retained).await;
    moving.reserves(target, Bytes::ZERO).await;
    moving.reserves(source, Bytes::mib(320)).await;
    assert_eq!(moving.files(target, "incoming").await, "");
    has_files(source, &undone, &checksums).await;
    source.remove(&undone.name_any()).await;
    moving.finish().await;
}

#[tokio::test]
async fn a_volume_whose_object_is_gone_keeps_its_image_and_is_adopted_open_or_closed() {
    let moving = Moving::new("gone", |_| {}).await;
    let (source, name) = (&moving.source, moving.name());
    let image = moving.volume.image().unwrap().uid.clone();
    let anew = PoolVolume::desired(&name, moving.volume.spec.clone());
    let checksums = moving.written().await;

    // It has not begun to close, and somebody requests the removal of what the node keeps of it.
    let retained = moving.create_replica(ReplicaPurpose::Retained).await;
    source.force_delete(&name).await;
    moving.remove(&retained).await;
    assert_eq!(moving.files(source, "images").await.trim(), image);
    let adopted = source.create_ready(&anew).await;
    assert_eq!(adopted.image().unwrap().uid, image);

    // It is closed for a move, and its replica is released.
    let retained = moving.create_replica(ReplicaPurpose::Retained).await;
    moving.declare_target().await;
    moving.fenced(FenceState::Closed).await;
    source.force_delete(&name).await;
    moving.hand_over(&retained).await;
    assert_eq!(moving.files(source, "closed").await.trim(), image);
    // No object counts it.
    moving.reserves(source, Bytes::mib(320)).await;
    // The same spec has the target: it is closed for that again, until the move is undone.
    let mut anew = anew;
    anew.spec.target = Some(MoveTarget {
        node_name: moving.target.name.clone(),
        move_uid: MOVE.to_owned(),
    });
    source.create(&anew).await;
    moving.fenced(FenceState::Closed).await;
    let adopted = moving.end(source).await;
    assert_eq!(adopted.image().unwrap().uid, image);
    has_files(source, &adopted, &checksums).await;

    // An object that does not name the move may be an old one, and the data on another node.
    moving.declare_target().await;
    moving.fenced(FenceState::Closed).await;
    source.force_delete(&name).await;
    anew.spec.target = None;
    source.create(&anew).await;
    let is_refused = |object: &PoolVolume| {
        let conditions = object.status.iter().flat_map(|it| &it.conditions);
        let mut messages = conditions.map(|it| &it.message);
        messages.any(|it| it.contains("is being moved by the VolumeMove"))
    };
    source.until(&name, "to be refused", is_refused).await;
    assert_eq!(moving.files(source, "closed").await.trim(), image);
    source.force_delete(&name).await;
    anew.spec.cancelled_move_uid = Some(MOVE.to_owned());
    let adopted = source.create_ready(&anew).await;
    assert_eq!(adopted.image().unwrap().uid, image);
    source.remove(&name).await;
    moving.finish().await;
}

#[tokio::test]
async fn a_mark_that_no_status_has_reported_goes_when_the_move_is_undone() {
    let mut moving = Moving::new("unreported", |_| {}).await;
    let image = moving.folder(&moving.source, "images");
    let image = image.join(&moving.volume.image().unwrap().uid);
    // What is left if the node is cut off between the sync of the mark and the write of the status.
    moving.source.driver.kill_node();
    moving.declare_target().await;
    let script = "python3 -c 'import os, sys; os.setxattr(sys.argv[1], \"trusted.cistern.fence\", sys.argv[2].encode())' $1 $2";
    let arguments = [image.to_str().unwrap(), MOVE];
    moving.source.shell(script, &arguments).await;
    let epoch = moving.get().await.spec.epoch + 1;
    moving.patch(json!({"epoch": epoch, "target": null})).await;
    moving.source.driver.start_node().await;

    let source = &moving.source;
    let is_reported = |volume: &PoolVolume| status(volume).epoch == epoch;
    let name = moving.name();
    let undone = source.until(&name, "to be undone", is_reported).await;
    let mounted = stage(source, &undone, "after").await;
    write(source, &mounted, "data", 1).await;
    unstage(source, &undone, "after").await;
    source.remove(&name).await;
    moving.finish().await;
}
