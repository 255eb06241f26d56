//! The way between nodes: the data of a snapshot is sent to another node over TLS 1.3.
//!
//! ```text
//! target: fetch ── Describe, Read ──▶ source: serve ──▶ Source (what is granted, and its data)
//!               ◀── chunks with checksums ──
//! ```
//!
//! Each process makes a key pair at its start, and publishes the public key. There is no certificate
//! authority and no secret in the cluster: each side knows the key of the other before it connects. What
//! may be read is decided by [`Source`] for each call, and again before each chunk.
//!
//! Controllers ask the node plugins in the same way where snapshots hold data, by another service ([`connect`], [`serve`]).
//!
//! *Invariants:* nothing is sent to or taken from a peer that has not proved that it has the expected
//! key. A connection that has not done that causes no work besides its handshake, of which few go on at a
//! time, each for a short time. No session is resumed, so a key that was replaced cannot be used. A peer that takes nothing holds
//! no data and no connection of the source for longer than it may have them, and no key has more than a share of the connections.
//! Memory does not grow with the number of requests.

mod acceptor;
mod client;
mod error;
mod keys;
mod places;
mod rate;
mod sending;
mod server;
mod source;
mod tls;

use std::time::Duration;

pub use self::{
    client::{Fetch, connect, fetch},
    error::Error,
    keys::{InvalidKey, KeyPair, PublicKey},
    rate::Rate,
    server::{serve, service},
    source::{Data, Opened, Refused, Source},
    tls::Admits,
};

/// Time limit for a connection to be made, and for its handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// How often it is checked that a peer may still have its connection, and what is read for it.
const WATCHED: Duration = Duration::from_secs(1);

/// Interval of the messages that find a peer that is gone.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// What a sender may send before the receiver has taken it, in bytes. It bounds the memory of a stream.
const WINDOW: u32 = 2 << 20;
