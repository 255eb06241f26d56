//! Copies of snapshots, and of volumes that move, between nodes.
//!
//! ```text
//! ImageTransfer (sourceNode: this node) ─▶ grants ─▶ what other nodes are sent (`sending.rs`)
//! PoolVolume whose snapshot is on another node, PoolReplica of a volume that moves here
//!   ─▶ its reconcile ─▶ receiving ─▶ a copy in the pool
//! ```
//!
//! *Invariant:* a node sends what an ImageTransfer names to the node that it names, as long as it exists, and
//! nothing else. Both sides find the other's key in its StorageNode, which only that node can write.

mod copies;
mod grants;
mod receiving;
mod route;
mod wanted;

use std::{fmt, time::Duration};

use cistern_transfer::KeyPair;
use kube::Client;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::Semaphore;

pub use self::{
    copies::{Copies, CopyProgress, CopyState, finding},
    grants::Grants,
    receiving::{Received, receive},
    route::NotCopied,
    wanted::Wanted,
};
pub(crate) use grants::run;

/// How long a copy waits that is not permitted yet, unless its permission is seen before, or whose source cannot send it.
pub const RETRY: Duration = Duration::from_secs(5);
/// Copies that a node receives at a time. Others wait.
const RECEIVED: usize = 4;

/// The copies that this node sends and receives.
pub struct Transfers {
    /// The key pair of this process.
    pub keys: KeyPair,
    /// What other nodes may read.
    pub grants: Grants,
    /// Copies that are received.
    pub copies: Copies,
    /// Bytes of data that were sent.
    pub sent: Counter,
    client: Client,
    receiving: Semaphore,
}

impl fmt::Debug for Transfers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Transfers")
    }
}

impl Transfers {
    /// No transfers yet.
    pub fn new(keys: KeyPair, client: Client) -> Self {
        Self {
            keys,
            grants: Grants::default(),
            copies: Copies::default(),
            sent: Counter::default(),
            client,
            receiving: Semaphore::new(RECEIVED),
        }
    }
}
