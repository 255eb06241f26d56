//! What a pass does to the image of a volume. Everything here blocks.
//!
//! *Invariant:* an image is made only under the UID of the PoolVolume.

use chrono::{DateTime, Utc};
use cistern_crds::{ContentSource, MkfsOptions, PoolVolume, mkfs_options};
use cistern_host::{Checking, ImageRequest, InvalidUid, Pool, SourceImage, image};
use kube::ResourceExt as _;

use super::plan::Step;
use crate::agent::image::{Error, Image, find, is_adopted, is_the_same, name_of};

/// The image of a volume that was brought up.
#[derive(Debug)]
pub struct BroughtUp {
    /// The image.
    pub image: Image,
    /// Why a thick volume may lack blocks, where that is so.
    pub not_refilled: Option<image::Error>,
}

/// Makes the image of a volume, grows it, or looks at the one that was made. `maximum_extents` is
/// the pool's limit on what is cloned.
pub fn bring_up(
    pool: &Pool,
    volume: &PoolVolume,
    step: Step,
    maximum_extents: u64,
    checking: Checking<'_>,
    now: DateTime<Utc>,
) -> Result<BroughtUp, Error> {
    let (found, not_refilled) = make(pool, volume, step, maximum_extents, checking, now)?;
    let mut image = Image::read(&found, now)?;
    is_the_same(volume, &image)?;
    image.extents = Some(pool.extent_count(&found.uid)?);
    Ok(BroughtUp {
        image,
        not_refilled,
    })
}

fn make(
    pool: &Pool,
    volume: &PoolVolume,
    step: Step,
    maximum_extents: u64,
    checking: Checking<'_>,
    now: DateTime<Utc>,
) -> Result<(image::Image, Option<image::Error>), Error> {
    let promised = volume.status.as_ref().and_then(|status| status.reserved);
    let promised = promised.unwrap_or(volume.spec.size);
    match step {
        Step::Make if !is_adopted(volume) => {
            let source = volume.spec.content_source.as_ref();
            let request = ImageRequest {
                volume: volume.name_any(),
                uid: name_of(volume)?,
                size: promised,
                filesystem: volume.spec.filesystem,
                mkfs_options: mkfs_options_of(volume)?,
                provisioning: volume.spec.provisioning,
                source: source
                    .map(|it| source_of(it, maximum_extents))
                    .transpose()?,
            };
            Ok((pool.create_image_checking(&request, checking)?, None))
        }
        Step::Grow => {
            let image = find(pool, volume)?;
            // It is written to only if it is the volume's.
            is_the_same(volume, &Image::read(&image, now)?)?;
            Ok((pool.grow_image(&image.uid, promised)?, None))
        }
        Step::Rest | Step::Admit | Step::Make | Step::AdmitGrowth | Step::Keep | Step::Reclaim => {
            let image = find(pool, volume)?;
            let not_refilled = pool.refill(&image.uid).err();
            Ok((image, not_refilled))
        }
    }
}

fn source_of(source: &ContentSource, maximum_extents: u64) -> Result<SourceImage, InvalidUid> {
    Ok(SourceImage {
        uid: source.image.parse()?,
        maximum_extents,
    })
}

fn mkfs_options_of(volume: &PoolVolume) -> Result<MkfsOptions, mkfs_options::Error> {
    match (volume.spec.filesystem, &volume.spec.mkfs_options) {
        (Some(filesystem), Some(options)) => MkfsOptions::parse(filesystem, options),
        (None, _) | (_, None) => Ok(MkfsOptions::default()),
    }
}
