//! The process of `cistern-operator`, with all permissions.

use std::process::Command;

use crate::{
    ControlPlane, Folder,
    cluster::NAMESPACE,
    control_plane::free_addresses,
    process::{binary, dying_with_us},
    service::Service,
};

/// One running operator.
#[derive(Debug)]
pub struct Operator {
    // Dropped in this order: the folder is removed when no process writes there any more.
    service: Service,
    _folder: Folder,
}

impl Operator {
    /// Starts an operator against an API server and waits until it is ready.
    pub async fn start(control_plane: &ControlPlane) -> Self {
        let folder = Folder::new();
        let [http] = free_addresses();
        let mut command: Command = dying_with_us(binary("cistern-operator"));
        command
            .arg(format!("--http={http}"))
            .arg(format!("--namespace={NAMESPACE}"))
            .env("KUBECONFIG", control_plane.kubeconfig());
        Self {
            service: Service::start("operator", folder.path(), http, command).await,
            _folder: folder,
        }
    }

    /// Returns its process.
    pub fn service(&self) -> &Service {
        &self.service
    }

    /// Stops it.
    pub async fn finish(mut self) {
        self.service.stop().await;
    }
}
