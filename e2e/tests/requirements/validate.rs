//! VVC: ValidateVolumeCapabilities.

use cistern_proto::csi::v1::{
    ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse,
    volume_capability::access_mode::Mode,
};
use tonic::{Code, Status};

use crate::{POOL, block, code, controller, create, create_request, delete, map, mounted, objects};

type Change = fn(&mut ValidateVolumeCapabilitiesRequest);

/// Validates the capability of the tests' volumes, or what the change requests.
pub(crate) async fn ask(
    id: &str,
    change: impl FnOnce(&mut ValidateVolumeCapabilitiesRequest),
) -> Result<ValidateVolumeCapabilitiesResponse, Status> {
    let mut request = ValidateVolumeCapabilitiesRequest {
        volume_id: id.to_owned(),
        volume_capabilities: vec![mounted("", Mode::SingleNodeWriter)],
        ..ValidateVolumeCapabilitiesRequest::default()
    };
    change(&mut request);
    let answer = controller()
        .await
        .validate_volume_capabilities(request)
        .await?;
    Ok(answer.into_inner())
}

// Shows: GEN-04, FLD-07.
// Shows: VCP-01.
#[tokio::test]
async fn vvc_02_vvc_03_vvc_04_a_malformed_request_is_an_error_and_an_unknown_volume_is_not_found() {
    let rows: &[(&str, &str, Change, Code)] = &[
        ("VVC-02", "", |_| {}, Code::InvalidArgument),
        (
            "VVC-03",
            "unknown",
            |r| r.volume_capabilities.clear(),
            Code::InvalidArgument,
        ),
        (
            "VCP-01",
            "unknown",
            |r| r.volume_capabilities[0].access_type = None,
            Code::InvalidArgument,
        ),
        (
            "VCP-01",
            "unknown",
            |r| r.volume_capabilities[0].access_mode = None,
            Code::InvalidArgument,
        ),
        ("VVC-04", "unknown", |_| {}, Code::NotFound),
        ("VVC-04", "../nodes", |_| {}, Code::NotFound),
        (
            "VVC-04",
            "unknown",
            |r| r.volume_capabilities = vec![mounted("", Mode::MultiNodeMultiWriter)],
            Code::NotFound,
        ),
    ];
    for (ids, id, change, expected) in rows {
        assert_eq!(code(&ask(id, change).await), *expected, "{ids}");
    }
}

// Shows: VVC-06, VVC-11.
#[tokio::test]
async fn vvc_05_vvc_07_vvc_09_vvc_10_supported_capabilities_are_confirmed_and_others_explained() {
    create(create_request("asked")).await.unwrap();
    let confirmed: &[Change] = &[
        |_| {},
        |r| r.volume_capabilities = vec![mounted("ext4", Mode::SingleNodeWriter); 2],
        |r| r.parameters = map(&[("pool", POOL), ("csi.storage.k8s.io/pvc/name", "x")]),
        |r| r.volume_context = map(&[("storage.kubernetes.io/csiProvisionerIdentity", "x")]),
        |r| r.secrets = map(&[("password", "x")]),
    ];
    for (row, change) in confirmed.iter().enumerate() {
        let mut asked = Vec::new();
        let answer = ask("asked", |request| {
            change(request);
            asked.clone_from(&request.volume_capabilities);
        });
        let confirmed = answer
            .await
            .unwrap()
            .confirmed
            .unwrap_or_else(|| panic!("row {row}"));
        assert_eq!(confirmed.volume_capabilities, asked, "row {row}");
        assert!(
            confirmed.parameters.keys().all(|key| key == "pool"),
            "row {row}"
        );
        assert!(confirmed.volume_context.is_empty(), "row {row}");
    }
    let denied: &[Change] = &[
        |r| {
            r.volume_capabilities
                .push(mounted("", Mode::MultiNodeMultiWriter))
        },
        |r| r.volume_capabilities = vec![mounted("xfs", Mode::SingleNodeWriter)],
        |r| r.volume_capabilities.push(block()),
        |r| r.parameters = map(&[("pool", "another")]),
        |r| r.parameters = map(&[("pool", POOL), ("bogus", "x")]),
        |r| r.mutable_parameters = map(&[("iops", "1")]),
    ];
    for (row, change) in denied.iter().enumerate() {
        let answer = ask("asked", change).await.unwrap();
        assert_eq!(answer.confirmed, None, "row {row}");
        assert!((1..=128).contains(&answer.message.len()), "row {row}");
    }
    delete("asked").await.unwrap();
}

// Shows: CON-03.
#[tokio::test]
async fn vvc_08_validation_changes_nothing() {
    create(create_request("unchanged")).await.unwrap();
    let version = async || {
        let object = objects().await.get("unchanged").await.unwrap();
        object.metadata.resource_version
    };
    let (before, answer) = (version().await, ask("unchanged", |_| {}).await.unwrap());
    for _ in 0..9 {
        assert_eq!(ask("unchanged", |_| {}).await.unwrap(), answer);
    }
    assert_eq!(version().await, before);
    delete("unchanged").await.unwrap();
}
