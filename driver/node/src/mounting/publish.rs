//! Publishes a staged volume at the target path of a pod, and unpublishes it.

use std::path::PathBuf;

use cistern_host::{BlockPublishRequest, Content, PublishRequest, Root};

use super::{Error, Mounter, Refusal, finished, is_meant};
use crate::{
    blocking::on_host,
    usage::{Usage, Volume},
};

/// A request to publish a volume.
#[derive(Clone, Debug)]
pub struct Publish {
    /// The volume id: the name of its PoolVolume.
    pub volume: String,
    /// Its staging path.
    pub staging: PathBuf,
    /// Target path for a pod: made by this call, in a directory that the caller made.
    pub target: PathBuf,
    /// The requested usage.
    pub usage: Usage,
    /// Whether the pod may only read.
    pub read_only: bool,
    /// Name of the image in the `volume_context` of its PersistentVolume, if any.
    pub image: Option<String>,
}

impl Mounter {
    /// Publishes a staged volume at its target path. Does not access its pool. Fails if another
    /// operation holds the volume, if the volume does not support the usage, if another pod uses it
    /// and its access mode allows one pod, or if it is not staged as requested.
    pub async fn publish(&self, request: Publish) -> Result<(), Error> {
        let guard = self.lock(&request.volume).await?;
        let volume = self.volume_for_pod(&request.volume).await?;
        is_meant(&volume, request.image.as_deref())?;
        if let Err(why) = volume.supports(&request.usage) {
            return Err(self.refused_or_different(&volume, request.target, why));
        }
        let (id, root) = (request.volume.clone(), self.agent.node.root.clone());
        let published = on_host(guard, move || publish(&root, &volume, &request));
        finished(&id, published).await
    }

    /// Unpublishes a volume from a target path. Succeeds if it is not there (NUP-05, GAP-01). Fails
    /// if another operation holds the volume, or if the mount is in use.
    pub async fn unpublish(&self, volume: &str, target: PathBuf) -> Result<(), Error> {
        let guard = self.lock(volume).await?;
        let root = self.agent.node.root.clone();
        let done = on_host(guard, move || root.unpublish(&target).map_err(Error::from));
        finished(volume, done).await
    }
}

/// Publishes a volume, unless it is published elsewhere and its access mode allows one pod at a time
/// (NPV-26 to NPV-29). The mode of an earlier publication is not stored, so each call is checked by its
/// own mode.
fn publish(root: &Root, volume: &Volume, request: &Publish) -> Result<(), Error> {
    let mounted = root.mount_points_of(&volume.image)?;
    // A repeated call is decided by the mount at its own target.
    let is_free = request.usage.access_mode.is_shared() || mounted.contains(&request.target);
    let mut others = mounted
        .iter()
        .filter(|path| !path.starts_with(&request.staging));
    if let Some(other) = others.next().filter(|_| !is_free) {
        return Err(Error::Refused {
            volume: volume.name.clone(),
            why: Refusal::Published {
                path: other.clone(),
                mode: request.usage.access_mode,
            },
        });
    }
    let read_only = request.read_only || request.usage.is_read_only();
    match volume.content {
        Content::Block => root.publish_block(&BlockPublishRequest {
            image: &volume.image,
            read_only,
            staging: &request.staging,
            target: &request.target,
        })?,
        Content::Filesystem { filesystem, .. } => root.publish(&PublishRequest {
            image: &volume.image,
            filesystem,
            options: &request.usage.options(filesystem)?,
            read_only,
            staging: &request.staging,
            target: &request.target,
        })?,
    }
    Ok(())
}
