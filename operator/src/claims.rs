//! Events for people: a claim of ours that cannot be placed, a class that can make no volume, and a
//! volume that has not grown.
//!
//! Where nobody else tells them. A class with wrong parameters has no capacity anywhere, so with
//! late binding the scheduler chooses no node, and CreateVolume, which would refuse it, is never
//! called. And kubelet says nothing of a filesystem that waits for the next pod to grow.
//!
//! *Invariant:* an event is written when what it says has been so for a while and is news, not with
//! every look.

mod problem;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use cistern_crds::{ConditionType, Parameters, PoolVolume, Reason, StorageNode, condition, names};
use k8s_openapi::api::{
    core::v1::{ObjectReference, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use kube::{
    Resource as _, ResourceExt as _,
    core::DeserializeGuard,
    runtime::{
        events::{Event, EventType, Recorder, Reporter},
        reflector::ObjectRef,
    },
};
use problem::{NodeRoom, Problem, Wanted};
use tokio::time::Instant;

use crate::{
    Context, Stop,
    controller::{self, Next},
    offer::offer,
    topology,
    world::{Change, World},
};

/// Changes are gathered this long: rooms change with every volume.
const GATHER: Duration = Duration::from_millis(500);
/// A problem is told once it has lasted this long. Most end by themselves: objects that are
/// applied together arrive one after the other.
const SETTLE: Duration = Duration::from_secs(2);
/// New numbers of a problem that was told already are told this often.
const UPDATE: Duration = Duration::from_mins(1);
/// The API server forgets an event after an hour; what is still so is told again before.
const REPEAT: Duration = Duration::from_mins(45);

/// Why nobody could be told.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused the event.
    #[error("cannot write an event about {subject}")]
    Publish {
        /// What it is about.
        subject: String,
        /// The API server's answer.
        #[source]
        source: kube::Error,
    },
}

/// What an event is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Subject {
    Class(String),
    Claim { namespace: String, name: String },
    Volume(String),
}

/// What has been told about each subject that is there.
#[derive(Debug, Default)]
struct Told(Mutex<HashMap<Subject, Telling>>);

#[derive(Clone, Debug, Default, PartialEq)]
struct Telling {
    /// Which object of that name it is about.
    uid: Option<String>,
    /// What kind of problem it has now, and since when.
    lasting: Option<(&'static str, Instant)>,
    /// What was told last, and when.
    last: Option<(Problem, Instant)>,
}

/// Runs the controller until `stop`.
pub async fn run(context: &Context, stop: Stop) {
    let told = Told::default();
    let subjects = |change: &Change| concerned(&context.world, change);
    let reconcile = async |subject: &Subject| reconcile(context, &told, subject).await;
    let schedule = controller::Schedule::gathering("claims", GATHER);
    let Context { world, metrics, .. } = context;
    controller::run(schedule, world, metrics, stop, subjects, reconcile).await;
}

async fn reconcile(context: &Context, told: &Told, subject: &Subject) -> Result<Next, Error> {
    let world = &context.world;
    let found = match subject {
        Subject::Class(name) => world
            .class(name)
            .map(|class| (class.object_ref(&()), parameters(world, &class).err())),
        Subject::Claim { namespace, name } => world
            .claims
            .get(&ObjectRef::new(name).within(namespace))
            .map(|claim| (claim.object_ref(&()), claim_problem(world, &claim))),
        Subject::Volume(name) => world
            .volumes
            .get(&ObjectRef::new(name))
            .and_then(|guard| growth_problem(guard.0.as_ref().ok()?))
            .map(|(claim, problem)| (claim, Some(problem))),
    };
    let Some((regarding, problem)) = found else {
        told.forget(subject);
        return Ok(Next::OnChange);
    };
    let uid = regarding.uid.as_deref();
    let turn = told.consider(subject, uid, problem.as_ref(), Instant::now());
    let problem = match (turn, problem) {
        (Turn::Tell, Some(problem)) => problem,
        (Turn::Wait(rest), _) => return Ok(Next::After(rest)),
        (Turn::Tell | Turn::Rest, _) => return Ok(Next::OnChange),
    };
    publish(context, &regarding, &problem)
        .await
        .map_err(|source| Error::Publish {
            subject: format!("{subject:?}"),
            source,
        })?;
    context.metrics.reported(problem.reason());
    told.mark(subject, problem, Instant::now());
    Ok(Next::After(REPEAT))
}

async fn publish(
    context: &Context,
    regarding: &ObjectReference,
    problem: &Problem,
) -> Result<(), kube::Error> {
    let reporter = Reporter {
        controller: names::DRIVER.to_owned(),
        instance: Some(context.instance.clone()),
    };
    // A recorder that remembers would repeat its first note for as long as the reason is the same.
    let recorder = Recorder::new(context.client.clone(), reporter);
    let event = Event {
        type_: EventType::Warning,
        reason: problem.reason().to_owned(),
        note: Some(problem.note()),
        action: problem.action().to_owned(),
        secondary: None,
    };
    recorder.publish(&event, regarding).await
}

/// The subjects that a change concerns.
fn concerned(world: &World, change: &Change) -> Vec<Subject> {
    let claims = |of: Option<&str>| {
        let class = |claim: &PersistentVolumeClaim| {
            claim
                .spec
                .as_ref()
                .and_then(|spec| spec.storage_class_name.clone())
        };
        let claims = world.claims.state_filter(|claim| {
            class(claim).is_some_and(|class| match of {
                Some(name) => class == name,
                None => world.class(&class).is_some(),
            })
        });
        claims
            .iter()
            .map(|claim| Subject::claim(claim))
            .collect::<Vec<_>>()
    };
    match change {
        Change::Everything | Change::Pool(_) => {
            let classes = world.classes.state();
            let classes = classes.iter().map(|class| Subject::Class(class.name_any()));
            let volumes = world.volumes.state_filter(is_not_expanded);
            let volumes = volumes
                .iter()
                .map(|volume| Subject::Volume(volume.name_any()));
            claims(None)
                .into_iter()
                .chain(classes)
                .chain(volumes)
                .collect()
        }
        Change::StorageNode(_) | Change::Node(_) => claims(None),
        Change::Volume { name, .. } => {
            let mut subjects = claims(None);
            subjects.push(Subject::Volume(name.clone()));
            subjects
        }
        Change::Class(name) => {
            let mut subjects = claims(Some(name));
            subjects.push(Subject::Class(name.clone()));
            subjects
        }
        Change::Claim { namespace, name } => vec![Subject::Claim {
            namespace: namespace.clone(),
            name: name.clone(),
        }],
        Change::Snapshot { .. } | Change::Capacity { .. } => Vec::new(),
    }
}

/// What a class says; or what keeps it from making any volume.
fn parameters(world: &World, class: &StorageClass) -> Result<Parameters, Problem> {
    let name = class.name_any();
    match Parameters::of_class(class.parameters.iter().flatten()) {
        Ok(parameters) if world.pool(&parameters.pool).is_some() => Ok(parameters),
        Ok(Parameters { pool, .. }) => Err(Problem::PoolMissing { class: name, pool }),
        Err(error) => Err(Problem::Parameters { class: name, error }),
    }
}

/// What keeps a claim of ours from being placed.
fn claim_problem(world: &World, claim: &PersistentVolumeClaim) -> Option<Problem> {
    let spec = claim.spec.as_ref()?;
    let class = world.class(spec.storage_class_name.as_deref()?)?;
    let parameters = match parameters(world, &class) {
        Ok(parameters) => parameters,
        Err(problem) => return Some(problem),
    };
    // A volume that is being made has its room already.
    let volume = names::volume_name(&format!("pvc-{}", claim.uid().unwrap_or_default()));
    if world.volumes.get(&ObjectRef::new(&volume)).is_some() {
        return None;
    }
    let wanted = Wanted::of(spec, parameters)?;
    wanted.problem(&rooms(world, &class, &wanted))
}

fn is_not_expanded(volume: &DeserializeGuard<PoolVolume>) -> bool {
    let status = volume
        .0
        .as_ref()
        .ok()
        .and_then(|volume| volume.status.as_ref());
    status.is_some_and(|status| !status.conditions.is_empty())
}

/// Why a volume has not grown, and the claim that it was made for. What the resizer was answered
/// the resizer tells.
fn growth_problem(volume: &PoolVolume) -> Option<(ObjectReference, Problem)> {
    let conditions = &volume.status.as_ref()?.conditions;
    let expanded = condition::find(conditions, ConditionType::Expanded)?;
    let is_on_node = match Reason::parse(&expanded.reason) {
        Some(Reason::FilesystemSmaller | Reason::ExpansionFailed) => true,
        Some(_) | None => false,
    };
    let regarding = of_volume(volume).filter(|_| is_on_node)?;
    let problem = Problem::NotExpanded {
        volume: volume.name_any(),
        why: expanded.message.clone(),
    };
    Some((regarding, problem))
}

/// The claim that a volume was made for, if anybody said.
pub fn of_volume(volume: &PoolVolume) -> Option<ObjectReference> {
    let claim = volume.spec.claim.as_ref()?;
    Some(ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("PersistentVolumeClaim".to_owned()),
        namespace: Some(claim.namespace.clone()),
        name: Some(claim.name.clone()),
        // As the provisioner names its volumes.
        uid: volume
            .spec
            .requested_name
            .strip_prefix("pvc-")
            .map(str::to_owned),
        ..ObjectReference::default()
    })
}

/// What each node that carries the pool and that the class allows has for a claim.
fn rooms(world: &World, class: &StorageClass, wanted: &Wanted) -> BTreeMap<String, NodeRoom> {
    let room = |node: &StorageNode| {
        let name = node.name_any();
        let carried = node.spec.pools.iter().any(|pool| pool.name == wanted.pool);
        let labels = world.node(&name)?.metadata.labels.clone();
        if !carried || !problem::allows(class, labels.as_ref()) {
            return None;
        }
        let registration = topology::observe(world, &name);
        let room = match offer(&wanted.pool, Some(node), &registration) {
            Ok(status) => NodeRoom::Free {
                largest: status.largest_volume(wanted.provisioning),
                usable: status.usable,
            },
            Err(refusal) => NodeRoom::None(refusal),
        };
        Some((name, room))
    };
    let nodes = world.storage_nodes.state();
    let readable = nodes.iter().filter_map(|guard| guard.0.as_ref().ok());
    readable.filter_map(room).collect()
}

/// Whether now is the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// Tell it now.
    Tell,
    /// Look again after this long.
    Wait(Duration),
    /// There is nothing to tell.
    Rest,
}

impl Told {
    /// Notes what is wrong with a subject, and says whether to tell it now.
    fn consider(
        &self,
        subject: &Subject,
        uid: Option<&str>,
        problem: Option<&Problem>,
        now: Instant,
    ) -> Turn {
        let mut tellings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let telling = tellings.entry(subject.clone()).or_default();
        if telling.uid.as_deref() != uid {
            *telling = Telling {
                uid: uid.map(str::to_owned),
                ..Telling::default()
            };
        }
        let Some(problem) = problem else {
            telling.lasting = None;
            return Turn::Rest;
        };
        let since = match telling.lasting {
            Some((reason, since)) if reason == problem.reason() => since,
            Some(_) | None => now,
        };
        telling.lasting = Some((problem.reason(), since));
        let news = match &telling.last {
            Some((last, told)) if last == problem => *told + REPEAT,
            Some((last, told)) if last.reason() == problem.reason() => *told + UPDATE,
            Some(_) | None => now,
        };
        match news.max(since + SETTLE).saturating_duration_since(now) {
            Duration::ZERO => Turn::Tell,
            rest => Turn::Wait(rest),
        }
    }

    /// Notes that it was told.
    fn mark(&self, subject: &Subject, problem: Problem, now: Instant) {
        let mut tellings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(telling) = tellings.get_mut(subject) {
            telling.last = Some((problem, now));
        }
    }

    /// The subject is gone, or no longer waits.
    fn forget(&self, subject: &Subject) {
        let mut tellings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tellings.remove(subject);
    }
}

impl Subject {
    fn claim(claim: &PersistentVolumeClaim) -> Self {
        Self::Claim {
            namespace: claim.namespace().unwrap_or_default(),
            name: claim.name_any(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(pool: &str) -> Problem {
        Problem::PoolMissing {
            class: "fast".to_owned(),
            pool: pool.to_owned(),
        }
    }

    #[test]
    fn a_problem_is_told_once_it_has_lasted_and_again_only_when_it_is_news() {
        let told = Told::default();
        let subject = Subject::Class("fast".to_owned());
        let start = Instant::now();
        let turn = |problem: &Problem, after: Duration| {
            told.consider(&subject, Some("1"), Some(problem), start + after)
        };
        assert_eq!(turn(&missing("a"), Duration::ZERO), Turn::Wait(SETTLE));
        assert_eq!(turn(&missing("a"), SETTLE / 2), Turn::Wait(SETTLE / 2));
        assert_eq!(turn(&missing("a"), SETTLE), Turn::Tell);
        told.mark(&subject, missing("a"), start + SETTLE);
        assert_eq!(turn(&missing("a"), SETTLE), Turn::Wait(REPEAT));
        assert_eq!(turn(&missing("b"), SETTLE), Turn::Wait(UPDATE));
        assert_eq!(turn(&missing("b"), SETTLE + UPDATE), Turn::Tell);
        assert_eq!(turn(&missing("a"), SETTLE + REPEAT), Turn::Tell);
    }

    #[test]
    fn a_problem_that_comes_and_goes_is_not_told_each_time() {
        let told = Told::default();
        let subject = Subject::Class("fast".to_owned());
        let start = Instant::now();
        let problem = missing("a");
        let turn = |problem, after| told.consider(&subject, Some("1"), problem, start + after);
        assert_eq!(turn(None, Duration::ZERO), Turn::Rest);
        turn(Some(&problem), Duration::ZERO);
        assert_eq!(turn(None, SETTLE / 2), Turn::Rest);
        assert_eq!(turn(Some(&problem), SETTLE), Turn::Wait(SETTLE));
        assert_eq!(turn(Some(&problem), SETTLE * 2), Turn::Tell);
        told.mark(&subject, missing("a"), start + SETTLE * 2);
        assert_eq!(turn(None, SETTLE * 3), Turn::Rest);
        let again = turn(Some(&problem), SETTLE * 3);
        assert_eq!(again, Turn::Wait(REPEAT.saturating_sub(SETTLE)));
    }

    #[test]
    fn another_object_of_the_same_name_begins_anew() {
        let told = Told::default();
        let subject = Subject::Class("fast".to_owned());
        let start = Instant::now();
        let problem = missing("a");
        let turn = |uid| told.consider(&subject, Some(uid), Some(&problem), start + SETTLE);
        told.consider(&subject, Some("1"), Some(&problem), start);
        assert_eq!(turn("1"), Turn::Tell);
        assert_eq!(turn("2"), Turn::Wait(SETTLE));
        told.forget(&subject);
        assert_eq!(turn("2"), Turn::Wait(SETTLE));
    }
}
