//! Growing a volume where it is in use: the second half of an expansion, after its image has grown.

use std::path::PathBuf;

use cistern_client::Chain;
use cistern_crds::Bytes;
use cistern_host::{ExpandRequest, grow};
use futures::FutureExt as _;

use super::{Mounter, finished, usage::Usage};
use crate::agent::blocking::on_host;

/// Which volume is to have all of its image, and where it is in use.
#[derive(Clone, Debug)]
pub struct Expand {
    /// The volume id.
    pub volume: String,
    /// Where it is staged or published; none for what cannot be a path.
    pub path: Option<PathBuf>,
    /// What it is to have at least.
    pub required: Bytes,
    /// What it may have at most, where that is said.
    pub limit: Option<Bytes>,
    /// How it is used, where that is said.
    pub usage: Option<Usage>,
}

/// Why a volume did not grow.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be worked on.
    #[error(transparent)]
    Mounting(#[from] super::Error),
    /// It is not of the kind that the caller takes it for (NEV-05).
    #[error("volume {volume} is not as volume_capability says: {why}")]
    OtherWay {
        /// The volume.
        volume: String,
        /// What differs.
        why: String,
    },
    /// It is not where the caller says (NEV-14).
    #[error("volume {volume} cannot be at volume_path, which is not an absolute path")]
    NoPath {
        /// The volume.
        volume: String,
    },
    /// Its loop device or its filesystem did not grow.
    #[error(transparent)]
    Grow(#[from] grow::Error),
}

impl Mounter {
    /// Gives a volume in use all of its image, and says how large it is then.
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
                image: &volume.image,
                filesystem: volume.content.filesystem(),
                path: &path,
                required: request.required,
                limit: request.limit,
            };
            pool.expand(&request)
        });
        // A break-off of the work is an error of its own.
        let grown = grown.map(|grown| grown.map(Ok::<_, super::Error>));
        let grown = finished(&id, grown).await?;
        match &grown {
            Ok(_) => self.agent.saw_filesystem(&id, Ok(())),
            Err(error) if error.leaves_it_smaller() => {
                let why = Chain(error).to_string();
                self.agent.saw_filesystem(&id, Err(why));
            }
            // The caller was wrong, or it is the pool's trouble.
            Err(_) => {}
        }
        Ok(grown?)
    }
}
