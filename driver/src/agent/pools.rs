//! The pools of this node as they were found at the last look.
//!
//! *Invariant:* a pool is made only if the StorageNode's status never held its filesystem and no
//! PoolVolume or PoolSnapshot of this node names it; a pool that cannot be used takes no volumes and is not
//! written.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    future,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use cistern_client::Chain;
use cistern_crds::{Bytes, NodePool, NodePoolStatus, Reason};
use cistern_host::{
    Expectation, Image, Owner, Pool, PoolDeclaration, PoolStatistics, Root, Source, Uid, image,
    pool::{self, Broken},
};

use tokio::sync::Notify;

use super::desired::Holdings;

/// What is known of the pools, by name of the StoragePool.
#[derive(Debug, Default)]
pub struct Pools {
    looks: Mutex<BTreeMap<String, Arc<PoolLook>>>,
    /// Some pool became usable or ceased to be.
    changed: Notify,
}

/// One pool at the last look.
#[derive(Debug)]
pub struct PoolLook {
    /// As it was to be.
    pub spec: NodePool,
    /// As it was.
    pub found: Found,
}

/// A pool as it is to be, beside the others.
#[derive(Clone, Debug)]
pub struct Wish {
    /// The pool.
    pub spec: NodePool,
    /// UIDs of the other pools that the node is to carry.
    pub others: Vec<Uid>,
}

impl Wish {
    /// Every pool that a node is to carry.
    pub fn all(specs: &[NodePool]) -> Vec<Self> {
        let wish = |spec: &NodePool| {
            let others = specs.iter().filter(|other| other.uid != spec.uid);
            Self {
                spec: spec.clone(),
                others: others.filter_map(|other| other.uid.parse().ok()).collect(),
            }
        };
        specs.iter().map(wish).collect()
    }
}

/// What a look at a pool found.
#[derive(Clone, Debug)]
pub enum Found {
    /// It can be used.
    Usable(Usable),
    /// It cannot be used.
    Unusable {
        /// Why, for programs.
        reason: Reason,
        /// Why, for people.
        message: String,
        /// As far as it is open all the same: its disk is asked whether it is well again.
        open: Option<Usable>,
    },
    /// It was to go, and it is gone.
    Gone,
}

/// A pool that can be used.
#[derive(Clone, Debug)]
pub struct Usable {
    /// The pool.
    pub pool: Arc<Pool>,
    /// Its numbers.
    pub statistics: PoolStatistics,
    /// The images in it.
    pub images: Arc<Images>,
}

/// Names of the images that the last look found and the room that each takes while nobody claims
/// it, less those that were removed since.
#[derive(Debug, Default)]
pub struct Images(Mutex<Listing>);

#[derive(Debug, Default)]
struct Listing {
    sizes: HashMap<String, Bytes>,
    /// Removed since a look began to list: it may have seen them still.
    removed: HashSet<String>,
}

impl Images {
    /// Bytes of the images that nobody claims: their custom resources went by force, or came back
    /// as others. They are kept, and take their room.
    pub fn unclaimed(&self, claimed: &HashSet<String>) -> Bytes {
        let listing = self.lock();
        let unclaimed = listing
            .sizes
            .iter()
            .filter(|(uid, _)| !claimed.contains(*uid));
        unclaimed.map(|(_, size)| *size).sum()
    }

    /// How many they are.
    pub fn count_unclaimed(&self, claimed: &HashSet<String>) -> u64 {
        let listing = self.lock();
        let unclaimed = listing.sizes.keys().filter(|uid| !claimed.contains(*uid));
        unclaimed.count() as u64
    }

    /// Notes that an image was removed.
    pub fn removed(&self, uid: &str) {
        let mut listing = self.lock();
        listing.sizes.remove(uid);
        listing.removed.insert(uid.to_owned());
    }

    /// Replaces what is known by what `list` finds.
    fn refresh<E>(
        &self,
        list: impl FnOnce() -> Result<HashMap<String, Bytes>, E>,
    ) -> Result<(), E> {
        self.lock().removed.clear();
        let mut sizes = list()?;
        let mut listing = self.lock();
        sizes.retain(|uid, _| !listing.removed.contains(uid));
        listing.sizes = sizes;
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Listing> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PoolLook {
    /// The pool, if it can be used.
    pub fn usable(&self) -> Option<&Usable> {
        match &self.found {
            Found::Usable(usable) => Some(usable),
            Found::Unusable { .. } | Found::Gone => None,
        }
    }

    /// The pool, if it is open, whether or not it can be used.
    pub fn open(&self) -> Option<&Usable> {
        match &self.found {
            Found::Usable(usable) => Some(usable),
            Found::Unusable { open, .. } => open.as_ref(),
            Found::Gone => None,
        }
    }
}

impl Found {
    /// A pool of which nothing is open.
    pub fn unusable(reason: Reason, message: impl Into<String>) -> Self {
        Self::Unusable {
            reason,
            message: message.into(),
            open: None,
        }
    }
}

impl Pools {
    /// The pool of this name at the last look.
    pub fn get(&self, name: &str) -> Option<Arc<PoolLook>> {
        self.lock().get(name).cloned()
    }

    /// Every pool at the last look.
    pub fn all(&self) -> Vec<Arc<PoolLook>> {
        self.lock().values().cloned().collect()
    }

    /// Notes what a look found; says whether the pool became usable or ceased to be.
    pub fn set(&self, look: PoolLook) -> bool {
        let usable = look.usable().is_some();
        let before = self.lock().insert(look.spec.name.clone(), Arc::new(look));
        let is_changed = before.is_none_or(|before| before.usable().is_some() != usable);
        if is_changed {
            self.changed.notify_waiters();
        }
        is_changed
    }

    /// Resolves when a pool that can be used cannot be any more; never of one that cannot be now.
    pub async fn lost(&self, name: &str) {
        let is_usable = || self.get(name).is_some_and(|look| look.usable().is_some());
        if !is_usable() {
            return future::pending().await;
        }
        loop {
            // Before the look, so that no change between the two is missed.
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if !is_usable() {
                return;
            }
            changed.await;
        }
    }

    /// Lets go of a pool, so that it can be mounted anew.
    pub fn close(&self, name: &str) {
        if let Some(look) = self.lock().get_mut(name) {
            let found = Found::unusable(Reason::NotMounted, "it is being opened anew");
            let spec = look.spec.clone();
            *look = Arc::new(PoolLook { spec, found });
        }
    }

    /// Lets go of a pool, so that it can be unmounted.
    pub fn release(&self, name: &str) {
        self.lock().remove(name);
    }

    /// Forgets the pools that the node is not to carry any more.
    pub fn retain(&self, names: &[&str]) {
        self.lock().retain(|name, _| names.contains(&name.as_str()));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Arc<PoolLook>>> {
        self.looks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

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
    let is_held = look.is_some_and(|look| look.spec.source == spec.source);
    drop(before.look);
    if let Some(usable) = usable.filter(|_| is_held) {
        // One that is no longer as it was is opened anew, and mounted if it is not.
        match usable.pool.check() {
            Ok(()) => return survey(usable.pool, images),
            Err(error) => {
                tracing::warn!(pool = spec.name, error = %Chain(&error), "the pool has changed");
            }
        }
    }
    let_go();
    let pool = root.open_pool(&declaration(wish)?, before.expectation)?;
    survey(Arc::new(pool), images)
}

/// Numbers and images of an open pool; what was left half made is swept away.
fn survey(pool: Arc<Pool>, images: Arc<Images>) -> Result<Usable, Error> {
    let swept = pool.sweep()?;
    if swept > 0 {
        tracing::info!(%pool, swept, "removed images that were never finished");
    }
    images.refresh(|| {
        // In this order: what goes to the trash meanwhile is seen in one of them.
        let mut found = pool.images()?;
        found.extend(pool.discarded()?.into_iter().map(|it| it.image));
        let sizes = found.iter();
        let sizes = sizes.map(|image| (image.uid.to_string(), weight_of(image)));
        Ok::<_, Error>(sizes.collect())
    })?;
    Ok(Usable {
        statistics: pool.statistics()?,
        images,
        pool,
    })
}

/// The room that an image takes while nobody claims it: that which its custom resource had, or would
/// have. A volume may be written to its full size, and a snapshot never more than it was.
pub fn weight_of(image: &Image) -> Bytes {
    let owner = image.identity.as_ref().map(|identity| &identity.owner);
    match owner {
        Some(Owner::Snapshot(_)) => image.allocated,
        Some(Owner::Volume(_)) | None => image.size,
    }
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
                pool::Error::ImagesRemain { .. } => Reason::VolumesRemain,
                pool::Error::Failed { .. } => Reason::PoolFailed,
            },
        }
    }
}

fn unusable(spec: &NodePool, error: &Error) -> Found {
    let message = Chain(error).to_string();
    tracing::warn!(pool = spec.name, reason = %error.reason(), error = message, "the pool cannot be used");
    Found::unusable(error.reason(), message)
}

fn declaration(wish: &Wish) -> Result<PoolDeclaration, Error> {
    let Wish { spec, others } = wish;
    let invalid = |why| Error::Spec { why };
    let uid: Uid = spec
        .uid
        .parse()
        .map_err(|_| invalid("its uid is not one of Kubernetes"))?;
    let source = match (&spec.source.image, &spec.source.device) {
        (Some(image), None) => Source::Image { size: image.size },
        (None, Some(device)) => Source::Device {
            paths: device.paths.iter().map(PathBuf::from).collect(),
        },
        (Some(_), Some(_)) | (None, None) => {
            return Err(invalid("a source is exactly one of image and device"));
        }
    };
    Ok(PoolDeclaration {
        uid,
        name: spec.name.clone(),
        others: others.clone(),
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

    #[test]
    fn images_that_nobody_claims_take_room_until_they_are_removed() {
        let sizes = [
            ("a".to_owned(), Bytes::gib(1)),
            ("b".to_owned(), Bytes::gib(2)),
        ];
        let images = Images::default();
        images.refresh(|| Ok::<_, Error>(sizes.into())).unwrap();
        let claimed = HashSet::from(["a".to_owned()]);
        assert_eq!(images.unclaimed(&claimed), Bytes::gib(2));
        images.removed("b");
        assert_eq!(images.unclaimed(&claimed), Bytes::ZERO);
    }

    #[test]
    fn an_image_that_is_removed_while_a_look_lists_it_is_gone_all_the_same() {
        let images = Images::default();
        let list = || {
            images.removed("a");
            Ok::<_, Error>([("a".to_owned(), Bytes::gib(1))].into())
        };
        images.refresh(list).unwrap();
        assert_eq!(images.unclaimed(&HashSet::new()), Bytes::ZERO);
    }
}
