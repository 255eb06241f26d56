//! What every engine does for a volume, as methods of the engine itself.

use cistern_host::{
    BlockStageRequest, Checking, Engine, ExpandRequest, Image, ImageRequest, StageRequest, Staged,
    UNSTOPPED, Uid, grow, image, mounting::Error,
};
use cistern_types::Bytes;

/// Calls the methods of `dyn Engine`.
pub(crate) trait Volumes {
    /// Creates a volume. A check that it needs is made, and nothing stops it.
    fn new_image(&self, request: &ImageRequest) -> Result<Image, image::Error>;
    /// Allocates all that a thick volume lacks.
    fn allocate_all(&self, uid: &Uid) -> Result<(), image::Error>;
    fn stage(&self, request: &StageRequest<'_>) -> Result<Staged, Error>;
    fn stage_block(&self, request: &BlockStageRequest<'_>) -> Result<Staged, Error>;
    fn expand(&self, request: &ExpandRequest<'_>) -> Result<Bytes, grow::Error>;
}

impl<E: Engine> Volumes for E {
    fn new_image(&self, request: &ImageRequest) -> Result<Image, image::Error> {
        self.create(request, Checking::UNSEEN, UNSTOPPED)
    }

    fn allocate_all(&self, uid: &Uid) -> Result<(), image::Error> {
        self.reallocate(uid, UNSTOPPED).map(drop)
    }

    fn stage(&self, request: &StageRequest<'_>) -> Result<Staged, Error> {
        (self as &dyn Engine).stage(request)
    }

    fn stage_block(&self, request: &BlockStageRequest<'_>) -> Result<Staged, Error> {
        (self as &dyn Engine).stage_block(request)
    }

    fn expand(&self, request: &ExpandRequest<'_>) -> Result<Bytes, grow::Error> {
        (self as &dyn Engine).expand(request)
    }
}
