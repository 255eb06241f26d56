//! The CSI Node service: parses each request, calls the mounter, and renders the result.

pub mod keys;
pub mod request;
mod status;

use cistern_host::VolumeStatistics;
use cistern_node::mounting::{Mounter, Publish, Stage, expand::Expand};
use cistern_proto::csi::v1::{
    self,
    node_service_capability::{self as capability, Rpc, rpc},
    volume_usage::Unit,
};
use tonic::{Request, Response, Status};

use self::request::{Statistics, Unpublish, Unstage, VolumeHealth};
use super::{health, render};
use crate::csi::request::FromRequest as _;
use crate::csi::status::OrStatus as _;
use crate::server::{Subject, about};

/// The capabilities of the Node service.
const CAPABILITIES: [rpc::Type; 7] = [
    rpc::Type::StageUnstageVolume,
    rpc::Type::GetVolumeStats,
    rpc::Type::ExpandVolume,
    rpc::Type::SingleNodeMultiWriter,
    // Health in both forms: kubelet uses the volume condition, a kubelet for CSI 1.13 the entries.
    rpc::Type::VolumeCondition,
    rpc::Type::GetVolumeHealth,
    rpc::Type::GetStorageHealth,
];

/// The Node service of one node.
#[derive(Clone, Debug)]
pub struct Node {
    mounter: Mounter,
    name: String,
    max_volumes: u32,
}

impl Node {
    /// Creates the service for the node with this name.
    pub fn new(mounter: Mounter, name: &str, max_volumes: u32) -> Self {
        Self {
            mounter,
            name: name.to_owned(),
            max_volumes,
        }
    }
}

#[tonic::async_trait]
impl v1::node_server::Node for Node {
    async fn node_stage_volume(
        &self,
        request: Request<v1::NodeStageVolumeRequest>,
    ) -> Result<Response<v1::NodeStageVolumeResponse>, Status> {
        about_volume(&request.get_ref().volume_id);
        let stage = Stage::from_request(request.into_inner())?;
        self.mounter.stage(stage).await.or_status()?;
        Ok(Response::new(v1::NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<v1::NodeUnstageVolumeRequest>,
    ) -> Result<Response<v1::NodeUnstageVolumeResponse>, Status> {
        about_volume(&request.get_ref().volume_id);
        let Unstage { volume, staging } = Unstage::from_request(request.into_inner())?;
        self.mounter.unstage(&volume, staging).await.or_status()?;
        Ok(Response::new(v1::NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<v1::NodePublishVolumeRequest>,
    ) -> Result<Response<v1::NodePublishVolumeResponse>, Status> {
        about_volume(&request.get_ref().volume_id);
        let publish = Publish::from_request(request.into_inner())?;
        self.mounter.publish(publish).await.or_status()?;
        Ok(Response::new(v1::NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<v1::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<v1::NodeUnpublishVolumeResponse>, Status> {
        about_volume(&request.get_ref().volume_id);
        let Unpublish { volume, target } = Unpublish::from_request(request.into_inner())?;
        self.mounter.unpublish(&volume, target).await.or_status()?;
        Ok(Response::new(v1::NodeUnpublishVolumeResponse {}))
    }

    async fn node_expand_volume(
        &self,
        request: Request<v1::NodeExpandVolumeRequest>,
    ) -> Result<Response<v1::NodeExpandVolumeResponse>, Status> {
        about_volume(&request.get_ref().volume_id);
        let expand = Expand::from_request(request.into_inner())?;
        let size = self.mounter.expand(expand).await.or_status()?;
        Ok(Response::new(v1::NodeExpandVolumeResponse {
            capacity_bytes: size.to_i64(),
        }))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<v1::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<v1::NodeGetVolumeStatsResponse>, Status> {
        about_volume(&request.get_ref().volume_id);
        let Statistics { volume, path } = Statistics::from_request(request.into_inner())?;
        let found = self.mounter.examine(&volume, path).await.or_status()?;
        Ok(Response::new(v1::NodeGetVolumeStatsResponse {
            usage: found.statistics.map_or_else(Vec::new, usage),
            volume_condition: Some(health::condition(&found.problems)),
        }))
    }

    async fn node_get_volume_health(
        &self,
        request: Request<v1::NodeGetVolumeHealthRequest>,
    ) -> Result<Response<v1::NodeGetVolumeHealthResponse>, Status> {
        about_volume(&request.get_ref().volume_id);
        let VolumeHealth { volume, paths } = VolumeHealth::from_request(request.into_inner())?;
        let problems = self
            .mounter
            .volume_health(&volume, paths)
            .await
            .or_status()?;
        Ok(Response::new(v1::NodeGetVolumeHealthResponse {
            volume_health: Some(health::volume(&volume, &problems)),
        }))
    }

    async fn node_get_storage_health(
        &self,
        _: Request<v1::NodeGetStorageHealthRequest>,
    ) -> Result<Response<v1::NodeGetStorageHealthResponse>, Status> {
        let pools = self.mounter.pools_health();
        Ok(Response::new(health::pools(&pools)))
    }

    // kubelet calls this before nearly every other call, so it takes no lock and sends no request.
    async fn node_get_capabilities(
        &self,
        _: Request<v1::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<v1::NodeGetCapabilitiesResponse>, Status> {
        let capability = |kind: rpc::Type| v1::NodeServiceCapability {
            r#type: Some(capability::Type::Rpc(Rpc {
                r#type: kind.into(),
            })),
        };
        Ok(Response::new(v1::NodeGetCapabilitiesResponse {
            capabilities: CAPABILITIES.map(capability).to_vec(),
        }))
    }

    // Never fails: an error here would unregister the driver.
    async fn node_get_info(
        &self,
        _: Request<v1::NodeGetInfoRequest>,
    ) -> Result<Response<v1::NodeGetInfoResponse>, Status> {
        Ok(Response::new(v1::NodeGetInfoResponse {
            node_id: self.name.clone(),
            max_volumes_per_node: self.max_volumes.into(),
            accessible_topology: Some(render::topology(&self.name)),
        }))
    }
}

/// Renders the statistics of a volume. A block device has only its size (NGS-13).
fn usage(found: VolumeStatistics) -> Vec<v1::VolumeUsage> {
    let inodes = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    match found {
        VolumeStatistics::Block { total } => vec![v1::VolumeUsage {
            total: total.to_i64(),
            unit: Unit::Bytes.into(),
            ..v1::VolumeUsage::default()
        }],
        VolumeStatistics::Filesystem(found) => {
            let bytes = v1::VolumeUsage {
                total: found.total.to_i64(),
                used: found.used.to_i64(),
                available: found.available.to_i64(),
                unit: Unit::Bytes.into(),
            };
            let inodes = v1::VolumeUsage {
                total: inodes(found.inodes),
                used: inodes(found.inodes_used),
                available: inodes(found.inodes_free),
                unit: Unit::Inodes.into(),
            };
            // btrfs reports no inodes: it creates them on demand.
            let inodes = (inodes.total > 0).then_some(inodes);
            [bytes].into_iter().chain(inodes).collect()
        }
    }
}

fn about_volume(volume: &str) {
    about(Subject {
        volume: Some(volume),
        ..Subject::default()
    });
}

#[cfg(test)]
mod tests {
    use cistern_crds::Bytes;
    use cistern_host::statistics::FilesystemStatistics;

    use super::*;

    #[test]
    fn inodes_are_reported_where_the_filesystem_counts_them() {
        let units = |inodes| {
            let found = FilesystemStatistics {
                total: Bytes::gib(1),
                used: Bytes::ZERO,
                available: Bytes::gib(1),
                inodes,
                inodes_used: 0,
                inodes_free: inodes,
            };
            let all = usage(VolumeStatistics::Filesystem(found)).into_iter();
            all.map(|usage| usage.unit()).collect::<Vec<_>>()
        };
        assert_eq!(units(16), [Unit::Bytes, Unit::Inodes]);
        assert_eq!(units(0), [Unit::Bytes]);
    }
}
