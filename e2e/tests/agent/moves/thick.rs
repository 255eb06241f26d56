//! Volumes that become thick and move. Their space is allocated for as long as the tests want: the pool is frozen meanwhile.

use cistern_crds::{
    AccessType, Bytes, ConditionType, FenceState, HasImage as _, PoolVolume, Provisioning,
};
use cistern_e2e::{eventually, process::output};
use serde_json::json;

use super::Moving;
use crate::{
    SCRIPT, SOON,
    allocation::{FREEZE_WHILE_ALLOCATING, MAKE_HOLES, percent_of},
    has_condition,
    node_service::{KubeletVolume, text},
};

/// Size of the volume, half of which are holes.
const SIZE: Bytes = Bytes::mib(512);

impl Moving {
    fn image(&self) -> &str {
        &self.volume.image().unwrap().uid
    }

    /// Bytes that are allocated to the image in a folder of the pool.
    async fn allocated(&self, folder: &str) -> u64 {
        let file = self.folder(&self.source, folder).join(self.image());
        let script = "echo $(($(stat -c %b $1) * 512))";
        let bytes = self.source.shell(script, &[&text(&file)]).await;
        bytes.trim().parse().unwrap()
    }

    /// Runs a script on the first node, with the folder of the images of the pool as `$0`.
    async fn shell(&self, script: &str, arguments: &[&str]) {
        let mut command = self.source.driver.command_on_node("sh");
        command
            .args(["-euc", script])
            .arg(self.folder(&self.source, "images"))
            .args(arguments);
        output(command, SCRIPT).await;
    }

    /// Freezes the pool as soon as 20 MiB more than `allocated` are allocated to the image, until some work has ended. Returns what
    /// that returned.
    async fn freeze<T>(&self, allocated: u64, work: impl Future<Output = T>) -> T {
        let some = (allocated + Bytes::mib(20).0).to_string();
        let ended = self.source.driver.kubelet_root().join(&some);
        let path = text(&ended);
        let arguments = [self.image(), some.as_str(), path.as_str()];
        let freeze = self.shell(FREEZE_WHILE_ALLOCATING, &arguments);
        let work = async {
            let done = work.await;
            std::fs::write(&ended, "").unwrap();
            done
        };
        let ((), done) = tokio::join!(freeze, work);
        done
    }
}

#[tokio::test]
async fn an_undone_move_gives_the_volume_back_before_its_space_is_allocated() {
    let moving = Moving::new("undone-thick", |volume| {
        volume.spec.size = SIZE;
        (volume.spec.access_type, volume.spec.filesystem) = (AccessType::Block, None);
    })
    .await;
    let (source, name) = (&moving.source, moving.name());
    moving.shell(MAKE_HOLES, &[moving.image()]).await;
    let allocated = moving.allocated("images").await;
    let declare = async {
        let attributes = json!({"provisioning": Provisioning::Thick});
        moving.patch(json!({"attributes": attributes})).await;
        let is_under_way = |object: &PoolVolume| percent_of(object).is_some_and(|it| it > 0);
        source.until(&name, "to be allocated", is_under_way).await;
        moving.declare_target().await;
        eventually("the allocation to be stopped", SOON, async || {
            let log = source.driver.node().process().log();
            let stops = log.contains("stopping the allocation");
            stops.then_some(()).ok_or(log)
        })
        .await;
    };
    moving.freeze(allocated, Box::pin(declare)).await;
    moving.fenced(FenceState::Closed).await;
    let allocated = moving.allocated("closed").await;
    assert!(allocated < SIZE.0, "{allocated}");

    // Its space is allocated only once the pool is thawed, which waits for the volume.
    let undone = Box::pin(moving.end(source));
    let undone = moving.freeze(allocated, undone).await;
    assert!(undone.is_being_modified(), "{:?}", undone.status);
    let kubelet = KubeletVolume::at(source, &undone, "after");
    kubelet.stage(&[]).await.unwrap();
    let applied = has_condition(ConditionType::AttributesApplied, "True", "Reconciled");
    source.until(&name, "to be thick", applied).await;
    assert!(moving.allocated("images").await >= SIZE.0);
    kubelet.unstage().await.unwrap();
    source.remove(&name).await;
    moving.finish().await;
}
