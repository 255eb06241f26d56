//! DV: DeleteVolume.

use cistern_proto::csi::v1::GetCapacityRequest;
use tonic::Code;

use crate::{code, controller, create, create_request, delete, list, map, validate};

// Shows: GEN-04, FLD-14.
#[tokio::test]
async fn dv_02_dv_03_san_18_an_id_is_required_and_deleting_an_unknown_one_succeeds() {
    assert_eq!(code(&delete("").await), Code::InvalidArgument);
    assert_eq!(code(&delete(&"x".repeat(129)).await), Code::InvalidArgument);
    for id in [
        "unknown",
        "../nodes",
        "a/b",
        "UPPER",
        "nul\0",
        "🦀",
        &"x".repeat(128),
    ] {
        delete(id).await.unwrap();
    }
}

#[tokio::test]
async fn dv_07_gc_12_after_ok_the_volume_is_gone_everywhere_and_its_capacity_is_free() {
    let room = async || {
        let request = GetCapacityRequest {
            parameters: map(&[("pool", "room-of-deleted"), ("provisioning", "thick")]),
            ..GetCapacityRequest::default()
        };
        let answer = controller().await.get_capacity(request).await.unwrap();
        answer.into_inner().available_capacity
    };
    let driver = crate::start("node-of-deleted", "room-of-deleted").await;
    let before = room_when(&room, |room| room > 0).await;
    let mut request = create_request("deleted");
    request.parameters = map(&[("pool", "room-of-deleted"), ("provisioning", "thick")]);
    let volume = create(request).await.unwrap();
    let size = volume.capacity_bytes;
    room_when(&room, |room| room <= before - size).await;
    for _ in 0..3 {
        delete(&volume.volume_id).await.unwrap();
        let listed = list::all().await;
        assert!(
            listed
                .iter()
                .all(|other| other.volume_id != volume.volume_id)
        );
        let found = list::get(&volume.volume_id).await;
        assert_eq!(code(&found), Code::NotFound);
        let validated = validate::ask(&volume.volume_id, |_| {}).await;
        assert_eq!(code(&validated), Code::NotFound);
    }
    room_when(&room, |room| room == before).await;
    driver.finish().await;
}

/// Waits until the capacity is as expected. It follows the status that the agent publishes shortly after
/// each change.
pub(crate) async fn room_when(room: &impl AsyncFn() -> i64, is: impl Fn(i64) -> bool) -> i64 {
    let patience = std::time::Duration::from_mins(2);
    cistern_e2e::eventually("the capacity to follow", patience, async || {
        let now = room().await;
        if is(now) {
            Ok(now)
        } else {
            Err(format!("{now} bytes"))
        }
    })
    .await
}
