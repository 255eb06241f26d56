//! Probes volumes whose pool is open: their images, and their attachments.

use std::{io, path::Path, sync::Arc, time::Duration};

use cistern_types::Bytes;

use super::{ImageConflict, VolumeTrouble};
use crate::{
    engine::Engine,
    id::{Uid, Uuid},
    image::{Content, Image},
};

/// An existing volume, as in its status.
#[derive(Clone, Copy, Debug)]
pub struct VolumeSubject<'a> {
    /// Name of the image.
    pub image: &'a Uid,
    /// Name of the PoolVolume.
    pub volume: &'a str,
    /// Size of the volume.
    pub size: Bytes,
    /// Its content.
    pub content: Content,
    /// Its staging path; None if the caller does not know it.
    pub staging: Option<&'a Path>,
}

impl dyn Engine {
    /// Returns the troubles of each of these volumes of the pool, in the order of `volumes`.
    /// Returns by the deadline, even if the disk hangs. While the disk hangs, each call takes that
    /// long; use [`Root::examine_attached`](crate::Root::examine_attached) instead.
    pub fn examine(
        self: &Arc<Self>,
        volumes: &[VolumeSubject<'_>],
        deadline: Duration,
    ) -> Vec<Vec<VolumeTrouble>> {
        let images = self.look_at_images(volumes, deadline);
        let attached = self.root().examine_attached(volumes, deadline);
        let all = images.into_iter().zip(attached);
        all.map(|(mut troubles, attached)| {
            let is_held =
                |trouble: &VolumeTrouble| matches!(trouble, VolumeTrouble::ImageDeleted { .. });
            if attached.iter().any(is_held) {
                troubles.retain(|trouble| !matches!(trouble, VolumeTrouble::ImageMissing { .. }));
            }
            troubles.extend(attached);
            troubles
        })
        .collect()
    }

    /// The trouble of the image of each volume.
    fn look_at_images(
        self: &Arc<Self>,
        volumes: &[VolumeSubject<'_>],
        deadline: Duration,
    ) -> Vec<Vec<VolumeTrouble>> {
        let names: Vec<Uid> = volumes.iter().map(|volume| volume.image.clone()).collect();
        let (pool, path) = (Arc::clone(self), self.path());
        let look = move || Ok(pool.find(&names));
        let answer: Option<io::Result<Vec<_>>> = self.root().ask_within(&path, deadline, look);
        let same = |trouble: VolumeTrouble| vec![vec![trouble]; volumes.len()];
        match answer {
            None => same(VolumeTrouble::Hung {
                path,
                after: deadline,
            }),
            Some(Err(error)) => same(VolumeTrouble::failed("start a thread", &error)),
            Some(Ok(found)) => {
                let all = volumes.iter().zip(found);
                all.map(|(volume, image)| judge(volume, image, self.pool_uuid()))
                    .collect()
            }
        }
    }
}

/// The trouble of an image, which may be missing.
fn judge(
    volume: &VolumeSubject<'_>,
    found: io::Result<Option<Image>>,
    pool: Uuid,
) -> Vec<VolumeTrouble> {
    let image = volume.image.clone();
    let found = match found {
        Ok(Some(found)) => found,
        Ok(None) => return vec![VolumeTrouble::ImageMissing { image }],
        Err(error) => {
            let operation = format!("read image {image}");
            return vec![VolumeTrouble::failed(operation, &error)];
        }
    };
    let mut troubles = Vec::new();
    if let Some(why) = disagreement(volume, &found, pool) {
        let image = image.clone();
        troubles.push(VolumeTrouble::IdentityConflict { image, why });
    }
    if found.size < volume.size {
        troubles.push(VolumeTrouble::ImageTooSmall {
            image,
            found: found.size,
            expected: volume.size,
        });
    }
    troubles
}

/// Why an image is not the volume's; None if it is.
fn disagreement(volume: &VolumeSubject<'_>, found: &Image, pool: Uuid) -> Option<ImageConflict> {
    let Some(identity) = &found.identity else {
        return Some(ImageConflict::NoIdentity);
    };
    if identity.owner.volume() != Some(volume.volume) {
        return Some(ImageConflict::Owner(Box::new(identity.owner.clone())));
    }
    if identity.pool_uuid != pool {
        return Some(ImageConflict::Pool(identity.pool_uuid));
    }
    (identity.content != volume.content).then_some(match identity.content {
        Content::Filesystem { filesystem, uuid } => ImageConflict::Filesystem { filesystem, uuid },
        Content::Block => ImageConflict::Block,
    })
}
