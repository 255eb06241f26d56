//! The images of a pool, as the last look found them.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, PoisonError},
};

use cistern_crds::Bytes;
use cistern_host::{Image, Owner};

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
    pub(super) fn refresh<E>(
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

/// The room that an image takes while nobody claims it: that which its custom resource had, or would
/// have. A volume may be written to its full size, and a snapshot never more than it was.
pub fn weight_of(image: &Image) -> Bytes {
    let owner = image.identity.as_ref().map(|identity| &identity.owner);
    match owner {
        Some(Owner::Snapshot(_)) => image.allocated,
        Some(Owner::Volume(_)) | None => image.size,
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn images_that_nobody_claims_take_room_until_they_are_removed() {
        let sizes = [
            ("a".to_owned(), Bytes::gib(1)),
            ("b".to_owned(), Bytes::gib(2)),
        ];
        let images = Images::default();
        images
            .refresh(|| Ok::<_, Infallible>(sizes.into()))
            .unwrap();
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
            Ok::<_, Infallible>([("a".to_owned(), Bytes::gib(1))].into())
        };
        images.refresh(list).unwrap();
        assert_eq!(images.unclaimed(&HashSet::new()), Bytes::ZERO);
    }
}
