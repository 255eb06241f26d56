//! The images of a pool, as of the last reconcile.

use std::collections::{HashMap, HashSet};

use cistern_crds::Bytes;
use parking_lot::Mutex;

/// Names of the listed images and their sizes, less those removed since.
#[derive(Debug, Default)]
pub struct Images(Mutex<Listing>);

/// Sizes of an image in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageSizes {
    /// Bytes that the ledger counts for it while it is unclaimed.
    pub charged: Bytes,
    /// Allocated bytes, including those that it shares with other images.
    pub allocated: Bytes,
}

#[derive(Debug, Default)]
struct Listing {
    sizes: HashMap<String, ImageSizes>,
    /// Images that were removed since the listing began, and that it may still contain.
    removed: HashSet<String>,
}

impl Images {
    /// Bytes of the unclaimed images: their custom resources were deleted by force or recreated.
    /// The agent keeps these images, and the ledger counts them.
    pub fn unclaimed(&self, claimed: &HashSet<String>) -> Bytes {
        let listing = self.0.lock();
        let unclaimed = listing
            .sizes
            .iter()
            .filter(|(uid, _)| !claimed.contains(*uid));
        unclaimed.map(|(_, sizes)| sizes.charged).sum()
    }

    /// Allocated bytes of an image.
    pub fn allocated(&self, uid: &str) -> Option<Bytes> {
        Some(self.0.lock().sizes.get(uid)?.allocated)
    }

    /// Number of the unclaimed images.
    pub fn count_unclaimed(&self, claimed: &HashSet<String>) -> u64 {
        let listing = self.0.lock();
        let unclaimed = listing.sizes.keys().filter(|uid| !claimed.contains(*uid));
        unclaimed.count() as u64
    }

    /// Records that an image was removed.
    pub fn removed(&self, uid: &str) {
        let mut listing = self.0.lock();
        listing.sizes.remove(uid);
        listing.removed.insert(uid.to_owned());
    }

    /// Replaces the listing with the result of `list`.
    pub(super) fn refresh<E>(
        &self,
        list: impl FnOnce() -> Result<HashMap<String, ImageSizes>, E>,
    ) -> Result<(), E> {
        self.0.lock().removed.clear();
        let mut sizes = list()?;
        let mut listing = self.0.lock();
        sizes.retain(|uid, _| !listing.removed.contains(uid));
        listing.sizes = sizes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn sizes(charged: u64, allocated: u64) -> ImageSizes {
        let (charged, allocated) = (Bytes::gib(charged), Bytes::gib(allocated));
        ImageSizes { charged, allocated }
    }

    #[test]
    fn unclaimed_images_take_room_until_they_are_removed() {
        let sizes = [("a".to_owned(), sizes(4, 1)), ("b".to_owned(), sizes(2, 2))];
        let images = Images::default();
        images
            .refresh(|| Ok::<_, Infallible>(sizes.into()))
            .unwrap();
        let claimed = HashSet::from(["a".to_owned()]);
        assert_eq!(images.unclaimed(&claimed), Bytes::gib(2));
        assert_eq!(images.allocated("a"), Some(Bytes::gib(1)));
        images.removed("b");
        assert_eq!(images.unclaimed(&claimed), Bytes::ZERO);
        assert_eq!(images.allocated("b"), None);
    }

    #[test]
    fn an_image_that_is_removed_during_a_listing_stays_removed() {
        let images = Images::default();
        let list = || {
            images.removed("a");
            Ok::<_, Infallible>([("a".to_owned(), sizes(1, 1))].into())
        };
        images.refresh(list).unwrap();
        assert_eq!(images.unclaimed(&HashSet::new()), Bytes::ZERO);
    }
}
