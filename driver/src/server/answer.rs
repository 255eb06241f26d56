//! Observes the body of a response until its trailers, which hold the status of a unary or streaming
//! call that has sent a message.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use http_body::{Frame, SizeHint};
use tonic::{Status, body::Body};

use super::Operation;

/// The response body of a running operation. Dropping it before the end cancels the operation.
pub(super) struct Answer {
    body: Body,
    operation: Option<Operation>,
}

impl Answer {
    pub(super) fn new(body: Body, operation: Operation) -> Self {
        Self {
            body,
            operation: Some(operation),
        }
    }
}

impl http_body::Body for Answer {
    type Data = <Body as http_body::Body>::Data;
    type Error = <Body as http_body::Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let span = self.operation.as_ref().map(|running| running.span.clone());
        let _entered = span.as_ref().map(tracing::Span::enter);
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(trailers) = frame.trailers_ref()
            && let Some(operation) = self.operation.take()
        {
            operation.finish(Status::from_header_map(trailers));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
