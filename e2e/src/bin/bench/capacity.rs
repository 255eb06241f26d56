//! How long the scheduler's capacity object lags behind a StorageNode's status.

use std::time::{Duration, Instant};

use cistern_crds::{Bytes, StorageNode};
use cistern_e2e::{
    ControlPlane, Driver,
    cluster::NAMESPACE,
    eventually,
    measure::{milliseconds, percentile},
};
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::{Api, Client};

use crate::{Figure, NODE, latency};

const ROUNDS: usize = 10;

/// Creates volumes, each of which reduces the free capacity, and measures how soon the capacity object follows.
pub(crate) async fn lag(control_plane: &ControlPlane, driver: &Driver) -> Figure {
    let client = control_plane.client();
    let mut samples = Vec::new();
    for round in 0..ROUNDS {
        let mut before = room(&client).await;
        let (ids, _) = latency::create(driver, &format!("lag-{round}"), 1).await;
        let started = Instant::now();
        eventually(
            "the capacity object to follow",
            Duration::from_secs(30),
            async || {
                let now = (room(&client).await, published(&client).await);
                if now.0 < before && now.1 == now.0 {
                    Ok(())
                } else {
                    Err(format!("{now:?}"))
                }
            },
        )
        .await;
        samples.push(milliseconds(started));
        before = room(&client).await;
        latency::delete(driver, ids).await;
        eventually(
            "the room to come back",
            Duration::from_secs(30),
            async || {
                let now = (room(&client).await, published(&client).await);
                if now.0 > before && now.1 == now.0 {
                    Ok(())
                } else {
                    Err(format!("{now:?}"))
                }
            },
        )
        .await;
    }
    Figure {
        what: "capacity object behind the volume, p50".to_owned(),
        ours: format!("{:.0} ms", percentile(&samples, 50)),
        beside: format!("slowest of {ROUNDS}: {:.0} ms", percentile(&samples, 100)),
        ratio: None,
        aim: "<= 1 s",
    }
}

/// The maximum volume size in the node's status.
async fn room(client: &Client) -> Bytes {
    let api: Api<StorageNode> = Api::all(client.clone());
    let node = api.get(NODE).await.expect("it is there");
    node.status
        .unwrap_or_default()
        .pools
        .first()
        .map_or(Bytes::ZERO, |pool| pool.thin_room)
}

/// The capacity that the scheduler reads.
async fn published(client: &Client) -> Bytes {
    let api: Api<CSIStorageCapacity> = Api::namespaced(client.clone(), NAMESPACE);
    let objects = api
        .list(&kube::api::ListParams::default())
        .await
        .expect("the API server answers");
    let capacity = objects.items.into_iter().find_map(|object| object.capacity);
    capacity
        .and_then(|capacity| capacity.0.parse().ok())
        .unwrap_or_default()
}
