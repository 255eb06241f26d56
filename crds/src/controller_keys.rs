//! The public keys of controllers: the data of a ConfigMap, with one entry for each, by the name of its pod.
//!
//! Only controllers may write it. A node plugin answers who has one of these keys where snapshots hold data.
//!
//! *Invariant:* few are listed. The private key of an entry is in the memory of one process, so the entry of a
//! process that has ended permits nothing.

use std::collections::BTreeMap;

use chrono::{DateTime, SecondsFormat, Utc};

/// Name of the ConfigMap, in the namespace of Cistern.
pub const CONFIG_MAP: &str = "cistern-controller-keys";

/// Number of entries that stay beside the own one: two controllers run, and others may be starting or ending.
const OTHERS: usize = 15;

/// The entry of a controller that has started now.
pub fn entry(key: &str, now: DateTime<Utc>) -> String {
    format!("{} {key}", now.to_rfc3339_opts(SecondsFormat::Secs, true))
}

/// The keys of all entries.
pub fn keys(data: &BTreeMap<String, String>) -> impl Iterator<Item = &str> {
    data.values()
        .filter_map(|entry| entry.split_once(' ').map(|(_, key)| key))
}

/// The names of the oldest entries, which the controller of this name removes.
pub fn outdated<'a>(data: &'a BTreeMap<String, String>, own: &str) -> Vec<&'a str> {
    let mut others: Vec<_> = data.iter().filter(|(name, _)| *name != own).collect();
    // An entry begins with the time of its controller's start.
    others.sort_by(|(_, one), (_, other)| other.cmp(one));
    let outdated = others.into_iter().skip(OTHERS);
    outdated.map(|(name, _)| name.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    #[test]
    fn the_newest_entries_stay_and_their_keys_are_read() {
        let start = DateTime::UNIX_EPOCH;
        let data: BTreeMap<String, String> = (0..20)
            .map(|number| {
                let time = start + TimeDelta::seconds(number);
                let name = format!("controller-{}", 19 - number);
                (name, entry(&format!("key-{number}"), time))
            })
            .collect();
        assert_eq!(keys(&data).count(), 20);
        assert!(keys(&data).any(|key| key == "key-7"));
        // The oldest ones; its own stays.
        let names = [
            "controller-15",
            "controller-16",
            "controller-17",
            "controller-18",
        ];
        let mut outdated = outdated(&data, "controller-19");
        outdated.sort_unstable();
        assert_eq!(outdated, names);
    }

    #[test]
    fn an_entry_of_another_form_has_no_key() {
        let data = BTreeMap::from([("a".to_owned(), "key".to_owned())]);
        assert_eq!(keys(&data).next(), None);
    }
}
