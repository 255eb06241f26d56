//! Writes events about claims of this driver that cannot be placed, classes that cannot provision
//! volumes, and volumes that have not grown.
//!
//! No other component reports these. A class with wrong parameters has no capacity anywhere, so with
//! late binding the scheduler chooses no node, and CreateVolume, which would refuse it, is never
//! called. And kubelet does not report a filesystem that waits for the next pod to grow.
//!
//! *Invariant:* an event is written when a problem has lasted for a while and is new or has changed,
//! not with every reconcile.

mod history;
mod problem;

use std::{collections::BTreeMap, time::Duration};

use cistern_crds::{
    ConditionStatus, ConditionType, Parameters, PoolVolume, Provisioning, Reason, StorageNode,
    StoragePool, condition, names,
};
use k8s_openapi::api::{
    core::v1::{ObjectReference, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use kube::{
    Resource as _, ResourceExt as _, core::DeserializeGuard, runtime::reflector::ObjectRef,
};
use tokio::time::Instant;

use self::{
    history::{EventHistory, PublishDecision, REPEAT},
    problem::{NodeRoom, Problem, VolumeRequest},
};
use crate::{
    Context, Stop,
    availability::available_pool,
    change::Change,
    cluster_state::ClusterState,
    controller::{self, Next},
    events::{self, publish_once},
    overcommit::Overcommit,
    registration,
};

/// Changes are gathered this long: rooms change with every volume.
const GATHER: Duration = Duration::from_millis(500);

/// Subject of an event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Subject {
    Class(String),
    Claim { namespace: String, name: String },
    Volume(String),
}

/// Runs the controller until `stop`.
pub async fn run(context: &Context, stop: Stop) {
    let history = EventHistory::default();
    let subjects = |change: &Change| concerned(&context.cluster, change);
    let reconcile = async |subject: &Subject| reconcile(context, &history, subject).await;
    let schedule = controller::Schedule::gathering("claims", GATHER);
    let Context {
        cluster, metrics, ..
    } = context;
    controller::run(schedule, cluster, metrics, stop, subjects, reconcile).await;
}

async fn reconcile(
    context: &Context,
    history: &EventHistory,
    subject: &Subject,
) -> Result<Next, events::Error> {
    let cluster = &context.cluster;
    let found = match subject {
        Subject::Class(name) => cluster
            .class(name)
            .map(|class| (class.object_ref(&()), parameters(cluster, &class).err())),
        Subject::Claim { namespace, name } => cluster
            .claims
            .get(&ObjectRef::new(name).within(namespace))
            .map(|claim| (claim.object_ref(&()), claim_problem(cluster, &claim))),
        Subject::Volume(name) => cluster
            .volumes
            .get(&ObjectRef::new(name))
            .and_then(|guard| volume_problem(guard.0.as_ref().ok()?))
            .map(|(claim, problem)| (claim, Some(problem))),
    };
    let Some((regarding, problem)) = found else {
        history.forget(subject);
        return Ok(Next::OnChange);
    };
    let uid = regarding.uid.as_deref();
    let turn = history.consider(subject, uid, problem.as_ref(), Instant::now());
    let problem = match (turn, problem) {
        (PublishDecision::Publish, Some(problem)) => problem,
        (PublishDecision::Wait(rest), _) => return Ok(Next::After(rest)),
        (PublishDecision::Publish | PublishDecision::Skip, _) => return Ok(Next::OnChange),
    };
    publish_once(context, &regarding, &problem.event((context.now)())).await?;
    history.mark(subject, problem, Instant::now());
    Ok(Next::After(REPEAT))
}

/// The subjects that a change concerns.
fn concerned(cluster: &ClusterState, change: &Change) -> Vec<Subject> {
    let claims = |of: Option<&str>| {
        let class = |claim: &PersistentVolumeClaim| {
            claim
                .spec
                .as_ref()
                .and_then(|spec| spec.storage_class_name.clone())
        };
        let claims = cluster.claims.state_filter(|claim| {
            class(claim).is_some_and(|class| match of {
                Some(name) => class == name,
                None => cluster.class(&class).is_some(),
            })
        });
        claims
            .iter()
            .map(|claim| Subject::claim(claim))
            .collect::<Vec<_>>()
    };
    match change {
        Change::Everything | Change::Pool(_) => {
            let classes = cluster.classes.state();
            let classes = classes.iter().map(|class| Subject::Class(class.name_any()));
            let volumes = cluster.volumes.state_filter(is_reportable);
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

/// Parameters of a class, or the problem that keeps it from provisioning volumes.
fn parameters(cluster: &ClusterState, class: &StorageClass) -> Result<Parameters, Problem> {
    let name = class.name_any();
    let parameters = match Parameters::of_class(class.parameters.iter().flatten()) {
        Ok(parameters) => parameters,
        Err(error) => return Err(Problem::Parameters { class: name, error }),
    };
    let Some(guard) = cluster.pool(&parameters.pool) else {
        let pool = parameters.pool;
        return Err(Problem::PoolMissing { class: name, pool });
    };
    let is_thin_alone = |pool: &StoragePool| {
        let overcommit = Overcommit::of(pool, || cluster.thick_in(&parameters.pool));
        overcommit.is_for_thin_alone()
    };
    match parameters.attributes.provisioning {
        Provisioning::Thick if guard.0.as_ref().is_ok_and(is_thin_alone) => {
            let pool = parameters.pool;
            Err(Problem::Overcommitted { class: name, pool })
        }
        Provisioning::Thick | Provisioning::Thin => Ok(parameters),
    }
}

/// The problem that keeps a claim of this driver from being placed.
fn claim_problem(cluster: &ClusterState, claim: &PersistentVolumeClaim) -> Option<Problem> {
    let spec = claim.spec.as_ref()?;
    let class = cluster.class(spec.storage_class_name.as_deref()?)?;
    let parameters = match parameters(cluster, &class) {
        Ok(parameters) => parameters,
        Err(problem) => return Some(problem),
    };
    // A volume that is being made has its room already.
    let volume = names::volume_name(&format!("pvc-{}", claim.uid().unwrap_or_default()));
    if cluster.volumes.get(&ObjectRef::new(&volume)).is_some() {
        return None;
    }
    let requested = VolumeRequest::of(spec, parameters)?;
    requested.problem(&rooms(cluster, &class, &requested))
}

fn is_reportable(volume: &DeserializeGuard<PoolVolume>) -> bool {
    let status = volume
        .0
        .as_ref()
        .ok()
        .and_then(|volume| volume.status.as_ref());
    status.is_some_and(|status| !status.conditions.is_empty())
}

/// Why a volume is not as its claim requests, and the claim that it was made for. The resizer itself
/// reports the errors that it received.
fn volume_problem(volume: &PoolVolume) -> Option<(ObjectReference, Problem)> {
    let conditions = &volume.status.as_ref()?.conditions;
    let message = |kind, is_reported: fn(Reason) -> bool| {
        let condition = condition::find(conditions, kind)
            .filter(|condition| condition.status == ConditionStatus::False.as_str())?;
        let reason = Reason::parse(&condition.reason)?;
        is_reported(reason).then(|| (volume.name_any(), condition.message.clone()))
    };
    let not_expanded = || {
        let is_on_node =
            |reason| matches!(reason, Reason::FilesystemSmaller | Reason::ExpansionFailed);
        let (volume, why) = message(ConditionType::Expanded, is_on_node)?;
        Some(Problem::NotExpanded { volume, why })
    };
    let not_modified = || {
        let is_on_node = |reason| reason == Reason::ModificationFailed;
        let (volume, why) = message(ConditionType::AttributesApplied, is_on_node)?;
        Some(Problem::NotModified { volume, why })
    };
    let not_limited = || {
        let (volume, why) = message(ConditionType::LimitsEnforced, |_| true)?;
        Some(Problem::NotLimited { volume, why })
    };
    let problem = not_expanded().or_else(not_modified).or_else(not_limited)?;
    Some((of_volume(volume)?, problem))
}

/// The claim that a volume was made for, if its spec names one.
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

/// Room for a claim on each node that carries the pool and that the class allows.
fn rooms(
    cluster: &ClusterState,
    class: &StorageClass,
    requested: &VolumeRequest,
) -> BTreeMap<String, NodeRoom> {
    let room = |node: &StorageNode| {
        let name = node.name_any();
        let carried = node
            .spec
            .pools
            .iter()
            .any(|pool| pool.name == requested.pool);
        let labels = cluster.node(&name)?.metadata.labels.clone();
        if !carried || !problem::allows(class, labels.as_ref()) {
            return None;
        }
        let registration = registration::observe(cluster, &name);
        let room = match available_pool(&requested.pool, Some(node), &registration) {
            Ok(status) => NodeRoom::Free {
                largest: status.largest_volume(requested.provisioning),
                usable: status.usable,
            },
            Err(refusal) => NodeRoom::None(refusal),
        };
        Some((name, room))
    };
    let nodes = cluster.storage_nodes.state();
    let readable = nodes.iter().filter_map(|guard| guard.0.as_ref().ok());
    readable.filter_map(room).collect()
}

impl Subject {
    fn claim(claim: &PersistentVolumeClaim) -> Self {
        Self::Claim {
            namespace: claim.namespace().unwrap_or_default(),
            name: claim.name_any(),
        }
    }
}
