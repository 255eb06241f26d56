//! One replica of `cistern-driver controller`, without agents. The test writes what the nodes' agents would.

use std::process::Command;

use cistern_proto::csi::v1::{
    controller_client::ControllerClient, group_controller_client::GroupControllerClient,
    identity_client::IdentityClient,
};
use tonic::transport::Channel;

use crate::{
    ControlPlane, Folder,
    control_plane::free_addresses,
    process::{binary, dying_with_us},
    service::{Service, socket},
};

const NAME: &str = "controller";

/// One running controller.
#[derive(Debug)]
pub struct Replica {
    // Dropped in this order: the folder is removed when no process writes there any more.
    service: Service,
    folder: Folder,
}

impl Replica {
    /// Starts a controller against an API server and waits until it is ready.
    pub async fn start(control_plane: &ControlPlane) -> Self {
        let folder = Folder::new();
        let [http] = free_addresses();
        let endpoint = format!("unix://{}", socket(folder.path(), NAME).display());
        let mut command: Command = dying_with_us(binary("cistern-driver"));
        command
            .arg(NAME)
            .arg(format!("--endpoint={endpoint}"))
            .arg(format!("--http={http}"))
            .arg("--log-level=info,cistern_driver=debug,cistern_controller=debug")
            .env("KUBECONFIG", control_plane.kubeconfig());
        Self {
            service: Service::start(NAME, folder.path(), http, command).await,
            folder,
        }
    }

    /// Returns the process, to suspend it, kill it or read its log.
    pub fn service(&mut self) -> &mut Service {
        &mut self.service
    }

    /// Returns the folder of its socket and log.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Connects to its CSI controller service.
    pub async fn client(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.service.channel().await)
    }

    /// Connects to its CSI group controller service.
    pub async fn group_client(&self) -> GroupControllerClient<Channel> {
        GroupControllerClient::new(self.service.channel().await)
    }

    /// Connects to its CSI identity service.
    pub async fn identity_client(&self) -> IdentityClient<Channel> {
        IdentityClient::new(self.service.channel().await)
    }
}
