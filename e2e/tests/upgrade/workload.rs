//! Everything that users do with volumes, done again at each combination of versions.

use std::cell::RefCell;

use cistern_crds::{Bytes, PoolSnapshot, PoolVolume};
use cistern_e2e::{
    Test,
    cluster::{
        PATIENCE,
        objects::Binding::WaitForFirstConsumer,
        snapshots::{Source, VolumeGroupSnapshot},
    },
    eventually,
};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{
    ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;

use crate::writers::Writers;

const SIZE: Bytes = Bytes::mib(64);
/// XFS cannot be smaller.
const XFS_SIZE: Bytes = Bytes::mib(320);
const GROWTH: u64 = 16 << 20;

/// Volumes, pods and a snapshot from before the first change of versions.
pub(crate) struct Workload<'a> {
    test: &'a Test,
    node: String,
    writers: Writers<'a>,
    class: String,
    group_class: String,
    /// The snapshot of the volume `ext4` in a group that stays.
    kept: String,
    /// The size of the volume `xfs`.
    size: RefCell<Bytes>,
    /// The pod and claim that the last check has left for the next one.
    handed_over: RefCell<Option<String>>,
}

impl<'a> Workload<'a> {
    pub(crate) async fn create(test: &'a Test) -> Self {
        let [node, ..] = test.cluster.workers().await;
        let pool = test.pool("pool", Bytes::gib(3), &[&node]).await;
        let class = test.class("class", &pool, WaitForFirstConsumer, &[]).await;
        let xfs = [("csi.storage.k8s.io/fstype", "xfs")];
        let xfs = test.class("xfs", &pool, WaitForFirstConsumer, &xfs).await;
        test.claim("ext4", &class, SIZE).await;
        test.claim("xfs", &xfs, XFS_SIZE).await;
        test.block_claim("block", &class, SIZE).await;
        let mut writers = Writers::new(test);
        writers.add_to_filesystem("ext4").await;
        writers.add_to_filesystem("xfs").await;
        writers.add_to_device("block").await;
        writers.go_on().await;
        let group_class = test.group_class("together", json!({})).await;
        let kept = test.snapshot_group("kept", &group_class).await;
        Self {
            test,
            node,
            writers,
            class,
            group_class,
            kept: test.member(&kept, "ext4").await,
            size: RefCell::new(XFS_SIZE),
            handed_over: RefCell::default(),
        }
    }

    /// Checks that all of it works. The name is that of the combination of versions.
    pub(crate) async fn works(&self, name: &str) {
        eprintln!("--- {name}");
        self.writers.go_on().await;
        // A volume that the former version has mounted is unmounted and removed by this one.
        let handed_over = self.handed_over.take();
        if let Some(earlier) = handed_over {
            self.test.writes_go_on(&earlier).await;
            self.remove(&earlier).await;
        }
        self.takes_and_restores_snapshots(name).await;
        self.grows().await;
        self.test.claim(name, &self.class, SIZE).await;
        self.test.writer(name, name).await;
        self.test.running(name).await;
        self.test.writes_go_on(name).await;
        self.handed_over.replace(Some(name.to_owned()));
        self.writers.go_on().await;
    }

    async fn takes_and_restores_snapshots(&self, name: &str) {
        let test = self.test;
        let group = test.snapshot_group(name, &self.group_class).await;
        let taken = test.member(&group, "ext4").await;
        let mut contents = Vec::new();
        for (copy, snapshot) in [("of-kept", &self.kept), ("of-new", &taken)] {
            let copy = format!("{name}-{copy}");
            let source = Source::Snapshot(snapshot);
            test.claim_from(source, &copy, &self.class, SIZE).await;
            test.pod(&copy, &copy, "sleep 3600", json!({})).await;
            test.running(&copy).await;
            contents.push(test.written(&copy).await);
            self.remove(&copy).await;
        }
        assert!(
            contents[0] > 0 && contents[0] < contents[1],
            "the snapshots have {contents:?} numbers"
        );
        test.delete(&test.namespaced::<VolumeGroupSnapshot>(), name)
            .await;
        // Only those of the first group are left.
        let (snapshots, all) = (test.all::<PoolSnapshot>(), ListParams::default());
        eventually("the snapshots to be removed", PATIENCE, async || {
            let left = snapshots.list(&all).await;
            let left = left.map_err(|error| error.to_string())?.items;
            let left = left
                .iter()
                .filter(|it| it.spec.pool_name.starts_with(&test.own("")))
                .count();
            (left == 3)
                .then_some(())
                .ok_or_else(|| format!("{left} are left"))
        })
        .await;
    }

    /// Deletes a pod and the claim of the same name, and waits until the volume is gone.
    async fn remove(&self, name: &str) {
        let test = self.test;
        let volume = test.bound(name).await.name_any();
        test.delete(&test.namespaced::<Pod>(), name).await;
        test.delete(&test.namespaced::<PersistentVolumeClaim>(), name)
            .await;
        test.gone(&test.all::<PoolVolume>(), &volume).await;
    }

    /// Grows the mounted XFS. The statistics of kubelet show that both happened: they come from the agent.
    async fn grows(&self) {
        let test = self.test;
        let statistics = || {
            let cluster = &test.cluster;
            cluster.volume_capacity(&self.node, &test.namespace, "xfs")
        };
        let before = eventually("statistics of the volume", PATIENCE, statistics).await;
        let size = Bytes(self.size.borrow().0 + GROWTH);
        self.size.replace(size);
        let request = json!({"spec": {"resources": {"requests": {"storage": size.to_string()}}}});
        let claims = test.namespaced::<PersistentVolumeClaim>();
        claims
            .patch("xfs", &PatchParams::default(), &Patch::Merge(request))
            .await
            .unwrap();
        eventually("the claim to have grown", PATIENCE, async || {
            let claim = claims.get("xfs").await.map_err(|error| error.to_string())?;
            let status = claim.status.unwrap_or_default();
            let has = status.capacity.unwrap_or_default().remove("storage");
            let has = has.map(|has| has.0).unwrap_or_default();
            (has == size.to_string()).then_some(()).ok_or(has)
        })
        .await;
        assert_eq!(test.bound("xfs").await.status.unwrap().size, Some(size));
        eventually("the statistics to have grown", PATIENCE, async || {
            let now = statistics().await?;
            let grown = now > before;
            grown
                .then_some(())
                .ok_or_else(|| format!("{now} after {before}"))
        })
        .await;
    }
}
