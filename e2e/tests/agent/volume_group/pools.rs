//! Volume groups that cannot be a pool now, and how the pool says so.

use std::path::Path;

use cistern_crds::{
    Bytes, ConditionType, condition,
    testing::{node_pool, volume_group_source},
};
use cistern_e2e::eventually;
use kube::ResourceExt as _;

use super::{Group, group_pool, name_for};
use crate::{Fixture, SOON, node_service::KubeletVolume, pools::is_not_ready};

const SMALL: Bytes = Bytes::mib(64);

impl Fixture {
    /// Waits until the pool is not ready for this reason, and returns the message.
    async fn pool_message(&self, reason: &'static str) -> String {
        let what = format!("to report {reason}");
        let pool = self.pool_until(&what, is_not_ready(reason)).await;
        let ready = condition::find(&pool.conditions, ConditionType::Ready);
        ready.unwrap().message.clone()
    }

    /// Makes a volume, stages it and removes it again.
    async fn provisions(&self, volume: &str) {
        let object = self.create_ready(&self.thick_volume(volume, SMALL)).await;
        let kubelet = KubeletVolume::of(self, &object);
        kubelet.stage(&[]).await.unwrap();
        kubelet.unstage().await.unwrap();
        self.remove(&object.name_any()).await;
    }
}

/// What a node of tests lacks for the group of this name, which does not exist.
fn lacks(group: &str) -> (&'static str, String) {
    let folders = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];
    let mut folders = folders.into_iter().map(Path::new);
    let unusable = |why| format!("volume group {group} cannot be used: {why}");
    if !folders.any(|folder| folder.join("lvm").is_file()) {
        let why = unusable("lvm is not installed: install the package lvm2");
        ("PoolFailed", why)
    } else if !Path::new("/sys/class/misc/device-mapper").exists() {
        let why = "the kernel of the node has no device-mapper: load its modules (modprobe dm_mod)";
        ("PoolFailed", unusable(why))
    } else {
        let why = format!("no volume group {group} is on this node");
        ("BackingMissing", why)
    }
}

#[tokio::test]
async fn a_node_without_the_volume_group_says_what_it_lacks_and_its_other_pools_work() {
    let mut node = Fixture::without_pools("agent-group-lacking").await;
    let name = node.name.clone();
    node.add_pool(group_pool(&name)).await;
    let (reason, expected) = lacks(&name_for(&name));
    let message = node.pool_message(reason).await;
    assert_eq!(message, expected);

    // The volumes are in the other pool.
    node.name = "agent-group-beside".to_owned();
    node.driver.add_image_pool(&node.name, Bytes::gib(1)).await;
    let mut desired = node.desired_volume("one", SMALL);
    desired.spec.node_name.clone_from(&name);
    let object = node.create_ready(&desired).await;
    let kubelet = KubeletVolume::of(&node, &object);
    kubelet.stage(&[]).await.unwrap();
    kubelet.unstage().await.unwrap();
    drop(kubelet);
    node.remove(&object.name_any()).await;

    // A pool that has nothing is withdrawn.
    let mut pools = node.driver.storage_node().await.spec.pools;
    pools.retain(|pool| pool.name != name);
    node.driver.set_pools(pools).await;
    node.finish().await;
}

#[tokio::test]
#[ignore = "needs device-mapper, which the virtual machine has"]
async fn a_pool_whose_volume_group_is_missing_is_ready_once_it_exists() {
    let node = Fixture::without_pools("agent-group-missing").await;
    let group = Group::of_disks(&node.name);
    node.add_pool(group_pool(&node.name)).await;
    let message = node.pool_message("BackingMissing").await;
    assert!(message.contains(&group.name), "{message}");
    group.make();
    node.driver.ready_pool(&node.name).await;
    node.provisions("one").await;
    node.finish().await;
}

#[tokio::test]
#[ignore = "needs device-mapper, which the virtual machine has"]
async fn a_volume_group_that_was_exported_and_imported_again_has_its_volumes() {
    let (node, group) = Fixture::on_group("agent-group-exported").await;
    let object = node.create_ready(&node.thick_volume("kept", SMALL)).await;
    group.change("vgchange", &["--activate", "n"]);
    group.change("vgexport", &[]);
    node.look_again().await;
    let message = node.pool_message("BackingConflict").await;
    let expected = format!(
        "volume group {} cannot be used: it is exported (vgimport)",
        group.name
    );
    assert_eq!(message, expected);
    group.change("vgimport", &[]);
    node.driver.ready_pool(&node.name).await;
    let ready = crate::has_condition(ConditionType::Ready, "True", "Reconciled");
    node.until(&object.name_any(), "to be ready again", ready)
        .await;
    let kubelet = KubeletVolume::of(&node, &object);
    kubelet.stage(&[]).await.unwrap();
    kubelet.unstage().await.unwrap();
    drop(kubelet);
    node.provisions("new").await;
    node.finish().await;
}

#[tokio::test]
#[ignore = "needs device-mapper, which the virtual machine has"]
async fn a_volume_group_is_one_pool_and_no_second_one() {
    let (node, group) = Fixture::on_group("agent-group-twice").await;
    let second = "agent-group-second";
    let source = volume_group_source(&group.name);
    node.add_pool(node_pool(second, "uid-of-second", source))
        .await;
    let message = eventually("the second pool to be refused", SOON, async || {
        let status = node.driver.storage_node().await.status.unwrap_or_default();
        let pool = status.pools.iter().find(|pool| pool.name == second);
        match pool.filter(|pool| is_not_ready("BackingConflict")(pool)) {
            Some(pool) => Ok(condition::find(&pool.conditions, ConditionType::Ready)
                .unwrap()
                .message
                .clone()),
            None => Err(format!("{pool:?}")),
        }
    })
    .await;
    for part in [&group.name, &format!("pool {}", node.name)] {
        assert!(message.contains(part.as_str()), "{message}");
    }
    node.provisions("one").await;
    // Its removal leaves the group to the first.
    let mut pools = node.driver.storage_node().await.spec.pools;
    pools[1].retiring = true;
    node.driver.set_pools(pools).await;
    eventually("the second pool to be gone", SOON, async || {
        let status = node.driver.storage_node().await.status.unwrap_or_default();
        match &status.pools[..] {
            [one] if one.name == node.name => Ok(()),
            pools => Err(format!("{pools:#?}")),
        }
    })
    .await;
    node.driver.ready_pool(&node.name).await;
    node.provisions("two").await;
    node.finish().await;
}
