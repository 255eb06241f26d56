//! Computes the room for new volumes. Pure: from the nodes as last seen in the watch.

use std::sync::Arc;

use cistern_crds::{
    Bytes, Encryption, FilesystemType, PoolNames, Provisioning, StorageNode, availability::Needs,
    names,
};
use kube::ResourceExt as _;

/// The volumes for which room is requested.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CapacityQuery {
    /// The pools that the volumes may come from; None for all pools.
    pub pools: Option<PoolNames>,
    /// Whether the volumes are thick or thin.
    pub provisioning: Provisioning,
    /// How the volumes are encrypted; None if they are not.
    pub encryption: Option<Encryption>,
    /// The filesystem of the volumes; None if it is unknown.
    pub filesystem: Option<FilesystemType>,
    /// The topology values of the nodes; None for all nodes.
    pub places: Option<Vec<String>>,
}

/// Room for new volumes (GC-02, GC-06, GC-07).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// The sum of the room of all pools on all nodes in bytes.
    pub available: Bytes,
    /// The size of the largest possible volume in bytes: that of one pool on one node.
    pub maximum: Bytes,
    /// The size of the smallest possible volume in bytes; None if it is unknown.
    pub minimum: Option<Bytes>,
}

/// Sums up the room that the agents publish. A pool that takes no volumes counts as zero, so that
/// the capacity does not lead to requests that are refused.
pub(super) fn capacity(query: &CapacityQuery, nodes: &[Arc<StorageNode>]) -> Capacity {
    let minimum = query.filesystem.map(FilesystemType::minimum_size);
    let mut sum = Capacity {
        minimum,
        ..Capacity::default()
    };
    let counts = |place: &String| {
        query
            .places
            .as_ref()
            .is_none_or(|places| places.contains(place))
    };
    let needs = Needs {
        provisioning: query.provisioning,
        encryption: query.encryption,
        is_copy: false,
    };
    for node in nodes {
        if !counts(&names::topology_value(&node.name_any())) {
            continue;
        }
        let asked = |name: &&str| {
            let pools = query.pools.as_ref();
            pools.is_none_or(|pools| pools.contains(name))
        };
        let declared = node.spec.pools.iter().map(|pool| pool.name.as_str());
        for pool in declared
            .filter(asked)
            .filter_map(|name| node.takes(name, needs).ok())
        {
            let header = Encryption::header_of(query.encryption);
            let room = pool.room(query.provisioning).saturating_sub(header);
            let largest = pool
                .largest_volume(query.provisioning)
                .saturating_sub(header);
            sum.available = sum.available.saturating_add(room);
            sum.maximum = sum.maximum.max(largest);
        }
    }
    if minimum.is_some_and(|minimum| sum.maximum < minimum) {
        sum.maximum = Bytes::ZERO;
    }
    sum
}

#[cfg(test)]
mod tests {
    use cistern_crds::{ConditionType, node::NodeEncryption};

    use super::*;
    use crate::objects::nodes::tests::{node, node_of_volume_group, set};

    fn query(pool: Option<&str>, places: Option<&[&str]>) -> CapacityQuery {
        CapacityQuery {
            pools: pool.map(|pools| pools.parse().unwrap()),
            places: places.map(|places| places.iter().map(|&p| p.to_owned()).collect()),
            ..CapacityQuery::default()
        }
    }

    /// `a` with 3 GiB of room and `b` with 5 GiB, each with 10 GiB usable, and `c` not ready.
    fn nodes() -> Vec<Arc<StorageNode>> {
        let mut broken = node("c", Bytes::gib(50), Bytes::gib(50));
        let pool = &mut broken.status.as_mut().unwrap().pools[0];
        set(&mut pool.conditions, ConditionType::Ready, false);
        let usable = Bytes::gib(10);
        [
            node("a", Bytes::gib(3), usable),
            node("b", Bytes::gib(5), usable),
            broken,
        ]
        .map(Arc::new)
        .into()
    }

    #[test]
    fn gc_04_gc_05_pool_and_place_narrow_the_figure() {
        for (pool, places, available, maximum) in [
            (None, None, 8, 5),
            (Some("fast"), None, 8, 5),
            (Some("fast"), Some(&["a"][..]), 3, 3),
            (Some("slow"), None, 0, 0),
            (Some("fast"), Some(&["nowhere"][..]), 0, 0),
            (Some("fast"), Some(&["c"][..]), 0, 0),
            (None, Some(&[][..]), 0, 0),
        ] {
            let found = capacity(&query(pool, places), &nodes());
            assert_eq!(
                (found.available, found.maximum),
                (Bytes::gib(available), Bytes::gib(maximum)),
                "{pool:?} in {places:?}"
            );
        }
    }

    // Shows: GC-06, GC-08.
    #[test]
    fn gc_04_several_pools_add_up_and_the_largest_volume_is_that_of_one() {
        let mut two = node("a", Bytes::gib(3), Bytes::gib(10));
        let entry = &mut two.spec.pools;
        entry.push(entry[0].clone());
        (entry[1].name, entry[1].uid) = ("slow".to_owned(), "uid-slow".to_owned());
        let reports = &mut two.status.as_mut().unwrap().pools;
        reports.push(reports[0].clone());
        (reports[1].name, reports[1].uid) = ("slow".to_owned(), "uid-slow".to_owned());
        reports[1].thin_room = Bytes::gib(4);
        let nodes = [Arc::new(two)];
        for (pools, available, maximum) in
            [("fast", 3, 3), ("fast,slow", 7, 4), ("slow,gone", 4, 4)]
        {
            let found = capacity(&query(Some(pools), Some(&["a"])), &nodes);
            assert_eq!(
                (found.available, found.maximum),
                (Bytes::gib(available), Bytes::gib(maximum)),
                "{pools}"
            );
        }
    }

    #[test]
    fn gc_06_gc_07_no_single_volume_is_larger_than_the_pool_and_none_smaller_than_its_filesystem() {
        let overcommitted = [Arc::new(node("a", Bytes::gib(30), Bytes::gib(10)))];
        let found = capacity(&query(None, None), &overcommitted);
        assert_eq!(
            (found.available, found.maximum),
            (Bytes::gib(30), Bytes::gib(10))
        );

        let mut encrypted = query(None, None);
        encrypted.encryption = Some(Encryption::Luks2);
        let found = capacity(&encrypted, &overcommitted);
        assert_eq!(found.maximum, Bytes::ZERO, "no node says that it can");
        let mut able = node("a", Bytes::gib(30), Bytes::gib(10));
        able.status.get_or_insert_default().encryption = Some(NodeEncryption::default());
        let found = capacity(&encrypted, &[Arc::new(able)]);
        assert_eq!(found.maximum, Bytes::mib(10 * 1024 - 16));

        let mut group = node_of_volume_group("a", Bytes::gib(30));
        group.status.get_or_insert_default().encryption = Some(NodeEncryption::default());
        let group = [Arc::new(group)];
        encrypted.provisioning = Provisioning::Thick;
        let header = Bytes::mib(16);
        let encrypted_room = Bytes::gib(30).saturating_sub(header);
        assert_eq!(capacity(&encrypted, &group).available, encrypted_room);
        encrypted.encryption = None;
        assert_eq!(capacity(&encrypted, &group).available, Bytes::gib(30));

        let small = [Arc::new(node("a", Bytes::mib(299), Bytes::gib(10)))];
        let mut xfs = query(None, None);
        xfs.filesystem = Some(FilesystemType::Xfs);
        let found = capacity(&xfs, &small);
        assert_eq!(
            (found.maximum, found.minimum),
            (Bytes::ZERO, Some(Bytes::mib(300)))
        );
    }
}
