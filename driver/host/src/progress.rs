//! The progress of work that can take long.

/// Callback for the completed percentage of some work. It never decreases.
pub type Progress<'a> = &'a dyn Fn(u8);

/// For work whose progress is not reported.
pub(crate) const UNSEEN: Progress<'static> = &|_| {};

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
