//! The deadline of a call.

use std::time::Duration;

use tokio::time::Instant;
use tonic::metadata::MetadataMap;

/// Timeout of a call without `grpc-timeout`: less than the minute that the manifests set for the
/// sidecars.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(50);
/// Time reserved for the response, at most half of the caller's timeout: on a busy machine, the work
/// after the deadline takes time as well.
const MARGIN: Duration = Duration::from_secs(2);

/// When to stop waiting and return an error, so that the response arrives before the caller's
/// `grpc-timeout`.
pub fn deadline(metadata: &MetadataMap) -> Instant {
    let now = Instant::now();
    now.checked_add(allowance(metadata))
        .unwrap_or(now + DEFAULT_TIMEOUT)
}

fn allowance(metadata: &MetadataMap) -> Duration {
    let header = metadata
        .get("grpc-timeout")
        .and_then(|value| value.to_str().ok());
    let timeout = header.and_then(timeout).unwrap_or(DEFAULT_TIMEOUT);
    timeout.saturating_sub(MARGIN.min(timeout / 2))
}

/// Parses the format of gRPC: at most eight digits and a unit.
fn timeout(header: &str) -> Option<Duration> {
    let (number, unit) = header.split_at_checked(header.len().checked_sub(1)?)?;
    if number.len() > 8 || !number.bytes().all(|c| c.is_ascii_digit()) {
        return None;
    }
    let number: u64 = number.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deadline_leaves_time_for_the_answer() {
        let left = |header: Option<&str>| {
            let mut metadata = MetadataMap::new();
            if let Some(header) = header {
                metadata.insert("grpc-timeout", header.parse().unwrap());
            }
            allowance(&metadata).as_millis()
        };
        for (header, millis) in [
            (None, 48_000),
            (Some("60S"), 58_000),
            (Some("1M"), 58_000),
            (Some("5S"), 3_000),
            (Some("1000m"), 500),
            (Some("59999999u"), 57_999),
            (Some("0S"), 0),
            (Some("99999999H"), 359_999_996_398_000),
            (Some("123456789S"), 48_000),
            (Some("soon"), 48_000),
            (Some("S"), 48_000),
        ] {
            assert_eq!(left(header), millis, "{header:?}");
        }
    }
}
