//! The CSI GroupController service: parses each request, calls the controller, and renders the
//! result.

pub mod part;
mod request;
mod status;

use std::sync::Arc;

use cistern_controller::groups::{Groups, ListedGroup, NewGroup};
use cistern_crds::names;
use cistern_proto::csi::v1::{
    self, group_controller_service_capability as capability,
    group_controller_service_capability::rpc,
};
use tonic::{Request, Response, Status};

use super::{render, request::deadline};
use crate::csi::request::FromRequest as _;
use crate::csi::status::OrStatus as _;
use crate::server::{Subject, about};

/// The GroupController service.
#[derive(Clone, Debug)]
pub struct GroupController {
    groups: Arc<Groups>,
}

impl GroupController {
    /// Creates the service on the group snapshots of a cluster.
    pub fn new(groups: Arc<Groups>) -> Self {
        Self { groups }
    }
}

#[tonic::async_trait]
impl v1::group_controller_server::GroupController for GroupController {
    async fn group_controller_get_capabilities(
        &self,
        _: Request<v1::GroupControllerGetCapabilitiesRequest>,
    ) -> Result<Response<v1::GroupControllerGetCapabilitiesResponse>, Status> {
        let kind = rpc::Type::CreateDeleteGetVolumeGroupSnapshot.into();
        let capability = v1::GroupControllerServiceCapability {
            r#type: Some(capability::Type::Rpc(capability::Rpc { r#type: kind })),
        };
        Ok(Response::new(v1::GroupControllerGetCapabilitiesResponse {
            capabilities: vec![capability],
        }))
    }

    async fn create_volume_group_snapshot(
        &self,
        request: Request<v1::CreateVolumeGroupSnapshotRequest>,
    ) -> Result<Response<v1::CreateVolumeGroupSnapshotResponse>, Status> {
        let deadline = deadline(request.metadata());
        about_group(&names::snapshot_group_name(&request.get_ref().name));
        let wanted = NewGroup::from_request(request.into_inner())?;
        let group = self.groups.ensure(&wanted, deadline).await.or_status()?;
        Ok(Response::new(v1::CreateVolumeGroupSnapshotResponse {
            group_snapshot: Some(render(group)),
        }))
    }

    async fn delete_volume_group_snapshot(
        &self,
        request: Request<v1::DeleteVolumeGroupSnapshotRequest>,
    ) -> Result<Response<v1::DeleteVolumeGroupSnapshotResponse>, Status> {
        let deadline = deadline(request.metadata());
        let query = request::delete(request.into_inner())?;
        about_group(&query.id);
        self.groups.delete(&query, deadline).await.or_status()?;
        Ok(Response::new(v1::DeleteVolumeGroupSnapshotResponse {}))
    }

    async fn get_volume_group_snapshot(
        &self,
        request: Request<v1::GetVolumeGroupSnapshotRequest>,
    ) -> Result<Response<v1::GetVolumeGroupSnapshotResponse>, Status> {
        let query = request::get(request.into_inner())?;
        about_group(&query.id);
        let group = self.groups.get(&query).await.or_status()?;
        Ok(Response::new(v1::GetVolumeGroupSnapshotResponse {
            group_snapshot: Some(render(group)),
        }))
    }
}

/// Renders a group (CGS-09). Each of its snapshots is rendered like a single snapshot.
fn render(group: ListedGroup) -> v1::VolumeGroupSnapshot {
    v1::VolumeGroupSnapshot {
        group_snapshot_id: group.id,
        snapshots: group.snapshots.into_iter().map(render::snapshot).collect(),
        creation_time: Some(render::timestamp(group.creation_time)),
        ready_to_use: group.is_ready,
    }
}

fn about_group(id: &str) {
    about(Subject {
        snapshot: Some(id),
        ..Subject::default()
    });
}
