//! What does not belong together on a node, told to people: on the StorageNode, and images that nobody
//! claims on their StoragePool, too. One event for each kind of finding when one more of it has come,
//! with what to do.
//!
//! *Invariant:* what is as it was is not told again: an event is named by the time of the newest
//! finding that it tells of ([`crate::events`]), and nothing is told that is older than the API server
//! keeps events, because an earlier operator has told it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, PoisonError},
};

use chrono::{DateTime, Duration, Utc};
use cistern_crds::{
    NodePoolStatus, StorageNode,
    health::{Drift, Orphan},
};
use kube::{Resource as _, ResourceExt as _};

use crate::{
    Context, Stop,
    controller::{self, Next},
    events::{self, Telling, tell_once},
    world::Change,
};

/// How long the API server keeps events.
const KEPT: Duration = Duration::hours(1);
/// What these events say that they came from.
const ACTION: &str = "ComparingNode";
/// Reason of an event about findings.
const DRIFTED: &str = "DoesNotBelongTogether";
/// Reason of an event about images that nobody claims.
const ORPHANED: &str = "ImagesWithoutOwner";
/// Reason of an event about images whose objects are on another node.
const ELSEWHERE: &str = "ImagesOfAnotherNode";
/// Names that a note mentions.
const NAMED: usize = 3;

/// What was told of each node by this process.
type Told = Mutex<BTreeMap<String, BTreeSet<String>>>;

/// Something to be told of a node, and of one of its pools where it is about images.
#[derive(Clone, Debug, PartialEq, Eq)]
struct News {
    pool: Option<String>,
    telling: Telling,
}

/// Runs the controller until `stop`.
pub async fn run(context: &Context, stop: Stop) {
    let told = Told::default();
    let Context { world, metrics, .. } = context;
    let nodes = |change: &Change| match change {
        Change::Everything => {
            let nodes = world.storage_nodes.state();
            nodes.iter().map(|node| node.name_any()).collect()
        }
        Change::StorageNode(name) => vec![name.clone()],
        Change::Pool(_)
        | Change::Volume { .. }
        | Change::Snapshot { .. }
        | Change::Node(_)
        | Change::Class(_)
        | Change::Claim { .. }
        | Change::Capacity { .. } => Vec::new(),
    };
    let reconcile = async |name: &String| reconcile(context, &told, name).await;
    let schedule = controller::Schedule::at_once("drift");
    controller::run(schedule, world, metrics, stop, nodes, reconcile).await;
}

async fn reconcile(context: &Context, told: &Told, name: &str) -> Result<Next, events::Error> {
    let guard = context.world.storage_node(name);
    let Some(Ok(node)) = guard.as_deref().map(|guard| &guard.0) else {
        return Ok(Next::OnChange);
    };
    let all = news(node, (context.now)());
    let known = told
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get(name)
        .cloned();
    let known = known.unwrap_or_default();
    for News { pool, telling } in all.iter().filter(|it| !known.contains(&it.telling.key)) {
        let pool = pool.as_ref().and_then(|pool| context.world.pool(pool));
        let pool = pool.map(|pool| pool.object_ref(&()));
        for regarding in [Some(node.object_ref(&())), pool].into_iter().flatten() {
            tell_once(context, &regarding, telling).await?;
        }
    }
    let keys = all.into_iter().map(|it| it.telling.key).collect();
    let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
    told.insert(name.to_owned(), keys);
    Ok(Next::OnChange)
}

/// What is to be told of a node, whether or not it was told already.
fn news(node: &StorageNode, now: DateTime<Utc>) -> Vec<News> {
    let name = node.name_any();
    let status = node.status.as_ref();
    let mut kinds = BTreeMap::<&str, Vec<&Drift>>::new();
    for finding in status.iter().flat_map(|status| &status.drift) {
        kinds.entry(&finding.kind).or_default().push(finding);
    }
    let findings = kinds.into_iter().filter_map(|(kind, findings)| {
        let newest = findings.iter().max_by_key(|finding| finding.since)?;
        let more = more(findings.len(), 1);
        let Drift {
            object,
            message,
            since,
            ..
        } = newest;
        let text = format!("on node {name}, {object}{more} ({kind}): {message}");
        Some(of(None, DRIFTED, kind, *since, text))
    });
    let pools = status.iter().flat_map(|status| &status.pools);
    let orphans = pools.flat_map(|pool| [orphans(&name, pool), of_others(&name, pool)]);
    let orphans = orphans.flatten();
    let is_young = |it: &News| {
        it.telling.key.rsplit_once(' ').is_some_and(|(_, since)| {
            let since = since.parse::<DateTime<Utc>>();
            since.is_ok_and(|since| now.signed_duration_since(since) < KEPT)
        })
    };
    findings.chain(orphans).filter(is_young).collect()
}

/// The images of a pool on a node that nobody claims.
fn orphans(node: &str, pool: &NodePoolStatus) -> Option<News> {
    let orphans = pool.orphans.iter();
    let orphans: Vec<_> = orphans.filter(|it| it.belongs_to.is_none()).collect();
    let newest = orphans.iter().max_by_key(|orphan| orphan.since)?;
    let (named, name) = (some(&orphans), &pool.name);
    let text = format!(
        "nobody claims {named} in pool {name} on node {node}: they are kept and take their room; \
         create a custom resource of that name and spec to have one back, or set \
         spec.reclaimOrphansAfterHours of the StoragePool to be rid of them"
    );
    Some(of(Some(name.clone()), ORPHANED, name, newest.since, text))
}

/// The images of a pool on a node whose objects are on another node.
fn of_others(node: &str, pool: &NodePoolStatus) -> Option<News> {
    let orphans = pool.orphans.iter();
    let orphans: Vec<_> = orphans.filter(|it| it.belongs_to.is_some()).collect();
    let newest = orphans.iter().max_by_key(|orphan| orphan.since)?;
    let (named, name) = (some(&orphans), &pool.name);
    let text = format!(
        "in pool {name} on node {node} there are images of volumes and snapshots of other nodes: \
         {named}: they are kept, and nothing can use them here; give the node its old name, or move \
         the disk back to its node"
    );
    let what = format!("{name} of others");
    Some(of(Some(name.clone()), ELSEWHERE, &what, newest.since, text))
}

/// The first of some images, and how many more there are.
fn some(orphans: &[&Orphan]) -> String {
    let named: Vec<String> = orphans.iter().take(NAMED).map(|it| describe(it)).collect();
    named.join(", ") + &more(orphans.len(), NAMED)
}

fn describe(orphan: &Orphan) -> String {
    let image = &orphan.image;
    match (&orphan.identity, &orphan.belongs_to) {
        (Some(identity), None) => format!("image {image} of {:?} {}", identity.kind, identity.name),
        (Some(identity), Some(node)) => format!(
            "image {image} of {:?} {}, which belongs to node {node}",
            identity.kind, identity.name
        ),
        (None, _) => format!("file {image}, which does not say what it was,"),
    }
}

fn more(count: usize, named: usize) -> String {
    match count.saturating_sub(named) {
        0 => String::new(),
        more => format!(" and {more} more"),
    }
}

fn of(
    pool: Option<String>,
    reason: &'static str,
    what: &str,
    since: DateTime<Utc>,
    note: String,
) -> News {
    let telling = Telling {
        is_warning: true,
        reason,
        action: ACTION,
        note,
        key: format!("{what} {}", since.to_rfc3339()),
    };
    News { pool, telling }
}

#[cfg(test)]
mod tests {
    use cistern_crds::{
        AccessType, Bytes, Provisioning, SourceKind, StorageNodeSpec, StorageNodeStatus,
        health::OrphanIdentity,
    };

    use super::*;

    fn at(minute: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(minute * 60, 0).unwrap()
    }

    fn node(findings: &[i64], orphans: &[i64]) -> StorageNode {
        let mut node = StorageNode::new("node-1", StorageNodeSpec::default());
        let drift = findings.iter().map(|since| Drift {
            kind: "LoopWithoutUse".to_owned(),
            object: format!("/dev/loop{since}"),
            message: "nothing uses it".to_owned(),
            since: at(*since),
        });
        let orphans = orphans.iter().map(|since| Orphan {
            image: format!("uid-{since}"),
            size: Bytes::gib(1),
            identity: None,
            since: at(*since),
            belongs_to: None,
            trashed_since: None,
        });
        node.status = Some(StorageNodeStatus {
            drift: drift.collect(),
            pools: vec![NodePoolStatus {
                name: "fast".to_owned(),
                orphans: orphans.collect(),
                ..NodePoolStatus::default()
            }],
            ..StorageNodeStatus::default()
        });
        node
    }

    #[test]
    fn one_event_tells_of_all_of_a_kind_and_another_comes_only_with_one_more() {
        let keys = |node: &StorageNode| -> Vec<String> {
            let news = news(node, at(30)).into_iter();
            news.map(|it| it.telling.key).collect()
        };
        let before = keys(&node(&[10, 20], &[5]));
        assert_eq!(before.len(), 2);
        assert_eq!(keys(&node(&[20], &[5])), before);
        let after = keys(&node(&[10, 20, 25], &[5]));
        assert!(after[0] != before[0] && after[1] == before[1], "{after:?}");
        assert!(keys(&node(&[], &[])).is_empty());
    }

    #[test]
    fn what_an_earlier_operator_has_told_is_not_told_again() {
        assert_eq!(news(&node(&[10], &[10]), at(70)), []);
        assert_eq!(news(&node(&[10], &[10]), at(69)).len(), 2);
    }

    #[test]
    fn a_note_names_the_first_and_says_what_to_do() {
        let told = news(&node(&[], &[1, 2, 3, 4, 5]), at(30));
        let note = &told[0].telling.note;
        assert!(
            note.contains("uid-3") && note.contains("and 2 more"),
            "{note}"
        );
        assert!(note.contains("reclaimOrphansAfterHours"), "{note}");
        assert_eq!(told[0].pool.as_deref(), Some("fast"));
    }

    #[test]
    fn an_image_of_another_node_is_reported_with_that_node_and_without_advice_to_remove_it() {
        let mut node = node(&[], &[1, 2]);
        let orphans = &mut node.status.as_mut().unwrap().pools[0].orphans;
        orphans[0].belongs_to = Some("node-0".to_owned());
        orphans[0].identity = Some(OrphanIdentity {
            kind: SourceKind::Volume,
            name: "pvc-1".to_owned(),
            source_volume: None,
            source_image: None,
            creation_time: None,
            volume_size: Bytes::gib(1),
            access_type: AccessType::Block,
            filesystem: None,
            provisioning: Provisioning::Thin,
        });
        let told = news(&node, at(30));
        let reasons: Vec<_> = told.iter().map(|it| it.telling.reason).collect();
        assert_eq!(reasons, [ORPHANED, ELSEWHERE]);
        let notes: Vec<_> = told.iter().map(|it| it.telling.note.as_str()).collect();
        assert!(!notes[0].contains("uid-1"), "{notes:?}");
        let named = "image uid-1 of Volume pvc-1, which belongs to node node-0:";
        assert!(notes[1].contains(named), "{notes:?}");
        assert!(!notes[1].contains("reclaim"), "{notes:?}");
    }
}
