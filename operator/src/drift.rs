//! Writes events about drift on a node: on the StorageNode, and for orphaned images also on their
//! StoragePool. A new finding of a kind causes one event for that kind, with the
//! remedy.
//!
//! *Invariant:* unchanged findings are not published again: the time of the newest finding is part of
//! the event's name ([`crate::events`]). Findings older than the API server keeps events are not
//! published, because an earlier operator has published them.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Duration, Utc};
use cistern_crds::{
    EventReason, NodePoolStatus, StorageNode,
    drift::{Drift, Orphan},
    enumeration::and_more,
};
use kube::{Resource as _, ResourceExt as _};
use parking_lot::Mutex;

use crate::{
    Context,
    change::Change,
    controller::{Controller, Next},
    events::{self, EventContent, publish_once},
};

/// How long the API server keeps events.
const EVENT_TTL: Duration = Duration::hours(1);
/// Action of these events.
const ACTION: &str = "ComparingNode";
/// Maximum number of names in a note.
const NAMED: usize = 3;

/// Keys of the events that this process has published, by node.
type PublishedKeys = Mutex<BTreeMap<String, BTreeSet<String>>>;

/// An event about a node, and about one of its pools if it reports images.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PendingEvent {
    pool: Option<String>,
    content: EventContent,
}

/// Writes events about drift.
#[derive(Debug, Default)]
pub struct DriftController {
    published: PublishedKeys,
}

impl Controller for DriftController {
    type Key = String;
    type Error = events::Error;
    const NAME: &'static str = "drift";

    fn keys(&self, context: &Context, change: &Change) -> Vec<String> {
        match change {
            Change::Everything => context.cluster.storage_nodes.keys(|_| true),
            Change::StorageNode(name) => vec![name.clone()],
            // Only the status of StorageNodes reports drift.
            _ => Vec::new(),
        }
    }

    async fn reconcile(&self, context: &Context, name: &String) -> Result<Next, events::Error> {
        let guard = context.cluster.storage_node(name);
        let Some(Ok(node)) = guard.as_deref().map(|guard| &guard.0) else {
            return Ok(Next::OnChange);
        };
        let all = pending_events(node, (context.now)());
        let known = self.published.lock().get(name).cloned();
        let known = known.unwrap_or_default();
        for PendingEvent { pool, content } in
            all.iter().filter(|it| !known.contains(&it.content.key))
        {
            let pool = pool.as_ref().and_then(|pool| context.cluster.pool(pool));
            let pool = pool.map(|pool| pool.object_ref(&()));
            for regarding in [Some(node.object_ref(&())), pool].into_iter().flatten() {
                publish_once(context, &regarding, content).await?;
            }
        }
        let keys = all.into_iter().map(|it| it.content.key).collect();
        let mut published = self.published.lock();
        published.insert(name.clone(), keys);
        Ok(Next::OnChange)
    }
}

/// All events of a node, published or not.
fn pending_events(node: &StorageNode, now: DateTime<Utc>) -> Vec<PendingEvent> {
    let name = node.name_any();
    let status = node.status.as_ref();
    let mut kinds = BTreeMap::<&str, Vec<&Drift>>::new();
    for finding in status.iter().flat_map(|status| &status.drift) {
        kinds.entry(&finding.kind).or_default().push(finding);
    }
    let findings = kinds.into_iter().filter_map(|(kind, findings)| {
        let newest = findings.iter().max_by_key(|finding| finding.since)?;
        let more = and_more(findings.len().saturating_sub(1));
        let Drift {
            object,
            message,
            since,
            ..
        } = newest;
        let text = format!("on node {name}, {object}{more} ({kind}): {message}");
        Some(of(None, EventReason::DriftDetected, kind, *since, text))
    });
    let pools = status.iter().flat_map(|status| &status.pools);
    let orphans = pools.flat_map(|pool| [orphans(&name, pool), of_others(&name, pool)]);
    let orphans = orphans.flatten();
    let is_young = |it: &PendingEvent| {
        it.content.key.rsplit_once(' ').is_some_and(|(_, since)| {
            let since = since.parse::<DateTime<Utc>>();
            since.is_ok_and(|since| now.signed_duration_since(since) < EVENT_TTL)
        })
    };
    findings.chain(orphans).filter(is_young).collect()
}

/// The event about orphaned images of a pool on a node.
fn orphans(node: &str, pool: &NodePoolStatus) -> Option<PendingEvent> {
    let orphans = pool.orphans.iter();
    let orphans: Vec<_> = orphans.filter(|it| it.belongs_to.is_none()).collect();
    let newest = orphans.iter().max_by_key(|orphan| orphan.since)?;
    let named = some(&orphans, pool.unlisted_orphans);
    let name = &pool.name;
    let text = format!(
        "no custom resource refers to {named} in pool {name} on node {node}: they are kept and use space; \
         to restore one, create a custom resource of that name and spec; to remove them, set \
         spec.reclaimOrphansAfterHours of the StoragePool"
    );
    Some(of(
        Some(name.clone()),
        EventReason::ImagesWithoutOwner,
        name,
        newest.since,
        text,
    ))
}

/// The event about images of a pool on a node whose objects are on another node.
fn of_others(node: &str, pool: &NodePoolStatus) -> Option<PendingEvent> {
    let orphans = pool.orphans.iter();
    let orphans: Vec<_> = orphans.filter(|it| it.belongs_to.is_some()).collect();
    let newest = orphans.iter().max_by_key(|orphan| orphan.since)?;
    let (named, name) = (some(&orphans, 0), &pool.name);
    let text = format!(
        "in pool {name} on node {node} there are images of volumes and snapshots of other nodes: \
         {named}: they are kept, and nothing can use them here; if the disk has moved, follow \
         \"A disk moves to another machine\" in docs/recovery.md"
    );
    let what = format!("{name} of others");
    Some(of(
        Some(name.clone()),
        EventReason::ImagesOfAnotherNode,
        &what,
        newest.since,
        text,
    ))
}

/// Names the first of some images and counts the rest, including the `unlisted` ones that the
/// status omits.
fn some(orphans: &[&Orphan], unlisted: u32) -> String {
    let named: Vec<String> = orphans.iter().take(NAMED).map(|it| describe(it)).collect();
    let unlisted = usize::try_from(unlisted).unwrap_or(usize::MAX);
    let count = orphans.len().saturating_add(unlisted);
    named.join(", ") + &and_more(count.saturating_sub(named.len()))
}

fn describe(orphan: &Orphan) -> String {
    let image = &orphan.image;
    match (&orphan.identity, &orphan.belongs_to) {
        (Some(identity), None) => format!("image {image} of {:?} {}", identity.kind, identity.name),
        (Some(identity), Some(node)) => format!(
            "image {image} of {:?} {}, which belongs to node {node}",
            identity.kind, identity.name
        ),
        (None, _) => format!("file {image}, which does not identify its volume,"),
    }
}

fn of(
    pool: Option<String>,
    reason: EventReason,
    what: &str,
    since: DateTime<Utc>,
    note: String,
) -> PendingEvent {
    let content = EventContent {
        is_warning: true,
        reason,
        action: ACTION,
        note,
        key: format!("{what} {}", since.to_rfc3339()),
    };
    PendingEvent { pool, content }
}

#[cfg(test)]
mod tests {
    use cistern_crds::{Bytes, StorageNodeSpec, StorageNodeStatus};

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
    fn one_event_covers_all_findings_of_a_kind_and_another_follows_only_a_new_one() {
        let keys = |node: &StorageNode| -> Vec<String> {
            let pending = pending_events(node, at(30)).into_iter();
            pending.map(|it| it.content.key).collect()
        };
        let before = keys(&node(&[10, 20], &[5]));
        assert_eq!(before.len(), 2);
        assert_eq!(keys(&node(&[20], &[5])), before);
        let after = keys(&node(&[10, 20, 25], &[5]));
        assert!(after[0] != before[0] && after[1] == before[1], "{after:?}");
        assert!(keys(&node(&[], &[])).is_empty());
    }

    #[test]
    fn what_an_earlier_operator_has_published_is_not_published_again() {
        assert_eq!(pending_events(&node(&[10], &[10]), at(70)), []);
        assert_eq!(pending_events(&node(&[10], &[10]), at(69)).len(), 2);
    }

    #[test]
    fn a_note_names_the_first_and_says_what_to_do() {
        let published = pending_events(&node(&[], &[1, 2, 3, 4, 5]), at(30));
        let note = &published[0].content.note;
        assert!(
            note.contains("uid-3") && note.contains("and 2 more"),
            "{note}"
        );
        assert!(note.contains("reclaimOrphansAfterHours"), "{note}");
        assert_eq!(published[0].pool.as_deref(), Some("fast"));
    }

    #[test]
    fn a_note_counts_the_images_that_the_status_omits() {
        let mut node = node(&[], &[1]);
        node.status.as_mut().unwrap().pools[0].unlisted_orphans = 5;
        let published = pending_events(&node, at(30));
        let text = &published[0].content.note;
        assert!(
            text.contains("uid-1") && text.contains("and 5 more"),
            "{text}"
        );
    }

    #[test]
    fn an_image_of_another_node_is_reported_with_that_node_and_without_advice_to_remove_it() {
        let mut node = node(&[], &[1, 2]);
        let orphans = &mut node.status.as_mut().unwrap().pools[0].orphans;
        orphans[0].belongs_to = Some("node-0".to_owned());
        orphans[0].identity = Some(cistern_crds::testing::orphan_identity());
        let published = pending_events(&node, at(30));
        let reasons: Vec<_> = published.iter().map(|it| it.content.reason).collect();
        assert_eq!(
            reasons,
            [
                EventReason::ImagesWithoutOwner,
                EventReason::ImagesOfAnotherNode
            ]
        );
        let notes: Vec<_> = published
            .iter()
            .map(|it| it.content.note.as_str())
            .collect();
        assert!(!notes[0].contains("uid-1"), "{notes:?}");
        let named = "image uid-1 of Volume pvc-1, which belongs to node node-0:";
        assert!(notes[1].contains(named), "{notes:?}");
        assert!(!notes[1].contains("reclaim"), "{notes:?}");
        let advice = "follow \"A disk moves to another machine\" in docs/recovery.md";
        assert!(notes[1].contains(advice), "{notes:?}");
    }
}
