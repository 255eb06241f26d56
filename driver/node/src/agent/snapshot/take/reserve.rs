//! Reserves the bytes of snapshots: an estimate before they are taken, and then what they hold.

use std::sync::Arc;

use cistern_client::Chain;
use cistern_crds::{Bytes, Explanation, HasImage as _, PoolSnapshot, Provisioning, Reason};
use cistern_host::{Pool, Uid};

use super::{
    attempt::{Origin, TakeError, TakeResult, failed, lost, refused},
    disk::{discard, is_settled, pool},
};
use crate::{
    agent::{
        Agent,
        admission::SnapshotImage,
        pools::{PoolState, Usable},
        reconcile::Reconciliation,
        snapshot::status::SnapshotOutcome,
    },
    blocking::on_host,
    image::{self, Image, SNAPSHOTS},
};

/// Reserves for a snapshot the bytes written to its source, or the bytes of its image if that exists
/// already.
pub(super) async fn admit(
    agent: &Agent,
    snapshot: &PoolSnapshot,
    origin: Origin,
) -> Result<PoolSnapshot, TakeError> {
    let reconciliation = Reconciliation::of(agent, snapshot);
    let found = reconciliation.pool();
    let (pool_state, usable) = found.map_err(|why| refused(snapshot, &why))?;
    let adopted = reconciliation.find_own_image(&usable).await?;
    let adopted = adopted.map_err(|error| {
        let message = Chain(&error).to_string();
        refused(snapshot, &Explanation::new(error.reason(), message))
    })?;
    let (size, image) = match adopted {
        Some(image) => {
            let (size, image_is) = (image.allocated, SnapshotImage::Adopted);
            let admitted = agent
                .admission
                .snapshot(snapshot, &pool_state, size, image_is);
            admitted.map_err(|why| refused(snapshot, &why))?;
            (size, Some(image.image))
        }
        None if origin == Origin::Existing => return Err(lost(snapshot)),
        None => (
            reserve_new(&reconciliation, &pool_state, &usable).await?,
            None,
        ),
    };
    let admitted = reconciliation
        .write_reservation(&SnapshotOutcome::Admitted { size, image })
        .await?;
    admitted.ok_or_else(|| TakeResult::Overtaken.into())
}

/// Reserves an estimate of the bytes that a new snapshot will hold.
///
/// For a thin volume these are at most the allocated bytes. Counting the written bytes reads each
/// extent and takes a tenth of the time of cloning them, so they are counted only if the allocated
/// bytes do not fit.
async fn reserve_new(
    reconciliation: &Reconciliation<'_, PoolSnapshot>,
    pool_state: &PoolState,
    usable: &Usable,
) -> Result<Bytes, TakeError> {
    let (snapshot, admission) = (reconciliation.object, &reconciliation.agent.admission);
    // Before anything is read from the disk.
    if let Some(closed) = admission.closed(pool_state) {
        let why = Explanation::new(Reason::PoolNotReady, closed.to_string());
        return Err(refused(snapshot, &why));
    }
    if snapshot.spec.provisioning == Provisioning::Thin {
        let allocated = |pool: &Pool, source: &Uid| {
            let image = pool.image(source)?;
            Ok(image.map(|image| image.allocated))
        };
        let allocated = of_source(reconciliation, usable, allocated).await?;
        if let Some(allocated) = allocated.filter(|allocated| {
            let admitted =
                admission.snapshot(snapshot, pool_state, *allocated, SnapshotImage::Expected);
            admitted.is_ok()
        }) {
            return Ok(allocated);
        }
    }
    let written = of_source(reconciliation, usable, Pool::written).await?;
    let admitted = admission.snapshot(snapshot, pool_state, written, SnapshotImage::Expected);
    admitted.map_err(|why| refused(snapshot, &why))?;
    Ok(written)
}

/// Reads from the source image of a snapshot.
async fn of_source<T: Send + 'static>(
    reconciliation: &Reconciliation<'_, PoolSnapshot>,
    usable: &Usable,
    ask: impl FnOnce(&Pool, &Uid) -> Result<T, cistern_host::image::Error> + Send + 'static,
) -> Result<T, TakeError> {
    let (agent, snapshot) = (reconciliation.agent, reconciliation.object);
    let (pool, source) = (Arc::clone(&usable.pool), snapshot.spec.source_image.clone());
    let permit = reconciliation.permit().await;
    let work = on_host(permit, move || {
        let source: Uid = source.parse()?;
        let pool = pool.images_for(SNAPSHOTS)?;
        Ok::<_, image::Error>(ask(pool, &source)?)
    });
    let answer = work.await.map_err(|source| reconciliation.broken(source))?;
    answer.map_err(|error| failed(agent, std::slice::from_ref(snapshot), &error))
}

/// Reserves the bytes that were allocated beyond the estimates, because pods went on writing. If they
/// do not fit, all snapshots are removed.
pub(super) async fn reserve_growth(
    agent: &Agent,
    snapshots: &[PoolSnapshot],
    images: &[Image],
    origin: Origin,
) -> Result<(), TakeError> {
    for (snapshot, image) in snapshots.iter().zip(images) {
        // A snapshot that was taken before is kept, whether it fits or not.
        if origin == Origin::Existing || is_settled(snapshot) {
            continue;
        }
        if let Err(why) = reserve_taken(agent, snapshot, image)? {
            discard(agent, snapshots).await?;
            return Err(refused(snapshot, &why));
        }
    }
    Ok(())
}

/// Reserves the bytes of a new image beyond the estimate. Returns why they do not fit.
pub(super) fn reserve_taken(
    agent: &Agent,
    snapshot: &PoolSnapshot,
    image: &Image,
) -> Result<Result<(), Explanation>, TakeError> {
    if Some(image.allocated) <= snapshot.reserved() {
        return Ok(Ok(()));
    }
    let (pool_state, _) = pool(agent, snapshot)?;
    let admission = &agent.admission;
    Ok(admission.snapshot(snapshot, &pool_state, image.allocated, SnapshotImage::Taken))
}
