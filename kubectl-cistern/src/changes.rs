//! Waits for changes of a watched cluster.

use std::time::Duration;

use tokio::time::sleep;

use crate::{Connection, cluster::Cluster, print_diagnostic, ui::following::Following};

/// Interval at which is checked whether the watches received changes. The check sends no request.
const CHECK: Duration = Duration::from_millis(500);

/// The changes of a cluster.
#[derive(Debug)]
pub(crate) struct Changes {
    following: Following,
    seen: u64,
    was_away: bool,
}

impl Changes {
    /// Starts the watches.
    pub(crate) fn start(connection: &Connection) -> Self {
        Self {
            following: Following::start(connection, None),
            seen: 0,
            was_away: false,
        }
    }

    /// Waits until something has changed since the last call, and returns the cluster with the messages about kinds
    /// that are not shown, or not live. Prints a note when the API server does not answer any more.
    pub(crate) async fn next(&mut self) -> (Cluster, Vec<String>) {
        loop {
            sleep(CHECK).await;
            let (changes, session) = (self.following.changes(), self.following.session());
            if let Some(outage) = session.outage.as_ref().filter(|_| !self.was_away) {
                print_diagnostic("note", &outage.message);
            }
            self.was_away = session.outage.is_some();
            if changes != self.seen && session.listing.is_empty() {
                self.seen = changes;
                return (self.following.cluster(), session.notes);
            }
        }
    }
}
