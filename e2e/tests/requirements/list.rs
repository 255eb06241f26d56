//! LV, CGV: ListVolumes and ControllerGetVolume.

use std::collections::BTreeSet;

use cistern_e2e::{ControlPlane, Driver, Replica, eventually};
use cistern_proto::csi::v1::{
    ControllerGetVolumeRequest, ControllerGetVolumeResponse, DeleteVolumeRequest,
    ListVolumesRequest, ListVolumesResponse, Volume, controller_client::ControllerClient,
};
use tonic::{Code, Status, transport::Channel};

use crate::{PATIENCE, code, controller, create, create_request, delete};

/// One page of volumes.
pub(crate) async fn page(
    client: &mut ControllerClient<Channel>,
    max_entries: i32,
    starting_token: &str,
) -> Result<ListVolumesResponse, Status> {
    let request = ListVolumesRequest {
        max_entries,
        starting_token: starting_token.to_owned(),
    };
    client
        .list_volumes(request)
        .await
        .map(tonic::Response::into_inner)
}

fn volumes(page: ListVolumesResponse) -> Vec<Volume> {
    page.entries
        .into_iter()
        .map(|entry| entry.volume.unwrap())
        .collect()
}

fn ids(volumes: &[Volume]) -> Vec<&str> {
    volumes
        .iter()
        .map(|volume| volume.volume_id.as_str())
        .collect()
}

/// All volumes that the shared controller lists.
pub(crate) async fn all() -> Vec<Volume> {
    let page = page(&mut controller().await, 0, "").await.unwrap();
    assert_eq!(page.next_token, "", "they fit on one page");
    volumes(page)
}

/// Calls ControllerGetVolume.
pub(crate) async fn get(id: &str) -> Result<ControllerGetVolumeResponse, Status> {
    let request = ControllerGetVolumeRequest {
        volume_id: id.to_owned(),
    };
    let answer = controller().await.controller_get_volume(request).await?;
    Ok(answer.into_inner())
}

// Shows: LV-08, FLD-01, FLD-08.
// Shows: LIF-04, LV-03, LV-04.
#[tokio::test]
async fn lv_02_to_lv_05_lv_11_lv_13_the_pages_list_each_volume_once() {
    let control_plane = ControlPlane::start().await;
    let mut driver = Driver::start(&control_plane, "node-of-pages").await;
    let mut client = driver.controller_client().await;
    // LV-13.
    let nothing = page(&mut client, 0, "").await.unwrap();
    assert_eq!(nothing, ListVolumesResponse::default());

    driver
        .add_image_pool(crate::POOL, cistern_crds::Bytes::gib(1))
        .await;
    let mut expected = Vec::new();
    for number in 0..5 {
        let request = create_request(&format!("paged-{number}"));
        let created = client.create_volume(request).await.unwrap().into_inner();
        expected.push(created.volume.unwrap());
        // LV-02: the list has the volume as soon as it is created.
        assert_eq!(volumes(page(&mut client, 0, "").await.unwrap()), expected);
    }
    // LV-03, LV-04, LV-05.
    for most in 1..7 {
        let (mut found, mut token) = (Vec::new(), String::new());
        loop {
            let page = page(&mut client, most, &token).await.unwrap();
            assert!(page.entries.len() <= usize::try_from(most).unwrap());
            assert!(page.next_token.len() <= 128);
            token.clone_from(&page.next_token);
            found.extend(volumes(page));
            if token.is_empty() {
                break;
            }
        }
        assert_eq!(found, expected, "{most} a page");
    }
    // LIF-04: a list that began before a restart continues after it.
    let first = page(&mut client, 2, "").await.unwrap();
    driver.restart_controller().await;
    let mut client = driver.controller_client().await;
    let rest = page(&mut client, 0, &first.next_token).await.unwrap();
    assert_eq!(volumes(rest), expected[2..]);
    for volume in expected {
        let request = DeleteVolumeRequest {
            volume_id: volume.volume_id,
            ..DeleteVolumeRequest::default()
        };
        client.delete_volume(request).await.unwrap();
    }
    driver.finish().await;
}

// Shows: LV-14.
#[tokio::test]
async fn lv_12_a_token_stays_valid_while_volumes_are_created_and_deleted() {
    for name in ["token-a", "token-b", "token-d"] {
        create(create_request(name)).await.unwrap();
    }
    let mut client = controller().await;
    // Other tests create and delete volumes, too.
    let first = eventually(
        "a page that ends with token-b or before",
        PATIENCE,
        async || {
            let before = ids(&all().await)
                .iter()
                .position(|id| *id == "token-b")
                .unwrap();
            let most = i32::try_from(before).unwrap() + 1;
            let first = page(&mut controller().await, most, "").await.unwrap();
            let listed = volumes(first.clone());
            match ids(&listed).last() {
                Some(last) if *last <= "token-b" => Ok(first),
                last => Err(format!("{last:?}")),
            }
        },
    )
    .await;
    let token = first.next_token.clone();
    delete("token-b").await.unwrap();
    create(create_request("token-c")).await.unwrap();
    delete("token-a").await.unwrap();
    let rest = volumes(page(&mut client, 0, &token).await.unwrap());
    let first = volumes(first);
    let both: Vec<&str> = ids(&first).into_iter().chain(ids(&rest)).collect();
    let distinct: BTreeSet<&str> = both.iter().copied().collect();
    assert_eq!(distinct.len(), both.len(), "no volume twice");
    assert!(distinct.contains("token-c") && distinct.contains("token-d"));
    for name in ["token-c", "token-d"] {
        delete(name).await.unwrap();
    }
}

#[tokio::test]
async fn lv_06_lv_07_fld_11_illegal_pagination_fields_are_refused() {
    let mut client = controller().await;
    let negative = page(&mut client, -1, "").await;
    assert_eq!(code(&negative), Code::InvalidArgument);
    for token in [
        "invalid-token",
        "after:",
        "after:../x",
        "0",
        "🦀",
        &"x".repeat(5000),
    ] {
        let answer = page(&mut client, 1, token).await;
        assert_eq!(code(&answer), Code::Aborted, "{token}");
    }
}

#[tokio::test]
async fn cgv_02_cgv_03_cgv_04_cap_13_a_volume_is_found_by_its_id_only() {
    let volume = create(create_request("found")).await.unwrap();
    let found = get("found").await.unwrap();
    assert_eq!(found.volume, Some(volume));
    assert_eq!(
        found.status.unwrap().published_node_ids,
        Vec::<String>::new()
    );
    delete("found").await.unwrap();
    for (id, expected) in [
        ("", Code::InvalidArgument),
        ("found", Code::NotFound),
        ("../poolvolumes", Code::NotFound),
    ] {
        assert_eq!(code(&get(id).await), expected, "{id}");
    }
}

#[tokio::test]
async fn cgv_07_a_replica_immediately_finds_what_another_created() {
    let replica = Replica::start(ControlPlane::shared().await).await;
    let mut other = replica.client().await;
    for round in 0..5 {
        let name = format!("replicated-{round}");
        let volume = create(create_request(&name)).await.unwrap();
        let request = || ControllerGetVolumeRequest {
            volume_id: name.clone(),
        };
        let found = other.controller_get_volume(request()).await.unwrap();
        assert_eq!(found.into_inner().volume, Some(volume));
        delete(&name).await.unwrap();
        let found = other.controller_get_volume(request()).await;
        assert_eq!(code(&found), Code::NotFound);
    }
}
