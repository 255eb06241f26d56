//! Finds the custom resource that an image belongs to.

use std::{
    collections::{HashMap, HashSet},
    fmt,
};

use chrono::{DateTime, SecondsFormat, Utc};
use cistern_crds::{Bytes, HasImage, PoolReplica, PoolSnapshot, PoolVolume, ReplicaPurpose};
use cistern_host::{Image, Owner, PoolInventory, copy::IncomingCopy};
use kube::ResourceExt as _;

use super::{Finding, FindingKind, View, charged_size, finding};
use crate::image::ImageObject as _;

/// An image that no custom resource claims.
#[derive(Clone, Copy, Debug)]
pub struct Unclaimed<'a> {
    /// The pool of the image.
    pub pool: &'a PoolInventory,
    /// The image.
    pub image: &'a Image,
    /// When it was moved to the trash; None if it is not there.
    pub discarded: Option<DateTime<Utc>>,
}

/// What a volume has left that moves or has moved, and that no custom resource claims.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnclaimedMoving<'a> {
    /// The pool that holds it.
    pub(super) pool: &'a PoolInventory,
    what: Moving<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Moving<'a> {
    /// An image that is closed for a move.
    Closed(&'a Image),
    /// A copy that another node has sent, or a point.
    Copy(&'a IncomingCopy),
}

/// The custom resource that an image belongs to.
#[derive(Clone, Copy)]
pub(super) enum ImageOwner<'a> {
    Volume(&'a PoolVolume),
    Snapshot(&'a PoolSnapshot),
    /// The volume was on this node, and is elsewhere now.
    Replica(&'a PoolReplica),
}

impl ImageOwner<'_> {
    fn is_named(&self, owner: &Owner) -> bool {
        match self {
            Self::Volume(volume) => volume.is_named(owner),
            Self::Snapshot(snapshot) => snapshot.is_named(owner),
            Self::Replica(replica) => replica.is_named(owner),
        }
    }
}

impl fmt::Display for ImageOwner<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Volume(volume) => write!(f, "PoolVolume {}", volume.name_any()),
            Self::Snapshot(snapshot) => write!(f, "PoolSnapshot {}", snapshot.name_any()),
            Self::Replica(replica) => write!(f, "PoolReplica {}", replica.name_any()),
        }
    }
}

impl View {
    /// The owners of all images that a custom resource claims. If several claim one, the first volume
    /// counts, or else the first snapshot or replica.
    pub(super) fn owners(&self) -> HashMap<&str, ImageOwner<'_>> {
        let volumes = self.volumes.iter();
        let volumes = volumes.map(|it| (image_of(it), ImageOwner::Volume(it)));
        let snapshots = self.snapshots.iter();
        let snapshots = snapshots.map(|it| (image_of(it), ImageOwner::Snapshot(it)));
        let replicas = self.retained();
        let replicas = replicas.map(|it| (&*it.spec.image, ImageOwner::Replica(it)));
        let mut owners = HashMap::new();
        for (image, owner) in volumes.chain(snapshots).chain(replicas) {
            owners.entry(image).or_insert(owner);
        }
        owners
    }

    /// Whether a custom resource claims an image.
    pub fn is_claimed(&self, image: &str) -> bool {
        self.volumes.iter().any(|it| image_of(it) == image)
            || self.snapshots.iter().any(|it| image_of(it) == image)
            || self.retained().any(|it| it.spec.image == image)
    }

    /// The replicas of what the node keeps. The image is open if the volume was promoted elsewhere.
    fn retained(&self) -> impl Iterator<Item = &PoolReplica> {
        let replicas = self.replicas.iter();
        replicas.filter(|it| it.spec.purpose == ReplicaPurpose::Retained)
    }

    /// Images that no custom resource claims, those in the trash included.
    pub fn unclaimed(&self) -> Vec<Unclaimed<'_>> {
        self.unclaimed_by(&self.owners())
    }

    pub(super) fn unclaimed_by(
        &self,
        owners: &HashMap<&str, ImageOwner<'_>>,
    ) -> Vec<Unclaimed<'_>> {
        let mut all = Vec::new();
        for pool in &self.inventory.pools {
            let images = pool.images.iter().map(|image| (image, None));
            let discarded = pool.discarded.iter();
            let discarded = discarded.map(|it| (&it.image, Some(it.since)));
            let images = images.chain(discarded);
            let unclaimed = images.filter(|(image, _)| !owners.contains_key(image.uid.as_str()));
            all.extend(unclaimed.map(|(image, discarded)| Unclaimed {
                pool,
                image,
                discarded,
            }));
        }
        all
    }

    /// Images that are closed for a move, copies and points, that nothing on this node claims any more.
    pub(super) fn unclaimed_moving(
        &self,
        owners: &HashMap<&str, ImageOwner<'_>>,
    ) -> Vec<UnclaimedMoving<'_>> {
        let replicas: HashSet<&str> = self.replicas.iter().map(|it| &*it.spec.image).collect();
        let is_claimed = |what: &Moving<'_>| {
            let image = what.image();
            owners.contains_key(image) || replicas.contains(image)
        };
        let mut all = Vec::new();
        for pool in &self.inventory.pools {
            let closed = pool.closed.iter().map(|it| Moving::Closed(&it.image));
            let copies = pool.incoming.iter().map(Moving::Copy);
            let unclaimed = closed.chain(copies).filter(|what| !is_claimed(what));
            all.extend(unclaimed.map(|what| UnclaimedMoving { pool, what }));
        }
        all
    }

    /// Images whose identity does not match the custom resource that claims them.
    pub(super) fn conflicts(&self, owners: &HashMap<&str, ImageOwner<'_>>) -> Vec<Finding> {
        let mut all = Vec::new();
        for (pool, image) in self
            .inventory
            .pools
            .iter()
            .flat_map(|pool| pool.images.iter().map(move |image| (pool, image)))
        {
            let Some(image_owner) = owners.get(image.uid.as_str()) else {
                continue;
            };
            let owner = image.identity.as_ref().map(|identity| &identity.owner);
            if !owner.is_some_and(|owner| image_owner.is_named(owner)) {
                let path = pool.mount_point.join("images").join(image.uid.as_str());
                let message = format!("{image_owner} claims it; {}", describe(image));
                all.push(finding(
                    FindingKind::IdentityConflict,
                    path.display(),
                    message,
                ));
            }
        }
        all
    }
}

impl Unclaimed<'_> {
    pub(super) fn finding(&self) -> Finding {
        let (image, folder) = (self.image, &self.pool.mount_point);
        let path = match self.discarded {
            None => folder.join("images").join(image.uid.as_str()),
            Some(_) => folder.join("trash").join(image.uid.as_str()),
        };
        let kept = match self.discarded {
            None => "it is kept, and takes its room,".to_owned(),
            Some(since) => format!(
                "it is in the trash since {}, is deleted when its StoragePool says so, and takes its room",
                since.to_rfc3339_opts(SecondsFormat::Secs, true)
            ),
        };
        let message = format!(
            "{}; {kept} until a custom resource of this name and spec claims it or an administrator removes \
             the file",
            describe(image)
        );
        finding(FindingKind::ImageWithoutObject, path.display(), message)
    }
}

impl<'a> Moving<'a> {
    /// The name of the volume's image.
    fn image(&self) -> &'a str {
        match self {
            Self::Closed(image) => image.uid.as_str(),
            Self::Copy(copy) => copy.volume.as_str(),
        }
    }
}

impl UnclaimedMoving<'_> {
    /// Bytes that the ledger counts for it. A copy without an object is not written to.
    pub(super) fn charged(&self) -> Bytes {
        match self.what {
            Moving::Closed(image) => charged_size(image),
            Moving::Copy(copy) => copy.allocated,
        }
    }

    pub(super) fn finding(&self) -> Finding {
        let folder = &self.pool.mount_point;
        match self.what {
            Moving::Closed(image) => {
                let path = folder.join("closed").join(image.uid.as_str());
                let message = format!(
                    "{}; it was closed when its volume moved to another node, and its PoolReplica is gone: it is \
                     kept, and takes its room, until an administrator removes the file",
                    describe(image)
                );
                let kind = FindingKind::ClosedImageWithoutObject;
                finding(kind, path.display(), message)
            }
            Moving::Copy(copy) => {
                let path = folder.join("incoming").join(copy.file_name());
                let message = if copy.is_of_move() {
                    "it was received for a move or as a standby copy, and its PoolReplica is gone: it is kept, and \
                     takes its room, until an administrator removes the file"
                } else {
                    "it is the copy of a snapshot, and its PoolVolume is gone: the agent removes it after its next \
                     comparison"
                };
                finding(FindingKind::CopyWithoutObject, path.display(), message)
            }
        }
    }
}

/// The name of an object's image.
pub(super) fn image_of<K: HasImage>(object: &K) -> &str {
    match object.image() {
        Some(image) => &image.uid,
        None => object.meta().uid.as_deref().unwrap_or_default(),
    }
}

fn describe(image: &Image) -> String {
    match &image.identity {
        Some(identity) => format!(
            "its identity is {}, its size is {}",
            identity.owner, image.size
        ),
        None => format!("it has no valid identity, its size is {}", image.size),
    }
}
