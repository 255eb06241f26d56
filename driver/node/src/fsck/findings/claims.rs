//! Which custom resource an image belongs to.

use std::fmt;

use chrono::{DateTime, SecondsFormat, Utc};
use cistern_crds::{PoolSnapshot, PoolVolume, Stored};
use cistern_host::{Image, Owner, PoolInventory};
use kube::ResourceExt as _;

use super::{Finding, Kind, View, finding};
use crate::agent::pass::Kept as _;

/// An image that no custom resource claims.
#[derive(Clone, Copy, Debug)]
pub struct Unclaimed<'a> {
    /// Where it is.
    pub pool: &'a PoolInventory,
    /// The image.
    pub image: &'a Image,
    /// When it was moved to the trash, if it is there.
    pub discarded: Option<DateTime<Utc>>,
}

/// The custom resource that an image belongs to.
enum Claimant<'a> {
    Volume(&'a PoolVolume),
    Snapshot(&'a PoolSnapshot),
}

impl Claimant<'_> {
    fn is_named(&self, owner: &Owner) -> bool {
        match self {
            Self::Volume(volume) => volume.is_named(owner),
            Self::Snapshot(snapshot) => snapshot.is_named(owner),
        }
    }
}

impl fmt::Display for Claimant<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Volume(volume) => write!(f, "PoolVolume {}", volume.name_any()),
            Self::Snapshot(snapshot) => write!(f, "PoolSnapshot {}", snapshot.name_any()),
        }
    }
}

impl View {
    /// Who claims an image.
    fn claimant(&self, image: &str) -> Option<Claimant<'_>> {
        let volume = self.volumes.iter().find(|it| image_of(*it) == image);
        let snapshot = || self.snapshots.iter().find(|it| image_of(*it) == image);
        volume
            .map(Claimant::Volume)
            .or_else(|| snapshot().map(Claimant::Snapshot))
    }

    /// Whether a custom resource claims an image.
    pub fn is_claimed(&self, image: &str) -> bool {
        self.claimant(image).is_some()
    }

    /// Images that no custom resource claims, those in the trash included.
    pub fn unclaimed(&self) -> Vec<Unclaimed<'_>> {
        let mut all = Vec::new();
        for pool in &self.inventory.pools {
            let images = pool.images.iter().map(|image| (image, None));
            let discarded = pool.discarded.iter();
            let discarded = discarded.map(|it| (&it.image, Some(it.since)));
            let images = images.chain(discarded);
            let unclaimed = images.filter(|(image, _)| !self.is_claimed(image.uid.as_str()));
            all.extend(unclaimed.map(|(image, discarded)| Unclaimed {
                pool,
                image,
                discarded,
            }));
        }
        all
    }

    /// Images that are not what the custom resource says that claims them.
    pub(super) fn conflicts(&self) -> Vec<Finding> {
        let mut all = Vec::new();
        for (pool, image) in self
            .inventory
            .pools
            .iter()
            .flat_map(|pool| pool.images.iter().map(move |image| (pool, image)))
        {
            let Some(claimant) = self.claimant(image.uid.as_str()) else {
                continue;
            };
            let owner = image.identity.as_ref().map(|identity| &identity.owner);
            if !owner.is_some_and(|owner| claimant.is_named(owner)) {
                let path = pool.mount_point.join("images").join(image.uid.as_str());
                let message = format!("{claimant} claims it; {}", describe(image));
                all.push(finding(Kind::IdentityConflict, path.display(), message));
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
                "it is in the trash since {}, from where it goes for good as the StoragePool says, \
                 and takes its room",
                since.to_rfc3339_opts(SecondsFormat::Secs, true)
            ),
        };
        let message = format!(
            "{}; {kept} until a custom resource of this name and spec claims it or somebody removes \
             the file",
            describe(image)
        );
        finding(Kind::ImageWithoutObject, path.display(), message)
    }
}

/// The name of an object's image.
pub(super) fn image_of<K: Stored>(object: &K) -> String {
    match object.image() {
        Some(image) => image.uid.clone(),
        None => object.meta().uid.clone().unwrap_or_default(),
    }
}

fn describe(image: &Image) -> String {
    match &image.identity {
        Some(identity) => format!(
            "it says that it is {}, {} large",
            identity.owner, image.size
        ),
        None => format!("it does not say whose it is, and is {} large", image.size),
    }
}
