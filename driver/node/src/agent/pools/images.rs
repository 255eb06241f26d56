//! The images of a pool, as of the last reconcile.

use std::collections::{HashMap, HashSet};

use cistern_crds::Bytes;
use parking_lot::Mutex;

/// The listed images and their sizes, less those removed since.
#[derive(Debug, Default)]
pub struct Images(Mutex<Listed>);

/// Sizes of an image in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageSizes {
    /// Bytes that the ledger counts for it while it is unclaimed.
    pub charged: Bytes,
    /// Allocated bytes, including those that it shares with other images.
    pub allocated: Bytes,
}

/// What a pool holds, by name of the image.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// Images, open or in the trash.
    pub(super) sizes: HashMap<String, ImageSizes>,
    /// Bytes of the closed images, and of the copies and points, which have the name of the image that they become. A
    /// volume that moves, or its replicas, claim them.
    pub(super) moving: HashMap<String, Bytes>,
}

impl Listing {
    /// Adds bytes of a closed image, a copy or a point. One image may have several.
    pub(super) fn add_moving(&mut self, image: String, size: Bytes) {
        let all = self.moving.entry(image).or_default();
        *all = all.saturating_add(size);
    }
}

#[derive(Debug, Default)]
struct Listed {
    listing: Listing,
    /// Images that were removed since the listing began, and that it may still contain.
    removed: HashSet<String>,
    /// The same of closed images, copies and points.
    removed_moving: HashSet<String>,
}

impl Images {
    /// Bytes of the unclaimed images: their custom resources were deleted by force or recreated.
    /// The agent keeps these images, and the ledger counts them.
    pub fn unclaimed(&self, claimed: &HashSet<String>) -> Bytes {
        let listed = self.0.lock();
        let sizes = unclaimed(&listed.listing.sizes, claimed);
        sizes.map(|sizes| sizes.charged).sum()
    }

    /// Bytes of the unclaimed closed images, copies and points. The agent keeps them, and the ledger counts them.
    pub fn unclaimed_moving(&self, claimed: &HashSet<String>) -> Bytes {
        let listed = self.0.lock();
        unclaimed(&listed.listing.moving, claimed).copied().sum()
    }

    /// Allocated bytes of an image.
    pub fn allocated(&self, uid: &str) -> Option<Bytes> {
        Some(self.0.lock().listing.sizes.get(uid)?.allocated)
    }

    /// Number of the unclaimed images.
    pub fn count_unclaimed(&self, claimed: &HashSet<String>) -> u64 {
        let listed = self.0.lock();
        unclaimed(&listed.listing.sizes, claimed).count() as u64
    }

    /// Records that an image was removed, with what belonged to it.
    pub fn removed(&self, uid: &str) {
        self.removed_moving(uid);
        let mut listed = self.0.lock();
        listed.listing.sizes.remove(uid);
        listed.removed.insert(uid.to_owned());
    }

    /// Records that the closed image, the copy or the point of an image was removed. An open image of this name stays.
    pub fn removed_moving(&self, uid: &str) {
        let mut listed = self.0.lock();
        listed.listing.moving.remove(uid);
        listed.removed_moving.insert(uid.to_owned());
    }

    /// Replaces the listing with the result of `list`.
    pub(super) fn refresh<E>(&self, list: impl FnOnce() -> Result<Listing, E>) -> Result<(), E> {
        self.forget_removed();
        let mut listing = list()?;
        let mut listed = self.0.lock();
        listing.sizes.retain(|uid, _| !listed.removed.contains(uid));
        listing
            .moving
            .retain(|uid, _| !listed.removed_moving.contains(uid));
        listed.listing = listing;
        Ok(())
    }

    fn forget_removed(&self) {
        let mut listed = self.0.lock();
        listed.removed.clear();
        listed.removed_moving.clear();
    }
}

/// The values of the images that nothing claims.
fn unclaimed<'a, T>(
    images: &'a HashMap<String, T>,
    claimed: &HashSet<String>,
) -> impl Iterator<Item = &'a T> {
    let unclaimed = images.iter().filter(|(uid, _)| !claimed.contains(*uid));
    unclaimed.map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn sizes(charged: u64, allocated: u64) -> ImageSizes {
        let (charged, allocated) = (Bytes::gib(charged), Bytes::gib(allocated));
        ImageSizes { charged, allocated }
    }

    fn listing<const N: usize, const M: usize>(
        sizes: [(&str, ImageSizes); N],
        moving: [(&str, Bytes); M],
    ) -> Listing {
        let sizes = sizes.map(|(uid, sizes)| (uid.to_owned(), sizes));
        let mut listing = Listing {
            sizes: sizes.into(),
            moving: HashMap::new(),
        };
        for (image, size) in moving {
            listing.add_moving(image.to_owned(), size);
        }
        listing
    }

    fn listed<const N: usize, const M: usize>(
        sizes: [(&str, ImageSizes); N],
        moving: [(&str, Bytes); M],
    ) -> Images {
        let images = Images::default();
        let list = || Ok::<_, Infallible>(listing(sizes, moving));
        images.refresh(list).unwrap();
        images
    }

    #[test]
    fn unclaimed_images_take_room_until_they_are_removed() {
        let images = listed([("a", sizes(4, 1)), ("b", sizes(2, 2))], []);
        let claimed = HashSet::from(["a".to_owned()]);
        assert_eq!(images.unclaimed(&claimed), Bytes::gib(2));
        assert_eq!(images.allocated("a"), Some(Bytes::gib(1)));
        images.removed("b");
        assert_eq!(images.unclaimed(&claimed), Bytes::ZERO);
        assert_eq!(images.allocated("b"), None);
    }

    #[test]
    fn r12_closed_images_and_copies_take_room_while_nothing_claims_them() {
        let gib = Bytes::gib;
        // The copy and the point of one image.
        let images = listed([], [("a", gib(4)), ("b", gib(2)), ("b", gib(1))]);
        let claimed = HashSet::from(["a".to_owned()]);
        assert_eq!(images.unclaimed_moving(&claimed), Bytes::gib(3));
        // They are no orphans.
        assert_eq!(images.unclaimed(&claimed), Bytes::ZERO);
        assert_eq!(images.count_unclaimed(&claimed), 0);
        images.removed("b");
        assert_eq!(images.unclaimed_moving(&claimed), Bytes::ZERO);
        let nothing = HashSet::new();
        assert_eq!(images.unclaimed_moving(&nothing), Bytes::gib(4));
    }

    #[test]
    fn a_copy_that_is_removed_leaves_the_orphan_of_its_name_in_the_ledger() {
        let nothing = HashSet::new();
        let both = || {
            let listing = listing([("a", sizes(4, 1))], [("a", Bytes::gib(2))]);
            Ok::<_, Infallible>(listing)
        };
        let images = Images::default();
        images.refresh(both).unwrap();
        let has_the_orphan = || {
            assert_eq!(images.unclaimed_moving(&nothing), Bytes::ZERO);
            assert_eq!(images.unclaimed(&nothing), Bytes::gib(4));
        };
        images.removed_moving("a");
        has_the_orphan();
        let list = || {
            images.removed_moving("a");
            both()
        };
        images.refresh(list).unwrap();
        has_the_orphan();
        images.removed("a");
        assert_eq!(images.unclaimed(&nothing), Bytes::ZERO);
    }

    #[test]
    fn an_image_that_is_removed_during_a_listing_stays_removed() {
        let images = Images::default();
        let list = || {
            images.removed("a");
            let listing = listing([("a", sizes(1, 1))], [("a", Bytes::gib(1))]);
            Ok::<_, Infallible>(listing)
        };
        images.refresh(list).unwrap();
        assert_eq!(images.unclaimed(&HashSet::new()), Bytes::ZERO);
        assert_eq!(images.unclaimed_moving(&HashSet::new()), Bytes::ZERO);
    }
}
