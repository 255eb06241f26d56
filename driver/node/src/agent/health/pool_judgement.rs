//! Maps the troubles that the host sees to problems of pools. Pure.
//!
//! *Invariant:* a message names the problem, the object, and the remedy.

use std::fmt;

use cistern_crds::{Explanation, PoolSeverity, Reason};
use cistern_host::{
    health::{Fill, PoolTrouble, PoolVitals},
    pool::Shortage,
};

use crate::agent::{
    pools::LeftOut,
    problems::{Observation, Seen},
    tracker::{Certainty, Visibility},
};

/// Percentage of used space from which a pool's filesystem is nearly full.
const NEARLY_FULL: u64 = 90;
/// A nearly full pool stays nearly full above this percentage of used space.
const NO_LONGER: u64 = 85;

/// A pool on a node.
#[derive(Clone, Copy, Debug)]
pub struct PoolPlace<'a> {
    /// Name of the StoragePool.
    pub pool: &'a str,
    /// Name of the node.
    pub node: &'a str,
}

impl PoolPlace<'_> {
    fn says(&self, what: &dyn fmt::Display, advice: &str) -> String {
        format!("{self}: {what}; {advice}")
    }
}

impl fmt::Display for PoolPlace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pool {} on node {}", self.pool, self.node)
    }
}

/// Problems in the vitals of an open pool. `was_nearly_full` is whether that problem is reported.
pub fn of_vitals(
    place: PoolPlace<'_>,
    vitals: &PoolVitals,
    was_nearly_full: bool,
) -> Seen<PoolSeverity> {
    let mut seen: Vec<_> = vitals
        .troubles
        .iter()
        .map(|trouble| of_pool(place, trouble))
        .collect();
    let level = vitals.fill.as_ref();
    seen.extend(level.and_then(|fill| of_fill(place, fill, was_nearly_full)));
    let visibility = if hangs(vitals) {
        Visibility::Partial
    } else {
        Visibility::Full
    };
    (seen, visibility)
}

/// Whether the pool's disk does not answer.
fn hangs(vitals: &PoolVitals) -> bool {
    let mut troubles = vitals.troubles.iter();
    troubles.any(|trouble| matches!(trouble, PoolTrouble::Hung { .. }))
}

/// Whether a reconcile of the pool may fix a trouble.
pub fn is_of_opening(trouble: &PoolTrouble) -> bool {
    match trouble {
        PoolTrouble::BackingMissing { .. }
        | PoolTrouble::BackingConflict { .. }
        | PoolTrouble::NotMounted { .. }
        | PoolTrouble::ShutDown
        | PoolTrouble::ReadOnly
        | PoolTrouble::NotAllocated { .. } => true,
        PoolTrouble::Hung { .. }
        | PoolTrouble::Failed { .. }
        | PoolTrouble::NotReadBack { .. }
        | PoolTrouble::FilesystemErrors { .. }
        | PoolTrouble::DeviceErrors { .. } => false,
    }
}

/// The problem of a pool that could not be opened.
pub fn of_closed(place: PoolPlace<'_>, why: &Explanation) -> Option<Observation<PoolSeverity>> {
    // A pool that cannot be removed yet is not unhealthy.
    (why.reason != Reason::VolumesRemain).then(|| Observation {
        severity: PoolSeverity::Unreachable,
        reason: why.reason,
        message: format!("{place} cannot be used: {why}"),
        certainty: match why.reason {
            Reason::ProbeTimedOut => Certainty::MayPass,
            _ => Certainty::Certain,
        },
    })
}

fn of_pool(place: PoolPlace<'_>, trouble: &PoolTrouble) -> Observation<PoolSeverity> {
    use PoolSeverity::{Degraded, Unreachable};

    let disk = "check its disk and the kernel log of the node; it takes no new volumes meanwhile";
    let backing =
        "restore the original image file or device: Cistern does not create the pool again";
    let (severity, reason, advice) = match trouble {
        PoolTrouble::Hung { .. } => (Unreachable, Reason::ProbeTimedOut, disk),
        PoolTrouble::NotReadBack { .. } | PoolTrouble::Failed { .. } => {
            (Unreachable, Reason::ProbeFailed, disk)
        }
        PoolTrouble::BackingMissing { .. } => (Unreachable, Reason::BackingMissing, backing),
        PoolTrouble::BackingConflict { .. } => (Unreachable, Reason::BackingConflict, backing),
        PoolTrouble::NotMounted { .. } => (
            Unreachable,
            Reason::NotMounted,
            "it is mounted again if its disk is there",
        ),
        PoolTrouble::ReadOnly => (
            Unreachable,
            Reason::ReadOnly,
            "the kernel log of the node says why; it takes no new volumes until it is mounted for \
             writing again",
        ),
        PoolTrouble::ShutDown => (
            Unreachable,
            Reason::FilesystemShutDown,
            "the kernel log of the node says why; it is mounted again as soon as no pod on the node \
             uses a volume of it: move them away or delete them",
        ),
        PoolTrouble::NotAllocated { .. } => (
            Degraded,
            Reason::NotAllocated,
            "it takes no new volumes until they are, which is as soon as the node's disk has the \
             space: free some there, before others take it and writes to the pool fail",
        ),
        PoolTrouble::FilesystemErrors { .. } => (
            Degraded,
            Reason::FilesystemErrors,
            "back its volumes up and check the kernel log of the node",
        ),
        PoolTrouble::DeviceErrors { .. } => (
            Degraded,
            Reason::DeviceErrors,
            "back its volumes up and replace the disk if the number goes on rising",
        ),
    };
    Observation {
        severity,
        reason,
        message: place.says(trouble, advice),
        certainty: certainty(trouble),
    }
}

fn certainty(trouble: &PoolTrouble) -> Certainty {
    match trouble {
        // A disk may be busy for a moment, and the reconcile that this requests allocates the file
        // again.
        PoolTrouble::Hung { .. } | PoolTrouble::NotAllocated { .. } => Certainty::MayPass,
        PoolTrouble::NotReadBack { .. }
        | PoolTrouble::Failed { .. }
        | PoolTrouble::BackingMissing { .. }
        | PoolTrouble::BackingConflict { .. }
        | PoolTrouble::NotMounted { .. }
        | PoolTrouble::ReadOnly
        | PoolTrouble::ShutDown
        | PoolTrouble::FilesystemErrors { .. }
        | PoolTrouble::DeviceErrors { .. } => Certainty::Certain,
    }
}

/// Reports a nearly full filesystem until there is noticeably more room.
fn of_fill(
    place: PoolPlace<'_>,
    fill: &Fill,
    was_nearly_full: bool,
) -> Option<Observation<PoolSeverity>> {
    let used = fill.size.0.saturating_sub(fill.available.0);
    let percent = used.saturating_mul(100).checked_div(fill.size.0)?;
    let is_full = percent >= NEARLY_FULL || was_nearly_full && percent > NO_LONGER;
    is_full.then(|| Observation::certain(PoolSeverity::Degraded, Reason::NearlyFull, place.says(
            &format!("{percent} % of its filesystem are in use"),
            "delete snapshots or volumes, or make the pool larger, before writes to thin volumes fail",
        )))
}

/// The problem of an image pool whose file is not as declared.
pub fn of_shortage(place: PoolPlace<'_>, shortage: &Shortage) -> Observation<PoolSeverity> {
    Observation::certain(
        PoolSeverity::Degraded,
        Reason::GrowthDoesNotFit,
        place.says(
            shortage,
            "the pool goes on as it is until there is space, or spec.source.image.size is lowered",
        ),
    )
}

/// The problem of a pool that lists disks which are not in its volume group.
pub fn of_left_out(place: PoolPlace<'_>, left_out: &LeftOut) -> Observation<PoolSeverity> {
    let message = match left_out {
        LeftOut::Disks(disks) => place.says(
            disks,
            "the pool works without them: if nothing on a disk is needed, wipe it, and else remove it from \
             spec.source.device.paths",
        ),
        LeftOut::Unknown(why) => place.says(
            &format!("no disk can be added to its volume group: {why}"),
            "the pool works with the disks that it has, and this is tried again",
        ),
    };
    Observation {
        severity: PoolSeverity::Degraded,
        reason: Reason::DiskNotAdded,
        message,
        // A disk that has just been inserted may be held for a moment.
        certainty: Certainty::MayPass,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cistern_crds::Bytes;
    use cistern_host::health::VolumeTrouble;

    use super::*;
    use crate::agent::{health::volume_judgement::of_volume, problems::ProblemTracker};

    const PLACE: PoolPlace<'_> = PoolPlace {
        pool: "fast",
        node: "node-1",
    };

    fn filled(percent: u64) -> PoolVitals {
        PoolVitals {
            fill: Some(Fill {
                size: Bytes(100 << 20),
                available: Bytes((100 - percent) << 20),
            }),
            troubles: Vec::new(),
        }
    }

    #[test]
    fn a_pool_is_nearly_full_from_90_percent_on_until_it_is_down_to_85() {
        let is_full = |percent, was| {
            let (seen, _) = of_vitals(PLACE, &filled(percent), was);
            seen.iter().any(|it| it.reason == Reason::NearlyFull)
        };
        assert_eq!(
            [89, 90, 100].map(|it| is_full(it, false)),
            [false, true, true]
        );
        assert_eq!(
            [85, 86, 90].map(|it| is_full(it, true)),
            [false, true, true]
        );
    }

    #[test]
    fn a_pool_that_cannot_be_written_is_unreachable_and_one_with_errors_is_degraded() {
        let failed = || PoolTrouble::Failed {
            operation: "sync".to_owned(),
            error: "Input/output error".to_owned(),
        };
        let hung = || PoolTrouble::Hung {
            after: Duration::from_secs(10),
        };
        for (trouble, severity, reason) in [
            (failed(), PoolSeverity::Unreachable, Reason::ProbeFailed),
            (hung(), PoolSeverity::Unreachable, Reason::ProbeTimedOut),
            (
                PoolTrouble::ReadOnly,
                PoolSeverity::Unreachable,
                Reason::ReadOnly,
            ),
            (
                PoolTrouble::ShutDown,
                PoolSeverity::Unreachable,
                Reason::FilesystemShutDown,
            ),
            (
                PoolTrouble::DeviceErrors { count: 1 },
                PoolSeverity::Degraded,
                Reason::DeviceErrors,
            ),
        ] {
            let is_hung = matches!(trouble, PoolTrouble::Hung { .. });
            let vitals = PoolVitals {
                fill: None,
                troubles: vec![trouble],
            };
            let (seen, visibility) = of_vitals(PLACE, &vitals, false);
            let only = seen.first().unwrap();
            assert_eq!((only.severity, only.reason), (severity, reason));
            assert!(
                only.message.starts_with("pool fast on node node-1: "),
                "{only:?}"
            );
            assert_eq!(visibility == Visibility::Partial, is_hung);
        }
    }

    #[test]
    fn every_fault_of_a_disk_is_reported_by_the_second_probe_that_sees_it_at_the_latest() {
        let probes = |trouble: PoolTrouble| {
            let vitals = PoolVitals {
                fill: None,
                troubles: vec![trouble],
            };
            let mut tracker = ProblemTracker::default();
            (1..4).find(|_| {
                let seen = of_vitals(PLACE, &vitals, false);
                tracker.saw(seen, chrono::DateTime::default());
                !tracker.problems().is_empty()
            })
        };
        let failed = PoolTrouble::Failed {
            operation: "sync".to_owned(),
            error: "Input/output error".to_owned(),
        };
        assert_eq!(probes(failed), Some(1));
        assert_eq!(probes(PoolTrouble::ReadOnly), Some(1));
        assert_eq!(probes(PoolTrouble::ShutDown), Some(1));
        // A disk may be busy for a moment.
        let after = Duration::from_secs(10);
        assert_eq!(probes(PoolTrouble::Hung { after }), Some(2));

        let read_only = VolumeTrouble::MountReadOnly {
            path: "/staging".into(),
        };
        let mut tracker = ProblemTracker::default();
        let reported = [1, 2].map(|_| {
            let seen = of_volume("pvc-1", "node-1", std::slice::from_ref(&read_only));
            tracker.saw(seen, chrono::DateTime::default());
            !tracker.problems().is_empty()
        });
        assert_eq!(reported, [false, true]);
    }

    #[test]
    fn a_growth_that_does_not_fit_is_reported_with_its_node_and_what_that_lacks() {
        let error = cistern_host::pool::Error::HostFilesystemFull {
            path: "/var/lib/cistern/pools/p.img".into(),
            needed: Bytes::gib(99),
            lacking: Bytes::gib(60),
            kept_percent: 15,
        };
        let seen = of_shortage(
            PLACE,
            &Shortage {
                size: Bytes::gib(1),
                wanted: Bytes::gib(100),
                why: error.to_string(),
            },
        );
        assert_eq!(
            (seen.severity, seen.reason),
            (PoolSeverity::Degraded, Reason::GrowthDoesNotFit)
        );
        for part in [
            "pool fast on node node-1: its file has 1Gi and cannot have 100Gi: ",
            "needs 99Gi more, and its filesystem lacks 60Gi",
            "spec.source.image.size is lowered",
        ] {
            assert!(seen.message.contains(part), "{}", seen.message);
        }
    }

    #[test]
    fn a_disk_that_its_pool_lacks_is_reported_with_its_reason_from_the_second_look_on() {
        let disks = "1 of its disks is not in its volume group: /dev/sdb: something else holds it";
        let mut tracker = ProblemTracker::default();
        let mut look = |left_out: Option<LeftOut>| {
            let seen = left_out.iter().map(|it| of_left_out(PLACE, it));
            let seen = (seen.collect(), Visibility::Full);
            tracker.saw(seen, chrono::DateTime::default());
            let problems = tracker.problems().into_iter();
            let problems = problems.map(|it| (it.severity, it.reason, it.message));
            problems.collect::<Vec<_>>()
        };
        let held = || Some(LeftOut::Disks(disks.to_owned()));
        assert!(look(held()).is_empty());
        let (severity, reason, message) = look(held()).remove(0);
        let expected = (PoolSeverity::Degraded, "DiskNotAdded");
        assert_eq!((severity, reason.as_str()), expected);
        let expected = format!("pool fast on node node-1: {disks}; the pool works without them: ");
        assert!(message.starts_with(&expected), "{message}");

        let unknown = LeftOut::Unknown("could not list the physical volumes".to_owned());
        let (_, _, message) = look(Some(unknown)).remove(0);
        let expected =
            "no disk can be added to its volume group: could not list the physical volumes; ";
        assert!(message.contains(expected), "{message}");
        // It has joined, or is not listed any more.
        assert_eq!(look(None).len(), 1);
        assert!(look(None).is_empty());
    }

    #[test]
    fn a_pool_that_cannot_be_removed_yet_is_not_unhealthy() {
        assert_eq!(
            of_closed(
                PLACE,
                &Explanation::new(Reason::VolumesRemain, "two images")
            ),
            None
        );
        let missing = of_closed(
            PLACE,
            &Explanation::new(Reason::BackingMissing, "it is gone"),
        )
        .unwrap();
        assert_eq!(
            missing.message,
            "pool fast on node node-1 cannot be used: it is gone"
        );
    }
}
