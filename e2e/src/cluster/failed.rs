//! What failed tests leave: the objects that they keep for inspection, and a cluster without parts of Cistern.
//!
//! *Invariant:* a failed test does not make later tests fail, except one that cannot run beside kept objects. That
//! one says so before it changes anything.

use std::panic::AssertUnwindSafe;

use cistern_crds::{PoolSnapshot, PoolSnapshotGroup, PoolVolume};
use futures::FutureExt as _;
use k8s_openapi::{
    api::core::v1::{Namespace, PersistentVolumeClaim, Pod},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{Api, Resource as _, ResourceExt};

use super::{
    Harness, NAMESPACE, PATIENCE, Test,
    test::{list, remove_all},
};
use crate::{eventually, process::run};

/// Selects the definitions of Cistern.
pub const DEFINITIONS: &str = "--selector=app.kubernetes.io/part-of=cistern";
/// The annotation that permits the deletion of a definition.
pub const ALLOW_DELETION: &str = "cistern.storage/allow-deletion";

impl Test {
    /// Checks that no failed test keeps volumes, snapshots or groups. A test that deletes the definitions calls this
    /// before it creates its own: the finalizers of kept objects would block the definitions, and no later test could
    /// create an object.
    ///
    /// # Panics
    /// When there are such objects.
    pub async fn no_failed_test_keeps_volumes(&self) {
        let volumes = list::<PoolVolume>(&self.all(), "").await;
        let snapshots = list::<PoolSnapshot>(&self.all(), "").await;
        let groups = list::<PoolSnapshotGroup>(&self.all(), "").await;
        let in_pool = |name: String, pool: &str| format!("{name} in pool {pool}");
        let volumes = volumes
            .iter()
            .map(|volume| in_pool(volume.name_any(), &volume.spec.pool_name));
        let snapshots = snapshots
            .iter()
            .map(|snapshot| in_pool(snapshot.name_any(), &snapshot.spec.pool_name));
        let groups = groups.iter().map(PoolSnapshotGroup::name_any);
        let kept: Vec<String> = volumes.chain(snapshots).chain(groups).collect();
        assert!(
            kept.is_empty(),
            "{} did not run, because tests that failed before it keep {kept:?}, which would block the deletion of \
             the definitions: correct those tests, or delete what they keep",
            self.name
        );
    }

    /// Installs Cistern again after a failed test that may have removed parts of it. A failure is printed only,
    /// because that of the test says more.
    pub(super) async fn restore_cistern(&self) {
        if !Harness::is_there() {
            return;
        }
        let restored = AssertUnwindSafe(self.install_again()).catch_unwind().await;
        if restored.is_err() {
            eprintln!(
                "Cistern cannot be installed again after {}: later tests fail for this reason",
                self.name
            );
        }
    }

    async fn install_again(&self) {
        let definitions: Api<CustomResourceDefinition> = self.all();
        let names = cistern_crds::definitions();
        let names: Vec<String> = names.iter().map(ResourceExt::name_any).collect();
        let mut found = list(&definitions, "").await;
        found.retain(|definition| names.contains(&definition.name_any()));
        if !found.is_empty() {
            let no_longer = format!("{ALLOW_DELETION}-");
            let annotate = ["annotate", "crd", DEFINITIONS, &no_longer];
            run(self.cluster.kubectl_command(annotate), PATIENCE).await;
        }
        found.retain(|definition| definition.meta().deletion_timestamp.is_some());
        if !found.is_empty() {
            // A definition that is being deleted accepts no new object, and the kept objects block its deletion.
            eprintln!(
                "removing what {} keeps: it blocks the definitions",
                self.name
            );
            remove_all::<Pod>(&self.namespaced(), "").await;
            self.remove_snapshots().await;
            remove_all::<PersistentVolumeClaim>(&self.namespaced(), "").await;
            for definition in found {
                self.gone(&definitions, &definition.name_any()).await;
            }
        }
        // Nothing can be created in a namespace that is being deleted.
        let namespaces: Api<Namespace> = self.all();
        eventually(
            "the namespace to be usable",
            PATIENCE,
            async || match namespaces.get_opt(NAMESPACE).await {
                Ok(Some(found)) if found.meta().deletion_timestamp.is_some() => {
                    Err(format!("{:?}", found.status))
                }
                Ok(_) => Ok(()),
                Err(error) => Err(error.to_string()),
            },
        )
        .await;
        self.cluster.install().await;
    }
}
