//! What failed tests leave: the objects that they keep for inspection, and a cluster without parts of Cistern.
//!
//! *Invariant:* a failed test does not make later tests fail, except one that cannot run beside kept objects. That
//! one says so before it changes anything.

use std::collections::BTreeMap;

use cistern_crds::{PoolSnapshot, PoolSnapshotGroup, PoolVolume, StoragePool};
use k8s_openapi::{
    api::core::v1::{Namespace, PersistentVolumeClaim, Pod},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{Api, Resource as _, ResourceExt};

use super::{
    Harness, NAMESPACE, PATIENCE, TEST_LABEL, Test,
    test::{also, list, remove_all},
};
use crate::{eventually, process::run};

/// Selects the definitions of Cistern.
pub const DEFINITIONS: &str = "--selector=app.kubernetes.io/part-of=cistern";
/// The annotation that permits the deletion of a definition.
pub const ALLOW_DELETION: &str = "cistern.storage/allow-deletion";
/// Stands for the test of an object that is in no labelled pool.
const UNKNOWN: &str = "documents or another test without labels";

/// An object that is left.
struct Kept {
    /// The name of the test that made it.
    test: String,
    object: String,
    is_pool: bool,
}

/// Says which objects of which tests are the reason that the test `waiting` did not run.
fn message(kept: &[Kept], waiting: &str, because: &str) -> String {
    let mut by_test = BTreeMap::<&str, Vec<&str>>::new();
    for kept in kept {
        let objects = by_test.entry(&kept.test).or_default();
        objects.push(&kept.object);
    }
    let tests: Vec<&str> = by_test.keys().copied().collect();
    let left = by_test
        .iter()
        .map(|(test, objects)| format!("  {test} left {}", objects.join("; ")));
    format!(
        "the cause is not here: {} failed before and left objects. {waiting} did not run, because {because}. Correct \
         the tests that failed before, or delete what they left:\n{}",
        tests.join(", "),
        left.collect::<Vec<_>>().join("\n")
    )
}

impl Test {
    /// Checks that no failed test keeps volumes, snapshots or groups. A test that deletes the definitions calls this
    /// before it creates its own: the finalizers of kept objects would block the definitions, and no later test could
    /// create an object.
    ///
    /// # Panics
    /// When there are such objects.
    pub async fn no_failed_test_keeps_volumes(&self) {
        let mut kept = self.kept().await;
        kept.retain(|kept| !kept.is_pool);
        let because = "they would block the deletion of Cistern's definitions";
        assert!(kept.is_empty(), "{}", message(&kept, &self.name, because));
    }

    /// Checks that no failed test keeps pools, volumes, snapshots or groups. A test that shows all objects of the cluster
    /// calls this first.
    ///
    /// # Panics
    /// When there are such objects.
    pub async fn no_failed_test_keeps_objects(&self) {
        let mut kept = self.kept().await;
        // Such a test begins by removing what itself has left.
        kept.retain(|kept| kept.test != UNKNOWN);
        let because = "its commands would show them";
        assert!(kept.is_empty(), "{}", message(&kept, &self.name, because));
    }

    /// Returns the pools, volumes, snapshots and groups of the cluster. While no test has made any, failed tests keep them.
    async fn kept(&self) -> Vec<Kept> {
        let pools = list::<StoragePool>(&self.all(), "").await;
        let volumes = list::<PoolVolume>(&self.all(), "").await;
        let snapshots = list::<PoolSnapshot>(&self.all(), "").await;
        let groups = list::<PoolSnapshotGroup>(&self.all(), "").await;
        let in_pool = |pool: &str, object: String| {
            let found = pools.iter().find(|it| it.name_any() == pool);
            let test = found.and_then(|pool| pool.labels().get(TEST_LABEL));
            Kept {
                test: test.map_or(UNKNOWN, String::as_str).to_owned(),
                object,
                is_pool: false,
            }
        };
        let mut kept = Vec::new();
        for pool in &pools {
            let name = pool.name_any();
            kept.push(Kept {
                is_pool: true,
                ..in_pool(&name, format!("StoragePool {name}"))
            });
        }
        for volume in &volumes {
            let (name, pool) = (volume.name_any(), &volume.spec.pool_name);
            let claim = volume.spec.claim.as_ref();
            let claim = claim.map(|it| format!(" of claim {}/{}", it.namespace, it.name));
            let claim = claim.unwrap_or_default();
            kept.push(in_pool(
                pool,
                format!("PoolVolume {name}{claim} in pool {pool}"),
            ));
        }
        for snapshot in &snapshots {
            let (name, pool) = (snapshot.name_any(), &snapshot.spec.pool_name);
            kept.push(in_pool(pool, format!("PoolSnapshot {name} in pool {pool}")));
        }
        for group in &groups {
            let is_member = |volume: &&PoolVolume| {
                let name = volume.name_any();
                let mut members = group.spec.members.iter();
                members.any(|member| member.volume == name)
            };
            let pool = volumes.iter().find(is_member);
            let pool = pool.map_or("", |volume| volume.spec.pool_name.as_str());
            kept.push(in_pool(
                pool,
                format!("PoolSnapshotGroup {}", group.name_any()),
            ));
        }
        kept
    }

    /// Installs Cistern again after a failed test that may have removed parts of it.
    pub(super) async fn restore_cistern(&self) {
        if !Harness::is_there() {
            return;
        }
        also("installing Cistern again", Box::pin(self.install_again())).await;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_cannot_run_says_which_objects_of_which_tests_are_left() {
        let kept = |test: &str, object: &str| Kept {
            test: test.to_owned(),
            object: object.to_owned(),
            is_pool: false,
        };
        let kept = [
            kept(
                "pulled",
                "PoolVolume pvc-1 of claim pulled-x/claim in pool pulled-pool",
            ),
            kept("reboot", "PoolVolume pvc-2 in pool reboot-pool"),
            kept("pulled", "PoolSnapshot s-1 in pool pulled-pool"),
        ];
        let said = message(&kept, "delete-definitions", "they would block it");
        let mut lines = said.lines();
        let first = lines.next().unwrap();
        assert!(first.starts_with("the cause is not here: pulled, reboot failed before"));
        assert!(first.contains("delete-definitions did not run, because they would block it"));
        let of_pulled = "  pulled left PoolVolume pvc-1 of claim pulled-x/claim in pool pulled-pool; \
            PoolSnapshot s-1 in pool pulled-pool";
        let of_reboot = "  reboot left PoolVolume pvc-2 in pool reboot-pool";
        assert_eq!(lines.collect::<Vec<_>>(), [of_pulled, of_reboot]);
    }
}
