//! CON: concurrent calls, repeated calls, and calls whose caller has stopped waiting.

use std::time::Duration;

use cistern_e2e::eventually;
use cistern_proto::csi::v1::DeleteVolumeRequest;
use futures::future::join_all;
use rustix::process::Signal;
use tonic::{Code, Request};

use crate::{PATIENCE, aborted, code, create, create_request, delete, map, objects, start};

// Shows: CON-05, CON-09.
#[tokio::test]
async fn con_06_concurrent_calls_for_one_name_create_one_volume_and_delete_it_once() {
    let answers = join_all((0..32).map(|_| create(create_request("crowd")))).await;
    let created: Vec<_> = answers
        .iter()
        .filter_map(|answer| answer.as_ref().ok())
        .collect();
    assert!(!created.is_empty() && created.iter().all(|volume| *volume == created[0]));
    let is_legal = |code| matches!(code, Code::Ok | Code::Aborted);
    assert!(answers.iter().all(|answer| is_legal(code(answer))));
    // An aborted call succeeds once the others are done.
    assert_eq!(create(create_request("crowd")).await.unwrap(), *created[0]);

    let answers = join_all((0..16).map(|_| delete("crowd"))).await;
    assert!(answers.iter().all(|answer| is_legal(code(answer))));
    delete("crowd").await.unwrap();
    assert_eq!(objects().await.get_opt("crowd").await.unwrap(), None);
}

// Shows: CON-01.
#[tokio::test]
async fn con_02_a_volume_whose_creation_timed_out_can_be_deleted() {
    let driver = start("node-that-sleeps", "sleep").await;
    driver.node().process().signal(Signal::STOP);
    let mut client = driver.controller_client().await;
    // The time of a call may be over before it has created the object.
    eventually("the volume to be created", PATIENCE, async || {
        aborted(async || {
            let mut request = Request::new(create_request("timed-out"));
            request.get_mut().parameters = map(&[("pool", "sleep")]);
            request.set_timeout(Duration::from_secs(4));
            let mut client = driver.controller_client().await;
            client.create_volume(request).await
        })
        .await;
        let found = objects().await.get_opt("timed-out").await.unwrap();
        found
            .map(drop)
            .ok_or_else(|| "it does not exist".to_owned())
    })
    .await;
    let request = DeleteVolumeRequest {
        volume_id: "timed-out".to_owned(),
        ..DeleteVolumeRequest::default()
    };
    client.delete_volume(request).await.unwrap();
    assert_eq!(objects().await.get_opt("timed-out").await.unwrap(), None);
    driver.node().process().signal(Signal::CONT);
    driver.finish().await;
}

// Shows: LIF-04.
#[tokio::test]
async fn con_04_equal_calls_before_and_after_a_restart_of_both_processes_have_equal_answers() {
    let mut driver = start("node-that-dies", "death").await;
    let request = || {
        let mut request = create_request("mortal");
        request.parameters = map(&[("pool", "death")]);
        request
    };
    let create = async |driver: &cistern_e2e::Driver| {
        let mut client = driver.controller_client().await;
        client.create_volume(request()).await.unwrap().into_inner()
    };
    let before = create(&driver).await;
    driver.restart_controller().await;
    driver.restart_node().await;
    assert_eq!(create(&driver).await, before);
    for _ in 0..2 {
        let mut client = driver.controller_client().await;
        let request = DeleteVolumeRequest {
            volume_id: "mortal".to_owned(),
            ..DeleteVolumeRequest::default()
        };
        client.delete_volume(request).await.unwrap();
        driver.restart_controller().await;
    }
    driver.finish().await;
}
