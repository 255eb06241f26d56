//! Grows a volume in use: the second half of an expansion, after its image has grown.

use std::{path::PathBuf, sync::Arc};

use cistern_client::Chain;
use cistern_crds::Bytes;
use cistern_host::{ExpandRequest, Keys, grow};
use futures::FutureExt as _;

use super::{Mounter, finished};
use crate::{
    agent::observations::Growth,
    blocking::on_host,
    usage::{Unusable, Usage},
};

/// A request to grow the device and filesystem of a volume to its image.
#[derive(Clone, Debug)]
pub struct Expand {
    /// The volume id: the name of its PoolVolume.
    pub volume: String,
    /// Path where it is staged or published; None if the request has no valid path.
    pub path: Option<PathBuf>,
    /// Smallest size of the volume that kubelet accepts; 0 if the request has none.
    pub required: Bytes,
    /// Largest size of the volume that kubelet accepts; None for any.
    pub limit: Option<Bytes>,
    /// Its usage, if given.
    pub usage: Option<Usage>,
    /// The keys in its Secret; None if the request has none.
    pub keys: Option<Arc<Keys>>,
}

/// Why a volume did not grow.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The volume cannot be used.
    #[error(transparent)]
    Mounting(#[from] super::Error),
    /// The volume does not match the `volume_capability` of the request (NEV-05).
    #[error("volume {volume} is not as volume_capability says: {why}")]
    OtherWay {
        /// The volume id.
        volume: String,
        /// What differs.
        why: Unusable,
    },
    /// The `volume_path` of the request is not an absolute path (NEV-14).
    #[error("volume {volume} cannot be at volume_path, which is not an absolute path")]
    NoPath {
        /// The volume id.
        volume: String,
    },
    /// The loop device or the filesystem did not grow.
    #[error(transparent)]
    Grow(#[from] grow::Error),
}

impl Mounter {
    /// Grows a volume in use to its image, and returns its new size. Fails if another operation
    /// holds the volume, if the volume does not match the request, or if the device or the
    /// filesystem does not grow.
    pub async fn expand(&self, request: Expand) -> Result<Bytes, Error> {
        let guard = self.lock(&request.volume).await?;
        let volume = self.volume(&request.volume).await?;
        let id = request.volume;
        if let Some(Err(why)) = request.usage.map(|usage| volume.supports(&usage)) {
            return Err(Error::OtherWay { volume: id, why });
        }
        let Some(path) = request.path else {
            return Err(Error::NoPath { volume: id });
        };
        let pool = self.pool(&volume).await?;
        let grown = on_host(guard, move || {
            let request = ExpandRequest {
                keys: request.keys.as_deref(),
                image: &volume.image,
                filesystem: volume.content.filesystem(),
                path: &path,
                required: request.required,
                limit: request.limit,
            };
            pool.expand(&request)
        });
        // Keeps an error of the growth apart from a panic or timeout of the work.
        let grown = grown.map(|grown| grown.map(Ok::<_, super::Error>));
        let grown = finished(&id, grown).await?;
        match &grown {
            Ok(_) => self.agent.saw_filesystem(&id, Growth::Complete),
            Err(error) if error.leaves_it_smaller() => {
                let why = Chain(error).to_string();
                self.agent.saw_filesystem(&id, Growth::Incomplete(why));
            }
            // The request is invalid, or the pool has a problem.
            Err(_) => {}
        }
        Ok(grown?)
    }
}
