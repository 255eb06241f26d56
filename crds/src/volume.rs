//! `PoolVolume`: one volume. The controller writes the spec, the node agent writes the status.
//!
//! *Invariant:* deleting the object deletes no data: only `spec.deletionRequested` does.

mod access;
mod content_source;
mod spec;
mod state;
mod status;

pub use self::{
    access::{AccessMode, AccessType},
    content_source::{ContentSource, SourceKind},
    spec::{ClaimReference, PoolVolume, PoolVolumeSpec},
    status::{FilesystemStatus, ImageStatus, PoolVolumeStatus},
};
