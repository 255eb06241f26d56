//! Parses durations and formats ages in the notation of kubectl.

use std::time::Duration;

use chrono::{DateTime, Utc};

/// Error for a text that is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a duration: write a number and a unit, as in 90s, 5m, 1h30m or 2d")]
pub struct ParseError {
    text: String,
}

/// Parses `90s`, `5m`, `1h30m`, `2d`.
pub fn parse(text: &str) -> Result<Duration, ParseError> {
    let error = || ParseError {
        text: text.to_owned(),
    };
    let mut seconds: u64 = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(error)?;
        let (number, behind) = rest.split_at(end);
        let mut characters = behind.chars();
        let unit = match characters.next() {
            Some('s') => 1,
            Some('m') => 60,
            Some('h') => 3600,
            Some('d') => 86_400,
            Some(_) | None => return Err(error()),
        };
        let number: u64 = number.parse().map_err(|_| error())?;
        seconds = number
            .checked_mul(unit)
            .and_then(|more| seconds.checked_add(more))
            .ok_or_else(error)?;
        rest = characters.as_str();
    }
    if text.is_empty() {
        return Err(error());
    }
    Ok(Duration::from_secs(seconds))
}

/// Formats the time since `since` like kubectl: `42s`, `5m`, `3h20m`, `12d`.
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
    fn durations_are_parsed_in_the_notation_of_kubectl() {
        for (text, seconds) in [("90s", 90), ("5m", 300), ("1h30m", 5400), ("2d", 172_800)] {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for bad in ["", "5", "m", "5 m", "-1s", "5w", "99999999999999999999s"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

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
