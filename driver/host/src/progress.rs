//! The progress of work that can take long.

use std::{io, ops::ControlFlow, time::Instant};

/// Callback for the completed percentage of some work. It never decreases.
pub type Progress<'a> = &'a dyn Fn(u8);

/// As [`Progress`], for work that can be stopped: the callback breaks to stop it at the next occasion.
pub type Stoppable<'a> = &'a dyn Fn(u8) -> ControlFlow<()>;

/// For work whose progress is not reported.
pub(crate) const UNSEEN: Progress<'static> = &|_| {};

/// For work that is neither reported nor stopped.
pub const UNSTOPPED: Stoppable<'static> = &|_| ControlFlow::Continue(());

/// Stops work at a moment.
pub(crate) fn until(end: Instant) -> ControlFlow<()> {
    if Instant::now() < end {
        ControlFlow::Continue(())
    } else {
        ControlFlow::Break(())
    }
}

/// The error of work that was stopped before its end.
pub(crate) fn stopped() -> io::Error {
    io::Error::other("the volume is no longer wanted")
}

/// Returns the percentage of the whole, rounded down; 100 of nothing.
pub fn percent(done: u64, whole: u64) -> u8 {
    let percent = (u128::from(done.min(whole)) * 100).checked_div(u128::from(whole));
    percent.and_then(|it| u8::try_from(it).ok()).unwrap_or(100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_is_rounded_down_and_never_above_100() {
        assert_eq!([percent(0, 3), percent(1, 3), percent(3, 3)], [0, 33, 100]);
        assert_eq!(percent(u64::MAX - 1, u64::MAX), 99);
        assert_eq!([percent(4, 3), percent(0, 0)], [100, 100]);
    }
}
