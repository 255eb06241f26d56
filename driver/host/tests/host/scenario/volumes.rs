//! What every engine does for a volume, as methods of the engine itself.

use cistern_host::{
    BlockStageRequest, Engine, ExpandRequest, StageRequest, Staged, grow, mounting::Error,
};
use cistern_types::Bytes;

/// Calls the methods of `dyn Engine`.
pub(crate) trait Volumes {
    fn stage(&self, request: &StageRequest<'_>) -> Result<Staged, Error>;
    fn stage_block(&self, request: &BlockStageRequest<'_>) -> Result<Staged, Error>;
    fn expand(&self, request: &ExpandRequest<'_>) -> Result<Bytes, grow::Error>;
}

impl<E: Engine> Volumes for E {
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
