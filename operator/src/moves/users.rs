//! The pods that use a volume: lists, evicts and deletes them.

use cistern_client::Rejection;
use cistern_crds::{Explanation, Reason};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams, Preconditions},
    core::Status,
};
use serde_json::json;

use super::{Error, advance::Move, pods::User};
use crate::pods::uses;

/// Whether pods are evicted, or whether only their budgets are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Eviction {
    /// Ask, and change nothing.
    DryRun,
    /// Evict them.
    Real,
}

impl Move<'_> {
    /// The pods that use the volume.
    pub(super) async fn users(&self) -> Result<Vec<User>, Error> {
        let pods = self.pods_of_namespace().await?;
        let name = self.claim().and_then(|claim| claim.name.as_deref());
        let own = pods
            .iter()
            .filter(|pod| name.is_some_and(|name| uses(pod, name)));
        Ok(own.map(User::of).collect())
    }

    /// All pods in the namespace of the claim: no others can use volumes together with its pods.
    pub(super) async fn pods_of_namespace(&self) -> Result<Vec<Pod>, Error> {
        let Some(claim) = self.claim() else {
            return Ok(Vec::new());
        };
        let namespace = claim.namespace.as_deref().unwrap_or_default();
        let api = Api::<Pod>::namespaced(self.context.client.clone(), namespace);
        let pods = api.list(&ListParams::default()).await;
        let pods = pods.map_err(|error| self.failed_with("list", "the pods", error))?;
        Ok(pods.items)
    }

    /// Deletes pods that were bound to the former node and have not started: they cannot get the volume there.
    /// What made them makes new ones.
    pub(super) async fn delete_pods(&self, pods: &[User]) -> Result<(), Error> {
        for pod in pods {
            let api = Api::<Pod>::namespaced(self.context.client.clone(), &pod.namespace);
            let parameters = DeleteParams {
                preconditions: Some(Preconditions {
                    uid: Some(pod.uid.clone()),
                    resource_version: None,
                }),
                ..DeleteParams::default()
            };
            match api.delete(&pod.name, &parameters).await {
                Ok(_) => {
                    let volume = self.name();
                    tracing::info!(volume, %pod, "deleted the pod, which is bound to the former node");
                }
                Err(error) if Rejection::from(&error) == Rejection::NotFound => {}
                Err(error) => return Err(self.failed_with("delete", "a pod", error)),
            }
        }
        Ok(())
    }

    /// Evicts pods. Returns why the first one cannot be evicted, if its budget does not allow that.
    pub(super) async fn evict(
        &self,
        pods: &[User],
        how: Eviction,
    ) -> Result<Option<Explanation>, Error> {
        for pod in pods {
            match self.evict_one(pod, how).await {
                Ok(()) if how == Eviction::Real => {
                    tracing::info!(volume = self.name(), %pod, "evicted the pod, so that the volume can move");
                }
                Ok(()) => {}
                // 500: more than one budget applies to it, which the API server does not support.
                Err(kube::Error::Api(status)) if matches!(status.code, 429 | 500) => {
                    let said = &status.message;
                    let message = format!("pod {pod} is not evicted: {said}");
                    return Ok(Some(Explanation::new(Reason::EvictionBlocked, message)));
                }
                // It has ended, and another one may have its name.
                Err(error)
                    if matches!(
                        Rejection::from(&error),
                        Rejection::NotFound | Rejection::Conflict
                    ) => {}
                Err(error) => return Err(self.failed_with("evict", "a pod", error)),
            }
        }
        Ok(None)
    }

    /// Asks the API server to evict a pod, and no other one of its name.
    async fn evict_one(&self, pod: &User, how: Eviction) -> Result<(), kube::Error> {
        let api = Api::<Pod>::namespaced(self.context.client.clone(), &pod.namespace);
        // Not `Api::evict`: the API server does not know the field in which kube 5.0 sends the options.
        let eviction = json!({
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        });
        let parameters = PostParams {
            dry_run: how == Eviction::DryRun,
            ..PostParams::default()
        };
        let evicted =
            api.create_subresource::<_, Status>("eviction", &pod.name, &parameters, &eviction);
        evicted.await.map(drop)
    }
}
