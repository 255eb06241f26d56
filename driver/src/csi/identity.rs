//! The CSI Identity service of both modes (GPI, GPC, PRB).

use std::{fmt, sync::Arc};

use cistern_client::http::Readiness;
use cistern_crds::names;
use cistern_host::command::MissingTool;
use cistern_proto::csi::v1::{
    self,
    plugin_capability::{Service, Type, VolumeExpansion, service, volume_expansion},
};
use tonic::{Request, Response, Status};

/// Checks the dependencies of the process (PRB-03).
pub type Check = Arc<dyn Fn() -> Result<(), MissingTool> + Send + Sync>;

/// The Identity service.
#[derive(Clone)]
pub struct Identity {
    readiness: Readiness,
    dependencies: Check,
}

impl Identity {
    /// Creates the service.
    ///
    /// `dependencies` is called at every `Probe`. It must be cheap and must not block.
    pub fn new(readiness: Readiness, dependencies: Check) -> Self {
        Self {
            readiness,
            dependencies,
        }
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("readiness", &self.readiness)
            .finish_non_exhaustive()
    }
}

#[tonic::async_trait]
impl v1::identity_server::Identity for Identity {
    async fn get_plugin_info(
        &self,
        _: Request<v1::GetPluginInfoRequest>,
    ) -> Result<Response<v1::GetPluginInfoResponse>, Status> {
        Ok(Response::new(v1::GetPluginInfoResponse {
            name: names::DRIVER.to_owned(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            manifest: std::collections::BTreeMap::new(),
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<v1::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<v1::GetPluginCapabilitiesResponse>, Status> {
        let capability = |kind: service::Type| v1::PluginCapability {
            r#type: Some(Type::Service(Service {
                r#type: kind.into(),
            })),
        };
        // The capabilities of the whole plugin, from either process (GPC-02, CAP-28).
        let mut capabilities = [
            service::Type::ControllerService,
            service::Type::GroupControllerService,
            service::Type::VolumeAccessibilityConstraints,
            service::Type::SnapshotAccessibilityConstraints,
            service::Type::SnapshotMetadataService,
        ]
        .map(capability)
        .to_vec();
        capabilities.push(v1::PluginCapability {
            r#type: Some(Type::VolumeExpansion(VolumeExpansion {
                r#type: volume_expansion::Type::Online.into(),
            })),
        });
        Ok(Response::new(v1::GetPluginCapabilitiesResponse {
            capabilities,
        }))
    }

    async fn probe(
        &self,
        _: Request<v1::ProbeRequest>,
    ) -> Result<Response<v1::ProbeResponse>, Status> {
        (self.dependencies)()
            .map_err(|missing| Status::failed_precondition(missing.to_string()))?;
        Ok(Response::new(v1::ProbeResponse {
            ready: Some(self.readiness.is_ready()),
        }))
    }
}

#[cfg(test)]
mod tests {
    use v1::identity_server::Identity as _;

    use super::*;

    fn identity(readiness: Readiness, check: fn() -> Result<(), MissingTool>) -> Identity {
        Identity::new(readiness, Arc::new(check))
    }

    async fn probe(identity: &Identity) -> Result<Option<bool>, Status> {
        let answer = identity.probe(Request::new(v1::ProbeRequest {})).await?;
        Ok(answer.into_inner().ready)
    }

    #[tokio::test]
    async fn prb_04_prb_05_prb_06_a_starting_process_is_not_ready_and_says_so() {
        let readiness = Readiness::default();
        readiness.wait_for("watch", "starting");
        let identity = identity(readiness.clone(), || Ok(()));
        assert_eq!(probe(&identity).await.unwrap(), Some(false));
        readiness.done("watch");
        assert_eq!(probe(&identity).await.unwrap(), Some(true));
    }

    #[tokio::test]
    async fn prb_03_a_missing_dependency_is_a_failed_precondition_that_names_it() {
        let identity = identity(Readiness::default(), || {
            Err(MissingTool { tool: "mkfs.xfs" })
        });
        let status = probe(&identity).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::FailedPrecondition);
        assert!(status.message().contains("mkfs.xfs"));
    }

    #[tokio::test]
    async fn gpi_02_gpi_03_gpi_04_san_01_name_and_version_are_legal() {
        let identity = identity(Readiness::default(), || Ok(()));
        let info = identity
            .get_plugin_info(Request::new(v1::GetPluginInfoRequest {}))
            .await
            .unwrap()
            .into_inner();
        assert!(
            (1..=63).contains(&info.name.len()) && (1..=128).contains(&info.vendor_version.len())
        );
        let inner = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
        assert!(info.name.chars().all(inner));
        // csi-sanity requires a letter at both ends.
        let ends = [info.name.chars().next(), info.name.chars().last()];
        assert!(ends.iter().all(|c| c.unwrap().is_ascii_alphabetic()));
    }

    #[tokio::test]
    async fn gpc_03_gpc_05_every_capability_has_a_type_and_the_controller_is_among_them() {
        let identity = identity(Readiness::default(), || Ok(()));
        let answer = identity
            .get_plugin_capabilities(Request::new(v1::GetPluginCapabilitiesRequest {}))
            .await
            .unwrap()
            .into_inner();
        let kinds: Vec<String> = answer
            .capabilities
            .iter()
            .map(|capability| match capability.r#type {
                Some(Type::Service(service)) => format!("{:?}", service.r#type()),
                Some(Type::VolumeExpansion(expansion)) => format!("{:?}", expansion.r#type()),
                None => "none".to_owned(),
            })
            .collect();
        let all = [
            "ControllerService",
            "GroupControllerService",
            "VolumeAccessibilityConstraints",
            "SnapshotAccessibilityConstraints",
            "SnapshotMetadataService",
            "Online",
        ];
        assert_eq!(kinds, all);
    }
}
