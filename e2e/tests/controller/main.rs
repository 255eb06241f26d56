//! The controller against a real API server. The tests write the statuses that agents would write,
//! including late, wrong and repeated ones.

#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod answers;
mod clones;
mod cluster;
mod delete;
mod ensure;
mod expand;
mod group;
mod history;
mod modify;
mod replicas;
mod several_pools;
mod snapshots;
mod sources;
mod volume_groups;

use std::{collections::BTreeMap, time::Duration};

use cistern_crds::{Bytes, names};
use cistern_e2e::requests::create_volume;
use cistern_proto::csi::v1;
use tonic::{Request, Status, transport::Channel};

type Client = v1::controller_client::ControllerClient<Channel>;

/// Returns a request for 1 GiB of ext4 from a pool.
fn request(name: &str, pool: &str) -> v1::CreateVolumeRequest {
    create_volume(name, pool, Bytes::gib(1))
}

/// Returns a requirement that allows all of these nodes and prefers the first.
fn requirement(nodes: &[String]) -> v1::TopologyRequirement {
    let topologies: Vec<v1::Topology> = nodes.iter().map(|node| topology(node)).collect();
    v1::TopologyRequirement {
        requisite: topologies.clone(),
        preferred: topologies,
    }
}

fn topology(node: &str) -> v1::Topology {
    let segments: BTreeMap<String, String> =
        [(names::TOPOLOGY_KEY.to_owned(), node.to_owned())].into();
    v1::Topology { segments }
}

/// Calls CreateVolume with a deadline, as the provisioner does.
async fn create(
    mut client: Client,
    request: v1::CreateVolumeRequest,
    timeout: Duration,
) -> Result<v1::Volume, Status> {
    let mut request = Request::new(request);
    request.set_timeout(timeout);
    let answer = client.create_volume(request).await?.into_inner();
    Ok(answer.volume.unwrap())
}

/// Calls ControllerExpandVolume for at least `required` bytes with a deadline, as the resizer does.
async fn expand(
    client: Client,
    id: &str,
    required: Bytes,
    timeout: Duration,
) -> Result<v1::ControllerExpandVolumeResponse, Status> {
    let request = v1::ControllerExpandVolumeRequest {
        volume_id: id.to_owned(),
        capacity_range: Some(v1::CapacityRange {
            required_bytes: required.to_i64(),
            limit_bytes: 0,
        }),
        volume_capability: request(id, "any").volume_capabilities.pop(),
        ..v1::ControllerExpandVolumeRequest::default()
    };
    expand_as(client, request, timeout).await
}

async fn expand_as(
    mut client: Client,
    request: v1::ControllerExpandVolumeRequest,
    timeout: Duration,
) -> Result<v1::ControllerExpandVolumeResponse, Status> {
    let mut request = Request::new(request);
    request.set_timeout(timeout);
    Ok(client.controller_expand_volume(request).await?.into_inner())
}

/// Calls DeleteVolume with a deadline, as the provisioner does.
async fn delete(mut client: Client, id: &str, timeout: Duration) -> Result<(), Status> {
    let mut request = Request::new(v1::DeleteVolumeRequest {
        volume_id: id.to_owned(),
        ..v1::DeleteVolumeRequest::default()
    });
    request.set_timeout(timeout);
    client.delete_volume(request).await.map(drop)
}
