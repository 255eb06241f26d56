//! Changes the image of a volume. All functions block.
//!
//! *Invariant:* an image is made only under the UID of the PoolVolume.

use chrono::{DateTime, Utc};
use cistern_crds::{ContentSource, ExtentLimits, PoolVolume};
use cistern_host::{Checking, Engine, ImageRequest, InvalidUid, Progress, SourceImage, image};
use kube::ResourceExt as _;

use crate::{
    agent::plan::VolumeStep,
    image::{Error, Image, find, is_adopted, is_the_same, mkfs_options_of, name_of},
};

/// The image of a volume after a step.
#[derive(Debug)]
pub struct PreparedImage {
    /// The image.
    pub image: Image,
    /// Why the image may not have the admitted provisioning; None if it has.
    pub not_provisioned: Option<image::Error>,
}

/// Makes the image of a volume, grows it, or checks the existing one. `extent_limits` are the
/// pool's limit for clones, `progress` that of the allocation of a volume that becomes thick, or of writing zeros. Fails if the image does not match the
/// volume, or if a step on the disk fails.
pub fn prepare(
    pool: &dyn Engine,
    volume: &PoolVolume,
    step: VolumeStep,
    extent_limits: ExtentLimits,
    checking: Checking<'_>,
    progress: Progress<'_>,
    now: DateTime<Utc>,
) -> Result<PreparedImage, Error> {
    let (found, not_provisioned) =
        make(pool, volume, step, extent_limits, checking, progress, now)?;
    let mut image = Image::read(&found, pool.takeovers(), now)?;
    is_the_same(volume, &image)?;
    if let Some(pool) = pool.images() {
        image.extents = Some(pool.extent_count(&found.uid)?);
    }
    Ok(PreparedImage {
        image,
        not_provisioned,
    })
}

fn make(
    pool: &dyn Engine,
    volume: &PoolVolume,
    step: VolumeStep,
    extent_limits: ExtentLimits,
    checking: Checking<'_>,
    progress: Progress<'_>,
    now: DateTime<Utc>,
) -> Result<(image::Image, Option<image::Error>), Error> {
    let reserved = volume.status.as_ref().and_then(|status| status.reserved);
    let reserved = reserved.unwrap_or(volume.spec.size);
    match step {
        VolumeStep::Make if !is_adopted(volume) => {
            let source = volume.spec.content_source.as_ref();
            let request = ImageRequest {
                encryption: volume.spec.encryption,
                volume: volume.name_any(),
                uid: name_of(volume)?,
                size: reserved,
                filesystem: volume.spec.filesystem,
                mkfs_options: mkfs_options_of(volume)?,
                extent_size: volume.spec.extent_size,
                provisioning: volume.admitted_attributes().provisioning,
                source: source.map(|it| source_of(it, extent_limits)).transpose()?,
            };
            Ok((pool.create(&request, checking, progress)?, None))
        }
        VolumeStep::Grow => {
            let image = find(pool, volume)?;
            // The image is written to only if it is the volume's.
            is_the_same(volume, &Image::read(&image, pool.takeovers(), now)?)?;
            Ok((pool.grow(&image.uid, reserved, progress)?, None))
        }
        VolumeStep::Rest
        | VolumeStep::Admit
        | VolumeStep::Make
        | VolumeStep::AdmitGrowth
        | VolumeStep::AdmitAttributes
        | VolumeStep::Keep
        | VolumeStep::Reclaim => {
            let image = find(pool, volume)?;
            // The image is written to only if it is the volume's.
            is_the_same(volume, &Image::read(&image, pool.takeovers(), now)?)?;
            let attributes = volume.admitted_attributes();
            let not_provisioned = pool
                .provision(&image.uid, attributes.provisioning, progress)
                .err();
            Ok((image, not_provisioned))
        }
    }
}

fn source_of(
    source: &ContentSource,
    extent_limits: ExtentLimits,
) -> Result<SourceImage, InvalidUid> {
    Ok(SourceImage {
        uid: source.image.parse()?,
        extent_limits,
    })
}
