//! Registers the driver with kubelet, without a registrar sidecar.
//!
//! kubelet finds the socket in its plugin directory, calls `GetInfo` on it, and then `NodeGetInfo` on
//! the CSI socket. The driver is registered for as long as the socket exists. Its removal unpublishes
//! the topology, pins claims to a node that seems to lack the driver, and blocks the teardown of pods.
//! So the socket exists for as long as node mode runs.

use std::path::{Path, PathBuf};

use cistern_crds::names;
use cistern_proto::registration::v1::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
    registration_server::{Registration, RegistrationServer},
};
use tonic::{Request, Response, Status, service::Routes};

/// Path of the driver's registration socket.
///
/// kubelet dials without an authority, so the client sends the percent-encoded path as `:authority`.
/// HTTP/2 servers reject a percent sign there, except before an `@`. The `@` in the name makes the path
/// the user part of an authority. kubelet accepts any name.
pub fn socket_path(folder: &Path) -> PathBuf {
    folder.join(format!("{}@reg.sock", names::DRIVER))
}

/// Answers kubelet's plugin watcher.
#[derive(Clone, Debug)]
pub struct Registrar {
    endpoint: String,
}

impl Registrar {
    /// Creates a registrar for the CSI socket at `endpoint`, a path on the host.
    pub fn new(endpoint: &Path) -> Self {
        Self {
            endpoint: endpoint.to_string_lossy().into_owned(),
        }
    }

    /// The service for the registration socket.
    pub fn into_routes(self) -> Routes {
        Routes::new(RegistrationServer::new(self))
    }
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: names::DRIVER.to_owned(),
            endpoint: self.endpoint.clone(),
            supported_versions: vec!["1.0.0".to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        if status.plugin_registered {
            tracing::info!("kubelet has registered the driver");
        } else {
            // kubelet retries with a growing wait.
            tracing::error!(error = status.error, "kubelet cannot register the driver");
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[cfg(test)]
mod tests;
