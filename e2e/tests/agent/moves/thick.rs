//! Volumes that become thick and move. Their space is allocated for as long as the tests want: the pool is frozen meanwhile.

use cistern_crds::{AccessType, Bytes, ConditionType, FenceState, HasImage as _, Provisioning};
use serde_json::json;

use super::Moving;
use crate::{
    allocation::{MAKE_HOLES, is_under_way},
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
}

#[tokio::test]
async fn an_undone_move_gives_the_volume_back_before_its_space_is_allocated() {
    let moving = Moving::new("undone-thick", |volume| {
        volume.spec.size = SIZE;
        (volume.spec.access_type, volume.spec.filesystem) = (AccessType::Block, None);
    })
    .await;
    let (source, name) = (&moving.source, moving.name());
    let (images, image) = (moving.folder(source, "images"), moving.image());
    source.shell_in(&images, MAKE_HOLES, &[image]).await;
    let allocated = moving.allocated("images").await;
    let declare = async {
        let attributes = json!({"provisioning": Provisioning::Thick});
        moving.patch(json!({"attributes": attributes})).await;
        source.until(&name, "to be allocated", is_under_way).await;
        moving.declare_target().await;
        source.stops_allocating().await;
    };
    source
        .freeze_while_allocating(&images, (image, allocated), Box::pin(declare))
        .await;
    moving.fenced(FenceState::Closed).await;
    let allocated = moving.allocated("closed").await;
    assert!(allocated < SIZE.0, "{allocated}");

    // Its space is allocated only once the pool is thawed, which waits for the volume.
    let undone = Box::pin(moving.end(source));
    let undone = source
        .freeze_while_allocating(&images, (image, allocated), undone)
        .await;
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
