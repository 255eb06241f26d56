//! Makes a copy the image of a volume that has moved to this node.

use cistern_crds::{HasImage as _, PoolVolume, PoolVolumeStatus, volume::ImageStatus};
use cistern_host::{InvalidUid, Pool, Uid, copy::PromotedVolume, system::SECTOR_SIZE};
use kube::{ResourceExt as _, runtime::controller::Action};

use crate::{
    agent::{
        plan::{self, VolumeStep},
        reconcile::Reconciliation,
        work::Error,
    },
    image,
};

impl Reconciliation<'_, PoolVolume> {
    /// Takes the step that makes a copy the volume's image, and reports the volume as that of its epoch. A volume that is
    /// not admitted adopts the image then. The step returns the UUID of the pool.
    pub(super) async fn arrive(
        &self,
        image: Result<Uid, InvalidUid>,
        step: impl FnOnce(&Pool, &Uid) -> Result<String, image::Error> + Send + 'static,
    ) -> Result<Action, Error> {
        let (pool_uuid, uid) = match self.on_image(image, step).await? {
            Ok(done) => done,
            Err(action) => return Ok(action),
        };
        tracing::info!(volume = self.name, "the volume has moved to this node");
        let status = self.object.status.as_ref();
        let Some(status) = status.filter(|status| status.reserved.is_some()) else {
            return Box::pin(self.admit()).await;
        };
        let mut arrived = self.object.clone();
        arrived.status = Some(arrived_status(status, &uid, pool_uuid));
        let arrived = Reconciliation::of(self.agent, &arrived);
        Box::pin(arrived.prepare_here(VolumeStep::Keep)).await
    }
}

/// The next step of a volume of a new epoch. An image that exists is reported before it grows or changes: until then, no
/// pod gets it.
pub(super) fn first_step(volume: &PoolVolume) -> VolumeStep {
    match plan::next(volume) {
        VolumeStep::AdmitGrowth | VolumeStep::Grow | VolumeStep::AdmitAttributes => {
            VolumeStep::Keep
        }
        step @ (VolumeStep::Rest
        | VolumeStep::Admit
        | VolumeStep::Make
        | VolumeStep::Keep
        | VolumeStep::Reclaim) => step,
    }
}

/// What a standby copy becomes.
pub(super) fn promoted(volume: &PoolVolume, uid: &Uid) -> Result<PromotedVolume, image::Error> {
    let source = volume.spec.content_source.as_ref();
    let source = source.map(|source| source.image.parse()).transpose()?;
    Ok(PromotedVolume {
        uid: uid.clone(),
        name: volume.name_any(),
        size: volume.reserved().unwrap_or(volume.spec.size),
        provisioning: volume.admitted_attributes().provisioning,
        source,
    })
}

/// The status of a volume that has arrived: what described its image on the other node is gone.
fn arrived_status(status: &PoolVolumeStatus, uid: &Uid, pool_uuid: String) -> PoolVolumeStatus {
    PoolVolumeStatus {
        image: Some(ImageStatus {
            uid: uid.to_string(),
            pool_uuid,
            // Only images move.
            sector_size: SECTOR_SIZE,
        }),
        fence: None,
        allocated: None,
        extents: None,
        problems: Vec::new(),
        ..status.clone()
    }
}

#[cfg(test)]
mod tests {
    use cistern_crds::{Bytes, Provisioning};

    use super::*;
    use crate::testing::{admitted_volume, ready_volume};

    #[test]
    fn an_image_of_a_new_epoch_is_reported_before_it_grows_or_changes() {
        let mut volume = ready_volume();
        volume.spec.epoch = 1;
        volume.spec.attributes.provisioning = Provisioning::Thick;
        assert_eq!(plan::next(&volume), VolumeStep::AdmitAttributes);
        assert_eq!(first_step(&volume), VolumeStep::Keep);
        volume.spec.size = Bytes::gib(2);
        assert_eq!(plan::next(&volume), VolumeStep::AdmitGrowth);
        assert_eq!(first_step(&volume), VolumeStep::Keep);
        volume.status.as_mut().unwrap().reserved = Some(Bytes::gib(2));
        assert_eq!(plan::next(&volume), VolumeStep::Grow);
        assert_eq!(first_step(&volume), VolumeStep::Keep);
        volume.spec.deletion_requested = true;
        assert_eq!(first_step(&volume), VolumeStep::Reclaim);
        assert_eq!(first_step(&admitted_volume()), VolumeStep::Make);
    }

    #[test]
    fn a_promoted_volume_has_the_provisioning_that_was_admitted() {
        let mut volume = ready_volume();
        volume.spec.attributes.provisioning = Provisioning::Thick;
        let uid: Uid = "uid-1".parse().unwrap();
        let promoted = promoted(&volume, &uid).unwrap();
        assert_eq!(promoted.provisioning, Provisioning::Thin);
    }

    #[test]
    fn what_described_the_image_on_the_other_node_is_gone_when_the_volume_arrives() {
        let mut before = ready_volume().status.unwrap();
        before.extents = Some(7);
        let uid: Uid = "uid-1".parse().unwrap();
        let after = arrived_status(&before, &uid, "pool-2".to_owned());
        assert_eq!(after.image.as_ref().unwrap().pool_uuid, "pool-2");
        assert_eq!((after.size, after.reserved), (before.size, before.reserved));
        assert_eq!(after.filesystem, before.filesystem);
        assert_eq!((after.extents, after.allocated), (None, None));
    }
}
