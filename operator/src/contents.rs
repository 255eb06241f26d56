//! Counts of volumes and snapshots by pool or node.
//!
//! *Invariant:* an unreadable object may be anywhere, so it counts everywhere.

use std::{
    collections::BTreeMap,
    fmt,
    ops::{AddAssign, SubAssign},
};

/// A number of volumes and a number of snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// PoolVolumes.
    pub volumes: usize,
    /// PoolSnapshots.
    pub snapshots: usize,
}

impl Count {
    /// One volume.
    pub const VOLUME: Self = Self {
        volumes: 1,
        snapshots: 0,
    };
    /// One snapshot.
    pub const SNAPSHOT: Self = Self {
        volumes: 0,
        snapshots: 1,
    };

    /// Whether both counts are zero.
    pub const fn is_zero(self) -> bool {
        self.volumes == 0 && self.snapshots == 0
    }
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.volumes += other.volumes;
        self.snapshots += other.snapshots;
    }
}

impl SubAssign for Count {
    /// Stops at zero.
    fn sub_assign(&mut self, other: Self) {
        self.volumes = self.volumes.saturating_sub(other.volumes);
        self.snapshots = self.snapshots.saturating_sub(other.snapshots);
    }
}

/// For messages: `2 volumes and 1 snapshot`.
impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |number| if number == 1 { "" } else { "s" };
        let volumes = format!("{} volume{}", self.volumes, plural(self.volumes));
        let snapshots = format!("{} snapshot{}", self.snapshots, plural(self.snapshots));
        match (self.volumes, self.snapshots) {
            (_, 0) => f.write_str(&volumes),
            (0, _) => f.write_str(&snapshots),
            (_, _) => write!(f, "{volumes} and {snapshots}"),
        }
    }
}

/// Counts for several pools or nodes, and unreadable objects that may be in any of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// By pool or by node. None of the counts is zero.
    pub places: BTreeMap<String, Count>,
    /// Objects that cannot be read.
    pub unreadable: Count,
}

impl Contents {
    /// Readable objects at a pool or node.
    pub fn at(&self, place: &str) -> Count {
        self.places.get(place).copied().unwrap_or_default()
    }

    /// Whether an object exists at a pool or node, or may exist there.
    pub fn may_be_at(&self, place: &str) -> bool {
        !self.unreadable.is_zero() || self.places.contains_key(place)
    }

    /// Whether it is certain that no object exists.
    pub fn is_empty(&self) -> bool {
        self.unreadable.is_zero() && self.places.is_empty()
    }

    /// Sum of all counts.
    pub fn total(&self) -> Count {
        let mut total = self.unreadable;
        for count in self.places.values() {
            total += *count;
        }
        total
    }

    /// Adds `count` at a pool or node; `None` if the location is unknown.
    pub fn add(&mut self, place: Option<&str>, count: Count) {
        match place {
            None => self.unreadable += count,
            Some(place) => *self.places.entry(place.to_owned()).or_default() += count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_displayed_in_plain_english() {
        let count = |volumes, snapshots| Count { volumes, snapshots }.to_string();
        assert_eq!(count(0, 0), "0 volumes");
        assert_eq!(count(1, 0), "1 volume");
        assert_eq!(count(0, 1), "1 snapshot");
        assert_eq!(count(2, 3), "2 volumes and 3 snapshots");
    }

    #[test]
    fn r22_what_cannot_be_read_may_be_anywhere() {
        let mut contents = Contents::default();
        assert!(contents.is_empty() && !contents.may_be_at("w1"));
        contents.add(Some("w1"), Count::VOLUME);
        contents.add(Some("w1"), Count::SNAPSHOT);
        assert!(contents.may_be_at("w1") && !contents.may_be_at("w2"));
        contents.add(None, Count::SNAPSHOT);
        assert!(contents.may_be_at("w2") && !contents.is_empty());
        assert_eq!(contents.at("w1").to_string(), "1 volume and 1 snapshot");
        assert_eq!(contents.total().to_string(), "1 volume and 2 snapshots");
    }
}
