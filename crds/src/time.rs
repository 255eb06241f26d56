//! Converts between the time types of chrono and of the Kubernetes API (jiff), and shows times to people.

use chrono::{DateTime, Utc};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

/// How messages show a time.
pub const FORMAT: &str = "%Y-%m-%d %H:%M:%S UTC";

/// Converts to the time type of Kubernetes, truncated to seconds.
pub fn to_kubernetes(moment: DateTime<Utc>) -> Time {
    Time(Timestamp::from_second(moment.timestamp()).unwrap_or_default())
}

/// Converts from the time type of Kubernetes.
pub fn from_kubernetes(time: &Time) -> DateTime<Utc> {
    DateTime::from_timestamp(time.0.as_second(), 0).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_converted_there_and_back() {
        let moment = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        assert_eq!(from_kubernetes(&to_kubernetes(moment)), moment);
    }
}
