//! CMV: changes of a volume's attributes, with the image on the node as the witness.

use std::time::Duration;

use cistern_crds::{Bytes, Provisioning};
use cistern_e2e::{Driver, eventually};
use cistern_proto::csi::v1::{self, volume_capability::access_mode::Mode};
use kube::Api;
use tonic::{Code, Status};

use crate::{
    SIZE, code, controller, create_request, delete, map, mounted, objects, range, start,
    volume::Volume,
};

fn request(id: &str, parameters: &[(&str, &str)]) -> v1::ControllerModifyVolumeRequest {
    v1::ControllerModifyVolumeRequest {
        volume_id: id.to_owned(),
        mutable_parameters: map(parameters),
        ..v1::ControllerModifyVolumeRequest::default()
    }
}

async fn modify(id: &str, parameters: &[(&str, &str)]) -> Result<(), Status> {
    let request = request(id, parameters);
    let answer = controller().await.controller_modify_volume(request).await;
    answer.map(drop)
}

/// How long a change of the pool's spec may take to be in force.
const SOON: Duration = Duration::from_mins(2);
const THICK: &[(&str, &str)] = &[("provisioning", "thick")];
const THIN: &[(&str, &str)] = &[("provisioning", "thin")];

/// Bytes that are allocated to the volume's image.
async fn allocated(volume: &Volume) -> u64 {
    let script = "echo $(($(stat -c %b \"$1\") * 512))";
    let bytes = volume.shell(script, &[&volume.image()]).await.unwrap();
    bytes.parse().unwrap()
}

/// The provisioning in force, from the volume's custom resource.
async fn provisioning(id: &str) -> Provisioning {
    let object = objects().await.get(id).await.unwrap();
    assert!(object.has_requested_attributes(), "{object:?}");
    object.admitted_attributes().provisioning
}

// Shows: CAP-16, CMV-07, CMV-09, CV-18: the class says thin, and the mutable parameters override it.
#[tokio::test]
async fn cmv_01_cmv_08_a_volume_in_use_becomes_thick_and_thin_again() {
    let mut request = create_request("modified");
    request.parameters.extend(map(THIN));
    request.mutable_parameters = map(THICK);
    request.capacity_range = range(Bytes::mib(64), Bytes::ZERO);
    let volume = Volume::from_request(request.clone()).await;
    let size = Bytes::mib(64).0;
    assert!(allocated(&volume).await >= size);
    assert_eq!(provisioning("modified").await, Provisioning::Thick);

    volume.use_at("target").await;
    volume.write("target", "kept").await.unwrap();
    for _ in 0..2 {
        modify("modified", THIN).await.unwrap();
        assert_eq!(provisioning("modified").await, Provisioning::Thin);
    }
    // The repeated calls of kubelet find what they mounted before.
    volume.use_at("target").await;
    volume.shell("fstrim target", &[]).await.unwrap();
    assert!(allocated(&volume).await < size, "the trim freed no block");
    for _ in 0..2 {
        modify("modified", THICK).await.unwrap();
        assert!(allocated(&volume).await >= size);
    }
    let kept = volume.shell("cat target/file", &[]).await.unwrap();
    assert_eq!(kept, "kept");
    let again = crate::create(request).await.unwrap();
    assert_eq!(
        (again.volume_id, again.volume_context),
        (volume.id.clone(), volume.context.clone())
    );
    assert_eq!(again.capacity_bytes, Bytes::mib(64).to_i64());
    volume.unpublish("target").await.unwrap();
    volume.unstage().await.unwrap();
    volume.end().await;
}

#[tokio::test]
async fn cmv_06_cmv_09_a_change_of_one_parameter_leaves_the_others_and_the_volume_as_they_are() {
    let mut request = create_request("partly-modified");
    request.parameters.extend(map(&[("readIOPS", "500")]));
    request.mutable_parameters = map(&[("writeIOPS", "300")]);
    let volume = Volume::from_request(request).await;
    let before = objects().await.get("partly-modified").await.unwrap();
    modify("partly-modified", &[("writeBytesPerSecond", "10Mi")])
        .await
        .unwrap();
    modify("partly-modified", &[("readIOPS", "unlimited")])
        .await
        .unwrap();
    let after = objects().await.get("partly-modified").await.unwrap();
    let attributes = after.admitted_attributes().to_string();
    assert_eq!(
        attributes,
        "provisioning: thin, writeIOPS: 300, writeBytesPerSecond: 10Mi"
    );
    modify(
        "partly-modified",
        &[
            ("writeIOPS", "unlimited"),
            ("writeBytesPerSecond", "unlimited"),
        ],
    )
    .await
    .unwrap();
    let unlimited = objects().await.get("partly-modified").await.unwrap();
    assert!(unlimited.admitted_attributes().io_limits.is_none());
    let mut expected = before.spec;
    expected.attributes = after.spec.attributes;
    assert_eq!(after.spec, expected);
    volume.end().await;
}

// Shows: CMV-02, CMV-03, CMV-04, CMV-06, SAN-08.
#[tokio::test]
async fn cmv_05_an_invalid_change_is_refused_and_changes_nothing() {
    let volume = Volume::new("unmodified", mounted("", Mode::SingleNodeWriter), SIZE).await;
    let before = objects().await.get("unmodified").await.unwrap();
    for (row, id, parameters, expected) in [
        ("CMV-02", "", THICK, Code::InvalidArgument),
        ("CMV-03", "unmodified", &[][..], Code::InvalidArgument),
        ("CMV-04", "unknown", THICK, Code::NotFound),
        ("SAN-08", "unknown", &[], Code::NotFound),
        (
            "CMV-05",
            "unmodified",
            &[("provisioning", "thick"), ("bogus", "x")],
            Code::InvalidArgument,
        ),
        (
            "CMV-05",
            "unmodified",
            &[("provisioning", "fat")],
            Code::InvalidArgument,
        ),
        (
            "CMV-05",
            "unmodified",
            &[("pool", "requirements")],
            Code::InvalidArgument,
        ),
    ] {
        let answer = modify(id, parameters).await;
        assert_eq!(code(&answer), expected, "{row}: {answer:?}");
    }
    let after = objects().await.get("unmodified").await.unwrap();
    assert_eq!(after.spec, before.spec);
    volume.end().await;
}

/// Changes the attributes of a volume of a driver of the test's own.
async fn modify_at(driver: &Driver, id: &str, parameters: &[(&str, &str)]) -> Result<(), Status> {
    let mut client = driver.controller_client().await;
    let answer = client
        .controller_modify_volume(request(id, parameters))
        .await;
    answer.map(drop)
}

async fn create_at(driver: &Driver, id: &str, pool: &str, size: Bytes) -> Result<(), Status> {
    let mut request = create_request(id);
    request.parameters = map(&[("pool", pool)]);
    request.capacity_range = range(size, Bytes::ZERO);
    let mut client = driver.controller_client().await;
    client.create_volume(request).await.map(drop)
}

async fn delete_at(driver: &Driver, id: &str) {
    let request = v1::DeleteVolumeRequest {
        volume_id: id.to_owned(),
        ..v1::DeleteVolumeRequest::default()
    };
    let mut client = driver.controller_client().await;
    client.delete_volume(request).await.unwrap();
}

#[tokio::test]
async fn cmv_05_a_pool_that_cannot_guarantee_the_blocks_refuses_thick_and_leaves_nothing() {
    let driver = start("node-of-modify-refused", "modify-refused").await;
    let mut pools = driver.storage_node().await.spec.pools;
    pools[0].overcommit_percent = 200;
    driver.set_pools(pools.clone()).await;
    let (one, other) = (Bytes::mib(640), Bytes::mib(512));
    create_at(&driver, "refused-1", "modify-refused", one)
        .await
        .unwrap();
    eventually("the percentage to make room", SOON, async || {
        let created = create_at(&driver, "refused-2", "modify-refused", other).await;
        created.map_err(|status| status.to_string())
    })
    .await;
    let overcommitted = modify_at(&driver, "refused-1", THICK).await.unwrap_err();
    assert_eq!(overcommitted.code(), Code::InvalidArgument);
    assert!(
        overcommitted.message().contains("thin volumes only"),
        "{overcommitted}"
    );

    // The pool reserves more than it has, which a lower percentage does not change.
    pools[0].overcommit_percent = 100;
    driver.set_pools(pools).await;
    let lacking = eventually(
        "the percentage to be in force",
        SOON,
        async || match modify_at(&driver, "refused-1", THICK).await {
            Err(status) if status.code() == Code::OutOfRange => Ok(status),
            answer => Err(format!("{answer:?}")),
        },
    )
    .await;
    assert!(lacking.message().contains("the pool lacks"), "{lacking}");
    let objects: Api<cistern_crds::PoolVolume> = objects().await;
    let object = objects.get("refused-1").await.unwrap();
    assert_eq!(object.spec.attributes.provisioning, Provisioning::Thin);
    assert_eq!(
        object.admitted_attributes().provisioning,
        Provisioning::Thin
    );

    delete_at(&driver, "refused-2").await;
    modify_at(&driver, "refused-1", THICK).await.unwrap();
    assert_eq!(provisioning("refused-1").await, Provisioning::Thick);
    delete_at(&driver, "refused-1").await;
    driver.finish().await;
}

#[tokio::test]
async fn cmv_10_a_change_survives_restarts_and_is_completed_after_one() {
    let mut driver = start("node-of-modify-restart", "modify-restart").await;
    create_at(&driver, "restarted", "modify-restart", Bytes::mib(64))
        .await
        .unwrap();
    driver.stop_node().await;
    // The node is away: the change is recorded in the spec, and completed when the node is back.
    let waiting = modify_at(&driver, "restarted", THICK).await.unwrap_err();
    let is_final =
        ![Code::Aborted, Code::DeadlineExceeded, Code::Unavailable].contains(&waiting.code());
    assert!(!is_final, "{waiting}");
    driver.start_node().await;
    modify_at(&driver, "restarted", THICK).await.unwrap();
    driver.restart_node().await;
    driver.restart_controller().await;
    modify_at(&driver, "restarted", THICK).await.unwrap();
    assert_eq!(provisioning("restarted").await, Provisioning::Thick);
    delete_at(&driver, "restarted").await;
    driver.finish().await;
}

#[tokio::test]
async fn concurrent_changes_of_one_volume_end_in_one_of_them() {
    let volume = Volume::new("contended", mounted("", Mode::SingleNodeWriter), SIZE).await;
    let calls = (0..6).map(|number| {
        let parameters = if number % 2 == 0 { THICK } else { THIN };
        modify("contended", parameters)
    });
    for answer in futures::future::join_all(calls).await {
        assert!(
            [Code::Ok, Code::Aborted].contains(&code(&answer)),
            "{answer:?}"
        );
    }
    modify("contended", THICK).await.unwrap();
    assert_eq!(provisioning("contended").await, Provisioning::Thick);
    modify("contended", THIN).await.unwrap();
    delete("contended").await.unwrap();
    drop(volume);
}
