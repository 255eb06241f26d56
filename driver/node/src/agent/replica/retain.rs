//! What the node keeps of a volume that is on another node: its image, closed.
//!
//! A move closes the image before it leaves. The image of a volume that was promoted elsewhere while this node was lost is
//! still open, and is *superseded*: it is closed when the node is back, as soon as no pod uses it.
//!
//! *Invariant:* an image is closed only if the API server says that the volume is on another node, because the watch may be
//! older.

use std::{sync::Arc, time::Duration};

use cistern_client::Chain;
use cistern_crds::{Explanation, PoolReplica, Reason};
use cistern_host::{Pool, Uid, image::Error as HostError};
use kube::runtime::controller::Action;

use super::{
    remove::{self, Stays, has_left},
    status::{Own, ReplicaOutcome},
};
use crate::{
    agent::{
        reconcile::{LOCKED, Reconciliation},
        work::Error,
    },
    blocking::on_host,
    image::MOVES,
};

/// When to try again to close an image that pods use.
const ATTACHED: Duration = Duration::from_secs(2);

impl Reconciliation<'_, PoolReplica> {
    /// Keeps the image, closed if the volume is on another node.
    pub(super) async fn retain(&self) -> Result<Action, Error> {
        let name = &self.object.spec.volume_name;
        // A volume of this node has an image of its own, and closes it by itself.
        if self.agent.desired.volume(name).is_some() {
            return self.end(ReplicaOutcome::Own(Own::Kept)).await;
        }
        let volume = match self.volume().await {
            Ok(volume) => volume,
            Err(why) => {
                let why = Explanation::new(Reason::ProvisioningFailed, why);
                return self.end(ReplicaOutcome::NotReady(why)).await;
            }
        };
        let Some(volume) = volume.filter(|volume| has_left(self.object, volume)) else {
            return self.end(ReplicaOutcome::Own(Own::Kept)).await;
        };
        let pool = match self.pool() {
            Ok((_, usable)) => Arc::clone(&usable.pool),
            Err(why) => return self.end(ReplicaOutcome::NotReady(why)).await,
        };
        let permit = self.permit().await;
        let Some(guard) = self.agent.locks.try_lock(name) else {
            return Ok(Action::requeue(LOCKED));
        };
        let replica = self.object.clone();
        let closing = on_host((permit, guard), move || {
            let pool = pool.images_for(MOVES)?;
            close(pool, &replica)
        });
        match closing.await.map_err(|source| self.broken(source))? {
            Ok(()) => self.end(ReplicaOutcome::Own(Own::Kept)).await,
            Err(Stays::Image(HostError::InUse { .. })) => {
                let node = &volume.spec.node_name;
                let message = format!(
                    "volume {name} is on node {node} now, and pods still use the image that it had here: what they \
                     write is lost"
                );
                let why = Explanation::new(Reason::InUse, message);
                self.end(ReplicaOutcome::NotReady(why)).await?;
                Ok(Action::requeue(ATTACHED))
            }
            Err(error) => {
                let why = Chain(&error).to_string();
                let why = Explanation::new(Reason::ProvisioningFailed, why);
                self.end(ReplicaOutcome::NotReady(why)).await
            }
        }
    }
}

fn close(pool: &Pool, replica: &PoolReplica) -> Result<(), Stays> {
    let image: Uid = replica.spec.image.parse()?;
    let by: Uid = replica.spec.move_uid.parse()?;
    Ok(remove::close(pool, &image, &by)?)
}

#[cfg(test)]
mod tests {
    use cistern_crds::ReplicaPurpose;

    use super::*;
    use crate::testing::{ready_volume, replica};

    #[test]
    fn an_image_is_superseded_by_a_later_epoch_on_another_node_only() {
        let mut kept = replica("pvc-1", 1);
        kept.spec.purpose = ReplicaPurpose::Retained;
        let volume = |node: &str, epoch| {
            let mut volume = ready_volume();
            volume.spec.node_name = node.to_owned();
            volume.spec.epoch = epoch;
            volume
        };
        let here = kept.spec.node_name.clone();
        assert!(!has_left(&kept, &volume(&here, 1)));
        assert!(!has_left(&kept, &volume("elsewhere", 1)));
        assert!(has_left(&kept, &volume("elsewhere", 2)));
        // Undone, or moved back.
        assert!(!has_left(&kept, &volume(&here, 2)));
    }
}
