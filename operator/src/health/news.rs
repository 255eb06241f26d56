//! What is news about the health of something, and in which words it is told.
//!
//! *Invariant:* pure but for what it remembers; a problem is told by its kind and reason, so a message
//! that only counts on is no news.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
};

use chrono::{DateTime, Duration, Utc};
use cistern_crds::health::{PoolProblem, PoolSeverity, VolumeProblem, VolumeSeverity};
use k8s_openapi::api::core::v1::ObjectReference;

use super::Subject;
use crate::events::Telling;

/// How long the API server keeps events.
const KEPT: Duration = Duration::hours(1);
/// What events about health say that they came from.
const ACTION: &str = "WatchingHealth";

/// What kind of trouble it is: the word that an event says for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// The filesystem of a volume is being checked before it is used.
    VolumeChecking,
    /// A volume works, but not as well as it should.
    VolumeDegraded,
    /// A volume cannot be used.
    VolumeInaccessible,
    /// Data of a volume is gone, or will be.
    VolumeDataLoss,
    /// A pool on a node works, but not as well as it should.
    PoolDegraded,
    /// A pool on a node cannot be read or written.
    PoolUnreachable,
    /// The agent of a node is not heard of.
    AgentSilent,
}

/// One thing that is wrong with a subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trouble {
    pub(super) kind: Kind,
    pub(super) reason: String,
    pub(super) message: String,
    pub(super) since: DateTime<Utc>,
}

/// What is known to be wrong with a subject, and since when.
type Known = BTreeMap<(Kind, String), DateTime<Utc>>;

/// What was told of every subject that something is wrong with.
#[derive(Debug)]
pub(super) struct Told {
    since: DateTime<Utc>,
    subjects: Mutex<HashMap<Subject, (Known, ObjectReference)>>,
}

impl Kind {
    /// For programs: the reason of the event.
    pub(super) const fn came(self) -> &'static str {
        match self {
            Self::VolumeChecking => "VolumeChecking",
            Self::VolumeDegraded => "VolumeDegraded",
            Self::VolumeInaccessible => "VolumeInaccessible",
            Self::VolumeDataLoss => "VolumeDataLoss",
            Self::PoolDegraded => "PoolDegraded",
            Self::PoolUnreachable => "PoolUnreachable",
            Self::AgentSilent => "AgentSilent",
        }
    }

    /// The same once all of it is over.
    const fn went(self) -> &'static str {
        match self {
            Self::VolumeChecking => "VolumeChecked",
            Self::VolumeDegraded | Self::VolumeInaccessible | Self::VolumeDataLoss => {
                "VolumeRecovered"
            }
            Self::PoolDegraded | Self::PoolUnreachable => "PoolRecovered",
            Self::AgentSilent => "AgentReporting",
        }
    }
}

impl From<&VolumeProblem> for Trouble {
    fn from(problem: &VolumeProblem) -> Self {
        Self {
            kind: match problem.severity {
                VolumeSeverity::Degraded => Kind::VolumeDegraded,
                VolumeSeverity::Inaccessible => Kind::VolumeInaccessible,
                VolumeSeverity::DataLoss => Kind::VolumeDataLoss,
            },
            reason: problem.reason.clone(),
            message: problem.message.clone(),
            since: problem.since,
        }
    }
}

impl From<&PoolProblem> for Trouble {
    fn from(problem: &PoolProblem) -> Self {
        Self {
            kind: match problem.severity {
                PoolSeverity::Degraded => Kind::PoolDegraded,
                PoolSeverity::Unreachable => Kind::PoolUnreachable,
            },
            reason: problem.reason.clone(),
            message: problem.message.clone(),
            since: problem.since,
        }
    }
}

impl Told {
    /// Nothing yet, from this moment on.
    pub(super) fn new(now: DateTime<Utc>) -> Self {
        Self {
            since: now,
            subjects: Mutex::default(),
        }
    }

    /// What there is to tell of a subject now. `name` is what people call it.
    pub(super) fn news(&self, subject: &Subject, name: &str, troubles: &[Trouble]) -> Vec<Telling> {
        let subjects = self.lock();
        let known = subjects.get(subject).map(|(known, _)| known);
        if let Some(known) = known.filter(|_| troubles.is_empty()) {
            return recovery(name, known).into_iter().collect();
        }
        let is_news = |trouble: &&Trouble| {
            let is_known = known.is_some_and(|known| known.contains_key(&trouble.key()));
            !is_known && trouble.since + KEPT > self.since
        };
        let news = troubles.iter().filter(is_news);
        news.map(|trouble| trouble.telling(name)).collect()
    }

    /// Notes that all of it was told, and of which object.
    pub(super) fn mark(&self, subject: &Subject, troubles: &[Trouble], regarding: ObjectReference) {
        let known = troubles
            .iter()
            .map(|trouble| (trouble.key(), trouble.since));
        let known: Known = known.collect();
        let mut subjects = self.lock();
        if known.is_empty() {
            subjects.remove(subject);
        } else {
            subjects.insert(subject.clone(), (known, regarding));
        }
    }

    /// The subject is gone, and there is nothing to tell of it.
    pub(super) fn forget(&self, subject: &Subject) {
        self.lock().remove(subject);
    }

    /// The object that was told of last when something was wrong with a subject.
    pub(super) fn regarding(&self, subject: &Subject) -> Option<ObjectReference> {
        let subjects = self.lock();
        subjects
            .get(subject)
            .map(|(_, regarding)| regarding.clone())
    }

    /// Every subject that something was wrong with.
    pub(super) fn subjects(&self) -> Vec<Subject> {
        self.lock().keys().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Subject, (Known, ObjectReference)>> {
        self.subjects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Trouble {
    fn key(&self) -> (Kind, String) {
        (self.kind, self.reason.clone())
    }

    fn telling(&self, name: &str) -> Telling {
        Telling {
            is_warning: self.kind != Kind::VolumeChecking,
            reason: self.kind.came(),
            action: ACTION,
            note: naming(name, &self.message),
            key: format!("{} {}", self.reason, self.since.to_rfc3339()),
        }
    }
}

/// A message about something, which as a rule begins with what it is about.
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

/// Nothing of what was known is left.
fn recovery(name: &str, known: &Known) -> Option<Telling> {
    let ((worst, _), _) = known.last_key_value()?;
    let last = known.values().max()?;
    let reasons: Vec<&str> = known.keys().map(|(_, reason)| reason.as_str()).collect();
    let note = match worst {
        Kind::VolumeChecking => format!("the check of {name} has ended"),
        _ => format!("{name} is well again; over: {}", reasons.join(", ")),
    };
    Some(Telling {
        is_warning: false,
        reason: worst.went(),
        action: ACTION,
        note,
        // Another recovery follows another problem.
        key: last.to_rfc3339(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::moment;

    fn trouble(kind: Kind, reason: &str, minutes: i64) -> Trouble {
        Trouble {
            kind,
            reason: reason.to_owned(),
            message: format!("it is {reason}: mend it"),
            since: moment() + Duration::minutes(minutes),
        }
    }

    fn subject() -> Subject {
        Subject::Volume("pvc-1".to_owned())
    }

    /// Tells what is news of these troubles: the reason and note of each.
    fn tell(told: &Told, troubles: &[Trouble]) -> Vec<(&'static str, String)> {
        let news = told.news(&subject(), "volume pvc-1 on node w1", troubles);
        told.mark(&subject(), troubles, ObjectReference::default());
        let news = news.into_iter();
        news.map(|telling| (telling.reason, telling.note)).collect()
    }

    #[test]
    fn each_problem_is_told_once_when_it_comes_and_one_recovery_when_all_are_over() {
        let told = Told::new(moment());
        let slow = trouble(Kind::VolumeDegraded, "FilesystemErrors", 1);
        let gone = trouble(Kind::VolumeDataLoss, "ImageDeleted", 2);
        assert_eq!(tell(&told, &[]), []);
        let note = "volume pvc-1 on node w1: it is FilesystemErrors: mend it";
        let first = tell(&told, std::slice::from_ref(&slow));
        assert_eq!(first, [("VolumeDegraded", note.to_owned())]);
        let mut worse = slow.clone();
        worse.message = "it has counted on".to_owned();
        assert_eq!(tell(&told, &[worse.clone()]), []);
        let second = tell(&told, &[worse, gone.clone()]);
        assert_eq!(second.len(), 1);
        assert_eq!(second[0].0, "VolumeDataLoss");
        // One of two is over: the other is what counts, and was told.
        assert_eq!(tell(&told, std::slice::from_ref(&slow)), []);
        tell(&told, &[slow, gone]);
        let note = "volume pvc-1 on node w1 is well again; over: FilesystemErrors, ImageDeleted";
        assert_eq!(tell(&told, &[]), [("VolumeRecovered", note.to_owned())]);
        assert_eq!(tell(&told, &[]), []);
        assert_eq!(told.subjects(), []);
    }

    #[test]
    fn a_check_is_no_warning_and_neither_is_its_end() {
        let told = Told::new(moment());
        let waits = trouble(Kind::VolumeChecking, "CheckWaiting", 1);
        let runs = trouble(Kind::VolumeChecking, "CheckRunning", 1);
        for trouble in [waits, runs] {
            let news = told.news(&subject(), "volume pvc-1", std::slice::from_ref(&trouble));
            assert_eq!((news.len(), news[0].reason), (1, "VolumeChecking"));
            assert!(!news[0].is_warning);
            told.mark(&subject(), &[trouble], ObjectReference::default());
        }
        let end = "the check of volume pvc-1 on node w1 has ended".to_owned();
        assert_eq!(tell(&told, &[]), [("VolumeChecked", end)]);
    }

    #[test]
    fn a_message_that_says_what_it_is_about_is_told_as_it_is() {
        let note = |message| naming("volume pvc-1 on node w1", message);
        assert_eq!(note("volume pvc-1: it is slow"), "volume pvc-1: it is slow");
        assert_eq!(note("it is slow"), "volume pvc-1 on node w1: it is slow");
    }

    #[test]
    fn what_an_earlier_operator_told_is_not_told_again_after_a_restart() {
        let told = Told::new(moment());
        let old = trouble(Kind::PoolUnreachable, "ProbeTimedOut", -61);
        let new = trouble(Kind::PoolDegraded, "NearlyFull", -59);
        let news = tell(&told, &[old, new]);
        assert_eq!(news.len(), 1);
        assert_eq!(news[0].0, "PoolDegraded");
        // Its end is news.
        assert_eq!(tell(&told, &[])[0].0, "PoolRecovered");
    }

    #[test]
    fn a_problem_that_comes_again_is_another_telling_and_so_is_its_end() {
        let keys = |minutes| {
            let told = Told::new(moment());
            let troubles = [trouble(Kind::VolumeInaccessible, "PoolNotReady", minutes)];
            let came = told.news(&subject(), "volume", &troubles).remove(0);
            told.mark(&subject(), &troubles, ObjectReference::default());
            let went = told.news(&subject(), "volume", &[]).remove(0);
            (came.key, went.key)
        };
        assert_eq!(keys(1), keys(1));
        assert_ne!(keys(1).0, keys(2).0);
        assert_ne!(keys(1).1, keys(2).1);
    }
}
