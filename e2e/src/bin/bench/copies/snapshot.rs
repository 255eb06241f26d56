//! The snapshots that are copied.

use std::{fs::File, path::PathBuf};

use cistern_crds::{Bytes, HasImage as _, PoolSnapshot};
use cistern_e2e::requests;
use kube::Api;
use rustix::fs::{Advice, fadvise};

use super::node::Node;
use crate::{latency, pieces::Pieces, snapshots, staging};

/// A snapshot, and the size and the path of its image.
pub(crate) struct Snapshot {
    pub(super) name: String,
    pub(super) node: &'static str,
    pub(super) image: String,
    pub(super) size: u64,
    pub(crate) file: PathBuf,
}

impl Node {
    /// Creates a volume with data, and its snapshot.
    pub(crate) async fn snapshot(&self, name: &str, size: u64, data: Pieces) -> Snapshot {
        let volume = format!("copied-{name}");
        let mut request = requests::create_volume(&volume, self.name, Bytes(size));
        request.volume_capabilities = vec![snapshots::device()];
        let mut client = self.driver.controller_client().await;
        client.create_volume(request).await.expect("there is room");
        let device = staging::publish(&self.driver, &volume, &snapshots::device()).await;
        data.write(&self.driver, &device, size).await;
        staging::unmount(&self.driver, &volume).await;
        let name = snapshots::snapshot(&self.driver, &volume, &format!("{volume}-s")).await;
        let api = Api::<PoolSnapshot>::all(self.client.clone());
        let made = api.get(&name).await.expect("it was made");
        let image = made.image().expect("it has an image").uid.clone();
        latency::delete(&self.driver, vec![volume]).await;
        Snapshot {
            name,
            node: self.name,
            size,
            file: self.folder.join("images").join(&image),
            image,
        }
    }

    /// Removes a snapshot.
    pub(crate) async fn remove_snapshot(&self, snapshot: Snapshot) {
        let mut client = self.driver.controller_client().await;
        let request = cistern_proto::csi::v1::DeleteSnapshotRequest {
            snapshot_id: snapshot.name,
            ..Default::default()
        };
        client.delete_snapshot(request).await.expect("it was made");
    }
}

impl Snapshot {
    /// Makes sure that the next reader reads from the disk.
    pub(crate) fn forget(&self) {
        let file = File::open(&self.file).expect("the image is there");
        fadvise(&file, 0, None, Advice::DontNeed).expect("the kernel takes advice");
    }
}
