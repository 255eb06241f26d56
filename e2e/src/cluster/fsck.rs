//! Checks the findings of `cistern-driver fsck` on the nodes.

use cistern_crds::{PoolSnapshot, PoolVolume, StoragePool};
use kube::{Resource, ResourceExt as _};

use super::{NAMESPACE, PATIENCE, TEST_LABEL, Test, test::list};
use crate::eventually;

impl Test {
    /// Waits until `cistern-driver fsck` finds nothing on any node, except damage that other running tests cause.
    pub(super) async fn fsck(&self) {
        eventually("fsck to find nothing on any node", PATIENCE, async || {
            for (node, pod) in self.cluster.component("node").await {
                let (pod, command) = (pod.name_any(), ["cistern-driver", "fsck"]);
                let looked = self.cluster.exec(NAMESPACE, &pod, "driver", &command);
                let Err(found) = looked.await else {
                    continue;
                };
                let others = self.of_others().await;
                if !is_all_of(&others, &found) {
                    return Err(format!("{node}: {found}"));
                }
            }
            Ok(())
        })
        .await;
    }

    /// Returns the names and UIDs of other tests' pools and of the objects in them.
    async fn of_others(&self) -> Vec<String> {
        let pools: Vec<StoragePool> = list(&self.all(), "").await;
        let is_ours = |pool: &StoragePool| pool.labels().get(TEST_LABEL) == Some(&self.name);
        let pools: Vec<_> = pools.into_iter().filter(|pool| !is_ours(pool)).collect();
        let is_theirs = |name: &str| pools.iter().any(|pool| pool.name_any() == name);
        let mut volumes: Vec<PoolVolume> = list(&self.all(), "").await;
        volumes.retain(|volume| is_theirs(&volume.spec.pool_name));
        let mut snapshots: Vec<PoolSnapshot> = list(&self.all(), "").await;
        snapshots.retain(|snapshot| is_theirs(&snapshot.spec.pool_name));
        let known = [
            known(&pools).collect::<Vec<_>>(),
            known(&volumes).collect(),
            known(&snapshots).collect(),
        ];
        known.concat()
    }
}

fn known<K: Resource>(objects: &[K]) -> impl Iterator<Item = String> {
    objects
        .iter()
        .flat_map(|object| object.uid().into_iter().chain([object.name_any()]))
}

/// Returns whether each finding in the output of fsck names one of these. Output that is no report belongs to no
/// other test.
fn is_all_of(others: &[String], printed: &str) -> bool {
    let names = |finding: &str| others.iter().any(|other| finding.contains(other));
    // A finding is a line with its kind, followed by indented lines with its subject.
    let mut findings = printed
        .split("\n\n")
        .filter(|part| part.contains("\n    "))
        .peekable();
    findings.peek().is_some() && findings.all(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_of_others_when_each_of_them_names_something_of_theirs() {
        let printed = "node a: 1 pool\n\nvolume without image\n    pvc-1\n    it is gone\n\n\
            stray file\n    /pools/u-2/x\n    nobody's\n\n2 findings\n";
        let others = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert!(is_all_of(&others(&["pvc-1", "u-2"]), printed));
        assert!(!is_all_of(&others(&["pvc-1"]), printed));
        assert!(!is_all_of(&others(&["pvc-1"]), "exit code 1: pvc-1"));
        assert!(!is_all_of(&[], printed));
    }
}
