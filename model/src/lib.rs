//! A model of how a volume changes its node, checked in every interleaving of its parties and of what can break.
//!
//! It is not part of the product. Read [`state`] first, then [`operator`], [`agent`] and [`kubelet`]: each has the steps of
//! one party. [`guard`] lists the preconditions of the steps, and [`property`] what always holds. `docs/design-moving.md`
//! says the same in prose, with the same names.

#![expect(
    clippy::trivially_copy_pass_by_ref,
    clippy::unused_self,
    reason = "the steps of all parties have the same shape"
)]

pub mod agent;
pub mod cluster;
mod collect;
pub mod collection;
mod copy;
mod ending;
pub mod goal;
pub mod guard;
mod initial;
pub mod kubelet;
pub mod mutation;
pub mod operator;
pub mod property;
pub mod protocol;
mod reclaim;
mod replacement;
pub mod scenario;
pub mod schema;
pub mod state;
mod write;
