//! Watched kinds: the cached part of each object, and the changes that a difference causes.
//!
//! *Invariant:* every field that a controller reads is kept; other fields take no memory.

mod cistern;
pub mod kubernetes;

use std::fmt::Debug;

use kube::Resource;
use serde::de::DeserializeOwned;

use crate::{
    cache::{Difference, Entry},
    change::Change,
};

/// A kind that is watched.
pub trait WatchedKind:
    Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync
{
    /// The cached part of an object.
    type Entry: Entry + Send + Sync + 'static;

    /// Name of the kind in `/readyz` and in logs.
    const NAME: &'static str;
    /// Whether a cluster without this kind has no such objects. The others have to be installed.
    const IS_OPTIONAL: bool = false;

    /// Reduces an object to its cached part. None if no controller reads the object, which then
    /// counts as deleted.
    fn entry(self) -> Option<Self::Entry>;

    /// The changes that a difference causes.
    fn changes(difference: &Difference<Self::Entry>) -> Vec<Change>;
}
