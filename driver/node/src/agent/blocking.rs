//! The way from asynchronous code to the host, whose calls block.

use std::future::Future;

use tracing::{Instrument as _, Span};

/// Goes on with something to its end, whether or not the caller waits for that.
pub async fn to_its_end<T>(work: impl Future<Output = T> + Send + 'static) -> Result<T, Broken>
where
    T: Send + 'static,
{
    tokio::spawn(work.in_current_span()).await.map_err(Broken)
}

/// The work ended in a panic; what it left is found by the next look.
#[derive(Debug, thiserror::Error)]
#[error("a task on the host ended in a panic")]
pub struct Broken(#[source] tokio::task::JoinError);

/// Runs work on a thread of its own, to its end.
///
/// The work owns `guard`: when the caller gives up, a half-done change is neither torn nor begun
/// a second time.
pub async fn on_host<G, T>(guard: G, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Broken>
where
    G: Send + 'static,
    T: Send + 'static,
{
    let span = Span::current();
    let task = tokio::task::spawn_blocking(move || {
        let result = span.in_scope(work);
        drop(guard);
        result
    });
    task.await.map_err(Broken)
}
