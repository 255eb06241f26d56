//! Watched kinds: what is kept of each object, and which change it causes.
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
    /// What is kept of an object.
    type Entry: Entry + Send + Sync + 'static;

    /// Its name in `/readyz` and in logs.
    const NAME: &'static str;
    /// Whether a cluster without this kind has no such objects. The others have to be installed.
    const IS_OPTIONAL: bool = false;

    /// What is kept of the object; none if no controller reads it, so that it counts as deleted.
    fn entry(self) -> Option<Self::Entry>;

    /// The change that a difference causes.
    fn change(difference: &Difference<Self::Entry>) -> Change;
}
