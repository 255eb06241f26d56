//! The CSI Controller service: parses each request, calls the controller, and renders the result.

use std::sync::Arc;

use cistern_controller::{
    snapshots::{NewSnapshot, Snapshots},
    volumes::{Capacity, NewVolume, Volumes},
};
use cistern_crds::names;
use cistern_proto::csi::v1;
use tonic::{Request, Response, Status};

use super::{
    health, render,
    request::{self, snapshot},
};
use crate::csi::request::FromRequest as _;
use crate::csi::status::OrStatus as _;
use crate::server::{Subject, about};

/// The Controller service.
#[derive(Clone, Debug)]
pub struct Controller {
    volumes: Arc<Volumes>,
    snapshots: Arc<Snapshots>,
}

impl Controller {
    /// Creates the service on the volumes and snapshots of a cluster.
    pub fn new(volumes: Arc<Volumes>, snapshots: Arc<Snapshots>) -> Self {
        Self { volumes, snapshots }
    }
}

#[tonic::async_trait]
impl v1::controller_server::Controller for Controller {
    async fn create_volume(
        &self,
        request: Request<v1::CreateVolumeRequest>,
    ) -> Result<Response<v1::CreateVolumeResponse>, Status> {
        let deadline = request::deadline(request.metadata());
        about_volume(&names::volume_name(&request.get_ref().name));
        let wanted = NewVolume::from_request(request.into_inner())?;
        let volume = self.volumes.ensure(&wanted, deadline).await.or_status()?;
        about(Subject {
            pool: Some(&volume.pool),
            node: Some(&volume.node),
            ..Subject::default()
        });
        Ok(Response::new(v1::CreateVolumeResponse {
            volume: Some(render::volume(volume)),
        }))
    }

    async fn delete_volume(
        &self,
        request: Request<v1::DeleteVolumeRequest>,
    ) -> Result<Response<v1::DeleteVolumeResponse>, Status> {
        let deadline = request::deadline(request.metadata());
        let id = request::delete_volume(request.into_inner())?;
        about_volume(&id);
        self.volumes.delete(&id, deadline).await.or_status()?;
        Ok(Response::new(v1::DeleteVolumeResponse {}))
    }

    async fn controller_expand_volume(
        &self,
        request: Request<v1::ControllerExpandVolumeRequest>,
    ) -> Result<Response<v1::ControllerExpandVolumeResponse>, Status> {
        let deadline = request::deadline(request.metadata());
        about_volume(&request.get_ref().volume_id);
        let asked = request::ExpandVolume::from_request(request.into_inner())?;
        let volume = self.volumes.get(&asked.volume_id).await.or_status()?;
        asked.check(&volume)?;
        let size = self
            .volumes
            .expand(volume, asked.size, deadline)
            .await
            .or_status()?;
        Ok(Response::new(render::expanded(size)))
    }

    async fn controller_modify_volume(
        &self,
        request: Request<v1::ControllerModifyVolumeRequest>,
    ) -> Result<Response<v1::ControllerModifyVolumeResponse>, Status> {
        let deadline = request::deadline(request.metadata());
        about_volume(&request.get_ref().volume_id);
        let asked = request::ModifyVolume::from_request(request.into_inner())?;
        let volume = self.volumes.get(&asked.volume_id).await.or_status()?;
        let changes = asked.changes()?;
        self.volumes
            .modify(volume, &changes, deadline)
            .await
            .or_status()?;
        Ok(Response::new(v1::ControllerModifyVolumeResponse {}))
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<v1::ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<v1::ValidateVolumeCapabilitiesResponse>, Status> {
        let request = request.into_inner();
        about_volume(&request.volume_id);
        let asked = request::ValidateVolumeCapabilities::from_request(request.clone())?;
        let volume = self.volumes.get(&asked.volume_id).await.or_status()?;
        let mismatch = asked.mismatch(&volume);
        Ok(Response::new(render::validated(request, mismatch)))
    }

    async fn controller_get_volume(
        &self,
        request: Request<v1::ControllerGetVolumeRequest>,
    ) -> Result<Response<v1::ControllerGetVolumeResponse>, Status> {
        let id = request::get_volume(request.into_inner())?;
        about_volume(&id);
        let volume = self.volumes.describe(&id).await.or_status()?;
        Ok(Response::new(render::found(volume)))
    }

    async fn list_volumes(
        &self,
        request: Request<v1::ListVolumesRequest>,
    ) -> Result<Response<v1::ListVolumesResponse>, Status> {
        let query = request::list_volumes(request.get_ref())?;
        let page = self.volumes.list(&query).or_status()?;
        Ok(Response::new(render::listed(page)))
    }

    async fn controller_get_volume_health(
        &self,
        request: Request<v1::ControllerGetVolumeHealthRequest>,
    ) -> Result<Response<v1::ControllerGetVolumeHealthResponse>, Status> {
        let id = request::get_volume_health(request.into_inner())?;
        about_volume(&id);
        let found = self.volumes.describe(&id).await.or_status()?;
        Ok(Response::new(v1::ControllerGetVolumeHealthResponse {
            volume_health: Some(health::volume(&id, &found.problems)),
        }))
    }

    async fn controller_list_volume_health(
        &self,
        request: Request<v1::ControllerListVolumeHealthRequest>,
    ) -> Result<Response<v1::ControllerListVolumeHealthResponse>, Status> {
        let query = request::list_volume_health(request.get_ref())?;
        let page = self.volumes.list_unwell(&query).or_status()?;
        Ok(Response::new(render::listed_health(page)))
    }

    async fn get_capacity(
        &self,
        request: Request<v1::GetCapacityRequest>,
    ) -> Result<Response<v1::GetCapacityResponse>, Status> {
        let capacity = match request::get_capacity(request.into_inner())? {
            Some(query) => self.volumes.capacity(&query).or_status()?,
            None => Capacity::default(),
        };
        Ok(Response::new(render::capacity(capacity)))
    }

    async fn create_snapshot(
        &self,
        request: Request<v1::CreateSnapshotRequest>,
    ) -> Result<Response<v1::CreateSnapshotResponse>, Status> {
        let deadline = request::deadline(request.metadata());
        about(Subject {
            snapshot: Some(&names::snapshot_name(&request.get_ref().name)),
            volume: Some(&request.get_ref().source_volume_id),
            ..Subject::default()
        });
        let wanted = NewSnapshot::from_request(request.into_inner())?;
        let snapshot = self.snapshots.ensure(&wanted, deadline).await.or_status()?;
        about(Subject {
            node: Some(&snapshot.node),
            ..Subject::default()
        });
        Ok(Response::new(v1::CreateSnapshotResponse {
            snapshot: Some(render::snapshot(snapshot)),
        }))
    }

    async fn delete_snapshot(
        &self,
        request: Request<v1::DeleteSnapshotRequest>,
    ) -> Result<Response<v1::DeleteSnapshotResponse>, Status> {
        let deadline = request::deadline(request.metadata());
        let id = snapshot::delete_snapshot(request.into_inner())?;
        about_snapshot(&id);
        self.snapshots.delete(&id, deadline).await.or_status()?;
        Ok(Response::new(v1::DeleteSnapshotResponse {}))
    }

    async fn get_snapshot(
        &self,
        request: Request<v1::GetSnapshotRequest>,
    ) -> Result<Response<v1::GetSnapshotResponse>, Status> {
        let id = snapshot::get_snapshot(request.into_inner())?;
        about_snapshot(&id);
        let snapshot = self.snapshots.describe(&id).await.or_status()?;
        Ok(Response::new(v1::GetSnapshotResponse {
            snapshot: Some(render::snapshot(snapshot)),
        }))
    }

    async fn list_snapshots(
        &self,
        request: Request<v1::ListSnapshotsRequest>,
    ) -> Result<Response<v1::ListSnapshotsResponse>, Status> {
        let query = snapshot::list_snapshots(request.into_inner())?;
        let page = self.snapshots.list(&query).await.or_status()?;
        Ok(Response::new(render::listed_snapshots(page)))
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<v1::ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<v1::ControllerGetCapabilitiesResponse>, Status> {
        Ok(Response::new(render::capabilities()))
    }
}

fn about_volume(id: &str) {
    about(Subject {
        volume: Some(id),
        ..Subject::default()
    });
}

fn about_snapshot(id: &str) {
    about(Subject {
        snapshot: Some(id),
        ..Subject::default()
    });
}
