//! `cistern-driver controller` alone: one replica of several. What the agents of the nodes would
//! write, the test writes.

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
    // Dropped in this order: the folder goes when nobody writes there any more.
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

    /// The process: let it hang, kill it, look at its log.
    pub fn service(&mut self) -> &mut Service {
        &mut self.service
    }

    /// The folder that holds its socket and its log.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// A connection to its CSI controller service.
    pub async fn client(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.service.channel().await)
    }

    /// A connection to its CSI group controller service.
    pub async fn group_client(&self) -> GroupControllerClient<Channel> {
        GroupControllerClient::new(self.service.channel().await)
    }

    /// A connection to its CSI identity service.
    pub async fn identity_client(&self) -> IdentityClient<Channel> {
        IdentityClient::new(self.service.channel().await)
    }
}
