//! Signals that end a process gracefully.

use std::{future::Future, io};

use tokio::signal::unix::{SignalKind, signal};

/// Resolves at the first SIGTERM or SIGINT.
///
/// # Errors
///
/// When the process may not install signal handlers.
pub fn requested() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("received a signal to stop");
    })
}
