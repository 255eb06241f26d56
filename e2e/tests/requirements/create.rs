//! CV, VCP: CreateVolume, and the volume capabilities that it accepts.

use std::collections::BTreeSet;

use cistern_crds::Bytes;
use cistern_proto::csi::v1::{self, CreateVolumeRequest, volume_capability::access_mode::Mode};
use kube::ResourceExt as _;
use tonic::Code;

use crate::{
    SIZE, block, code, controller, create, create_request, delete, map, mounted, objects, range,
};

type Change = fn(&mut CreateVolumeRequest);

/// Whether a volume of this name has a custom resource.
async fn exists(name: &str) -> bool {
    let id = cistern_crds::names::volume_name(name);
    objects().await.get_opt(&id).await.unwrap().is_some()
}

// Shows: CV-02, CV-03, CV-04, CV-11, CV-17, CV-22, CV-24, CV-27, CV-30, FLD-07, FLD-11, FLD-13.
// Shows: FLD-15, VCP-01, VCP-04, VCP-05, VCP-06, VCP-12.
#[tokio::test]
#[expect(clippy::too_many_lines, reason = "a table")]
async fn gen_04_gen_05_gen_13_a_request_with_missing_or_illegal_fields_is_refused_and_creates_nothing()
 {
    let rows: &[(&str, Change, &str)] = &[
        ("CV-02", |r| r.name.clear(), "name is required"),
        (
            "CV-03, FLD-07",
            |r| r.volume_capabilities.clear(),
            "volume_capabilities is required",
        ),
        (
            "VCP-01, FLD-13",
            |r| r.volume_capabilities[0].access_type = None,
            "access type",
        ),
        (
            "VCP-01",
            |r| r.volume_capabilities[0].access_mode = None,
            "access mode",
        ),
        (
            "FLD-15",
            |r| r.volume_capabilities = vec![mounted("", Mode::Unknown)],
            "access mode",
        ),
        (
            "GEN-05",
            |r| r.volume_capabilities[0].access_mode.as_mut().unwrap().mode = 99,
            "99",
        ),
        (
            "CV-04, VCP-06",
            |r| {
                r.volume_capabilities
                    .push(mounted("", Mode::MultiNodeMultiWriter))
            },
            "MULTI_NODE",
        ),
        (
            "VCP-04",
            |r| r.volume_capabilities = vec![mounted("", Mode::MultiNodeReaderOnly)],
            "MULTI_NODE",
        ),
        (
            "VCP-05",
            |r| r.volume_capabilities = vec![mounted("", Mode::MultiNodeSingleWriter)],
            "MULTI_NODE",
        ),
        (
            "VCP-12",
            |r| r.volume_capabilities = vec![mounted("nosuchfs", Mode::SingleNodeWriter)],
            "nosuchfs",
        ),
        (
            "CV-04",
            |r| {
                r.volume_capabilities = vec![
                    mounted("ext4", Mode::SingleNodeWriter),
                    mounted("xfs", Mode::SingleNodeWriter),
                ]
            },
            "in one volume",
        ),
        ("CV-04", |r| r.volume_capabilities.push(block()), "block"),
        (
            "CV-11, FLD-11",
            |r| r.capacity_range.as_mut().unwrap().required_bytes = -1,
            "-1",
        ),
        (
            "CV-11, FLD-11",
            |r| r.capacity_range.as_mut().unwrap().limit_bytes = -1,
            "-1",
        ),
        (
            "CV-24",
            |r| r.capacity_range = range(Bytes::gib(2), Bytes::gib(1)),
            "more than limit_bytes",
        ),
        (
            "CV-17",
            |r| r.parameters = map(&[("pool", "requirements"), ("provisioning", "fat")]),
            "provisioning",
        ),
        (
            "CV-17",
            |r| r.parameters = map(&[("pool", "requirements"), ("mkfsOptions", "-b 1024")]),
            "\"-b 1024\" is not supported for ext4",
        ),
        (
            "CV-22",
            |r| r.parameters = map(&[("pool", "requirements"), ("bogus", "x")]),
            "bogus",
        ),
        (
            "CV-27",
            |r| r.mutable_parameters = map(&[("iops", "1")]),
            "mutable parameter \"iops\"",
        ),
        (
            "CV-30",
            |r| {
                r.volume_content_source = Some(v1::VolumeContentSource { r#type: None });
            },
            "volume_content_source",
        ),
    ];
    for (row, (ids, change, message)) in rows.iter().enumerate() {
        let name = format!("refused-{row}");
        let mut request = create_request(&name);
        change(&mut request);
        let status = create(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{ids}: {status}");
        assert!(status.message().contains(message), "{ids}: {status}");
        assert!(!exists(&name).await, "{ids}");
    }
}

// Shows: CV-09, CV-10, CV-25, CV-31, FLD-08.
#[tokio::test]
async fn cv_08_cv_15_the_size_is_within_the_range_or_out_of_range() {
    let rows = [
        ("CV-31", None, Ok(Bytes::gib(1))),
        (
            "CV-25, FLD-08",
            range(Bytes::ZERO, Bytes::ZERO),
            Ok(Bytes::gib(1)),
        ),
        (
            "CV-08",
            range(Bytes(20_000_001), Bytes::ZERO),
            Ok(Bytes::mib(20)),
        ),
        (
            "CV-08",
            range(Bytes::ZERO, Bytes::mib(17)),
            Ok(Bytes::mib(17)),
        ),
        (
            "CV-09",
            range(Bytes::mib(19), Bytes::mib(19)),
            Ok(Bytes::mib(19)),
        ),
        (
            "CV-09",
            range(Bytes(20_000_001), Bytes(20_000_001)),
            Err(Code::OutOfRange),
        ),
        (
            "CV-10",
            range(Bytes::ZERO, Bytes::mib(1)),
            Err(Code::OutOfRange),
        ),
        (
            "CV-10",
            range(Bytes::gib(1 << 20), Bytes::ZERO),
            Err(Code::OutOfRange),
        ),
    ];
    for (row, (ids, capacity_range, expected)) in rows.into_iter().enumerate() {
        let name = format!("sized-{row}");
        let request = CreateVolumeRequest {
            capacity_range,
            ..create_request(&name)
        };
        let answer = create(request).await;
        let size = answer.map(|volume| Bytes(u64::try_from(volume.capacity_bytes).unwrap()));
        assert_eq!(
            size.as_ref().map_err(tonic::Status::code),
            expected.as_ref().map_err(|c| *c),
            "{ids}: {size:?}"
        );
        delete(&name).await.unwrap();
    }
}

// Shows: CV-12, CV-15, FLD-10.
// Shows: CV-22, K8S-01.
#[tokio::test]
async fn cv_06_cv_14_con_03_ten_equal_calls_have_one_answer_which_a_list_repeats() {
    let request = CreateVolumeRequest {
        parameters: map(&[
            ("pool", crate::POOL),
            // CV-22, K8S-01.
            ("csi.storage.k8s.io/pvc/name", "claim"),
            ("csi.storage.k8s.io/pvc/namespace", "default"),
        ]),
        ..create_request("equal")
    };
    let first = create(request.clone()).await.unwrap();
    assert!(!first.volume_id.is_empty() && first.volume_id.len() <= 128);
    assert_eq!(first.capacity_bytes, SIZE.to_i64());
    for _ in 0..9 {
        assert_eq!(create(request.clone()).await.unwrap(), first);
    }
    let mut listed = crate::list::all().await;
    listed.retain(|volume| volume.volume_id == first.volume_id);
    assert_eq!(listed, std::slice::from_ref(&first));
    let found = crate::list::get(&first.volume_id).await.unwrap();
    assert_eq!(found.volume, Some(first));
    for _ in 0..10 {
        delete("equal").await.unwrap();
    }
}

// Shows: CV-19, CV-23, TOP-19.
#[tokio::test]
async fn cv_07_the_same_name_with_other_arguments_is_refused_and_the_volume_stays() {
    let first = create(create_request("taken")).await.unwrap();
    let node = first.accessible_topology[0].clone();
    let changes: &[(&str, Change)] = &[
        ("capacity_range", |r| {
            r.capacity_range = range(SIZE.saturating_add(SIZE), Bytes::ZERO)
        }),
        ("volume_capabilities", |r| {
            r.capacity_range = range(Bytes::ZERO, Bytes::gib(1));
            r.volume_capabilities = vec![mounted("xfs", Mode::SingleNodeWriter)];
        }),
        ("parameters", |r| {
            drop(r.parameters.insert("provisioning".into(), "thick".into()))
        }),
        // CV-19.
        ("mutable_parameters", |r| {
            r.mutable_parameters = map(&[("provisioning", "thick")])
        }),
        ("parameters", |r| {
            drop(r.parameters.insert("pool".into(), "another".into()))
        }),
        ("volume_capabilities", |r| {
            r.volume_capabilities = vec![block()]
        }),
        // TOP-19.
        ("accessibility_requirements", |r| {
            r.accessibility_requirements = Some(crate::topology::only(&["elsewhere"]));
        }),
    ];
    for (field, change) in changes {
        let mut other = create_request("taken");
        change(&mut other);
        let status = create(other).await.unwrap_err();
        assert_eq!(status.code(), Code::AlreadyExists, "{field}: {status}");
    }
    // CV-23: another range that contains the size of the volume is compatible.
    let mut looser = create_request("taken");
    looser.capacity_range = range(Bytes::mib(1), Bytes::gib(1));
    looser.accessibility_requirements = Some(v1::TopologyRequirement {
        requisite: vec![node],
        preferred: Vec::new(),
    });
    assert_eq!(create(looser).await.unwrap(), first);
    delete("taken").await.unwrap();
}

#[tokio::test]
async fn cv_28_a_corrected_request_succeeds_after_a_refused_one() {
    let mut wrong = create_request("mended");
    wrong.parameters = map(&[("pool", "no-such-pool")]);
    assert_eq!(code(&create(wrong).await), Code::ResourceExhausted);
    let mut wrong = create_request("mended");
    wrong.capacity_range = range(Bytes::gib(1 << 20), Bytes::ZERO);
    assert_eq!(code(&create(wrong).await), Code::OutOfRange);
    create(create_request("mended")).await.unwrap();
    delete("mended").await.unwrap();
}

// Shows: FLD-12, SAN-12.
#[tokio::test]
async fn cv_13_any_legal_name_creates_a_volume_with_its_own_id() {
    let names = [
        "a/b",
        "a//b",
        "..",
        "../../etc",
        "with space",
        "UPPER",
        "upper",
        "🦀",
        "tab\t",
        "line\n",
        &"x".repeat(128),
        &"y".repeat(64),
        "vol-1",
        "-",
        ".",
    ];
    let mut ids = BTreeSet::new();
    for name in names {
        let volume = create(create_request(name)).await.unwrap();
        assert!(
            cistern_crds::names::is_id(&volume.volume_id),
            "{name}: {volume:?}"
        );
        ids.insert(volume.volume_id);
    }
    assert_eq!(ids.len(), names.len());
    for object in objects()
        .await
        .list(&kube::api::ListParams::default())
        .await
        .unwrap()
    {
        let size = object.status.as_ref().and_then(|status| status.size);
        assert!(!ids.contains(&object.name_any()) || size == Some(SIZE));
    }
    for id in &ids {
        delete(id).await.unwrap();
    }
    for name in [
        "nul\0",
        "bell\u{7}",
        "\u{b}",
        "\u{7f}",
        "\u{85}",
        &"x".repeat(129),
    ] {
        let answer = controller().await.create_volume(create_request(name)).await;
        assert_eq!(code(&answer), Code::InvalidArgument, "{name:?}");
    }
}
