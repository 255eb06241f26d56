//! Objects that this version of the plugin cannot parse: the schema accepted them, and the type does not.
//!
//! *Invariant:* such an object hides no other one. Views leave it out and name it, a command about it fails, and a
//! command that gives up data fails if it cannot tell whether the object is concerned.

use std::borrow::Cow;

use cistern_crds::StorageNode;
use kube::{Resource, core::DeserializeGuard};

use crate::print_diagnostic;

/// An object that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{kind} {name} cannot be read: {error}: correct the object, or use the plugin of the version that wrote it"
)]
pub struct Unreadable {
    /// Kind of the object.
    pub kind: &'static str,
    /// Name of the object.
    pub name: String,
    /// What the parser says.
    pub error: String,
}

/// The objects of some kinds that cannot be parsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnreadableObjects(Vec<Unreadable>);

impl UnreadableObjects {
    /// Returns the objects that can be parsed, and keeps the others.
    pub fn sort_out<K>(&mut self, all: impl IntoIterator<Item = DeserializeGuard<K>>) -> Vec<K>
    where
        K: Resource<DynamicType = ()>,
    {
        let parsed = all.into_iter().map(parsed);
        parsed
            .filter_map(|object| object.map_err(|error| self.0.push(error)).ok())
            .collect()
    }

    /// Returns each object, in the order of the lists.
    pub fn iter(&self) -> impl Iterator<Item = &Unreadable> {
        self.0.iter()
    }

    /// Fails if the object of this name, which a command is about, cannot be parsed.
    pub fn refuse<K>(&self, name: Option<&str>) -> Result<(), Unreadable>
    where
        K: Resource<DynamicType = ()>,
    {
        let is_it = |it: &&Unreadable| it.kind == kind::<K>() && Some(it.name.as_str()) == name;
        self.0.iter().find(is_it).cloned().map_or(Ok(()), Err)
    }

    /// Warns of the objects on standard error, unless they are among `known`.
    pub fn warn(&self, known: &Self) {
        for object in self.0.iter().filter(|it| !known.0.contains(it)) {
            print_diagnostic("warning", &object.to_string());
        }
    }
}

/// Returns the object. Fails if it cannot be parsed.
pub fn parsed<K: Resource<DynamicType = ()>>(object: DeserializeGuard<K>) -> Result<K, Unreadable> {
    object.0.map_err(|invalid| Unreadable {
        kind: kind::<K>(),
        name: invalid.metadata.name.unwrap_or_default(),
        error: invalid.error,
    })
}

/// Returns whether the node has pools. One that cannot be parsed may have some.
pub(crate) fn may_have_pools(node: &DeserializeGuard<StorageNode>) -> bool {
    let parsed = node.0.as_ref().ok();
    parsed.is_none_or(StorageNode::has_pools)
}

/// Returns the name of a kind.
fn kind<K: Resource<DynamicType = ()>>() -> &'static str {
    match K::kind(&()) {
        Cow::Borrowed(kind) => kind,
        Cow::Owned(_) => "object",
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::iter;

    use cistern_crds::{PoolVolume, StoragePool};
    use serde_json::json;

    use super::*;
    use crate::testing::object;

    /// A StoragePool whose size has a form that Cistern does not read.
    pub(crate) fn strange(name: &str) -> DeserializeGuard<StoragePool> {
        object(json!({"metadata": {"name": name},
            "spec": {"nodeSelector": {}, "source": {"image": {"size": "1e12"}}}}))
    }

    #[test]
    fn an_unreadable_object_is_named_and_hides_no_other() {
        let mut unreadable = UnreadableObjects::default();
        let pools = crate::testing::cluster().pools.into_iter();
        let pools = pools.map(|pool| DeserializeGuard(Ok(pool)));
        let readable = unreadable.sort_out(iter::once(strange("strange")).chain(pools));
        assert_eq!(readable, crate::testing::cluster().pools);
        let message = unreadable
            .refuse::<StoragePool>(Some("strange"))
            .unwrap_err()
            .to_string();
        assert!(
            message.starts_with("StoragePool strange cannot be read: "),
            "{message}"
        );
        assert!(message.contains("1e12"), "{message}");
        assert_eq!(unreadable.refuse::<StoragePool>(Some("fast")), Ok(()));
        assert_eq!(unreadable.refuse::<PoolVolume>(Some("strange")), Ok(()));
        assert_eq!(unreadable.refuse::<StoragePool>(None), Ok(()));
    }
}
