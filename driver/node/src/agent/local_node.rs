//! This node: its name, the directory of Cistern on it, and its clock.

use std::time::Duration;

use chrono::{DateTime, Utc};
use cistern_client::Chain;
use cistern_host::{Root, Uid};
use tokio::time::sleep;

use crate::blocking::on_host;

/// How long to wait for frozen filesystems at start-up, so that a hanging disk does not block the
/// start.
const THAW_PATIENCE: Duration = Duration::from_secs(30);
/// When a filesystem that was not thawed is tried again.
const THAW_RETRY: Duration = Duration::from_mins(1);

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
    /// logged, and the filesystem is tried again until it is thawed, also after this returns.
    pub async fn thaw(&self) {
        let mut left = thaw(&self.root, None).await;
        let root = self.root.clone();
        let again = async move {
            while left.as_ref().is_none_or(|left| !left.is_empty()) {
                sleep(THAW_RETRY).await;
                left = thaw(&root, left).await;
            }
        };
        tokio::spawn(again);
    }
}

/// Thaws the filesystems of these images, or of all. Returns the images of those that may still be frozen; None if all may.
async fn thaw(root: &Root, images: Option<Vec<Uid>>) -> Option<Vec<Uid>> {
    let (root, chosen) = (root.clone(), images.clone());
    let is_chosen = move |image: &Uid| chosen.as_ref().is_none_or(|it| it.contains(image));
    let work = on_host((), move || root.thaw_left_frozen(THAW_PATIENCE, is_chosen));
    let failure = match work.await {
        Ok(Ok(answers)) => {
            let (mut thawed, mut left) = (0, Vec::new());
            for (image, answer) in answers {
                match answer {
                    Ok(was_frozen) => thawed += u32::from(was_frozen),
                    Err(error) => {
                        let error = Chain(&error);
                        tracing::error!(%image, %error, "cannot thaw the filesystem, it may be left frozen");
                        left.push(image);
                    }
                }
            }
            tracing::info!(thawed, "thawed the filesystems that were left frozen");
            return Some(left);
        }
        Ok(Err(error)) => Chain(&error).to_string(),
        Err(error) => Chain(&error).to_string(),
    };
    tracing::error!(
        error = failure,
        "cannot thaw, a filesystem may be left frozen"
    );
    images
}
