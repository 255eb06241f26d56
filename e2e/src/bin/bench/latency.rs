//! CreateVolume and DeleteVolume at the CSI socket, beside two bare writes to the same API server.

use std::time::Instant;

use cistern_crds::parameters::POOL as POOL_PARAMETER;
use cistern_e2e::{
    ControlPlane, Driver,
    measure::{milliseconds, percentile},
};
use cistern_proto::csi::v1::{
    CapacityRange, CreateVolumeRequest, DeleteVolumeRequest, VolumeCapability,
    volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode},
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, api::PostParams};

use crate::{Figure, POOL};

/// Size of every volume, with an empty ext4 that allocates little.
const SIZE: i64 = 64 << 20;

/// Milliseconds to create an object and to replace it, for each of `count` objects.
pub(crate) async fn bare_writes(control_plane: &ControlPlane, count: usize) -> Vec<f64> {
    let api: Api<ConfigMap> = Api::namespaced(control_plane.client(), "default");
    let parameters = PostParams::default();
    let mut samples = Vec::with_capacity(count);
    for number in 0..count {
        let mut object = ConfigMap::default();
        object.metadata.name = Some(format!("bench-{number}"));
        let started = Instant::now();
        let mut made = api.create(&parameters, &object).await.expect("it is new");
        made.data = Some([("key".to_owned(), "value".to_owned())].into());
        api.replace(&format!("bench-{number}"), &parameters, &made)
            .await
            .expect("it is there");
        samples.push(milliseconds(started));
    }
    samples
}

/// Creates volumes one after the other; returns their ids and the milliseconds for each.
pub(crate) async fn create(driver: &Driver, prefix: &str, count: usize) -> (Vec<String>, Vec<f64>) {
    let mut client = driver.controller_client().await;
    let mut ids = Vec::with_capacity(count);
    let mut samples = Vec::with_capacity(count);
    for number in 0..count {
        let request = CreateVolumeRequest {
            name: format!("{prefix}-{number}"),
            capacity_range: Some(CapacityRange {
                required_bytes: SIZE,
                limit_bytes: 0,
            }),
            volume_capabilities: vec![capability()],
            parameters: [(POOL_PARAMETER.to_owned(), POOL.to_owned())].into(),
            ..CreateVolumeRequest::default()
        };
        let started = Instant::now();
        let made = client.create_volume(request).await.expect("there is room");
        samples.push(milliseconds(started));
        ids.push(made.into_inner().volume.expect("it is required").volume_id);
    }
    (ids, samples)
}

/// Deletes volumes one after the other; returns the milliseconds for each.
pub(crate) async fn delete(driver: &Driver, ids: Vec<String>) -> Vec<f64> {
    let mut client = driver.controller_client().await;
    let mut samples = Vec::with_capacity(ids.len());
    for volume_id in ids {
        let request = DeleteVolumeRequest {
            volume_id,
            ..DeleteVolumeRequest::default()
        };
        let started = Instant::now();
        client.delete_volume(request).await.expect("nobody uses it");
        samples.push(milliseconds(started));
    }
    samples
}

/// Both percentiles of a call beside those of the bare writes.
pub(crate) fn figures<'a>(
    call: &'a str,
    ours: &'a [f64],
    bare: &'a [f64],
    aim: &'static str,
) -> impl Iterator<Item = Figure> + 'a {
    [(50, aim), (99, "")]
        .into_iter()
        .map(move |(percent, aim)| {
            let (ours, bare) = (percentile(ours, percent), percentile(bare, percent));
            Figure {
                what: format!("{call} p{percent}"),
                ours: format!("{ours:.1} ms"),
                beside: format!("two API writes {bare:.1} ms"),
                ratio: Some(ours / bare),
                aim,
            }
        })
}

/// A mounted ext4 for one writer.
pub(crate) fn capability() -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(AccessMode {
            mode: Mode::SingleNodeWriter.into(),
        }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    }
}
