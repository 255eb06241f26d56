//! GC: GetCapacity.

use cistern_crds::{Bytes, names::TOPOLOGY_KEY};
use cistern_proto::csi::v1::{
    GetCapacityRequest, GetCapacityResponse, Topology, volume_capability::access_mode::Mode,
};
use tonic::{Code, Status};

use crate::{
    POOL, block, code, controller, create, create_request, delete, delete::room_when, map, mounted,
    range,
};

type Change = fn(&mut GetCapacityRequest);

async fn ask(change: impl FnOnce(&mut GetCapacityRequest)) -> Result<GetCapacityResponse, Status> {
    let mut request = GetCapacityRequest {
        volume_capabilities: vec![mounted("ext4", Mode::SingleNodeWriter)],
        parameters: map(&[("pool", POOL)]),
        ..GetCapacityRequest::default()
    };
    change(&mut request);
    let answer = controller().await.get_capacity(request).await?;
    Ok(answer.into_inner())
}

#[expect(clippy::unnecessary_wraps, reason = "it is a field of a request")]
fn topology(key: &str, value: &str) -> Option<Topology> {
    Some(Topology {
        segments: map(&[(key, value)]),
    })
}

// Shows: GC-02, FLD-10.
// Shows: K8S-01.
#[tokio::test]
async fn gc_03_gc_04_gc_05_gc_08_the_capacity_is_that_of_the_request() {
    let rows: &[(&str, Change, bool)] = &[
        ("GC-02", |_| {}, true),
        ("GC-02", |r| *r = GetCapacityRequest::default(), true),
        (
            "GC-03",
            |r| r.volume_capabilities = vec![mounted("", Mode::MultiNodeMultiWriter)],
            false,
        ),
        (
            "GC-03",
            |r| {
                r.volume_capabilities
                    .push(mounted("xfs", Mode::SingleNodeWriter))
            },
            false,
        ),
        ("GC-03", |r| r.volume_capabilities = vec![block()], true),
        ("GC-03", |r| r.volume_capabilities.push(block()), false),
        (
            "GC-04",
            |r| r.parameters = map(&[("pool", "no-such-pool")]),
            false,
        ),
        (
            "GC-05",
            |r| r.accessible_topology = topology(TOPOLOGY_KEY, "node-of-requirements"),
            true,
        ),
        (
            "GC-05",
            |r| r.accessible_topology = topology(TOPOLOGY_KEY, "elsewhere"),
            false,
        ),
        (
            "GC-05",
            |r| r.accessible_topology = topology("zone", "z1"),
            false,
        ),
        (
            "K8S-01",
            |r| {
                drop(
                    r.parameters
                        .insert("csi.storage.k8s.io/x".into(), "y".into()),
                )
            },
            true,
        ),
    ];
    for (ids, change, some) in rows {
        let answer = ask(change).await.unwrap();
        assert_eq!(answer.available_capacity > 0, *some, "{ids}: {answer:?}");
        assert!(answer.available_capacity >= 0, "{ids}");
        assert_eq!(
            answer.maximum_volume_size.unwrap() > 0,
            *some,
            "{ids}: {answer:?}"
        );
    }
}

// Shows: GC-13: both limits exist, and are reported if the values that they depend on are known.
#[tokio::test]
async fn gc_06_gc_07_gc_11_the_limits_are_those_of_create_volume() {
    let driver = crate::start("node-of-limits", "limits").await;
    let of_the_pool =
        |request: &mut GetCapacityRequest| request.parameters = map(&[("pool", "limits")]);
    let answer = ask(of_the_pool).await.unwrap();
    let bytes = |value: Option<i64>| Bytes(u64::try_from(value.unwrap()).unwrap());
    let (least, most) = (
        bytes(answer.minimum_volume_size),
        bytes(answer.maximum_volume_size),
    );
    let largest = async || {
        let answer = ask(of_the_pool).await.unwrap();
        answer.maximum_volume_size.unwrap()
    };
    let below = Bytes(least.0 - 1);
    for (name, capacity_range, out_of_range) in [
        ("least", range(Bytes::ZERO, least), false),
        ("less", range(Bytes::ZERO, below), true),
        ("most", range(most, Bytes::ZERO), false),
        ("more", range(Bytes(most.0 + 1), Bytes::ZERO), true),
    ] {
        let mut request = create_request(name);
        request.volume_capabilities = vec![mounted("ext4", Mode::SingleNodeWriter)];
        request.parameters = map(&[("pool", "limits")]);
        request.capacity_range = capacity_range;
        let expected = if out_of_range {
            Code::OutOfRange
        } else {
            Code::Ok
        };
        assert_eq!(code(&create(request).await), expected, "{name}");
        delete(name).await.unwrap();
        // The node reports its room a moment after the deletion.
        room_when(&largest, |room| Some(room) == answer.maximum_volume_size).await;
    }
    driver.finish().await;
    let open = ask(|request| request.volume_capabilities.clear())
        .await
        .unwrap();
    assert_eq!(open.minimum_volume_size, None, "no filesystem is named");
    let xfs = ask(|r| r.volume_capabilities = vec![mounted("xfs", Mode::SingleNodeWriter)]);
    assert!(bytes(xfs.await.unwrap().minimum_volume_size) > least);
}

// Shows: CV-22, FLD-13, FLD-14, TOP-16.
#[tokio::test]
async fn gen_05_an_illegal_capacity_request_is_refused() {
    let rows: &[(&str, Change)] = &[
        ("CV-22", |r| {
            drop(r.parameters.insert("bogus".into(), "x".into()))
        }),
        ("TOP-16", |r| {
            r.accessible_topology = topology("Bad Key!", "x")
        }),
        ("FLD-13", |r| r.volume_capabilities[0].access_type = None),
        ("FLD-14", |r| {
            drop(
                r.parameters
                    .insert("csi.storage.k8s.io/x".into(), "y".repeat(4096)),
            )
        }),
    ];
    for (ids, change) in rows {
        assert_eq!(code(&ask(change).await), Code::InvalidArgument, "{ids}");
    }
}
