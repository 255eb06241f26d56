//! One value for each node. A value is recomputed only after its node has changed.
//!
//! *Invariant:* after [`ByNode::refresh`] the values are the same as if all had been recomputed.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// A value for each node that has one.
#[derive(Debug)]
pub struct ByNode<T> {
    values: BTreeMap<String, Arc<T>>,
    outdated: Outdated,
}

/// The nodes whose values are out of date.
#[derive(Debug, PartialEq, Eq)]
enum Outdated {
    All,
    These(BTreeSet<String>),
}

impl<T> Default for ByNode<T> {
    /// Every value is out of date.
    fn default() -> Self {
        Self {
            values: BTreeMap::new(),
            outdated: Outdated::All,
        }
    }
}

impl<T> ByNode<T> {
    /// Marks the value of a node that has changed as out of date.
    pub fn outdate(&mut self, node: &str) {
        if let Outdated::These(nodes) = &mut self.outdated {
            nodes.insert(node.to_owned());
        }
    }

    /// Recomputes the values that are out of date, and returns whether there were any. `all` lists
    /// every node, and `compute` returns None for a node without a value.
    pub fn refresh(
        &mut self,
        all: impl FnOnce() -> Vec<String>,
        compute: impl Fn(&str) -> Option<T>,
    ) -> bool {
        let outdated = std::mem::replace(&mut self.outdated, Outdated::These(BTreeSet::new()));
        let nodes = match outdated {
            Outdated::These(nodes) => nodes,
            Outdated::All => {
                self.values.clear();
                all().into_iter().collect()
            }
        };
        let any = !nodes.is_empty();
        for node in nodes {
            match compute(&node) {
                Some(value) => _ = self.values.insert(node, Arc::new(value)),
                None => _ = self.values.remove(&node),
            }
        }
        any
    }

    /// Every value, in the order of the nodes' names.
    pub fn values(&self) -> impl Iterator<Item = (&String, &Arc<T>)> {
        self.values.iter()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn only_the_values_of_changed_nodes_are_computed_anew() {
        let computed = RefCell::new(Vec::new());
        let mut lengths = ByNode::default();
        let refresh = |lengths: &mut ByNode<usize>, limit: usize| {
            let all = || vec!["a".to_owned(), "bb".to_owned(), "ccc".to_owned()];
            lengths.refresh(all, |node| {
                computed.borrow_mut().push(node.to_owned());
                (node.len() < limit).then_some(node.len())
            });
            computed.take()
        };
        assert_eq!(refresh(&mut lengths, 3), ["a", "bb", "ccc"]);
        assert!(refresh(&mut lengths, 3).is_empty());
        lengths.outdate("ccc");
        lengths.outdate("ccc");
        assert_eq!(refresh(&mut lengths, 4), ["ccc"]);
        let names = |lengths: &ByNode<usize>| -> Vec<String> {
            lengths.values().map(|(node, _)| node.clone()).collect()
        };
        assert_eq!(names(&lengths), ["a", "bb", "ccc"]);
        lengths.outdate("a");
        refresh(&mut lengths, 0);
        assert_eq!(names(&lengths), ["bb", "ccc"]);
    }
}
