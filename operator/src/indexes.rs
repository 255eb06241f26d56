//! Indexes of the cached objects, kept up to date with each difference, so that a decision about
//! one node or pool does not read all objects.
//!
//! *Invariant:* an index holds nothing that its cache does not hold.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use cistern_crds::names;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt as _;
use parking_lot::RwLock;

use crate::{
    cache::Difference,
    contents::{Contents, Count},
    stored::{Location, Stored, StoredVolume},
};

/// Volumes and snapshots by node and pool.
#[derive(Debug, Default)]
pub struct ContentsIndex(RwLock<Counts>);

#[derive(Debug, Default)]
struct Counts {
    /// By node, then by pool.
    by_node: HashMap<String, BTreeMap<String, Count>>,
    /// By pool, then by node.
    by_pool: HashMap<String, BTreeMap<String, Count>>,
    /// The thick objects by pool.
    thick: HashMap<String, Count>,
    unreadable: Count,
}

impl ContentsIndex {
    /// The objects on a node, by pool.
    pub fn on(&self, node: &str) -> Contents {
        let counts = self.0.read();
        Contents {
            places: counts.by_node.get(node).cloned().unwrap_or_default(),
            unreadable: counts.unreadable,
        }
    }

    /// The objects of a pool, by node.
    pub fn of(&self, pool: &str) -> Contents {
        let counts = self.0.read();
        Contents {
            places: counts.by_pool.get(pool).cloned().unwrap_or_default(),
            unreadable: counts.unreadable,
        }
    }

    /// The objects of a pool that are or may be thick.
    pub fn thick_in(&self, pool: &str) -> Count {
        let counts = self.0.read();
        let mut thick = counts.unreadable;
        thick += counts.thick.get(pool).copied().unwrap_or_default();
        thick
    }

    /// Counts a difference of volumes or snapshots. `one` is the count of one such object.
    pub fn apply<R>(&self, one: Count, difference: &Difference<Stored<R>>) {
        let mut counts = self.0.write();
        if let Some(before) = difference.before() {
            counts.change(before.location.as_ref(), |count| *count -= one);
        }
        if let Some(now) = difference.now() {
            counts.change(now.location.as_ref(), |count| *count += one);
        }
    }
}

impl Counts {
    fn change(&mut self, location: Option<&Location>, change: impl Fn(&mut Count)) {
        let Some(Location { node, pool, thick }) = location else {
            change(&mut self.unreadable);
            return;
        };
        change_in(
            self.by_node.entry(node.to_string()).or_default(),
            pool,
            &change,
        );
        change_in(
            self.by_pool.entry(pool.to_string()).or_default(),
            node,
            &change,
        );
        if *thick {
            change(self.thick.entry(pool.to_string()).or_default());
        }
    }
}

/// Changes the count of a place; [`Contents`] holds no zeros.
fn change_in(places: &mut BTreeMap<String, Count>, place: &str, change: &impl Fn(&mut Count)) {
    let mut count = places.remove(place).unwrap_or_default();
    change(&mut count);
    if !count.is_zero() {
        places.insert(place.to_owned(), count);
    }
}

/// The volumes that wait for the copy of a snapshot of another node, by the name of the snapshot.
#[derive(Debug, Default)]
pub struct AwaitedCopies(RwLock<HashMap<Box<str>, BTreeSet<Box<str>>>>);

impl AwaitedCopies {
    /// Names of the volumes that wait for a copy of this snapshot.
    pub fn of(&self, snapshot: &str) -> Vec<String> {
        let awaited = self.0.read();
        let volumes = awaited.get(snapshot).into_iter().flatten();
        volumes.map(ToString::to_string).collect()
    }

    /// Applies a difference of the volumes.
    pub fn apply(&self, difference: &Difference<StoredVolume>) {
        let snapshot = |volume: &Arc<StoredVolume>| Some(volume.awaits.as_ref()?.snapshot.clone());
        let before = difference.before().and_then(snapshot);
        let now = difference.now().and_then(snapshot);
        if before == now {
            return;
        }
        let mut awaited = self.0.write();
        if let Some(before) = before
            && let Some(volumes) = awaited.get_mut(&before)
        {
            volumes.remove(&difference.key);
            if volumes.is_empty() {
                awaited.remove(&before);
            }
        }
        if let Some(now) = now {
            let volumes = awaited.entry(now).or_default();
            volumes.insert(difference.key.clone());
        }
    }
}

/// The pods of the node plugin, by node.
#[derive(Debug, Default)]
pub struct AgentIndex(RwLock<HashMap<String, Vec<Arc<Pod>>>>);

impl AgentIndex {
    /// The pods on a node: one, or two for a moment.
    pub fn on(&self, node: &str) -> Vec<Arc<Pod>> {
        self.0.read().get(node).cloned().unwrap_or_default()
    }

    /// Applies a difference of the pods.
    pub fn apply(&self, difference: &Difference<Pod>) {
        let node = |pod: &Pod| pod.spec.as_ref()?.node_name.clone();
        let mut agents = self.0.write();
        if let Some(before) = difference.before()
            && let Some(node) = node(before)
            && let Some(pods) = agents.get_mut(&node)
        {
            pods.retain(|pod| pod.name_any() != before.name_any());
            if pods.is_empty() {
                agents.remove(&node);
            }
        }
        if let Some(now) = difference.now()
            && let Some(node) = node(now)
        {
            agents.entry(node).or_default().push(Arc::clone(now));
        }
    }
}

/// The Nodes whose names are too long for the value of the topology key, by that value.
#[derive(Debug, Default)]
pub struct LongNames(RwLock<HashMap<String, String>>);

impl LongNames {
    /// The Node with a value of the topology key that differs from its name.
    pub fn node(&self, segment: &str) -> Option<String> {
        self.0.read().get(segment).cloned()
    }

    /// Applies a difference of the Nodes.
    pub fn apply(&self, difference: &Difference<Node>) {
        let name = difference.entry().name_any();
        let segment = names::topology_value(&name);
        if segment == name {
            return;
        }
        let mut names = self.0.write();
        if difference.now().is_some() {
            names.insert(segment, name);
        } else {
            names.remove(&segment);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{cache::Replaced, stored::AwaitedCopy, testing};

    fn stored(node: &str, pool: &str, thick: bool) -> Arc<Stored<()>> {
        Arc::new(Stored {
            location: Some(Location {
                node: node.into(),
                pool: pool.into(),
                thick,
            }),
            ..Stored::default()
        })
    }

    fn difference<E>(before: Option<&Arc<E>>, now: Option<&Arc<E>>) -> Difference<E> {
        let entries = match (before.cloned(), now.cloned()) {
            (None, now) => Replaced::Added(now.unwrap()),
            (Some(before), Some(now)) => Replaced::Changed(before, now),
            (Some(before), None) => Replaced::Removed(before),
        };
        let key = Box::default();
        Difference { key, entries }
    }

    #[test]
    fn objects_are_counted_by_node_and_by_pool_until_they_are_gone() {
        let index = ContentsIndex::default();
        let [one, two] = [stored("w1", "fast", true), stored("w2", "fast", false)];
        index.apply(Count::VOLUME, &difference(None, Some(&one)));
        index.apply(Count::VOLUME, &difference(None, Some(&two)));
        index.apply(Count::SNAPSHOT, &difference(None, Some(&two)));
        assert_eq!(
            index.on("w2").at("fast").to_string(),
            "1 volume and 1 snapshot"
        );
        assert_eq!(
            index.of("fast").total().to_string(),
            "2 volumes and 1 snapshot"
        );
        assert_eq!(index.thick_in("fast"), Count::VOLUME);
        let thin = stored("w1", "fast", false);
        index.apply(Count::VOLUME, &difference(Some(&one), Some(&thin)));
        assert_eq!(index.thick_in("fast"), Count::default());
        index.apply(Count::VOLUME, &difference(Some(&thin), None));
        assert!(index.on("w1").is_empty());
        assert!(!index.of("fast").may_be_at("w1"));
    }

    #[test]
    fn r22_an_unreadable_object_counts_everywhere_until_it_is_readable() {
        let index = ContentsIndex::default();
        let unreadable = Arc::new(Stored::<()>::default());
        index.apply(Count::VOLUME, &difference(None, Some(&unreadable)));
        assert!(index.on("w1").may_be_at("fast"));
        assert_eq!(index.thick_in("slow"), Count::VOLUME);
        let readable = stored("w1", "fast", false);
        index.apply(
            Count::VOLUME,
            &difference(Some(&unreadable), Some(&readable)),
        );
        assert!(index.on("w2").is_empty());
        assert_eq!(index.thick_in("slow"), Count::default());
    }

    #[test]
    fn a_volume_is_found_by_the_snapshot_that_it_waits_for_and_by_no_other() {
        let volume = |snapshot: Option<&str>| {
            let awaits = snapshot.map(|snapshot| AwaitedCopy {
                snapshot: snapshot.into(),
                image: "uid-1".into(),
            });
            Arc::new(StoredVolume {
                awaits: awaits.map(Box::new),
                ..StoredVolume::default()
            })
        };
        let [waiting, other, made] = [Some("snap-1"), Some("snap-2"), None].map(volume);
        let index = AwaitedCopies::default();
        let apply = |key: &str, before: Option<&Arc<StoredVolume>>, now| {
            let key = key.into();
            index.apply(&Difference {
                key,
                ..difference(before, now)
            });
        };
        apply("a", None, Some(&waiting));
        apply("b", None, Some(&waiting));
        apply("c", None, Some(&made));
        assert_eq!(index.of("snap-1"), ["a", "b"]);
        assert!(index.of("snap-2").is_empty(), "nothing waits for it");
        apply("a", Some(&waiting), Some(&other));
        apply("b", Some(&waiting), Some(&made));
        assert!(index.of("snap-1").is_empty());
        assert_eq!(index.of("snap-2"), ["a"]);
        apply("a", Some(&other), None);
        assert!(index.of("snap-2").is_empty());
    }

    #[test]
    fn the_pods_of_a_node_are_found_while_they_are_there() {
        let pod = |name: &str, node: &str| -> Arc<Pod> {
            let pod =
                json!({"metadata": {"name": name}, "spec": {"nodeName": node, "containers": []}});
            Arc::new(serde_json::from_value(pod).unwrap())
        };
        let index = AgentIndex::default();
        let [old, new] = [pod("a", "w1"), pod("b", "w1")];
        for pod in [&old, &new] {
            index.apply(&difference(None, Some(pod)));
        }
        index.apply(&difference(Some(&old), Some(&old)));
        assert_eq!(index.on("w1").len(), 2);
        index.apply(&difference(Some(&old), None));
        assert_eq!(index.on("w1"), [new]);
        assert!(index.on("w2").is_empty());
    }

    #[test]
    fn a_node_is_found_by_the_hash_that_stands_for_its_long_name() {
        let name = "n".repeat(100);
        let index = LongNames::default();
        let node = Arc::new(testing::node(&name, &[]));
        let segment = names::topology_value(&name);
        index.apply(&difference(None, Some(&node)));
        assert_eq!(index.node(&segment).as_deref(), Some(name.as_str()));
        index.apply(&difference(Some(&node), None));
        assert_eq!(index.node(&segment), None);
        index.apply(&difference(None, Some(&Arc::new(testing::node("w1", &[])))));
        assert_eq!(index.node("w1"), None, "it is found by its name");
    }
}
