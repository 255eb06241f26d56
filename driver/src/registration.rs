//! How the driver makes itself known to kubelet, without a registrar beside it.
//!
//! kubelet finds the socket in its folder of plugins, asks who is there, and calls `NodeGetInfo` on
//! the CSI socket. The driver is registered for as long as the socket exists: taking it away
//! unpublishes the topology, pins claims to a node that seems not to have the driver, and keeps
//! pods from being torn down. So it is there wherever node mode runs, from the start to the end.

use std::path::{Path, PathBuf};

use cistern_crds::names;
use cistern_proto::registration::v1::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
    registration_server::{Registration, RegistrationServer},
};
use tonic::{Request, Response, Status, service::Routes};

/// Where the registration socket of the driver is.
///
/// kubelet dials without naming an authority, so the client sends the percent-encoded path as
/// `:authority`, and HTTP/2 servers refuse a percent sign there, except before an `@`: the name
/// makes the path the user part of an authority. kubelet does not care about names.
pub fn socket_path(folder: &Path) -> PathBuf {
    folder.join(format!("{}@reg.sock", names::DRIVER))
}

/// Answers kubelet's plugin watcher.
#[derive(Clone, Debug)]
pub struct Registrar {
    endpoint: String,
}

impl Registrar {
    /// Registers the CSI socket at `endpoint`, a path on the host.
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
            // kubelet tries again by itself, with a growing wait.
            tracing::error!(error = status.error, "kubelet refuses the driver");
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[cfg(test)]
mod tests;
