//! Decides which health events are due, and builds them.
//!
//! *Invariant:* pure except for its history; an issue is identified by kind and reason, so a message
//! whose numbers change is not published again.

use std::collections::{BTreeMap, HashMap};

use chrono::{DateTime, Duration, Utc};
use cistern_crds::{
    EventReason,
    health::{PoolProblem, PoolSeverity, VolumeProblem, VolumeSeverity},
};
use k8s_openapi::api::core::v1::ObjectReference;
use parking_lot::Mutex;

use super::Subject;
use crate::events::EventContent;

/// How long the API server keeps events.
const EVENT_TTL: Duration = Duration::hours(1);
/// Action of health events.
const ACTION: &str = "WatchingHealth";

/// Kind of a health issue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum IssueKind {
    /// The space of a volume that becomes thick is being allocated.
    VolumeAllocating,
    /// The filesystem of a volume is being checked before it is used.
    VolumeChecking,
    /// A volume works, but has problems.
    VolumeDegraded,
    /// A volume cannot be used.
    VolumeInaccessible,
    /// Data of a volume is lost, or will be lost.
    VolumeDataLoss,
    /// A pool on a node works, but has problems.
    PoolDegraded,
    /// A pool on a node cannot be read or written.
    PoolUnreachable,
    /// The agent of a node does not report.
    AgentSilent,
}

/// One problem of a subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HealthIssue {
    pub(super) kind: IssueKind,
    pub(super) reason: String,
    pub(super) message: String,
    pub(super) since: DateTime<Utc>,
}

/// Published issues of a subject by kind and reason, and when each began.
type Known = BTreeMap<(IssueKind, String), DateTime<Utc>>;

/// Published issues of every unhealthy subject.
#[derive(Debug)]
pub(super) struct PublishedIssues {
    since: DateTime<Utc>,
    subjects: Mutex<HashMap<Subject, (Known, ObjectReference)>>,
}

impl IssueKind {
    /// Reason of the event when the issue begins.
    pub(super) const fn event_reason(self) -> EventReason {
        match self {
            Self::VolumeAllocating => EventReason::VolumeAllocating,
            Self::VolumeChecking => EventReason::VolumeChecking,
            Self::VolumeDegraded => EventReason::VolumeDegraded,
            Self::VolumeInaccessible => EventReason::VolumeInaccessible,
            Self::VolumeDataLoss => EventReason::VolumeDataLoss,
            Self::PoolDegraded => EventReason::PoolDegraded,
            Self::PoolUnreachable => EventReason::PoolUnreachable,
            Self::AgentSilent => EventReason::AgentSilent,
        }
    }

    /// Whether it is work that takes long, and not a problem.
    const fn is_progress(self) -> bool {
        matches!(self, Self::VolumeAllocating | Self::VolumeChecking)
    }

    /// Reason of the event when all issues have ended.
    const fn recovery_reason(self) -> EventReason {
        match self {
            Self::VolumeAllocating => EventReason::VolumeAllocated,
            Self::VolumeChecking => EventReason::VolumeChecked,
            Self::VolumeDegraded | Self::VolumeInaccessible | Self::VolumeDataLoss => {
                EventReason::VolumeRecovered
            }
            Self::PoolDegraded | Self::PoolUnreachable => EventReason::PoolRecovered,
            Self::AgentSilent => EventReason::AgentReporting,
        }
    }
}

impl From<&VolumeProblem> for HealthIssue {
    fn from(problem: &VolumeProblem) -> Self {
        Self {
            kind: match problem.severity {
                VolumeSeverity::Degraded => IssueKind::VolumeDegraded,
                VolumeSeverity::Inaccessible => IssueKind::VolumeInaccessible,
                VolumeSeverity::DataLoss => IssueKind::VolumeDataLoss,
            },
            reason: problem.reason.clone(),
            message: problem.message.clone(),
            since: problem.since,
        }
    }
}

impl From<&PoolProblem> for HealthIssue {
    fn from(problem: &PoolProblem) -> Self {
        Self {
            kind: match problem.severity {
                PoolSeverity::Degraded => IssueKind::PoolDegraded,
                PoolSeverity::Unreachable => IssueKind::PoolUnreachable,
            },
            reason: problem.reason.clone(),
            message: problem.message.clone(),
            since: problem.since,
        }
    }
}

impl PublishedIssues {
    /// Creates an empty history. Issues whose events have expired at this time are never due.
    pub(super) fn new(now: DateTime<Utc>) -> Self {
        Self {
            since: now,
            subjects: Mutex::default(),
        }
    }

    /// Events to publish about a subject now. `name` names it in messages.
    pub(super) fn due_events(
        &self,
        subject: &Subject,
        name: &str,
        issues: &[HealthIssue],
    ) -> Vec<EventContent> {
        let subjects = self.subjects.lock();
        let known = subjects.get(subject).map(|(known, _)| known);
        if let Some(known) = known.filter(|_| issues.is_empty()) {
            return recovery(name, known).into_iter().collect();
        }
        let is_new = |issue: &&HealthIssue| {
            let is_known = known.is_some_and(|known| known.contains_key(&issue.key()));
            !is_known && issue.since + EVENT_TTL > self.since
        };
        let due = issues.iter().filter(is_new);
        due.map(|issue| issue.event(name)).collect()
    }

    /// Records that the issues were published, and about which object.
    pub(super) fn mark(
        &self,
        subject: &Subject,
        issues: &[HealthIssue],
        regarding: ObjectReference,
    ) {
        let known = issues.iter().map(|issue| (issue.key(), issue.since));
        let known: Known = known.collect();
        let mut subjects = self.subjects.lock();
        if known.is_empty() {
            subjects.remove(subject);
        } else {
            subjects.insert(subject.clone(), (known, regarding));
        }
    }

    /// Forgets a subject that is gone.
    pub(super) fn forget(&self, subject: &Subject) {
        self.subjects.lock().remove(subject);
    }

    /// The object of the last event about an issue of a subject.
    pub(super) fn regarding(&self, subject: &Subject) -> Option<ObjectReference> {
        let subjects = self.subjects.lock();
        subjects
            .get(subject)
            .map(|(_, regarding)| regarding.clone())
    }

    /// Every subject with published issues.
    pub(super) fn subjects(&self) -> Vec<Subject> {
        self.subjects.lock().keys().cloned().collect()
    }
}

impl HealthIssue {
    fn key(&self) -> (IssueKind, String) {
        (self.kind, self.reason.clone())
    }

    fn event(&self, name: &str) -> EventContent {
        EventContent {
            is_warning: !self.kind.is_progress(),
            reason: self.kind.event_reason(),
            action: ACTION,
            note: naming(name, &self.message),
            key: format!("{} {}", self.reason, self.since.to_rfc3339()),
        }
    }
}

/// Adds the name of its object to a message, unless the message already begins with its kind and
/// name.
fn naming(name: &str, message: &str) -> String {
    let mut words = name.split(' ');
    let what = [words.next(), words.next()]
        .map(Option::unwrap_or_default)
        .join(" ");
    if message.starts_with(&what) {
        message.to_owned()
    } else {
        format!("{name}: {message}")
    }
}

/// The event about the recovery from all known issues.
fn recovery(name: &str, known: &Known) -> Option<EventContent> {
    let ((worst, _), _) = known.last_key_value()?;
    let last = known.values().max()?;
    let reasons: Vec<&str> = known.keys().map(|(_, reason)| reason.as_str()).collect();
    let note = match worst {
        IssueKind::VolumeAllocating => format!("the allocation of {name} has ended"),
        IssueKind::VolumeChecking => format!("the check of {name} has ended"),
        _ => format!("{name} has recovered; resolved: {}", reasons.join(", ")),
    };
    Some(EventContent {
        is_warning: false,
        reason: worst.recovery_reason(),
        action: ACTION,
        note,
        // A later recovery is another event, because its last issue began later.
        key: last.to_rfc3339(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::moment;

    fn issue(kind: IssueKind, reason: &str, minutes: i64) -> HealthIssue {
        HealthIssue {
            kind,
            reason: reason.to_owned(),
            message: format!("it is {reason}: mend it"),
            since: moment() + Duration::minutes(minutes),
        }
    }

    fn subject() -> Subject {
        Subject::Volume("pvc-1".to_owned())
    }

    /// Publishes these issues. Returns the reason and note of each event.
    fn publish(published: &PublishedIssues, issues: &[HealthIssue]) -> Vec<(EventReason, String)> {
        let due = published.due_events(&subject(), "volume pvc-1 on node w1", issues);
        published.mark(&subject(), issues, ObjectReference::default());
        let due = due.into_iter();
        due.map(|content| (content.reason, content.note)).collect()
    }

    #[test]
    fn each_problem_is_published_once_and_one_recovery_when_all_have_ended() {
        let published = PublishedIssues::new(moment());
        let slow = issue(IssueKind::VolumeDegraded, "FilesystemErrors", 1);
        let gone = issue(IssueKind::VolumeDataLoss, "ImageDeleted", 2);
        assert_eq!(publish(&published, &[]), []);
        let note = "volume pvc-1 on node w1: it is FilesystemErrors: mend it";
        let first = publish(&published, std::slice::from_ref(&slow));
        assert_eq!(first, [(EventReason::VolumeDegraded, note.to_owned())]);
        let mut worse = slow.clone();
        worse.message = "it has counted on".to_owned();
        assert_eq!(publish(&published, &[worse.clone()]), []);
        let second = publish(&published, &[worse, gone.clone()]);
        assert_eq!(second.len(), 1);
        assert_eq!(second[0].0, EventReason::VolumeDataLoss);
        // One of two issues has ended, and the other was published before.
        assert_eq!(publish(&published, std::slice::from_ref(&slow)), []);
        publish(&published, &[slow, gone]);
        let note =
            "volume pvc-1 on node w1 has recovered; resolved: FilesystemErrors, ImageDeleted";
        assert_eq!(
            publish(&published, &[]),
            [(EventReason::VolumeRecovered, note.to_owned())]
        );
        assert_eq!(publish(&published, &[]), []);
        assert_eq!(published.subjects(), []);
    }

    #[test]
    fn work_that_takes_long_is_no_warning_and_neither_is_its_end() {
        use EventReason::{VolumeAllocated, VolumeAllocating, VolumeChecked, VolumeChecking};
        let waits = issue(IssueKind::VolumeChecking, "CheckWaiting", 1);
        let runs = issue(IssueKind::VolumeChecking, "CheckRunning", 1);
        let allocates = issue(IssueKind::VolumeAllocating, "Allocating", 1);
        for (issues, begin, end, note) in [
            (vec![waits, runs], VolumeChecking, VolumeChecked, "check"),
            (
                vec![allocates],
                VolumeAllocating,
                VolumeAllocated,
                "allocation",
            ),
        ] {
            let published = PublishedIssues::new(moment());
            for issue in issues {
                let due =
                    published.due_events(&subject(), "volume pvc-1", std::slice::from_ref(&issue));
                assert_eq!((due.len(), due[0].reason), (1, begin));
                assert!(!due[0].is_warning);
                published.mark(&subject(), &[issue], ObjectReference::default());
            }
            let note = format!("the {note} of volume pvc-1 on node w1 has ended");
            assert_eq!(publish(&published, &[]), [(end, note)]);
        }
    }

    #[test]
    fn a_message_that_names_its_object_is_published_unchanged() {
        let note = |message| naming("volume pvc-1 on node w1", message);
        assert_eq!(note("volume pvc-1: it is slow"), "volume pvc-1: it is slow");
        assert_eq!(note("it is slow"), "volume pvc-1 on node w1: it is slow");
    }

    #[test]
    fn what_an_earlier_operator_published_is_not_published_again_after_a_restart() {
        let published = PublishedIssues::new(moment());
        let old = issue(IssueKind::PoolUnreachable, "ProbeTimedOut", -61);
        let new = issue(IssueKind::PoolDegraded, "NearlyFull", -59);
        let due = publish(&published, &[old, new]);
        assert_eq!(due.len(), 1);
        assert_eq!(due[0].0, EventReason::PoolDegraded);
        // The end of the new issue is due.
        assert_eq!(publish(&published, &[])[0].0, EventReason::PoolRecovered);
    }

    #[test]
    fn a_problem_that_comes_again_is_another_event_and_so_is_its_end() {
        let keys = |minutes| {
            let published = PublishedIssues::new(moment());
            let issues = [issue(
                IssueKind::VolumeInaccessible,
                "PoolNotReady",
                minutes,
            )];
            let event = published
                .due_events(&subject(), "volume", &issues)
                .remove(0);
            published.mark(&subject(), &issues, ObjectReference::default());
            let recovery = published.due_events(&subject(), "volume", &[]).remove(0);
            (event.key, recovery.key)
        };
        assert_eq!(keys(1), keys(1));
        assert_ne!(keys(1).0, keys(2).0);
        assert_ne!(keys(1).1, keys(2).1);
    }
}
