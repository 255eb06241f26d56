//! The CSI SnapshotMetadata service: parses each request, reads the snapshots, and renders the
//! ranges.

pub mod relay;
mod request;
mod status;

use std::ops::Range;

use cistern_node::metadata::{Metadata, Query, RangeStream};
use cistern_proto::csi::v1::{self, BlockMetadata, BlockMetadataType};
use futures::StreamExt as _;
use tonic::{Request, Response, Status, codegen::BoxStream};

use crate::csi::status::OrStatus as _;
use crate::server::{Subject, about};

/// Ranges have a variable length: a volume that was written sequentially is one range, instead of
/// millions of blocks of a fixed length (SMD-09).
const KIND: BlockMetadataType = BlockMetadataType::VariableLength;

/// Serves the ranges of snapshots that hold data or have changed.
#[derive(Clone, Debug)]
pub struct SnapshotMetadata {
    metadata: Metadata,
}

impl SnapshotMetadata {
    /// Creates the service.
    pub fn new(metadata: Metadata) -> Self {
        Self { metadata }
    }

    /// Streams the ranges of a query as messages.
    async fn stream_ranges<M>(
        &self,
        query: Query,
        message: fn(i64, Vec<BlockMetadata>) -> M,
    ) -> Result<Response<BoxStream<M>>, Status>
    where
        M: Send + 'static,
    {
        about(Subject {
            snapshot: Some(&query.target),
            ..Subject::default()
        });
        let RangeStream { size, batches } = self.metadata.stream_ranges(query).await.or_status()?;
        let messages = batches.map(move |batch| {
            let ranges = batch.or_status()?.into_iter().map(block).collect();
            Ok(message(size.to_i64(), ranges))
        });
        Ok(Response::new(messages.boxed()))
    }
}

#[tonic::async_trait]
impl v1::snapshot_metadata_server::SnapshotMetadata for SnapshotMetadata {
    async fn get_metadata_allocated(
        &self,
        request: Request<v1::GetMetadataAllocatedRequest>,
    ) -> Result<Response<BoxStream<v1::GetMetadataAllocatedResponse>>, Status> {
        let query = request::allocated(request.into_inner())?;
        self.stream_ranges(query, |size, ranges| v1::GetMetadataAllocatedResponse {
            block_metadata_type: KIND.into(),
            volume_capacity_bytes: size,
            block_metadata: ranges,
        })
        .await
    }

    async fn get_metadata_delta(
        &self,
        request: Request<v1::GetMetadataDeltaRequest>,
    ) -> Result<Response<BoxStream<v1::GetMetadataDeltaResponse>>, Status> {
        let query = request::delta(request.into_inner())?;
        self.stream_ranges(query, |size, ranges| v1::GetMetadataDeltaResponse {
            block_metadata_type: KIND.into(),
            volume_capacity_bytes: size,
            block_metadata: ranges,
        })
        .await
    }
}

fn block(range: Range<u64>) -> BlockMetadata {
    let signed = |bytes| cistern_crds::Bytes(bytes).to_i64();
    BlockMetadata {
        byte_offset: signed(range.start),
        size_bytes: signed(range.end.saturating_sub(range.start)),
    }
}
