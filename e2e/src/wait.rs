//! Waits for conditions that a test expects.
//!
//! *Invariant:* every wait has a deadline. A wait that fails reports what it waited for and what it observed.

use std::time::{Duration, Instant};

use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use crate::environment::variable;

/// How often a condition is checked.
const INTERVAL: Duration = Duration::from_millis(50);

/// How many times longer than its deadline a wait may take: an emulated processor is slow, and others may use it as well. 1 on
/// other machines.
///
/// # Panics
/// If the environment has something else than a number.
pub fn patience() -> u32 {
    let set = variable("CISTERN_PATIENCE");
    set.map_or(1, |text| {
        text.parse().expect("CISTERN_PATIENCE is a number")
    })
}

/// Calls `look` until it succeeds and returns its result. If `look` does not succeed, it returns what it observed.
///
/// # Panics
/// After the deadline, with the last observation.
pub async fn eventually<T>(
    what: &str,
    deadline: Duration,
    mut look: impl AsyncFnMut() -> Result<T, String>,
) -> T {
    let (started, deadline) = (Instant::now(), deadline * patience());
    let mut seen = "nothing yet".to_owned();
    loop {
        // The deadline also limits a call that hangs.
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

/// Waits until an object is gone. A failed read is repeated.
///
/// # Panics
/// After the deadline.
pub async fn gone<K>(api: &Api<K>, name: &str, deadline: Duration)
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    let what = format!("{name} to be gone");
    eventually(&what, deadline, async || match api.get_opt(name).await {
        Ok(None) => Ok(()),
        Ok(Some(object)) => Err(format!("{:?}", object.meta())),
        Err(error) => Err(error.to_string()),
    })
    .await;
}
