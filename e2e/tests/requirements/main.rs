//! Tests of the CSI requirements in `docs/csi-requirements.md`, at the sockets of a controller and a
//! node process with a real API server and real volumes.
//!
//! These tests cover what a caller can see. Unit tests beside the code cover the decisions, the test
//! `csi_sanity` runs csi-sanity, and `make requirements` counts all of them.

#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]
#![allow(
    clippy::semicolon_if_nothing_returned,
    reason = "the changes in tables of requests read as expressions"
)]

mod cancellation;
mod capacity;
mod concurrency;
mod copies;
mod create;
mod delete;
mod documents;
mod groups;
mod health;
mod identity;
mod life;
mod list;
mod metadata;
mod modify;
mod node;
mod process;
mod publish;
mod raw;
mod secrets;
mod services;
mod snapshots;
mod stage;
mod statistics;
mod topology;
mod validate;
mod volume;

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use cistern_crds::{Bytes, PoolVolume};
use cistern_e2e::{ControlPlane, Driver, eventually};
use cistern_proto::csi::v1::{
    self,
    controller_client::ControllerClient,
    volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode},
};
use kube::Api;
use tokio::sync::OnceCell;
use tonic::{Code, Status, transport::Channel};

/// The pool of the shared node.
const POOL: &str = "requirements";
/// Size of a volume whose size does not matter.
const SIZE: Bytes = Bytes::mib(16);
/// Limit of waits for what processes do.
const PATIENCE: Duration = Duration::from_mins(2);

/// The controller and the node that the tests share. Only tests that leave them unchanged use them.
async fn shared() -> &'static Driver {
    static SHARED: OnceCell<Driver> = OnceCell::const_new();
    static BEGUN: AtomicBool = AtomicBool::new(false);
    let start = async || {
        let begun = BEGUN.swap(true, Ordering::SeqCst);
        assert!(
            !begun,
            "the test that started them first reports why they failed"
        );
        let driver = Driver::start(ControlPlane::shared().await, "node-of-requirements").await;
        driver.add_image_pool(POOL, Bytes::gib(4)).await;
        driver
    };
    SHARED.get_or_init(start).await
}

/// A controller and a node of the test's own, with a pool of 1 GiB. The shared controller knows the pool, too.
async fn start(node: &str, pool: &str) -> Driver {
    let driver = Driver::start(ControlPlane::shared().await, node).await;
    let made = driver.add_image_pool(pool, Bytes::gib(1)).await;
    let request = v1::GetCapacityRequest {
        parameters: map(&[("pool", pool)]),
        ..v1::GetCapacityRequest::default()
    };
    eventually(
        "the shared controller to know the pool",
        PATIENCE,
        async || {
            let answer = controller().await.get_capacity(request.clone()).await;
            let known = answer.unwrap().into_inner().available_capacity;
            let is_made = known == made.thin_room.to_i64();
            is_made.then_some(()).ok_or_else(|| known.to_string())
        },
    )
    .await;
    driver
}

/// Repeats a call that has a short deadline and whose node does not answer, until it ends with ABORTED. On a busy machine, its
/// time may be over before that answer arrives.
async fn aborted<T: Debug>(mut call: impl AsyncFnMut() -> Result<T, Status>) {
    eventually("a call to end with ABORTED", PATIENCE, async || {
        let status = call().await.unwrap_err();
        match status.code() {
            Code::Aborted => Ok(()),
            Code::Cancelled | Code::DeadlineExceeded => Err(status.to_string()),
            _ => panic!("{status}"),
        }
    })
    .await;
}

async fn controller() -> ControllerClient<Channel> {
    shared().await.controller_client().await
}

/// A request for a volume of [`SIZE`] with ext4, from the shared pool.
fn create_request(name: &str) -> v1::CreateVolumeRequest {
    v1::CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: range(SIZE, Bytes::ZERO),
        volume_capabilities: vec![mounted("", Mode::SingleNodeWriter)],
        parameters: map(&[("pool", POOL)]),
        ..v1::CreateVolumeRequest::default()
    }
}

#[expect(clippy::unnecessary_wraps, reason = "it is a field of a request")]
fn range(required: Bytes, limit: Bytes) -> Option<v1::CapacityRange> {
    Some(v1::CapacityRange {
        required_bytes: required.to_i64(),
        limit_bytes: limit.to_i64(),
    })
}

fn mounted(filesystem: &str, mode: Mode) -> v1::VolumeCapability {
    v1::VolumeCapability {
        access_type: Some(AccessType::Mount(MountVolume {
            fs_type: filesystem.to_owned(),
            ..MountVolume::default()
        })),
        access_mode: Some(AccessMode { mode: mode.into() }),
    }
}

fn block() -> v1::VolumeCapability {
    v1::VolumeCapability {
        access_type: Some(AccessType::Block(BlockVolume {})),
        ..mounted("", Mode::SingleNodeWriter)
    }
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = |&(key, value): &(&str, &str)| (key.to_owned(), value.to_owned());
    pairs.iter().map(owned).collect()
}

async fn create(request: v1::CreateVolumeRequest) -> Result<v1::Volume, Status> {
    let answer = controller().await.create_volume(request).await?;
    Ok(answer.into_inner().volume.unwrap())
}

async fn delete(id: &str) -> Result<(), Status> {
    let request = v1::DeleteVolumeRequest {
        volume_id: id.to_owned(),
        ..v1::DeleteVolumeRequest::default()
    };
    controller().await.delete_volume(request).await.map(drop)
}

/// The custom resources behind the volumes.
async fn objects() -> Api<PoolVolume> {
    Api::all(ControlPlane::shared().await.client())
}

fn code<T>(answer: &Result<T, Status>) -> Code {
    answer.as_ref().map_or_else(Status::code, |_| Code::Ok)
}
