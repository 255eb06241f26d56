//! The problems of volumes and pools, in both forms of CSI: the entries of 1.13, and the volume
//! condition of 1.12 and older.
//!
//! *Invariants:* every text is non-empty and fits the protocol's limit (FLD-01, VCO-01). No two entries
//! of a response have the same key (CLH-05, NSH-03).

use std::collections::BTreeMap;

use cistern_crds::health::{PoolProblem, PoolSeverity, Problem, VolumeProblem, VolumeSeverity};
use cistern_proto::csi::v1::{
    self, StorageHealthErrorType, VolumeHealthErrorType,
    node_get_storage_health_response::StorageBackendHealth, volume_health::VolumeHealthEntry,
};

use super::request::MAX_STRING;

/// The message for a volume without known problems (VCO-01).
const WELL: &str = "nothing is known to be wrong with the volume";
/// Marks a truncated text.
const ELLIPSIS: &str = "…";

/// A volume's condition: whether it is abnormal, and its worst problem (VCO-02).
pub fn condition(problems: &[VolumeProblem]) -> v1::VolumeCondition {
    let worst = Problem::worst(problems);
    let message = match (worst, problems.len()) {
        (None, _) => WELL.to_owned(),
        (Some(worst), 1) => brief(text(worst), MAX_STRING),
        (Some(worst), count) => {
            let more = format!(" (and {} more)", count - 1);
            brief(text(worst), MAX_STRING.saturating_sub(more.len())) + &more
        }
    };
    v1::VolumeCondition {
        abnormal: worst.is_some(),
        message,
    }
}

/// All problems of a volume (CGH-04, NVH-04).
pub fn volume(id: &str, problems: &[VolumeProblem]) -> v1::VolumeHealth {
    let mut entries = BTreeMap::new();
    for problem in problems {
        let status = match problem.severity {
            VolumeSeverity::Degraded => VolumeHealthErrorType::Degraded,
            VolumeSeverity::Inaccessible => VolumeHealthErrorType::Inaccessible,
            VolumeSeverity::DataLoss => VolumeHealthErrorType::DataLoss,
        };
        let key = (i32::from(status), problem.reason.as_str());
        entries.entry(key).or_insert_with(|| text(problem));
    }
    let entry = |((status, reason), message): ((i32, &str), &str)| VolumeHealthEntry {
        status,
        reason: reason.to_owned(),
        message: brief(message, MAX_STRING),
    };
    v1::VolumeHealth {
        volume_id: id.to_owned(),
        health_statuses: entries.into_iter().map(entry).collect(),
    }
}

/// Renders the problems of the pools of a node. `pools` holds the name and the problems of each
/// pool. A problem that several pools have is one entry. An entry names no capability, because a
/// pool is not limited to one kind of volume.
pub fn pools(pools: &[(String, Vec<PoolProblem>)]) -> v1::NodeGetStorageHealthResponse {
    let mut entries = BTreeMap::<_, Vec<(&str, &str)>>::new();
    for (pool, problem) in pools
        .iter()
        .flat_map(|(pool, problems)| problems.iter().map(move |problem| (pool, problem)))
    {
        let status = match problem.severity {
            PoolSeverity::Degraded => StorageHealthErrorType::StorageDegraded,
            PoolSeverity::Unreachable => StorageHealthErrorType::StorageUnreachable,
        };
        let key = (i32::from(status), problem.reason.as_str());
        entries.entry(key).or_default().push((pool, text(problem)));
    }
    let entry =
        |((status, reason), pools): ((i32, &str), Vec<(&str, &str)>)| StorageBackendHealth {
            status,
            reason: reason.to_owned(),
            message: of_several(&pools),
            volume_capability: None,
        };
    v1::NodeGetStorageHealthResponse {
        backend_health: entries.into_iter().map(entry).collect(),
    }
}

/// The message of the first pool's problem, followed by the other pools that have the same problem.
/// Each item of `pools` is the name of a pool and the message of its problem.
fn of_several(pools: &[(&str, &str)]) -> String {
    let others = match pools {
        [] | [_] => String::new(),
        [_, (other, _)] => format!("; pool {other}, too"),
        [_, others @ ..] => format!("; {} other pools, too", others.len()),
    };
    let first = pools
        .first()
        .map(|(pool, text)| format!("pool {pool}: {text}"));
    let room = MAX_STRING.saturating_sub(others.len());
    brief(&first.unwrap_or_default(), room) + &others
}

/// The message of a problem, or its reason if it has no message. Omits the name of the volume or pool,
/// which the caller knows, because the field is short.
fn text<Severity>(problem: &Problem<Severity>) -> &str {
    let message = problem.message.as_str();
    let is_named = message.starts_with("volume ") || message.starts_with("pool ");
    match message.split_once(": ").filter(|_| is_named) {
        Some((_, rest)) if !rest.is_empty() => rest,
        _ if message.is_empty() => &problem.reason,
        _ => message,
    }
}

/// Truncates a text to a number of bytes, after a whole word.
fn brief(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    let room = limit.saturating_sub(ELLIPSIS.len());
    let whole = text
        .get(..text.floor_char_boundary(room))
        .unwrap_or_default();
    let words = whole.rsplit_once(' ').map_or(whole, |(words, _)| words);
    format!("{}{ELLIPSIS}", words.trim_end_matches([' ', ',', ';', ':']))
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use proptest::prelude::*;

    use super::*;

    fn problem<Severity>(severity: Severity, reason: &str, message: &str) -> Problem<Severity> {
        Problem {
            severity,
            reason: reason.to_owned(),
            message: message.to_owned(),
            since: DateTime::default(),
        }
    }

    #[test]
    fn vco_01_vco_02_a_condition_reports_the_worst_problem_and_always_has_a_text() {
        let well = condition(&[]);
        assert!(!well.abnormal && !well.message.is_empty());
        let bad = condition(&[
            problem(VolumeSeverity::Degraded, "A", "it is slow"),
            problem(VolumeSeverity::DataLoss, "B", ""),
        ]);
        assert!(bad.abnormal);
        assert_eq!(bad.message, "B (and 1 more)");
        let slow = problem(
            VolumeSeverity::Degraded,
            "A",
            "volume v on node n: it is slow",
        );
        assert_eq!(condition(&[slow]).message, "it is slow");
    }

    #[test]
    fn clh_04_clh_05_an_entry_has_its_type_and_reason_and_is_unique() {
        let twice = problem(VolumeSeverity::Inaccessible, "PoolNotReady", "gone");
        let other = problem(VolumeSeverity::Degraded, "PoolNotReady", "slow");
        let health = volume("pvc-1", &[twice.clone(), other, twice]);
        assert_eq!(health.volume_id, "pvc-1");
        let entries = health.health_statuses.iter();
        let entries: Vec<_> = entries
            .map(|entry| (entry.status(), &*entry.message))
            .collect();
        let expected = [
            (VolumeHealthErrorType::Degraded, "slow"),
            (VolumeHealthErrorType::Inaccessible, "gone"),
        ];
        assert_eq!(entries, expected);
    }

    #[test]
    fn nsh_02_nsh_03_a_problem_of_several_pools_is_one_entry_that_names_them() {
        let full = || {
            vec![problem(
                PoolSeverity::Degraded,
                "NearlyFull",
                "93 % are used",
            )]
        };
        let gone = problem(
            PoolSeverity::Unreachable,
            "ProbeTimedOut",
            "it does not answer",
        );
        let mut slow = full();
        slow.push(gone);
        let answer = pools(&[("fast".to_owned(), full()), ("slow".to_owned(), slow)]);
        let entries = answer.backend_health.iter();
        let entries: Vec<_> = entries
            .map(|entry| (entry.status(), &*entry.message))
            .collect();
        let expected = [
            (
                StorageHealthErrorType::StorageDegraded,
                "pool fast: 93 % are used; pool slow, too",
            ),
            (
                StorageHealthErrorType::StorageUnreachable,
                "pool slow: it does not answer",
            ),
        ];
        assert_eq!(entries, expected);
        assert_eq!(pools(&[("fast".to_owned(), Vec::new())]).backend_health, []);
    }

    #[test]
    fn a_long_text_is_truncated_after_a_word() {
        assert_eq!(brief("as long as it may be", 20), "as long as it may be");
        assert_eq!(brief("as long, as it may be", 12), "as long…");
        assert_eq!(brief("undivided", 7), "undi…");
    }

    proptest! {
        #[test]
        fn fld_01_vco_01_every_text_is_non_empty_and_fits_for_all_problems(
            messages in prop::collection::vec("\\PC{0,300}", 1..40),
        ) {
            let of_volume = |message: &String| problem(VolumeSeverity::Degraded, "Reason", message);
            let problems: Vec<_> = messages.iter().map(of_volume).collect();
            let of_pool = |message: &String| {
                let problem = problem(PoolSeverity::Degraded, "Reason", message);
                ("pool".to_owned(), vec![problem])
            };
            let of_pools: Vec<_> = messages.iter().map(of_pool).collect();
            let texts = [
                condition(&problems).message,
                volume("v", &problems).health_statuses.remove(0).message,
                pools(&of_pools).backend_health.remove(0).message,
            ];
            for text in texts {
                prop_assert!((1..=MAX_STRING).contains(&text.len()), "{text:?}");
            }
        }
    }
}
