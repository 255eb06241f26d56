//! Runs blocking host calls from asynchronous code.

use std::future::Future;

use tracing::{Instrument as _, Span};

/// Runs a future to completion, even if the caller stops waiting. Fails if the future panics.
pub async fn to_its_end<T>(work: impl Future<Output = T> + Send + 'static) -> Result<T, Broken>
where
    T: Send + 'static,
{
    tokio::spawn(work.in_current_span()).await.map_err(Broken)
}

/// The work panicked, in a build that does not abort then, as releases do. The next reconcile handles what it left.
#[derive(Debug, thiserror::Error)]
#[error("a task on the host ended in a panic")]
pub struct Broken(#[source] tokio::task::JoinError);

/// Runs work to completion on a thread of its own. Fails if the work panics.
///
/// The work owns `guard`, so that a cancelled caller neither interrupts a change nor starts it
/// twice.
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
