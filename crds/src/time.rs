//! Converts between the time types of chrono and of the Kubernetes API (jiff), says which times a custom resource has, and
//! shows times to people.

use chrono::{DateTime, Utc};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

/// The times in the schemas: those of RFC 3339 in the years 1000 to 2999, with nanoseconds at most. Both time types read each of
/// them. It is there in place of the format `date-time`, with which the API server accepts other times and lists, too.
pub(crate) const PATTERN: &str = concat!(
    // The days that each year has.
    "^([12][0-9]{3}-((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)",
    // The 29th of February.
    "|([12][0-9](0[48]|[2468][048]|[13579][26])|(1[26]|2[048])00)-02-29)",
    r"T([01][0-9]|2[0-3])(:[0-5][0-9]){2}(\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$",
);

/// The first and the last second of these years.
const FIRST: i64 = -30_610_224_000;
const LAST: i64 = 32_503_679_999;

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

/// The nearest time that the schemas accept. A disk may state any other, and one of them would keep a status from being written.
pub fn acceptable(moment: DateTime<Utc>) -> DateTime<Utc> {
    let seconds = moment.timestamp().clamp(FIRST, LAST);
    // A leap second has more.
    let nanoseconds = moment.timestamp_subsec_nanos().min(999_999_999);
    DateTime::from_timestamp(seconds, nanoseconds).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
    use proptest::{prelude::*, string::string_regex};
    use regex::Regex;
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn a_time_is_converted_there_and_back() {
        let moment = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        assert_eq!(from_kubernetes(&to_kubernetes(moment)), moment);
    }

    fn is_accepted(text: &str) -> bool {
        Regex::new(PATTERN).unwrap().is_match(text)
    }

    /// A time as chrono writes it.
    fn written(moment: DateTime<Utc>) -> String {
        from_value(json!(moment)).unwrap()
    }

    /// Any time that the pattern matches.
    fn times() -> impl Strategy<Value = String> {
        string_regex(PATTERN.trim_matches(['^', '$'])).unwrap()
    }

    fn moments(seconds: std::ops::RangeInclusive<i64>) -> impl Strategy<Value = DateTime<Utc>> {
        let parts = (seconds, 0..1_000_000_000_u32);
        parts.prop_map(|(second, nanos)| DateTime::from_timestamp(second, nanos).unwrap())
    }

    #[test]
    fn a_time_that_the_format_of_the_api_server_accepts_and_no_type_reads_is_refused() {
        for text in [
            "2026-01-01T00:00:00x5Z",
            "2026-01-01T00:00:00ZTx",
            "2026-01-01T00:00:00+99:99",
            "2026-01-01T00:00:00+24:00",
            "2026-02-29T00:00:00Z",
            "2100-02-29T00:00:00Z",
            "2026-04-31T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:00:60Z",
            "2026-01-01T00:00:00",
            "2026-01-01T00:00:00.Z",
            "2026-01-01T00:00:00.1234567890Z",
            "0999-12-31T00:00:00Z",
            "3000-01-01T00:00:00Z",
            "2026-01-01T00:00:00Z\n",
        ] {
            assert!(!is_accepted(text), "{text}");
        }
    }

    #[test]
    fn what_clients_of_kubernetes_write_is_accepted() {
        let now = Timestamp::new(1_800_000_000, 123_456_000).unwrap();
        let texts = [json!(Time(now)), json!(MicroTime(now))];
        for text in texts.iter().map(|it| it.as_str().unwrap()).chain([
            "2024-02-29T23:59:59.999999999-23:59",
            "2000-02-29T00:00:00+05:45",
            "2026-12-31T23:59:59.123456789Z",
        ]) {
            assert!(is_accepted(text), "{text}");
        }
    }

    #[test]
    fn a_time_of_a_disk_becomes_the_nearest_one_that_is_accepted() {
        let read = |text: &str| text.parse::<DateTime<Utc>>().unwrap();
        for (text, nearest) in [
            ("2026-01-01T00:00:00.5Z", "2026-01-01T00:00:00.500Z"),
            ("0000-01-01T00:00:00Z", "1000-01-01T00:00:00Z"),
            ("+12345-01-01T00:00:00Z", "2999-12-31T23:59:59Z"),
            ("2016-12-31T23:59:60Z", "2016-12-31T23:59:59.999999999Z"),
        ] {
            let found = written(acceptable(read(text)));
            assert_eq!(found, nearest);
            assert!(is_accepted(&found), "{found}");
        }
        for moment in [DateTime::<Utc>::MIN_UTC, DateTime::<Utc>::MAX_UTC] {
            assert!(is_accepted(&written(acceptable(moment))), "{moment}");
        }
    }

    proptest! {
        #[test]
        fn each_time_that_the_pattern_matches_is_read_by_both_types(text in times()) {
            prop_assert!(is_accepted(&text));
            prop_assert!(from_value::<DateTime<Utc>>(json!(text)).is_ok(), "{text}");
            prop_assert!(from_value::<Time>(json!(text)).is_ok(), "{text}");
        }

        #[test]
        fn each_time_that_cistern_writes_is_accepted_and_read_back(moment in moments(FIRST..=LAST)) {
            let text = written(moment);
            prop_assert!(is_accepted(&text), "{text}");
            prop_assert_eq!(from_value::<DateTime<Utc>>(json!(text)).unwrap(), moment);
            prop_assert_eq!(acceptable(moment), moment);
            let second = json!(to_kubernetes(moment));
            prop_assert!(is_accepted(second.as_str().unwrap()), "{second}");
        }
    }
}
