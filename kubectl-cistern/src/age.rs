//! Formats ages in the notation of kubectl.

use chrono::{DateTime, Utc};

/// Formats the time since `since` like kubectl: `42s`, `5m`, `3h20m`, `12d`. A time in the future
/// has the age `0s`.
pub fn age(since: DateTime<Utc>, now: DateTime<Utc>) -> String {
    let seconds = (now - since).num_seconds().max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let with = |whole: i64, unit: &str, rest: i64, smaller: &str| match rest {
        0 => format!("{whole}{unit}"),
        rest => format!("{whole}{unit}{rest}{smaller}"),
    };
    if seconds < 120 {
        format!("{seconds}s")
    } else if minutes < 10 {
        with(minutes, "m", seconds % 60, "s")
    } else if hours < 3 {
        format!("{minutes}m")
    } else if hours < 8 {
        with(hours, "h", minutes % 60, "m")
    } else if hours < 48 {
        format!("{hours}h")
    } else if days < 8 {
        with(days, "d", hours % 24, "h")
    } else {
        format!("{days}d")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_formatted_in_the_notation_of_kubectl() {
        let at = |second| DateTime::from_timestamp(second, 0).unwrap();
        for (seconds, text) in [
            (-5, "0s"),
            (119, "119s"),
            (125, "2m5s"),
            (600, "10m"),
            (12_000, "3h20m"),
            (40_000, "11h"),
            (180_000, "2d2h"),
            (1_000_000, "11d"),
        ] {
            assert_eq!(age(at(0), at(seconds)), text);
        }
    }
}
