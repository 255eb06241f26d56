//! VCO, CLH, CGH, NVH, NSH: the health of volumes and pools, in the older and the newer calls of CSI.

use std::{collections::BTreeSet, time::Duration};

use cistern_crds::{StorageNode, StorageNodeSpec};
use cistern_e2e::{ControlPlane, eventually};
use cistern_proto::csi::v1::{
    ControllerGetVolumeHealthRequest, ControllerGetVolumeRequest,
    ControllerListVolumeHealthRequest, ControllerListVolumeHealthResponse, DeleteVolumeRequest,
    NodeGetStorageHealthRequest, NodeGetVolumeHealthRequest, NodeGetVolumeStatsRequest,
    VolumeCondition, VolumeHealth, VolumeHealthErrorType, volume_capability::access_mode::Mode,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tonic::{Code, Status};

use crate::{
    POOL, SIZE, code, controller, create, create_request, delete,
    list::{self, get},
    mounted, objects, raw, shared,
    volume::{Volume, kinds},
};

/// How long the watch of the controller may lag behind.
const SOON: Duration = Duration::from_mins(2);

const SLOW: (&str, &str) = ("Degraded", "FilesystemErrors");
const GONE: (&str, &str) = ("Inaccessible", "PoolNotReady");
const LOST: (&str, &str) = ("DataLoss", "ImageDeleted");

/// Creates a volume on a node without an agent: the test writes its status.
async fn add(name: &str, problems: &[(&str, &str)]) {
    let nodes: Api<StorageNode> = Api::all(ControlPlane::shared().await.client());
    let node = StorageNode::new(&format!("node-of-{name}"), StorageNodeSpec::default());
    nodes.create(&PostParams::default(), &node).await.unwrap();
    let object = json!({
        "apiVersion": "cistern.storage/v1alpha1",
        "kind": "PoolVolume",
        "metadata": {"name": name},
        "spec": {
            "requestedName": name,
            "nodeName": format!("node-of-{name}"),
            "poolName": POOL,
            "size": "1Gi",
            "accessType": "Filesystem",
            "filesystem": "ext4",
            "accessModes": ["SingleNodeWriter"],
            "attributes": {"provisioning": "Thin"},
        },
    });
    let object = serde_json::from_value(object).unwrap();
    let objects = objects().await;
    objects
        .create(&PostParams::default(), &object)
        .await
        .unwrap();
    let image = json!({"uid": name, "poolUuid": "of-the-pool", "sectorSize": 4096});
    write_status(
        name,
        json!({"size": "1Gi", "reserved": "1Gi", "image": image}),
    )
    .await;
    eventually(&format!("{name} to be listed"), SOON, async || {
        let listed = list::all().await;
        let is_listed = listed.iter().any(|volume| volume.volume_id == name);
        is_listed.then_some(()).ok_or_else(|| format!("{listed:?}"))
    })
    .await;
    set_problems(name, problems).await;
}

/// Changes a volume's status.
async fn write_status(name: &str, status: Value) {
    let patch = Patch::Merge(json!({"status": status}));
    let parameters = PatchParams::default();
    let objects = objects().await;
    objects
        .patch_status(name, &parameters, &patch)
        .await
        .unwrap();
}

/// Sets the problems of a volume, and waits until the controller lists them.
async fn set_problems(name: &str, problems: &[(&str, &str)]) {
    let problem = |(severity, reason): &(&str, &str)| {
        json!({
            "severity": severity,
            "reason": reason,
            "message": format!("it is {reason}, {}", "as the node sees it ".repeat(10)),
            "since": "2026-01-01T00:00:00Z",
        })
    };
    let reported: Vec<Value> = problems.iter().map(problem).collect();
    write_status(name, json!({"problems": reported})).await;
    let what = format!("{name} to be listed with {} problems", problems.len());
    eventually(&what, SOON, async || {
        let listed = all()
            .await
            .into_iter()
            .find(|health| health.volume_id == name);
        let count = listed.map_or(0, |health| health.health_statuses.len());
        (count == problems.len())
            .then_some(())
            .ok_or_else(|| count.to_string())
    })
    .await;
}

async fn remove(name: &str) {
    let objects = objects().await;
    objects
        .delete(name, &DeleteParams::default())
        .await
        .unwrap();
}

async fn page(
    max_entries: i32,
    starting_token: &str,
) -> Result<ControllerListVolumeHealthResponse, Status> {
    let request = ControllerListVolumeHealthRequest {
        max_entries,
        starting_token: starting_token.to_owned(),
        ..ControllerListVolumeHealthRequest::default()
    };
    let mut client = controller().await;
    let answer = client.controller_list_volume_health(request).await?;
    Ok(answer.into_inner())
}

/// Every volume that has a problem.
async fn all() -> Vec<VolumeHealth> {
    page(0, "").await.unwrap().entries
}

/// The health of one volume, from the controller.
async fn health(id: &str) -> Result<VolumeHealth, Status> {
    let request = ControllerGetVolumeHealthRequest {
        volume_id: id.to_owned(),
        ..ControllerGetVolumeHealthRequest::default()
    };
    let answer = controller()
        .await
        .controller_get_volume_health(request)
        .await?;
    Ok(answer.into_inner().volume_health.unwrap())
}

/// The health of one volume, from its node.
async fn on_node(id: &str, staging: &str, published: &str) -> Result<VolumeHealth, Status> {
    let request = NodeGetVolumeHealthRequest {
        volume_id: id.to_owned(),
        staging_target_path: staging.to_owned(),
        volume_publish_path: published.to_owned(),
    };
    let mut client = shared().await.node_client().await;
    let answer = client.node_get_volume_health(request).await?;
    Ok(answer.into_inner().volume_health.unwrap())
}

/// Type and reason of each entry. Also checks that every entry is complete.
fn entries(health: &VolumeHealth) -> Vec<(VolumeHealthErrorType, &str)> {
    let entries = health.health_statuses.iter();
    let keys = entries.map(|entry| {
        assert_ne!(
            entry.status(),
            VolumeHealthErrorType::UnknownVolumeHealthType
        );
        assert!(
            entry
                .reason
                .starts_with(|first: char| first.is_ascii_uppercase())
        );
        assert!(entry.reason.chars().all(|c| c.is_ascii_alphanumeric()));
        assert!((1..=128).contains(&entry.message.len()), "{entry:?}");
        (entry.status(), entry.reason.as_str())
    });
    keys.collect()
}

fn checked(condition: Option<VolumeCondition>) -> bool {
    let VolumeCondition { abnormal, message } = condition.unwrap();
    assert!((1..=128).contains(&message.len()), "{message}");
    abnormal
}

/// Whether a volume is abnormal, in both controller calls that report it.
async fn is_abnormal(id: &str) -> [bool; 2] {
    let found = get(id).await.unwrap().status.unwrap();
    let entries = list::page(&mut controller().await, 0, "")
        .await
        .unwrap()
        .entries;
    let listed = entries
        .into_iter()
        .find(|entry| entry.volume.as_ref().unwrap().volume_id == id);
    let listed = listed.unwrap().status.unwrap();
    [
        checked(found.volume_condition),
        checked(listed.volume_condition),
    ]
}

// Shows: FLD-01, VCO-04.
#[tokio::test]
async fn vco_01_vco_02_lv_10_cgv_06_the_controller_reports_the_condition_of_each_volume() {
    create(create_request("in-order")).await.unwrap();
    assert_eq!(is_abnormal("in-order").await, [false; 2]);
    delete("in-order").await.unwrap();
    add("out-of-order", &[]).await;
    assert_eq!(is_abnormal("out-of-order").await, [false; 2]);
    set_problems("out-of-order", &[SLOW]).await;
    assert_eq!(is_abnormal("out-of-order").await, [true; 2]);
    set_problems("out-of-order", &[]).await;
    assert_eq!(is_abnormal("out-of-order").await, [false; 2]);
    remove("out-of-order").await;
}

#[tokio::test]
async fn vco_03_a_volume_on_a_node_without_an_agent_is_abnormal_only_to_the_controller() {
    let driver = crate::start("node-unheard", "unheard").await;
    let mut client = driver.controller_client().await;
    let mut request = create_request("unheard");
    request.parameters = crate::map(&[("pool", "unheard")]);
    client.create_volume(request).await.unwrap();
    // The condition that the operator writes for a node without an agent pod.
    let healthy = json!({
        "type": "Healthy",
        "status": "Unknown",
        "reason": "AgentMissing",
        "message": "no agent has reported its pools for an hour",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let nodes: Api<StorageNode> = Api::all(ControlPlane::shared().await.client());
    let patch = Patch::Merge(json!({"status": {"conditions": [healthy]}}));
    let parameters = PatchParams::default();
    nodes
        .patch_status("node-unheard", &parameters, &patch)
        .await
        .unwrap();
    eventually("the volume to be abnormal", SOON, async || {
        let request = ControllerGetVolumeRequest {
            volume_id: "unheard".to_owned(),
        };
        let found = client.clone().controller_get_volume(request).await.unwrap();
        let condition = found.into_inner().status.unwrap().volume_condition;
        checked(condition.clone())
            .then_some(())
            .ok_or_else(|| format!("{condition:?}"))
    })
    .await;
    let request = NodeGetVolumeHealthRequest {
        volume_id: "unheard".to_owned(),
        ..NodeGetVolumeHealthRequest::default()
    };
    let mut node = driver.node_client().await;
    let seen = node.node_get_volume_health(request).await.unwrap();
    assert_eq!(entries(&seen.into_inner().volume_health.unwrap()), []);
    let request = DeleteVolumeRequest {
        volume_id: "unheard".to_owned(),
        ..Default::default()
    };
    client.delete_volume(request).await.unwrap();
    driver.finish().await;
}

#[tokio::test]
async fn clh_01_clh_02_clh_07_the_pages_list_each_unhealthy_volume_and_no_other() {
    let names = ["unhealthy-1", "unhealthy-3", "unhealthy-4"];
    for name in names {
        add(name, &[SLOW]).await;
    }
    add("unhealthy-2-not", &[]).await;
    for most in 1..4 {
        let (mut found, mut token) = (Vec::new(), String::new());
        loop {
            let page = page(most, &token).await.unwrap();
            assert!(page.entries.len() <= usize::try_from(most).unwrap());
            assert!(page.next_token.len() <= 128);
            token.clone_from(&page.next_token);
            found.extend(page.entries.into_iter().map(|health| health.volume_id));
            if token.is_empty() {
                break;
            }
        }
        // Other tests have unhealthy volumes, too.
        found.retain(|name| name.starts_with("unhealthy-"));
        assert_eq!(found, names, "{most} a page");
    }
    for name in names.into_iter().chain(["unhealthy-2-not"]) {
        remove(name).await;
    }
}

#[tokio::test]
async fn clh_02_clh_03_fld_11_illegal_pagination_fields_are_refused() {
    assert_eq!(code(&page(-1, "").await), Code::InvalidArgument);
    for token in ["invalid-token", "after:", "after:../x", &"x".repeat(5000)] {
        assert_eq!(code(&page(1, token).await), Code::Aborted, "{token}");
    }
}

// Shows: CLH-05, CLH-06.
#[tokio::test]
async fn clh_04_to_clh_08_each_problem_is_reported_once_for_as_long_as_it_lasts() {
    use VolumeHealthErrorType::{DataLoss, Degraded};
    let reported = async || {
        let all = all().await.into_iter();
        let mut own = all.filter(|health| health.volume_id == "lasting");
        let health = own.next();
        assert_eq!(own.next(), None, "listed once");
        let listed = health.as_ref().map_or(Vec::new(), entries);
        let distinct: BTreeSet<_> = listed
            .iter()
            .map(|(kind, reason)| (*kind as i32, *reason))
            .collect();
        assert_eq!(distinct.len(), listed.len(), "CLH-05");
        let owned = listed
            .iter()
            .map(|(kind, reason)| (*kind, (*reason).to_owned()));
        owned.collect::<Vec<_>>()
    };
    add("lasting", &[SLOW]).await;
    let (old, new) = (
        (Degraded, "FilesystemErrors".to_owned()),
        (DataLoss, "ImageDeleted".to_owned()),
    );
    assert_eq!(reported().await.as_slice(), std::slice::from_ref(&old));
    set_problems("lasting", &[SLOW, LOST]).await;
    assert_eq!(reported().await, [old, new.clone()], "CLH-06");
    set_problems("lasting", &[LOST]).await;
    assert_eq!(reported().await, [new]);
    set_problems("lasting", &[]).await;
    assert_eq!(reported().await, [], "CLH-08");
    remove("lasting").await;
}

// Shows: CGH-02, CGH-03, CGH-04.
#[tokio::test]
async fn cgh_01_to_cgh_05_the_controller_reports_the_health_of_the_requested_volume_only() {
    assert_eq!(code(&health("").await), Code::InvalidArgument);
    for unknown in ["nobody-made-it", "../poolvolumes"] {
        assert_eq!(code(&health(unknown).await), Code::NotFound, "{unknown}");
    }
    add("asked-for", &[]).await;
    let healthy = health("asked-for").await.unwrap();
    assert_eq!(
        (healthy.volume_id.as_str(), entries(&healthy)),
        ("asked-for", vec![])
    );
    set_problems("asked-for", &[GONE]).await;
    let unhealthy = health("asked-for").await.unwrap();
    assert_eq!(unhealthy.volume_id, "asked-for");
    let expected = [(VolumeHealthErrorType::Inaccessible, "PoolNotReady")];
    assert_eq!(entries(&unhealthy), expected);
    remove("asked-for").await;
}

#[tokio::test]
async fn nvh_01_nvh_02_nvh_03_nvh_04_nvh_06_nvh_07_a_node_reports_the_health_of_its_own_volumes_only()
 {
    assert_eq!(code(&on_node("", "", "").await), Code::InvalidArgument);
    add("of-another-node", &[]).await;
    for unknown in ["nobody-made-it", "../poolvolumes", "of-another-node"] {
        let answer = on_node(unknown, "", "").await;
        assert_eq!(code(&answer), Code::NotFound, "{unknown}");
    }
    remove("of-another-node").await;
    for (kind, capability, size) in kinds() {
        let volume = Volume::new(&format!("asked-{kind}"), capability, size).await;
        let healthy = on_node(&volume.id, "", "").await.unwrap();
        assert_eq!(healthy.volume_id, volume.id);
        assert_eq!(entries(&healthy), [], "never staged");
        volume.use_at("target").await;
        let (staging, target) = (volume.path("staging"), volume.path("target"));
        let healthy = on_node(&volume.id, &staging, &target).await.unwrap();
        assert_eq!(entries(&healthy), [], "{kind}");
        for (staging, target) in [("relative", ""), ("", "some/path"), ("/a/../b", "")] {
            let answer = on_node(&volume.id, staging, target).await;
            assert_eq!(code(&answer), Code::InvalidArgument, "{staging}{target}");
        }
        let long = format!("/{}", "long/".repeat(800));
        assert_eq!(code(&on_node(&volume.id, &long, "").await), Code::Ok);
        volume.end_use_at("target").await;
    }
}

#[tokio::test]
async fn nvh_05_a_volume_that_could_not_be_staged_has_its_health_reported() {
    let volume = Volume::new("unstaged", mounted("", Mode::SingleNodeWriter), SIZE).await;
    let mut request = volume.stage_request();
    request.staging_target_path = volume.path("no-such-folder");
    assert_ne!(code(&volume.stage_as(request).await), Code::Ok);
    let staging = volume.path("no-such-folder");
    let unhealthy = on_node(&volume.id, &staging, "").await.unwrap();
    let expected = [(VolumeHealthErrorType::Inaccessible, "MountMissing")];
    assert_eq!(entries(&unhealthy), expected);
    volume.end().await;
}

// Shows: VCO-01, VCO-04.
#[tokio::test]
async fn vco_02_ngs_07_the_statistics_of_a_volume_include_its_condition() {
    for (kind, capability, size) in kinds() {
        let volume = Volume::new(&format!("condition-{kind}"), capability, size).await;
        volume.use_at("target").await;
        for path in ["staging", "target"] {
            let request = NodeGetVolumeStatsRequest {
                volume_id: volume.id.clone(),
                volume_path: volume.path(path),
                ..NodeGetVolumeStatsRequest::default()
            };
            let mut client = shared().await.node_client().await;
            let answer = client.node_get_volume_stats(request).await.unwrap();
            assert!(!checked(answer.into_inner().volume_condition), "{kind}");
        }
        volume.end_use_at("target").await;
    }
}

#[tokio::test]
async fn nsh_01_nsh_04_nsh_05_a_node_with_healthy_pools_reports_no_problem() {
    let driver = shared().await;
    let mut client = driver.node_client().await;
    let request = NodeGetStorageHealthRequest::default();
    let answer = client.node_get_storage_health(request).await.unwrap();
    assert_eq!(answer.into_inner().backend_health, []);
    // Only the request itself can be invalid.
    let channel = driver.node().channel().await;
    let method = "Node/NodeGetStorageHealth";
    let malformed: &[u8] = b"\xff\xff\xff";
    let failed = raw::call(&channel, method, malformed).await;
    assert_ne!(code(&failed), Code::Ok);
}
