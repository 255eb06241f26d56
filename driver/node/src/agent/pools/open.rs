//! Opening a pool, and taking it off the node.
//!
//! *Invariant:* a pool is made only if the StorageNode's status never held its filesystem and no
//! PoolVolume or PoolSnapshot of this node names it.

use std::{path::PathBuf, sync::Arc};

use cistern_client::Chain;
use cistern_crds::{NodePool, NodePoolStatus, PoolOwner, Reason, names};
use cistern_host::{
    Expectation, Pool, PoolDeclaration, Root, Source, Uid, image,
    pool::{self, Broken, Claim, Owner},
};

use super::{Found, Images, PoolLook, Usable, Wish, weight_of};
use crate::agent::desired::Holdings;

/// What is known of a pool before a look at it.
#[derive(Debug)]
pub struct Before {
    /// It may be made, or is there.
    pub expectation: Expectation,
    /// At the last look, if it is the same pool.
    pub look: Option<Arc<PoolLook>>,
}

/// Makes a pool usable, or finds out why it is not. Blocks.
///
/// `let_go` has everybody else let go of the pool: what is open cannot be mounted anew.
pub fn look(root: &Root, wish: &Wish, before: Before, let_go: impl FnOnce()) -> Found {
    match open(root, wish, before, let_go) {
        Ok(usable) => Found::Usable(usable),
        Err(error) => unusable(&wish.spec, &error),
    }
}

/// Takes a pool that holds nothing off the node. Blocks. Nobody may hold it open.
pub fn remove(root: &Root, wish: &Wish, expectation: Expectation) -> Found {
    let spec = &wish.spec;
    let removed = declaration(wish).and_then(|declaration| {
        root.remove_pool(&declaration, expectation)?;
        Ok(())
    });
    match removed {
        Ok(()) => {
            tracing::info!(pool = spec.name, "the pool is gone from this node");
            Found::Gone
        }
        Err(error) => unusable(spec, &error),
    }
}

/// What must be true of a pool that was there before.
pub fn expectation(status: Option<&NodePoolStatus>, holdings: &Holdings) -> Expectation {
    let in_status = status.and_then(|status| status.filesystem_uuid.as_deref());
    let mut in_images = holdings.images().map(|image| image.pool_uuid.as_str());
    match in_status.or_else(|| in_images.next()).map(str::parse) {
        Some(Ok(filesystem_uuid)) => Expectation::Known { filesystem_uuid },
        None if holdings.is_empty() => Expectation::New,
        // A UUID that cannot be read is one all the same.
        Some(Err(_)) | None => Expectation::Made,
    }
}

fn open(root: &Root, wish: &Wish, before: Before, let_go: impl FnOnce()) -> Result<Usable, Error> {
    let spec = &wish.spec;
    let look = before.look.as_deref();
    let usable = look.and_then(PoolLook::open).cloned();
    let images = usable
        .as_ref()
        .map_or_else(Arc::default, |usable| Arc::clone(&usable.images));
    // What is open follows a change of its file's size as it is.
    let is_held = look.is_some_and(|look| {
        let (held, source) = (&look.spec.source, &spec.source);
        held.device == source.device && held.image.is_some() == source.image.is_some()
    });
    drop(before.look);
    if let Some(usable) = usable.filter(|_| is_held) {
        // One that is no longer as it was is opened anew, and mounted if it is not.
        match usable.pool.check() {
            Ok(()) => return survey(usable.pool, images, spec),
            Err(error) => {
                tracing::warn!(pool = spec.name, error = %Chain(&error), "the pool has changed");
            }
        }
    }
    let_go();
    let pool = root.open_pool(&declaration(wish)?, before.expectation)?;
    survey(Arc::new(pool), images, spec)
}

/// Numbers and images of an open pool, whose file is as large as declared where there is room for it;
/// what was left half made is swept away.
fn survey(pool: Arc<Pool>, images: Arc<Images>, spec: &NodePool) -> Result<Usable, Error> {
    let image = spec.source.image.as_ref();
    let file = image
        .map(|image| pool.resize_file(image.size))
        .transpose()?;
    let swept = pool.sweep()?;
    if swept > 0 {
        tracing::info!(%pool, swept, "removed images that were never finished");
    }
    let mut strays = Vec::new();
    images.refresh(|| {
        // In this order: what goes to the trash meanwhile is seen in one of them.
        let mut found = pool.images()?;
        let discarded = pool.discarded()?;
        strays = pool.strays(&found, &discarded)?;
        found.extend(discarded.into_iter().map(|it| it.image));
        let sizes = found.iter();
        let sizes = sizes.map(|image| (image.uid.to_string(), weight_of(image)));
        Ok::<_, Error>(sizes.collect())
    })?;
    Ok(Usable {
        statistics: pool.statistics()?,
        file,
        images,
        strays,
        pool,
    })
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("the pool's spec cannot be carried out: {why}")]
    Spec { why: &'static str },
    #[error(transparent)]
    Pool(#[from] pool::Error),
    #[error(transparent)]
    Images(#[from] image::Error),
}

impl Error {
    fn reason(&self) -> Reason {
        match self {
            Self::Spec { .. } => Reason::InvalidSpec,
            Self::Images(_) => Reason::PoolFailed,
            Self::Pool(error) => match error {
                pool::Error::BackingMissing { .. } => Reason::BackingMissing,
                pool::Error::BackingForeign { .. } => Reason::BackingForeign,
                pool::Error::Ambiguous { .. } => Reason::IdentityConflict,
                pool::Error::OtherNode { .. } => Reason::BelongsToOtherNode,
                pool::Error::NoUsableDevice { .. } => Reason::NoUsableDevice,
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
                pool::Error::ImagesRemain { .. } => Reason::VolumesRemain,
                pool::Error::Failed { .. } => Reason::PoolFailed,
            },
        }
    }
}

fn unusable(spec: &NodePool, error: &Error) -> Found {
    let message = Chain(error).to_string();
    tracing::warn!(pool = spec.name, reason = %error.reason(), error = message, "the pool cannot be used");
    let Error::Pool(pool::Error::OtherNode { claim, .. }) = error else {
        return Found::unusable(error.reason(), message);
    };
    let advice = if claim.pool.as_str() == spec.uid {
        "it is taken over once that Node is gone, or no longer carries the pool".to_owned()
    } else {
        format!(
            "if no other machine uses it, annotate the StorageNode with {}={} once that Node is gone",
            names::TAKE_OVER_ANNOTATION,
            claim.filesystem
        )
    };
    Found::Unusable {
        reason: error.reason(),
        message: format!("{message}; {advice}"),
        open: None,
        owner: Some(told(claim)),
    }
}

/// What a pool says of itself, as it stands in the StorageNode.
fn told(claim: &Claim) -> PoolOwner {
    PoolOwner {
        node: claim.owner.node.clone(),
        machine_id: claim.owner.machine.clone(),
        pool_uid: claim.pool.to_string(),
        filesystem_uuid: claim.filesystem.to_string(),
    }
}

/// The pool that the node may take over; none where that is no pool's.
fn granted(owner: &PoolOwner) -> Option<Claim> {
    Some(Claim {
        owner: Owner {
            node: owner.node.clone(),
            machine: owner.machine_id.clone(),
        },
        pool: owner.pool_uid.parse().ok()?,
        filesystem: owner.filesystem_uuid.parse().ok()?,
    })
}

fn declaration(wish: &Wish) -> Result<PoolDeclaration, Error> {
    let Wish {
        spec,
        others,
        device_identity,
        node,
    } = wish;
    let invalid = |why| Error::Spec { why };
    let uid: Uid = spec
        .uid
        .parse()
        .map_err(|_| invalid("its uid is not one of Kubernetes"))?;
    let source = match (&spec.source.image, &spec.source.device) {
        (Some(image), None) => Source::Image { size: image.size },
        (None, Some(device)) => Source::Device {
            paths: device.paths.iter().map(PathBuf::from).collect(),
            identity: device_identity.clone(),
        },
        (Some(_), Some(_)) | (None, None) => {
            return Err(invalid("a source is exactly one of image and device"));
        }
    };
    Ok(PoolDeclaration {
        uid,
        name: spec.name.clone(),
        others: others.clone(),
        node: node.clone(),
        take_over: spec.take_over.as_ref().and_then(granted),
        source,
    })
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

    fn holding(volumes: &[PoolVolume], snapshots: &[PoolSnapshot]) -> Holdings {
        let (volumes, snapshots) = (volumes.iter().cloned(), snapshots.iter().cloned());
        Holdings {
            volumes: volumes
                .map(|it| Arc::new(DeserializeGuard(Ok(it))))
                .collect(),
            snapshots: snapshots
                .map(|it| Arc::new(DeserializeGuard(Ok(it))))
                .collect(),
        }
    }

    #[test]
    fn a_pool_is_made_only_where_nobody_has_ever_heard_of_it() {
        let nothing = Holdings::default();
        assert_eq!(expectation(None, &nothing), Expectation::New);
        let never = status(None);
        assert_eq!(expectation(Some(&never), &nothing), Expectation::New);
        let once = status(Some(POOL_UUID));
        assert_eq!(expectation(Some(&once), &nothing), known());
    }

    #[test]
    fn a_pool_that_a_volume_or_snapshot_names_is_never_made_again_whatever_the_status_says() {
        assert_eq!(expectation(None, &holding(&[ready_volume()], &[])), known());
        let wanted = holding(&[wanted_volume()], &[]);
        assert_eq!(expectation(None, &wanted), Expectation::Made);
        assert_eq!(
            expectation(None, &holding(&[], &[ready_snapshot()])),
            known()
        );
        let wanted = holding(&[], &[wanted_snapshot()]);
        assert_eq!(expectation(None, &wanted), Expectation::Made);
    }

    #[test]
    fn an_identity_that_cannot_be_read_is_one_all_the_same() {
        let odd = status(Some("?"));
        assert_eq!(
            expectation(Some(&odd), &Holdings::default()),
            Expectation::Made
        );
    }
}
