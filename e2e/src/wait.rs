//! Waiting for what a test expects.
//!
//! *Invariant:* every wait has a deadline, and one that fails says what it waited for and what it
//! saw instead.

use std::time::{Duration, Instant};

/// How often a condition is looked at.
const INTERVAL: Duration = Duration::from_millis(50);

/// Looks until `look` succeeds and gives what it found. `look` says, when it does not succeed, what
/// it saw instead.
///
/// # Panics
/// After the deadline, with what was seen last.
pub async fn eventually<T>(
    what: &str,
    deadline: Duration,
    mut look: impl AsyncFnMut() -> Result<T, String>,
) -> T {
    let started = Instant::now();
    let mut seen = "nothing yet".to_owned();
    loop {
        // The deadline holds for a look that hangs, too.
        let left = deadline.saturating_sub(started.elapsed());
        match tokio::time::timeout(left.max(INTERVAL), look()).await {
            Ok(Ok(found)) => {
                let waited = started.elapsed();
                if waited > Duration::from_secs(1) {
                    eprintln!("waited {:.1} s for {what}", waited.as_secs_f32());
                }
                return found;
            }
            Ok(Err(instead)) => seen = instead,
            Err(_) => {}
        }
        assert!(
            started.elapsed() < deadline,
            "waited {} s in vain for {what}; last seen: {seen}",
            deadline.as_secs()
        );
        tokio::time::sleep(INTERVAL).await;
    }
}
