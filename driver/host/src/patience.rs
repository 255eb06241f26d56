//! Retries operations on objects that are busy for a moment.
//!
//! Between fork and exec, a child process holds every file that its parent had open. So a mount or a
//! loop device can be busy for a moment, although all users have closed it, whenever a tool is started
//! for another volume.

use std::{
    thread,
    time::{Duration, Instant},
};

const LIMIT: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(5);

/// Retries for up to a second until the result is acceptable. Returns the last result.
pub(crate) fn until<T>(attempt: impl FnMut() -> T, will_do: impl Fn(&T) -> bool) -> T {
    until_within(LIMIT, attempt, will_do)
}

/// As [`until`], with another time limit.
pub(crate) fn until_within<T>(
    limit: Duration,
    mut attempt: impl FnMut() -> T,
    will_do: impl Fn(&T) -> bool,
) -> T {
    let begin = Instant::now();
    loop {
        let answer = attempt();
        if will_do(&answer) || begin.elapsed() >= limit {
            return answer;
        }
        // The result itself may keep the object busy.
        drop(answer);
        thread::sleep(STEP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_in_a_moment_is_waited_for_and_what_never_comes_is_given_up() {
        let mut count = 0;
        let mut attempt = || {
            count += 1;
            count
        };
        assert_eq!(until(&mut attempt, |count| *count == 4), 4);
        assert!(until(&mut attempt, |_| false) > 4);
    }
}
