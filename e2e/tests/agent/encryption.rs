//! Encrypted volumes, as kubelet uses them. They need device-mapper, which the virtual machine has.

mod keys;

use cistern_crds::{
    AccessType, Bytes, ConditionType, Encryption, FilesystemType, PoolVolume, PoolVolumeSpec,
    Provisioning, condition,
};
use cistern_e2e::requests::create_volume;
use cistern_proto::csi::v1::{
    CreateSnapshotRequest, CreateVolumeRequest, Volume, VolumeContentSource,
    volume_content_source::{self, SnapshotSource},
};
use kube::ResourceExt as _;
use serde_json::json;
use tonic::{Code, Status};

use crate::{
    Fixture, has_condition,
    node_service::{KubeletVolume, capability, code, repeated, text},
    search::found_below,
    status,
};

const SIZE: Bytes = Bytes::mib(64);
/// Keys that must be found nowhere.
pub(crate) const FIRST: &str = "canary-first-key-with-more-than-32-bytes";
pub(crate) const SECOND: &str = "canary-second-key-with-more-than-32-bytes";
/// What the pod writes, which must not be on the disk.
pub(crate) const DATA: &str = "canary-of-a-tenant";

impl Fixture {
    async fn encrypted_volume(&self, volume: &str, spec: PoolVolumeSpec) -> PoolVolume {
        let mut desired = self.desired_volume(volume, SIZE);
        desired.spec = PoolVolumeSpec {
            encryption: Some(Encryption::Luks2),
            ..spec
        };
        self.create_ready(&desired).await
    }

    fn ext4(&self, volume: &str) -> PoolVolumeSpec {
        self.desired_volume(volume, SIZE).spec
    }

    /// Fails if an image or a log of a process has a text.
    pub(crate) fn has_nowhere(&self, text: &str) {
        let found = found_below(&self.seen_on_node(&self.images()), text.as_bytes());
        assert!(found.is_empty(), "{text}: {found:?}");
        for service in [self.driver.node(), self.driver.controller()] {
            assert!(!service.process().log().contains(text), "{text}");
        }
    }
}

/// A volume with the Secret of its class.
pub(crate) fn with_keys<'a>(
    node: &'a Fixture,
    object: &PoolVolume,
    staging: &str,
    keys: &[(&str, &str)],
) -> KubeletVolume<'a> {
    let mut kubelet = KubeletVolume::at(node, object, staging);
    let keys = keys.iter();
    kubelet.secrets = keys
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect();
    kubelet
}

/// Creates a volume at the controller, and repeats the call while the agent has not made it.
async fn create_at_controller(
    node: &Fixture,
    request: CreateVolumeRequest,
) -> Result<Volume, Status> {
    of_controller(async || {
        let mut client = node.driver.controller_client().await;
        let answer = client.create_volume(request.clone()).await?;
        Ok(answer.into_inner().volume.unwrap())
    })
    .await
}

/// Repeats a call of the controller that the agent has not answered within the limit of the call, as the sidecars do.
async fn of_controller<T>(mut call: impl AsyncFnMut() -> Result<T, Status>) -> Result<T, Status> {
    repeated(async || match call().await {
        Err(status) if status.code() == Code::Aborted => {
            Err(Status::deadline_exceeded(status.message()))
        }
        answer => answer,
    })
    .await
}

// Shows: SEC-05: no key is revealed.
#[tokio::test]
#[ignore = "needs device-mapper, which the virtual machine has"]
async fn gen_07_an_encrypted_volume_opens_with_its_key_alone_and_keeps_its_data() {
    let mut node = Fixture::start("agent-encrypted").await;
    let object = node.encrypted_volume("one", node.ext4("one")).await;
    let bytes = SIZE.saturating_add(Encryption::HEADER);
    node.pool_until("to hold the header, too", |pool| pool.reserved == bytes)
        .await;
    for (keys, expected) in [
        (vec![], Code::Unauthenticated),
        (vec![("password", FIRST)], Code::Unauthenticated),
        (vec![("key", "short")], Code::InvalidArgument),
        (vec![("previousKey", FIRST)], Code::InvalidArgument),
    ] {
        let kubelet = with_keys(&node, &object, "staging", &keys);
        let refused = kubelet.stage(&[]).await;
        assert_eq!(code(refused), expected, "{keys:?}");
    }
    {
        let kubelet = with_keys(&node, &object, "staging", &[("key", FIRST)]);
        kubelet.stage(&[]).await.unwrap();
        kubelet.stage(&[]).await.unwrap();
        kubelet.publish("pod", &[], false).await.unwrap();
        let file = text(&kubelet.target("pod").join("file"));
        node.shell("echo $1 >$2 && sync $2", &[DATA, &file]).await;
    }
    node.driver.fsck().await;
    node.has_nowhere(DATA);

    let limits = format!("/proc/{}/limits", node.driver.node().process().id());
    let limits = std::fs::read_to_string(limits).unwrap();
    let core = limits
        .lines()
        .find(|line| line.starts_with("Max core file size"));
    let words: Vec<_> = core.unwrap().split_whitespace().collect();
    // At 0, a program that takes core dumps would get one.
    assert_eq!(words[4..6], ["1", "1"], "a core dump would have the key");

    // The pod keeps its volume while the driver is away, and the driver finds it again.
    node.driver.kill_node();
    node.driver.start_node().await;
    let kubelet = with_keys(&node, &object, "staging", &[("key", FIRST)]);
    kubelet.stage(&[]).await.unwrap();
    let usage = kubelet.statistics(&kubelet.target("pod")).await.unwrap();
    assert!(usage[0].total <= SIZE.to_i64(), "{usage:?}");
    kubelet.unpublish("pod").await.unwrap();
    kubelet.unstage().await.unwrap();

    let wrong = with_keys(&node, &object, "staging", &[("key", SECOND)]);
    assert_eq!(code(wrong.stage(&[]).await), Code::Unauthenticated);
    // Rotation: the new key takes the place of the previous one.
    let keys = [("key", SECOND), ("previousKey", FIRST)];
    let rotated = with_keys(&node, &object, "staging", &keys);
    rotated.stage(&[]).await.unwrap();
    let read = node.shell("cat $1/file", &[&text(&rotated.staging)]).await;
    assert_eq!(read.trim(), DATA);
    rotated.unstage().await.unwrap();
    assert_eq!(code(kubelet.stage(&[]).await), Code::Unauthenticated);
    for secret in [FIRST, SECOND, DATA] {
        node.has_nowhere(secret);
    }
    node.remove(&object.name_any()).await;
    node.finish().await;
}

#[tokio::test]
#[ignore = "needs device-mapper, which the virtual machine has"]
async fn an_encrypted_device_grows_and_a_key_for_a_plain_volume_is_refused() {
    let node = Fixture::start("agent-encrypted-device").await;
    let spec = PoolVolumeSpec {
        access_type: AccessType::Block,
        filesystem: None,
        ..node.ext4("device")
    };
    let object = node.encrypted_volume("device", spec).await;
    let kubelet = with_keys(&node, &object, "staging", &[("key", FIRST)]);
    kubelet.stage(&[]).await.unwrap();
    kubelet.publish("pod", &[], false).await.unwrap();
    let target = text(&kubelet.target("pod"));
    let write = "echo $1 | dd of=$2 conv=notrunc,fsync status=none";
    node.shell(write, &[DATA, &target]).await;
    node.has_nowhere(DATA);

    let grown = Bytes::mib(96);
    node.patch(&object.name_any(), json!({"spec": {"size": grown}}))
        .await;
    let has_grown = |object: &PoolVolume| status(object).size == Some(grown);
    node.until(&object.name_any(), "to grow", has_grown).await;
    let keyless = with_keys(&node, &object, "staging", &[]);
    assert_eq!(code(keyless.expand("pod").await), Code::FailedPrecondition);
    let waits = |object: &PoolVolume| {
        let conditions = &status(object).conditions;
        let expanded = condition::find(conditions, ConditionType::Expanded);
        expanded.is_some_and(|it| it.status == "False" && it.message.contains("has no key"))
    };
    node.until(&object.name_any(), "to say why it is smaller", waits)
        .await;
    kubelet.expand("pod").await.unwrap();
    let size = node.shell("blockdev --getsize64 $1", &[&target]).await;
    assert_eq!(size.trim(), grown.0.to_string());
    let read = node.shell("head -c 18 $1", &[&target]).await;
    assert_eq!(read.trim(), DATA);
    kubelet.unpublish("pod").await.unwrap();
    kubelet.unstage().await.unwrap();
    node.remove(&object.name_any()).await;

    let plain = node.volume("plain", SIZE).await;
    let plain = with_keys(&node, &plain, "plain", &[("key", FIRST)]);
    let refused = plain.stage(&[]).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("not encrypted"), "{refused}");
    node.finish().await;
}

#[tokio::test]
#[ignore = "needs device-mapper, which the virtual machine has"]
async fn a_snapshot_of_an_encrypted_volume_is_restored_with_the_key_of_the_new_claim() {
    let node = Fixture::start("agent-encrypted-copy").await;
    let class = |name: &str, encryption: Option<&str>| {
        let mut request = create_volume(name, &node.name, Bytes::mib(310));
        let fstype = ("csi.storage.k8s.io/fstype".to_owned(), "xfs".to_owned());
        let encryption = encryption.map(|it| ("encryption".to_owned(), it.to_owned()));
        request
            .parameters
            .extend(encryption.into_iter().chain([fstype]));
        request
    };
    let created = create_at_controller(&node, class("source", Some("luks2"))).await;
    let source = created.unwrap();
    let again = create_at_controller(&node, class("source", None)).await;
    assert_eq!(code(again), Code::AlreadyExists);
    let object = node.get(&source.volume_id).await;
    assert_eq!(object.spec.encryption, Some(Encryption::Luks2));
    assert_eq!(object.spec.filesystem, Some(FilesystemType::Xfs));
    assert_eq!(object.spec.attributes.provisioning, Provisioning::Thin);
    let live = with_keys(&node, &object, "live", &[("key", FIRST)]);
    live.stage(&[]).await.unwrap();
    let file = text(&live.staging.join("file"));
    node.shell("echo $1 >$2 && sync $2", &[DATA, &file]).await;

    let request = CreateSnapshotRequest {
        name: "copy".to_owned(),
        source_volume_id: source.volume_id.clone(),
        ..CreateSnapshotRequest::default()
    };
    let taken = of_controller(async || {
        let mut client = node.driver.controller_client().await;
        client.create_snapshot(request.clone()).await
    });
    let snapshot = taken.await.unwrap().into_inner().snapshot.unwrap();
    let from = |mut request: CreateVolumeRequest| {
        let snapshot_id = snapshot.snapshot_id.clone();
        let source = volume_content_source::Type::Snapshot(SnapshotSource { snapshot_id });
        request.volume_content_source = Some(VolumeContentSource {
            r#type: Some(source),
        });
        request
    };
    let refused = create_at_controller(&node, from(class("plain", None))).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("encryption: luks2"), "{refused}");

    let restored = create_at_controller(&node, from(class("restored", Some("luks2")))).await;
    let restored = restored.unwrap();
    let restored = node.get(&restored.volume_id).await;
    let other = with_keys(&node, &restored, "restored", &[("key", SECOND)]);
    assert_eq!(code(other.stage(&[]).await), Code::Unauthenticated);
    let keys = [("key", SECOND), ("previousKey", FIRST)];
    let own = with_keys(&node, &restored, "restored", &keys);
    own.stage(&[]).await.unwrap();
    let read = node.shell("cat $1/file", &[&text(&own.staging)]).await;
    assert_eq!(read.trim(), DATA);
    let ready = has_condition(ConditionType::Healthy, "True", "Reconciled");
    node.until(&restored.name_any(), "to be healthy", ready)
        .await;
    node.driver.fsck().await;
    own.unstage().await.unwrap();
    other.stage_as(capability(&[])).await.unwrap();
    other.unstage().await.unwrap();
    live.unstage().await.unwrap();
    for secret in [FIRST, SECOND, DATA] {
        node.has_nowhere(secret);
    }
    node.finish().await;
}
