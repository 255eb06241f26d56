//! Snapshots that are restored on another node. The tests act as the operator, which permits the copies.

pub(crate) mod requests;

use cistern_crds::{
    Bytes, ConditionType, FilesystemType, ImageTransfer, ImageTransferSpec, PoolSnapshot,
    PoolVolume, Provisioning, Reason, SourceKind, TransferPurpose, condition,
};
use cistern_e2e::{ControlPlane, driver::Options, eventually};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, PostParams},
};

use crate::{
    Fixture, SOON, has_condition,
    snapshots::{content_source, stage, sums, unstage, write},
    status,
};

fn transfers(node: &Fixture) -> Api<ImageTransfer> {
    Api::all(node.volumes.clone().into_client())
}

/// Permits a copy.
async fn permit(source: &Fixture, snapshot: &PoolSnapshot, target: &Fixture, volume: &PoolVolume) {
    let spec = ImageTransferSpec {
        source_node: source.name.clone(),
        target_node: target.name.clone(),
        snapshot_name: Some(snapshot.name_any()),
        move_uid: None,
        image: snapshot.uid().unwrap(),
        base_image: None,
        volume_name: volume.name_any(),
        purpose: TransferPurpose::Restore,
    };
    let transfer = ImageTransfer::new(&volume.name_any(), spec);
    let api = transfers(target);
    api.create(&PostParams::default(), &transfer).await.unwrap();
}

/// Ends the permission of a copy.
async fn forbid(target: &Fixture, volume: &PoolVolume) {
    let (api, parameters) = (transfers(target), DeleteParams::default());
    api.delete(&volume.name_any(), &parameters).await.unwrap();
}

/// Creates a volume from a snapshot of another node.
async fn restore(
    target: &Fixture,
    (name, size): (&str, Bytes),
    (source, snapshot): (&Fixture, &PoolSnapshot),
    change: impl FnOnce(&mut PoolVolume),
) -> PoolVolume {
    let mut desired = target.desired_volume(name, size);
    let mut content = content_source(snapshot);
    content.node_name = Some(source.name.clone());
    desired.spec.content_source = Some(content);
    change(&mut desired);
    target.create(&desired).await
}

fn waits(reason: Reason) -> impl Fn(&PoolVolume) -> bool {
    has_condition(ConditionType::Ready, "False", reason.as_str())
}

fn is_ready() -> impl Fn(&PoolVolume) -> bool {
    has_condition(ConditionType::Ready, "True", "Reconciled")
}

fn message(volume: &PoolVolume) -> String {
    let conditions = status(volume).conditions;
    let ready = condition::find(&conditions, ConditionType::Ready);
    ready.map_or_else(String::new, |ready| ready.message.clone())
}

/// Names of the copies in the pool of a node.
async fn copies(node: &Fixture) -> String {
    node.shell("ls $0/../incoming 2>/dev/null || true", &[])
        .await
}

async fn no_copies(node: &Fixture) {
    eventually("the copy to be removed", SOON, async || {
        match copies(node).await {
            found if found.is_empty() => Ok(()),
            found => Err(found),
        }
    })
    .await;
}

/// A number among the metrics of a node, without other labels.
pub(crate) async fn total(node: &Fixture, metric: &str) -> u64 {
    let served = node.driver.node().get("/metrics").await.unwrap();
    let series = format!("{metric}{{node=\"{}\"}} ", node.name);
    let value = served.lines().find_map(|line| line.strip_prefix(&series));
    value.unwrap_or_else(|| panic!("{served}")).parse().unwrap()
}

#[tokio::test]
async fn a_snapshot_and_a_volume_of_another_node_are_copied_once_that_is_permitted() {
    let (source, target) = tokio::join!(
        Fixture::start("agent-sends"),
        Fixture::start("agent-receives")
    );
    for (filesystem, is_clone) in [(FilesystemType::Ext4, false), (FilesystemType::Xfs, true)] {
        let mut desired = source.desired_volume("source", Bytes::mib(300));
        desired.spec.filesystem = Some(filesystem);
        let volume = source.create_ready(&desired).await;
        let mounted = stage(&source, &volume, "source").await;
        write(&source, &mounted, "data", 20).await;
        let checksums = sums(&source, &mounted).await;
        let snapshot = source.snapshot("s", &volume).await;
        write(&source, &mounted, "later", 1).await;

        let size = Bytes::mib(320);
        let restored = restore(&target, ("restored", size), (&source, &snapshot), |it| {
            it.spec.filesystem = Some(filesystem);
            it.spec.attributes.provisioning = Provisioning::Thick;
            let content = it.spec.content_source.as_mut().unwrap();
            if is_clone {
                content.kind = SourceKind::Volume;
                content.snapshot_name = Some(content.name.clone());
                content.name = volume.name_any();
            }
        })
        .await;
        let name = restored.name_any();
        let waiting = target.until(&name, "to wait", waits(Reason::Copying)).await;
        let text = message(&waiting);
        assert!(text.contains("has not permitted yet"), "{text}");
        let (metrics, node) = (target.driver.node(), target.name.as_str());
        let waiting = format!("cistern_transfers{{node=\"{node}\",state=\"waiting\"}} 1");
        metrics.shows(&waiting).await;
        let pool = &restored.spec.pool_name;
        let labels = format!("node=\"{node}\",volume=\"{name}\",pool=\"{pool}\"");
        let copied = format!("cistern_volume_copied_bytes{{{labels}}} 0");
        metrics.shows(&copied).await;
        permit(&source, &snapshot, &target, &restored).await;
        let restored = target.until(&name, "to be ready", is_ready()).await;
        assert_eq!(status(&restored).size, Some(size));
        assert_eq!(copies(&target).await, "");
        forbid(&target, &restored).await;
        let waiting = waiting.replace(" 1", " 0");
        metrics.shows(&waiting).await;
        // The snapshot is no longer needed.
        unstage(&source, &volume, "source").await;
        source.remove_snapshots().await;
        source.remove(&volume.name_any()).await;

        let mounted = stage(&target, &restored, "restored").await;
        assert_eq!(sums(&target, &mounted).await, checksums);
        write(&target, &mounted, "own", 1).await;
        unstage(&target, &restored, "restored").await;
        target.remove(&name).await;
    }
    let sent = total(&source, "cistern_transfer_sent_bytes_total").await;
    let received = total(&target, "cistern_transfer_received_bytes_total").await;
    // Two copies with 20 MiB of files each.
    assert!(
        received >= 40 << 20 && sent == received,
        "{sent} {received}"
    );
    source.finish().await;
    target.finish().await;
}

/// A snapshot of a volume of 300 MiB with files of 200 MiB, and their checksums.
async fn snapshot_of_files(source: &Fixture) -> (PoolSnapshot, String) {
    let volume = source.volume("source", Bytes::mib(300)).await;
    let mounted = stage(source, &volume, "source").await;
    write(source, &mounted, "data", 200).await;
    let checksums = sums(source, &mounted).await;
    let snapshot = source.snapshot("s", &volume).await;
    unstage(source, &volume, "source").await;
    (snapshot, checksums)
}

#[tokio::test]
async fn a_copy_that_a_pool_filled_by_others_cannot_hold_refuses_its_volume_and_leaves_nothing() {
    let (source, target) = tokio::join!(
        Fixture::start("agent-full-source"),
        Fixture::start("agent-full-target")
    );
    let (snapshot, checksums) = snapshot_of_files(&source).await;

    target.fill().await;
    let (size, from) = (Bytes::mib(300), (&source, &snapshot));
    let full = restore(&target, ("restored", size), from, |_| {}).await;
    let name = full.name_any();
    permit(&source, &snapshot, &target, &full).await;
    let refused = has_condition(ConditionType::Admitted, "False", "NoSpace");
    let full = target.until(&name, "to be refused", refused).await;
    let found = status(&full);
    assert_eq!((found.reserved, found.size), (None, None));
    assert!(
        message(&full).contains("no space left"),
        "{}",
        message(&full)
    );
    no_copies(&target).await;
    forbid(&target, &full).await;
    target.force_delete(&name).await;

    target.unfill().await;
    let restored = restore(&target, ("restored", size), from, |_| {}).await;
    permit(&source, &snapshot, &target, &restored).await;
    let restored = target.until(&name, "to be ready", is_ready()).await;
    forbid(&target, &restored).await;
    let mounted = stage(&target, &restored, "restored").await;
    assert_eq!(sums(&target, &mounted).await, checksums);
    unstage(&target, &restored, "restored").await;
    target.finish().await;
    source.finish().await;
}

/// Lets the API server select ImageTransfers by their source alone, as an older definition does.
async fn define_as_before(control_plane: &ControlPlane) {
    let api: Api<CustomResourceDefinition> = Api::all(control_plane.client());
    let name = "imagetransfers.cistern.storage";
    let mut definition = api.get(name).await.unwrap();
    let fields = definition.spec.versions[0].selectable_fields.as_mut();
    fields
        .unwrap()
        .retain(|it| it.json_path == ".spec.sourceNode");
    let parameters = PostParams::default();
    api.replace(name, &parameters, &definition).await.unwrap();
    let transfers: Api<ImageTransfer> = Api::all(control_plane.client());
    let selected = ListParams::default().fields("spec.targetNode=none");
    eventually(
        "the new definition to be in force",
        SOON,
        async || match transfers.list(&selected).await {
            Err(kube::Error::Api(refused)) if refused.code == 400 => Ok(()),
            other => Err(format!("{other:?}")),
        },
    )
    .await;
}

#[tokio::test]
async fn a_copy_is_made_also_with_a_definition_that_does_not_select_permissions_by_their_target() {
    let control_plane = ControlPlane::start().await;
    define_as_before(&control_plane).await;
    let (source, target) = tokio::join!(
        Fixture::start_with(&control_plane, "agent-older-source"),
        Fixture::start_with(&control_plane, "agent-older-target")
    );
    let volume = source.volume("source", Bytes::mib(64)).await;
    let snapshot = source.snapshot("s", &volume).await;
    let from = (&source, &snapshot);
    let restored = restore(&target, ("restored", Bytes::mib(64)), from, |_| {}).await;
    let name = restored.name_any();
    target.until(&name, "to wait", waits(Reason::Copying)).await;
    permit(&source, &snapshot, &target, &restored).await;
    target.until(&name, "to be ready", is_ready()).await;
    let log = target.driver.node().process().log();
    let warnings = log.lines().filter(|line| line.contains("are seen late"));
    assert_eq!(warnings.count(), 1, "{log}");
    source.finish().await;
    target.finish().await;
}

/// Bytes per second, of which a copy in a test takes so long that its node is killed before the end, also on a busy machine.
pub(crate) const SLOW: u64 = 4 << 20;

/// A node that sends slowly.
async fn slow(name: &str) -> Fixture {
    let options = Options {
        transfer_rate: SLOW,
        ..Options::default()
    };
    Fixture::start_as(ControlPlane::shared().await, name, options).await
}

#[tokio::test]
async fn a_copy_goes_on_after_each_of_its_nodes_was_killed_and_reports_its_progress() {
    let (mut source, mut target) = tokio::join!(
        slow("agent-killed-source"),
        Fixture::start("agent-killed-target")
    );
    let (snapshot, checksums) = snapshot_of_files(&source).await;

    let size = Bytes::mib(300);
    let from = (&source, &snapshot);
    let restored = restore(&target, ("restored", size), from, |_| {}).await;
    permit(&source, &snapshot, &target, &restored).await;
    let name = restored.name_any();
    let progresses = |volume: &PoolVolume| message(volume).contains("about");
    let progressing = target.until(&name, "to be copied", progresses).await;
    let running = format!(
        "cistern_transfers{{node=\"{}\",state=\"running\"}} 1",
        target.name
    );
    target.driver.node().shows(&running).await;
    let text = message(&progressing);
    let begin = format!("snapshot {} of node {}", snapshot.name_any(), source.name);
    assert!(text.starts_with(&begin), "{text}");
    assert!(text.contains(" MiB of data per second, about "), "{text}");

    source.driver.kill_node();
    let stopped = target
        .until(
            &name,
            "to wait for its source",
            waits(Reason::SourceUnreachable),
        )
        .await;
    assert!(
        message(&stopped).contains(&source.name),
        "{}",
        message(&stopped)
    );
    source.driver.start_node().await;
    // It has another key now.
    target.until(&name, "to be copied again", progresses).await;
    target.driver.kill_node();
    target.driver.start_node().await;
    target.until(&name, "to be copied again", progresses).await;

    let restored = target.until(&name, "to be ready", is_ready()).await;
    let mounted = stage(&target, &restored, "restored").await;
    assert_eq!(sums(&target, &mounted).await, checksums);
    unstage(&target, &restored, "restored").await;
    forbid(&target, &restored).await;
    source.finish().await;
    target.finish().await;
}

#[tokio::test]
async fn a_copy_ends_when_its_permission_its_snapshot_or_its_volume_goes() {
    let (source, target) = tokio::join!(
        slow("agent-ending-source"),
        Fixture::start("agent-ending-target")
    );
    let (snapshot, _) = snapshot_of_files(&source).await;
    let progresses = |volume: &PoolVolume| message(volume).contains("about");

    let begin = async |name: &str| {
        let from = (&source, &snapshot);
        let restored = restore(&target, (name, Bytes::mib(300)), from, |_| {}).await;
        permit(&source, &snapshot, &target, &restored).await;
        target
            .until(&restored.name_any(), "to be copied", progresses)
            .await
    };
    let first = begin("first").await;
    forbid(&target, &first).await;
    let name = first.name_any();
    let stopped = |volume: &PoolVolume| !message(volume).contains("about");
    target.until(&name, "to be stopped", stopped).await;
    assert_ne!(copies(&target).await, "");
    target.remove(&name).await;
    assert_eq!(copies(&target).await, "");

    let second = begin("second").await;
    target.remove(&second.name_any()).await;
    no_copies(&target).await;
    forbid(&target, &second).await;

    // Somebody removes the finalizer of the volume.
    let gone = begin("gone").await;
    forbid(&target, &gone).await;
    target
        .until(&gone.name_any(), "to be stopped", stopped)
        .await;
    target.force_delete(&gone.name_any()).await;
    no_copies(&target).await;

    let third = begin("third").await;
    forbid(&target, &third).await;
    target
        .until(&third.name_any(), "to be stopped", stopped)
        .await;
    source.remove_snapshots().await;
    let refused = has_condition(ConditionType::Admitted, "False", "SourceMissing");
    target
        .until(&third.name_any(), "to be refused", refused)
        .await;
    assert_eq!(copies(&target).await, "");
    target.force_delete(&third.name_any()).await;
    source.finish().await;
    target.finish().await;
}
