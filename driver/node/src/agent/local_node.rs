//! This node: its name, the directory of Cistern on it, and its clock.

use std::time::Duration;

use chrono::{DateTime, Utc};
use cistern_client::Chain;
use cistern_host::Root;
use tokio::time::timeout;

use crate::blocking::on_host;

/// How long to wait for frozen filesystems at start-up, so that a hanging disk does not block the
/// start.
const THAW_PATIENCE: Duration = Duration::from_secs(30);

/// The node that this process runs on.
#[derive(Clone, Debug)]
pub struct LocalNode {
    /// Name of the Node.
    pub name: String,
    /// The directory of Cistern on the host.
    pub root: Root,
    /// The clock.
    pub now: fn() -> DateTime<Utc>,
}

impl LocalNode {
    /// Thaws filesystems that a dead process left frozen, so that writers continue. A failure is
    /// logged.
    pub async fn thaw(&self) {
        let root = self.root.clone();
        let work = on_host((), move || root.thaw_all());
        let failure = match timeout(THAW_PATIENCE, work).await {
            Ok(Ok(Ok(thawed))) => {
                tracing::info!(
                    thawed = thawed.len(),
                    "thawed the filesystems that were left frozen"
                );
                return;
            }
            Ok(Ok(Err(error))) => Chain(&error).to_string(),
            Ok(Err(error)) => Chain(&error).to_string(),
            Err(_) => "a filesystem does not answer".to_owned(),
        };
        tracing::error!(
            error = failure,
            "cannot thaw, a filesystem may be left frozen"
        );
    }
}
