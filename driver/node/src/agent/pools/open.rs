//! Opens a pool, or removes it from the node.
//!
//! *Invariant:* a pool is made only if the StorageNode's status never held its filesystem and no
//! PoolVolume or PoolSnapshot of this node names it.

use std::sync::Arc;

use cistern_client::Chain;
use cistern_crds::{Explanation, NodePool, NodePoolStatus, Reason, names, pool::PoolSource};
use cistern_host::{
    ClosedImage, Engine, Expectation, Root, Stray, image,
    logical::{GroupSource, VolumeGroup},
    pool::{self, Broken, GroupError, Unfit},
};

use super::{
    declaration::{Declared, DesiredPool, Undeclared, declaration, reported},
    images::{ImageSizes, Images, Listing},
    state::{LeftOut, PoolAvailability, PoolState, Usable},
};
use crate::{agent::desired::AssignedObjects, findings::charged_size};

/// What is known of a pool before its reconcile.
#[derive(Debug)]
pub struct Before {
    /// Whether the pool may be made or must exist.
    pub expectation: Expectation,
    /// State of the last reconcile; None without one, or if it was of another pool.
    pub pool_state: Option<Arc<PoolState>>,
}

/// Makes a pool usable, or determines why it is not. Blocks.
///
/// `close_open` makes all other users release the pool, because an open pool cannot be remounted.
pub fn probe(
    root: &Root,
    desired: &DesiredPool,
    before: Before,
    close_open: impl FnOnce(),
) -> PoolAvailability {
    match open(root, desired, before, close_open) {
        Ok(usable) => PoolAvailability::Usable(usable),
        Err(error) => unusable(&desired.spec, &error),
    }
}

/// Removes an empty pool from the node. Blocks. The pool must not be open.
pub fn remove(root: &Root, desired: &DesiredPool, expectation: Expectation) -> PoolAvailability {
    let spec = &desired.spec;
    let declared = declaration(root, desired).map_err(Error::from);
    let is_replaced = matches!(&declared, Ok(Declared::Images(pool)) if pool.replaces(expectation));
    let removed = declared.and_then(|declared| {
        match declared {
            Declared::Images(pool) => root.remove_pool(&pool, expectation)?,
            Declared::Group { source, claim } => {
                VolumeGroup::release(root, &source, &claim, expectation)?;
            }
        }
        Ok(())
    });
    match removed {
        Ok(()) => {
            tracing::info!(pool = spec.name, "removed the pool from this node");
            PoolAvailability::Gone
        }
        Err(error) if is_replaced => with_advice(unusable(spec, &error)),
        Err(error) => unusable(spec, &error),
    }
}

/// Adds what to do if the pool leaves its disk.
fn with_advice(found: PoolAvailability) -> PoolAvailability {
    match found {
        PoolAvailability::Unusable { why, open, owner } => {
            let advice = "spec.replacedDisks of the StoragePool lists its disk, which the pool leaves once it is \
                          unused, and empty or no longer readable: remove it from the machine, or wipe it";
            let message = format!("{}; {advice}", why.message);
            let why = Explanation::new(why.reason, message);
            PoolAvailability::Unusable { why, open, owner }
        }
        found => found,
    }
}

/// Whether a pool may be made, or which existing filesystem it must have.
pub fn expectation(status: Option<&NodePoolStatus>, assigned: &AssignedObjects) -> Expectation {
    let in_status = status.and_then(|status| status.filesystem_uuid.as_deref());
    let mut in_images = assigned.images().map(|image| image.pool_uuid.as_str());
    match in_status.or_else(|| in_images.next()).map(str::parse) {
        Some(Ok(filesystem_uuid)) => Expectation::Known { filesystem_uuid },
        None if assigned.is_empty() => Expectation::New,
        // An unreadable UUID still means that the pool exists.
        Some(Err(_)) | None => Expectation::Made,
    }
}

fn open(
    root: &Root,
    desired: &DesiredPool,
    before: Before,
    close_open: impl FnOnce(),
) -> Result<Usable, Error> {
    let spec = &desired.spec;
    let pool_state = before.pool_state.as_deref();
    let usable = pool_state.and_then(PoolState::open).cloned();
    let images = usable
        .as_ref()
        .map_or_else(Arc::default, |usable| Arc::clone(&usable.images));
    // An open pool is resized with its file and need not be reopened.
    let is_held = pool_state.is_some_and(|pool_state| {
        let (held, source) = (&pool_state.spec.source, &spec.source);
        let directory = |it: &PoolSource| it.image.as_ref().map(|image| image.directory.clone());
        held.device == source.device
            && held.volume_group == source.volume_group
            && directory(held) == directory(source)
    });
    drop(before.pool_state);
    if let Some(usable) = usable.filter(|_| is_held) {
        // A pool that fails its check is reopened, and mounted if it is not.
        match usable.pool.check() {
            Ok(()) => {
                let left_out = add_disks(root, desired, &*usable.pool);
                return survey(usable.pool, images, left_out, spec);
            }
            Err(error) => {
                tracing::warn!(pool = spec.name, error = %Chain(&error), "the pool has changed");
            }
        }
    }
    close_open();
    let expectation = before.expectation;
    let pool: Arc<dyn Engine> = match declaration(root, desired)? {
        Declared::Images(pool) => Arc::new(root.open_pool(&pool, expectation)?),
        Declared::Group { source, claim } => {
            Arc::new(VolumeGroup::open(root, &source, &claim, expectation)?)
        }
    };
    let left_out = add_disks(root, desired, &*pool);
    survey(pool, images, left_out, spec)
}

/// Adds blank disks to a pool that is a volume group of its own disks. If that fails, the pool is as good as before.
/// Returns why listed disks are not in the group.
fn add_disks(root: &Root, desired: &DesiredPool, pool: &dyn Engine) -> Option<LeftOut> {
    let group = pool.group()?;
    let added = match declaration(root, desired).map_err(Error::from) {
        Ok(Declared::Group {
            source: GroupSource::Disks { paths, .. },
            ..
        }) => group.add_disks(&paths).map_err(Error::from),
        Ok(_) => return None,
        Err(error) => Err(error),
    };
    let device = desired.spec.source.device.as_ref();
    let left_out = match added {
        // A selector means the blank disks that match it.
        Ok(added) if device.is_some_and(|it| it.selector.is_some()) => added.left_out.failed(),
        Ok(added) => added.left_out,
        Err(error) => {
            let error = Chain(&error).to_string();
            tracing::warn!(%pool, error, "disks cannot be added to the pool");
            return Some(LeftOut::Unknown(error));
        }
    };
    (!left_out.is_empty()).then(|| LeftOut::Disks(left_out.to_string()))
}

/// Reads the statistics and images of an open pool. Resizes its file as declared if there is room,
/// and removes unfinished images.
fn survey(
    pool: Arc<dyn Engine>,
    images: Arc<Images>,
    left_out: Option<LeftOut>,
    spec: &NodePool,
) -> Result<Usable, Error> {
    let file = match (&spec.source.image, pool.images()) {
        (Some(image), Some(pool)) => Some(pool.resize_file(image.size)?),
        (Some(_), None) | (None, _) => None,
    };
    let swept = pool.sweep()?;
    if swept > 0 {
        tracing::info!(%pool, swept, "removed images that were never finished");
    }
    let mut strays = Vec::new();
    images.refresh(|| {
        let (listing, found) = list(&*pool)?;
        strays = found;
        Ok::<_, Error>(listing)
    })?;
    Ok(Usable {
        statistics: pool.statistics()?,
        file,
        left_out,
        images,
        strays,
        pool,
    })
}

/// Lists what a pool holds, and the files that are not Cistern's.
fn list(pool: &dyn Engine) -> Result<(Listing, Vec<Stray>), Error> {
    // The order matters: an image that moves to the trash meanwhile is seen in one of the lists.
    let mut found = pool.volumes()?;
    let (mut listing, mut strays) = (Listing::default(), Vec::new());
    if let Some(pool) = pool.images() {
        let discarded = pool.discarded()?;
        strays = pool.strays(&found, &discarded)?;
        found.extend(discarded.into_iter().map(|it| it.image));
        for ClosedImage { image, .. } in pool.closed()? {
            listing.add_moving(image.uid.to_string(), charged_size(&image));
        }
        for copy in pool.incoming()? {
            listing.add_moving(copy.volume.to_string(), copy.allocated);
        }
    }
    let sizes = found.iter().map(|image| {
        let sizes = ImageSizes {
            charged: charged_size(image),
            allocated: image.allocated,
        };
        (image.uid.to_string(), sizes)
    });
    listing.sizes = sizes.collect();
    Ok((listing, strays))
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Declaration(#[from] Undeclared),
    #[error(transparent)]
    Pool(#[from] pool::Error),
    #[error(transparent)]
    Images(#[from] image::Error),
}

impl Error {
    fn reason(&self) -> Reason {
        match self {
            Self::Declaration(Undeclared::InvalidSpec(_)) => Reason::InvalidSpec,
            Self::Declaration(Undeclared::Disks(_)) | Self::Images(_) => Reason::PoolFailed,
            Self::Pool(error) => match error {
                pool::Error::BackingMissing { .. }
                | pool::Error::Group(GroupError::Missing { .. }) => Reason::BackingMissing,
                pool::Error::ImagesRemain { .. }
                | pool::Error::Group(GroupError::Unfit {
                    why: Unfit::VolumesRemain(_),
                    ..
                }) => Reason::VolumesRemain,
                pool::Error::BackingConflict { .. }
                | pool::Error::Group(GroupError::Unfit { .. }) => Reason::BackingConflict,
                pool::Error::Ambiguous { .. }
                | pool::Error::Group(GroupError::Ambiguous { .. }) => Reason::IdentityConflict,
                pool::Error::OtherNode { .. } => Reason::BelongsToOtherNode,
                pool::Error::NoUsableDevice { .. } | pool::Error::TooFewDevices { .. } => {
                    Reason::NoUsableDevice
                }
                pool::Error::NotMounted { .. } => Reason::NotMounted,
                pool::Error::ReadOnly { .. }
                | pool::Error::InUse {
                    state: Broken::ReadOnly,
                    ..
                } => Reason::ReadOnly,
                pool::Error::ShutDown { .. }
                | pool::Error::InUse {
                    state: Broken::ShutDown,
                    ..
                } => Reason::FilesystemShutDown,
                pool::Error::HostFilesystemFull { .. } => Reason::HostFilesystemFull,
                pool::Error::HostFilesystemUnfit { .. } => Reason::HostFilesystemUnfit,
                pool::Error::DirectoryNotAllowed { .. } => Reason::DirectoryNotAllowed,
                pool::Error::DirectoryUnusable { .. } => Reason::DirectoryUnusable,
                pool::Error::Failed { .. }
                | pool::Error::Group(GroupError::Failed { .. } | GroupError::Unavailable { .. }) => {
                    Reason::PoolFailed
                }
            },
        }
    }
}

fn unusable(spec: &NodePool, error: &Error) -> PoolAvailability {
    let message = Chain(error).to_string();
    tracing::warn!(pool = spec.name, reason = %error.reason(), error = message, "the pool cannot be used");
    let Error::Pool(pool::Error::OtherNode { foreign, .. }) = error else {
        return PoolAvailability::unusable(error.reason(), message);
    };
    let advice = if foreign.pool.as_str() == spec.uid {
        "it is taken over once that Node is gone, or no longer carries the pool".to_owned()
    } else {
        format!(
            "if no other machine uses it, annotate the StorageNode with {}={} once that Node is gone",
            names::TAKE_OVER_ANNOTATION,
            foreign.filesystem
        )
    };
    PoolAvailability::Unusable {
        why: Explanation::new(error.reason(), format!("{message}; {advice}")),
        open: None,
        owner: Some(reported(foreign)),
    }
}

#[cfg(test)]
mod tests {
    use cistern_crds::{PoolSnapshot, PoolVolume};
    use kube::core::DeserializeGuard;

    use super::*;
    use crate::testing::{POOL_UUID, ready_snapshot, ready_volume, wanted_snapshot, wanted_volume};

    fn status(filesystem_uuid: Option<&str>) -> NodePoolStatus {
        NodePoolStatus {
            filesystem_uuid: filesystem_uuid.map(str::to_owned),
            ..NodePoolStatus::default()
        }
    }

    fn known() -> Expectation {
        Expectation::Known {
            filesystem_uuid: POOL_UUID.parse().unwrap(),
        }
    }

    fn holding(volumes: &[PoolVolume], snapshots: &[PoolSnapshot]) -> AssignedObjects {
        let (volumes, snapshots) = (volumes.iter().cloned(), snapshots.iter().cloned());
        AssignedObjects {
            volumes: volumes
                .map(|it| Arc::new(DeserializeGuard(Ok(it))))
                .collect(),
            snapshots: snapshots
                .map(|it| Arc::new(DeserializeGuard(Ok(it))))
                .collect(),
            replicas: Vec::new(),
        }
    }

    #[test]
    fn a_pool_is_made_only_where_neither_status_nor_objects_know_it() {
        let nothing = AssignedObjects::default();
        assert_eq!(expectation(None, &nothing), Expectation::New);
        let never = status(None);
        assert_eq!(expectation(Some(&never), &nothing), Expectation::New);
        let once = status(Some(POOL_UUID));
        assert_eq!(expectation(Some(&once), &nothing), known());
    }

    #[test]
    fn a_pool_that_a_volume_or_snapshot_names_is_never_made_again_whatever_the_status_says() {
        assert_eq!(expectation(None, &holding(&[ready_volume()], &[])), known());
        let assigned = holding(&[wanted_volume()], &[]);
        assert_eq!(expectation(None, &assigned), Expectation::Made);
        assert_eq!(
            expectation(None, &holding(&[], &[ready_snapshot()])),
            known()
        );
        let assigned = holding(&[], &[wanted_snapshot()]);
        assert_eq!(expectation(None, &assigned), Expectation::Made);
    }

    #[test]
    fn an_unreadable_identity_still_counts_as_an_identity() {
        let odd = status(Some("?"));
        assert_eq!(
            expectation(Some(&odd), &AssignedObjects::default()),
            Expectation::Made
        );
    }
}
