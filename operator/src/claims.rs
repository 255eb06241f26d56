//! Writes events about claims of this driver that cannot be placed, classes that cannot provision
//! volumes, and volumes that have not grown.
//!
//! No other component reports these. A class with wrong parameters has no capacity anywhere, so with
//! late binding the scheduler chooses no node, and CreateVolume, which would refuse it, is never
//! called. And kubelet does not report a filesystem that waits for the next pod to grow.
//!
//! *Invariant:* an event is not written with every reconcile, but when a problem has lasted for a
//! while and is new or has changed. An object has one event of each reason. The rate of all events
//! together is limited, regardless of the number of waiting claims.

mod history;
mod problem;
mod rooms;
mod schedule;

use std::time::Duration;

use cistern_crds::{
    AttributeChanges, ConditionStatus, ConditionType, Parameters, PoolVolume, Provisioning, Reason,
    StoragePool, condition, names,
};
use k8s_openapi::api::{
    core::v1::{ObjectReference, PersistentVolumeClaim, PersistentVolumeClaimSpec},
    storage::v1::StorageClass,
};
use kube::{Resource as _, ResourceExt as _};
use tokio::time::Instant;

use self::{
    history::{EventHistory, PublishDecision, REPEAT},
    problem::{Problem, VolumeRequest},
    rooms::Rooms,
};
use crate::{
    Context,
    change::Change,
    cluster_state::ClusterState,
    controller::{Controller, Next},
    events::{self, publish_or_update},
    identity,
    overcommit::Overcommit,
    stored::StoredVolume,
};

/// How long changes are gathered, because rooms change with every volume.
const GATHER: Duration = Duration::from_millis(500);

/// Subject of an event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// A StorageClass.
    Class(String),
    /// A claim that waits for its volume.
    Claim {
        /// Namespace of the claim.
        namespace: String,
        /// Name of the claim.
        name: String,
    },
    /// A volume that is not as its claim requests.
    Volume(String),
}

/// Writes events about claims, classes and volumes that are not as requested.
#[derive(Debug, Default)]
pub struct ClaimsController {
    history: EventHistory,
    rooms: Rooms,
}

impl Controller for ClaimsController {
    type Key = Subject;
    type Error = events::Error;
    const NAME: &'static str = "claims";
    const GATHER: Duration = GATHER;

    /// Marks the rooms that a change makes out of date.
    ///
    /// A claim whose volume is being created has no problem. The change of the volume does not concern
    /// the claim, because each problem is checked again before it is published.
    fn keys(&self, context: &Context, change: &Change) -> Vec<Subject> {
        let cluster = &context.cluster;
        match change {
            Change::Everything => {
                self.rooms.forget_all();
                let volumes = cluster.volumes.keys(is_reportable).into_iter();
                let volumes = volumes.map(Subject::Volume);
                declared(cluster).into_iter().chain(volumes).collect()
            }
            Change::Pool(_) | Change::AttributesClass(_) => declared(cluster),
            Change::StorageNode(node) | Change::Node(node) => {
                self.rooms.outdate(node);
                claims(cluster, |class| cluster.classes.contains(class))
            }
            Change::Volume { name, .. } => vec![Subject::Volume(name.clone())],
            Change::Class(name) => {
                self.rooms.forget(name);
                let mut subjects = claims(cluster, |class| class == name);
                subjects.push(Subject::Class(name.clone()));
                subjects
            }
            Change::Claim { namespace, name } => vec![Subject::Claim {
                namespace: namespace.clone(),
                name: name.clone(),
            }],
            Change::PoolStatus(_)
            | Change::Snapshot { .. }
            | Change::Replica(_)
            | Change::Move(_)
            | Change::Transfer(_)
            | Change::Owner
            | Change::Capacity { .. } => Vec::new(),
        }
    }

    async fn reconcile(&self, context: &Context, subject: &Subject) -> Result<Next, events::Error> {
        let Some(Observed { uid, problem }) = observe(&context.cluster, &self.rooms, subject)
        else {
            self.history.forget(subject);
            return Ok(Next::OnChange);
        };
        let present = problem.as_ref().map(|(_, problem)| problem);
        let turn = self
            .history
            .consider(subject, uid.as_deref(), present, Instant::now());
        let (regarding, problem) = match (turn, problem) {
            (PublishDecision::Publish, Some(problem)) => problem,
            (PublishDecision::Wait(rest), _) => return Ok(Next::After(rest)),
            (PublishDecision::Publish | PublishDecision::Skip, _) => return Ok(Next::OnChange),
        };
        let count = self.history.count(subject, &problem) + 1;
        publish_or_update(context, &regarding, &problem.event(), count).await?;
        self.history.mark(subject, problem, Instant::now());
        Ok(Next::After(REPEAT))
    }
}

/// A subject that exists.
#[derive(Debug)]
struct Observed {
    /// UID of its object.
    uid: Option<String>,
    /// Its problem, and the object that an event about it regards.
    problem: Option<(ObjectReference, Problem)>,
}

/// Reads a subject from the caches. None if it is gone or no longer waits.
fn observe(cluster: &ClusterState, rooms: &Rooms, subject: &Subject) -> Option<Observed> {
    let (uid, problem) = match subject {
        Subject::Class(name) => {
            let class = cluster.class(name)?;
            let problem = class_problem(cluster, &class);
            (class.uid(), problem.map(|it| (class.object_ref(&()), it)))
        }
        Subject::Claim { namespace, name } => {
            let key = identity::key(Some(namespace), name);
            let claim = cluster.claims.get(&key)?;
            let problem = claim_problem(cluster, rooms, &claim);
            (claim.uid(), problem.map(|it| (claim.object_ref(&()), it)))
        }
        Subject::Volume(name) => {
            let volume = cluster.volumes.get(name)?;
            let problem = volume.report.as_deref().and_then(volume_problem);
            (Some(volume.uid.to_string()), problem)
        }
    };
    Some(Observed { uid, problem })
}

/// Every StorageClass of this driver, and the claims that wait for its volumes.
fn declared(cluster: &ClusterState) -> Vec<Subject> {
    let classes = cluster.classes.all();
    let classes = classes.iter().map(|class| Subject::Class(class.name_any()));
    let mut subjects = claims(cluster, |class| cluster.classes.contains(class));
    subjects.extend(classes);
    subjects
}

/// The waiting claims of the classes that a function selects.
fn claims(cluster: &ClusterState, selects: impl Fn(&String) -> bool) -> Vec<Subject> {
    let claims = cluster.claims.filter(|claim| {
        let spec = claim.spec.as_ref();
        let class = spec.and_then(|spec| spec.storage_class_name.as_ref());
        class.is_some_and(&selects)
    });
    claims.iter().map(|claim| Subject::claim(claim)).collect()
}

/// Parameters of a class, or the problem with them.
fn parameters(class: &StorageClass) -> Result<Parameters, Problem> {
    let parsed = Parameters::of_class(class.parameters.iter().flatten());
    parsed.map_err(|error| Problem::Parameters {
        class: class.name_any(),
        error,
    })
}

/// The problem that keeps a pool from volumes of a class on every node.
fn pool_problem(
    cluster: &ClusterState,
    class: &StorageClass,
    pool: &str,
    parameters: &Parameters,
) -> Option<Problem> {
    let (class, name) = (class.name_any(), pool.to_owned());
    let Some(guard) = cluster.pool(pool) else {
        return Some(Problem::PoolMissing { class, pool: name });
    };
    let provisioning = parameters.attributes.provisioning;
    if let Ok(declared) = &guard.0 {
        let source = &declared.spec.source;
        if let Err(why) = source.holds(pool, provisioning) {
            let why = why.message;
            return Some(Problem::VolumeGroup { pool: name, why });
        }
    }
    let is_thin_alone = |declared: &StoragePool| {
        Overcommit::of(declared, || cluster.thick_in(pool)).is_for_thin_alone()
    };
    match provisioning {
        Provisioning::Thick if guard.0.as_ref().is_ok_and(is_thin_alone) => {
            Some(Problem::Overcommitted { class, pool: name })
        }
        Provisioning::Thick | Provisioning::Thin => None,
    }
}

/// The problem that keeps a class from volumes, in all its pools or in the first one that has a problem.
fn class_problem(cluster: &ClusterState, class: &StorageClass) -> Option<Problem> {
    let parameters = match parameters(class) {
        Ok(parameters) => parameters,
        Err(problem) => return Some(problem),
    };
    let of_pool = |pool| pool_problem(cluster, class, pool, &parameters);
    parameters.pools.iter().find_map(of_pool)
}

/// The attributes that the VolumeAttributesClass of a claim changes. Empty if the class is missing
/// or invalid, which the provisioner reports.
fn attribute_changes(
    cluster: &ClusterState,
    claim: &PersistentVolumeClaimSpec,
) -> AttributeChanges {
    let name = claim.volume_attributes_class_name.as_deref();
    let class = name.and_then(|name| cluster.attributes_classes.get(name));
    let parameters = class.and_then(|class| class.parameters.clone());
    AttributeChanges::parse(&parameters.unwrap_or_default()).unwrap_or_default()
}

/// The problem that keeps a claim of this driver from being placed.
fn claim_problem(
    cluster: &ClusterState,
    rooms: &Rooms,
    claim: &PersistentVolumeClaim,
) -> Option<Problem> {
    let spec = claim.spec.as_ref()?;
    let class = cluster.class(spec.storage_class_name.as_deref()?)?;
    let mut parameters = match parameters(&class) {
        Ok(parameters) => parameters,
        Err(problem) => return Some(problem),
    };
    parameters.attributes = attribute_changes(cluster, spec).apply(parameters.attributes);
    // A volume that is being made has its room already.
    let volume = names::volume_name(&format!("pvc-{}", claim.uid().unwrap_or_default()));
    if cluster.volumes.contains(&volume) {
        return None;
    }
    let request = VolumeRequest::of(spec, &parameters)?;
    let provisioning = request.provisioning;
    let in_pool = |pool: &str| {
        pool_problem(cluster, &class, pool, &parameters).or_else(|| {
            let rooms = rooms.of(cluster, &class, pool, provisioning);
            request.problem(pool, &rooms)
        })
    };
    // A claim that fits into one of the pools has no problem.
    let problems: Option<Vec<Problem>> = parameters.pools.iter().map(in_pool).collect();
    request.problem_of_all(problems?)
}

fn is_reportable(volume: &StoredVolume) -> bool {
    let status = volume.report.as_ref().and_then(|it| it.status.as_ref());
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
        // The provisioner names a volume by the UID of its claim.
        uid: volume
            .spec
            .requested_name
            .strip_prefix("pvc-")
            .map(str::to_owned),
        ..ObjectReference::default()
    })
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
    use cistern_crds::{
        EventReason,
        testing::{logical_volumes_on, volume_group_source},
    };
    use kube::core::DeserializeGuard;
    use serde_json::json;

    use super::*;
    use crate::testing::{pool, put};

    fn class(parameters: &serde_json::Value) -> StorageClass {
        serde_json::from_value(json!({
            "metadata": {"name": "gold"}, "provisioner": names::DRIVER, "parameters": parameters,
        }))
        .unwrap()
    }

    #[test]
    fn the_history_of_a_volume_is_kept_while_it_has_no_problem_and_until_it_is_gone() {
        let cluster = ClusterState::unwatched();
        let subject = Subject::Volume("pvc-1".to_owned());
        let observe = || observe(&cluster, &Rooms::default(), &subject);
        assert!(observe().is_none());
        let stored = StoredVolume {
            uid: "uid-1".into(),
            ..StoredVolume::default()
        };
        put(&cluster.volumes, "pvc-1", stored);
        let found = observe().unwrap();
        assert_eq!(found.uid.as_deref(), Some("uid-1"));
        assert!(found.problem.is_none());
    }

    #[test]
    fn a_class_whose_volumes_a_volume_group_does_not_hold_says_what_to_change() {
        let cluster = ClusterState::unwatched();
        let is_in = |source| {
            let mut group = pool("group", &[]);
            group.spec.source = source;
            put(&cluster.pools, "group", DeserializeGuard(Ok(group)));
        };
        is_in(volume_group_source("vg-data"));
        let image = pool("image", &[]);
        put(&cluster.pools, "image", DeserializeGuard(Ok(image)));
        let problem = |parameters| class_problem(&cluster, &class(&parameters));
        let thin = problem(json!({"pool": "group"})).unwrap();
        assert_eq!(thin.reason(), EventReason::PoolIsVolumeGroup);
        assert!(
            thin.event().note.starts_with(
                "pool group is a volume group, which holds thick volumes only: set provisioning: thick in the \
                 StorageClass"
            ),
            "{thin:?}"
        );
        let thick = json!({"pool": "group", "provisioning": "thick"});
        assert_eq!(problem(thick.clone()), None);
        assert_eq!(problem(json!({"pool": "image"})), None);
        is_in(logical_volumes_on("/dev/a"));
        assert_eq!(problem(json!({"pool": "group"})), Some(thin));
        assert_eq!(problem(thick.clone()), None);

        // A VolumeAttributesClass changes what a claim requests.
        let thin = serde_json::from_value(json!({
            "metadata": {"name": "thin"}, "driverName": names::DRIVER, "parameters": {"provisioning": "thin"},
        }));
        put(&cluster.attributes_classes, "thin", thin.unwrap());
        put(&cluster.classes, "gold", class(&thick));
        let claim = serde_json::from_value(json!({
            "metadata": {"name": "data", "namespace": "shop", "uid": "u"},
            "spec": {"storageClassName": "gold", "volumeAttributesClassName": "thin",
                "resources": {"requests": {"storage": "1Gi"}}},
        }));
        let found = claim_problem(&cluster, &Rooms::default(), &claim.unwrap()).unwrap();
        assert_eq!(found.reason(), EventReason::PoolIsVolumeGroup);
    }
}
