//! Lists the orphaned images that agents report, and selects one by name. Pure.

use std::fmt;

use chrono::{DateTime, Utc};
use cistern_crds::{
    Bytes, Drift, NodePoolStatus, Orphan, SourceKind, StorageNode, drift::OrphanIdentity,
};
use kube::ResourceExt as _;
use serde::Serialize;

use super::{Error, unclaimed::UnclaimedView};
use crate::{
    age::age,
    arguments::Selection,
    cluster::Cluster,
    output::{Paint, Style, Table, View, counted, human, one_line, wrap},
};

/// Orphaned images, drift, and unclaimed objects.
#[derive(Clone, Debug, Serialize)]
pub struct Orphans {
    /// Orphaned images, sorted by node, pool and name of the image.
    pub items: Vec<OrphanView>,
    /// Drift on the nodes.
    pub drift: Vec<DriftView>,
    /// Number of orphaned images and drift findings that the statuses of the nodes have no room
    /// for.
    pub unlisted: usize,
    /// Volumes and snapshots without an owner in Kubernetes.
    pub unclaimed: Vec<UnclaimedView>,
    /// Reasons why unclaimed volumes or snapshots could not be determined.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<String>,
    /// Time at which the objects were listed.
    #[serde(skip)]
    pub now: DateTime<Utc>,
}

/// An orphaned image: no volume or snapshot claims it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OrphanView {
    /// Name of the image.
    pub image: String,
    /// Name of the pool.
    pub pool: String,
    /// Name of the node.
    pub node: String,
    /// Space that it occupies, in bytes.
    pub size_bytes: u64,
    /// Identity that is recorded in the image. An image without identity cannot be adopted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<OrphanIdentity>,
    /// Time at which the agent first observed it without a custom resource.
    pub since: DateTime<Utc>,
    /// Name of the node on which its custom resource is, if that is another node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub belongs_to: Option<String>,
    /// Time at which the agent moved it to the trash; absent if it is not there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trashed_since: Option<DateTime<Utc>>,
}

/// Drift on a node.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DriftView {
    /// Name of the node.
    pub node: String,
    /// Drift, as the agent reports it.
    #[serde(flatten)]
    pub drift: Drift,
}

/// The orphan that a name selects, with its identity.
#[derive(Clone, Debug)]
pub struct SelectedOrphan {
    /// Name of the image.
    pub image: String,
    /// Name of the pool.
    pub pool: String,
    /// Name of the node.
    pub node: String,
    /// Identity that is recorded in the image.
    pub identity: OrphanIdentity,
}

impl fmt::Display for SelectedOrphan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = named(Some(&self.identity));
        write!(
            f,
            "image {} ({what}) in pool {} on {}",
            self.image, self.pool, self.node
        )
    }
}

fn named(identity: Option<&OrphanIdentity>) -> String {
    match identity {
        None => "unknown".to_owned(),
        Some(identity) => match (identity.kind, &identity.source_volume) {
            (SourceKind::Volume, _) => format!("volume {}", identity.name),
            (SourceKind::Snapshot, Some(volume)) => {
                format!("snapshot {} of {volume}", identity.name)
            }
            (SourceKind::Snapshot, None) => format!("snapshot {}", identity.name),
        },
    }
}

/// Returns the orphans that `only` selects, with their nodes and pools.
fn all<'a>(
    cluster: &'a Cluster,
    only: &'a Selection,
) -> impl Iterator<Item = (&'a StorageNode, &'a str, &'a Orphan)> {
    nodes(cluster, only).flat_map(|node| {
        pools(node, only).flat_map(move |pool| {
            let orphans = pool.orphans.iter();
            orphans.map(move |orphan| (node, pool.name.as_str(), orphan))
        })
    })
}

fn nodes<'a>(cluster: &'a Cluster, only: &'a Selection) -> impl Iterator<Item = &'a StorageNode> {
    let nodes = cluster.nodes.iter();
    nodes.filter(|node| {
        only.node
            .as_ref()
            .is_none_or(|name| *name == node.name_any())
    })
}

fn pools<'a>(
    node: &'a StorageNode,
    only: &'a Selection,
) -> impl Iterator<Item = &'a NodePoolStatus> {
    let pools = node.status.iter().flat_map(|status| &status.pools);
    pools.filter(|pool| only.pool.as_ref().is_none_or(|name| *name == pool.name))
}

/// Counts the orphans and findings that statuses have no room for.
fn unlisted(cluster: &Cluster, only: &Selection) -> usize {
    let of_node = |node: &StorageNode| {
        let orphans = pools(node, only).map(|pool| u64::from(pool.unlisted_orphans));
        let drift = node.status.as_ref().map_or(0, |it| it.unlisted_drift);
        orphans.sum::<u64>() + u64::from(drift)
    };
    let count: u64 = nodes(cluster, only).map(of_node).sum();
    usize::try_from(count).unwrap_or(usize::MAX)
}

/// Returns the orphan whose image, or the volume or snapshot recorded in it, has this name. Fails
/// if no orphan or several orphans match, if the image has no identity, or if its custom resource
/// is on another node.
pub fn choose(cluster: &Cluster, name: &str, only: &Selection) -> Result<SelectedOrphan, Error> {
    let is_meant = |orphan: &Orphan| {
        let identity = orphan.identity.as_ref();
        orphan.image == name || identity.is_some_and(|identity| identity.name == name)
    };
    let found: Vec<_> = all(cluster, only)
        .filter(|(.., orphan)| is_meant(orphan))
        .collect();
    let name = name.to_owned();
    let (node, pool, orphan) = match found[..] {
        [one] => one,
        [] => return Err(Error::Unknown { name }),
        _ => {
            let count = found.len();
            return Err(Error::Ambiguous { name, count });
        }
    };
    let (image, pool, node) = (orphan.image.clone(), pool.to_owned(), node.name_any());
    if let Some(owner) = orphan.belongs_to.clone() {
        return Err(Error::OnOtherNode {
            what: named(orphan.identity.as_ref()),
            image,
            node,
            owner,
        });
    }
    match orphan.identity.clone() {
        Some(identity) => Ok(SelectedOrphan {
            image,
            pool,
            node,
            identity,
        }),
        None => Err(Error::NoIdentity { image, pool, node }),
    }
}

impl Orphans {
    /// Collects the orphans and the drift of a cluster. The caller sets `unclaimed` and `unread`.
    pub fn of(cluster: &Cluster, only: &Selection, now: DateTime<Utc>) -> Self {
        let mut items: Vec<OrphanView> = all(cluster, only)
            .map(|(node, pool, orphan)| OrphanView {
                image: orphan.image.clone(),
                pool: pool.to_owned(),
                node: node.name_any(),
                size_bytes: orphan.size.0,
                identity: orphan.identity.clone(),
                since: orphan.since,
                belongs_to: orphan.belongs_to.clone(),
                trashed_since: orphan.trashed_since,
            })
            .collect();
        items.sort_by(|a, b| (&a.node, &a.pool, &a.image).cmp(&(&b.node, &b.pool, &b.image)));
        let drift = nodes(cluster, only).flat_map(|node| {
            let drift = node.status.iter().flat_map(|status| &status.drift);
            drift.map(|drift| DriftView {
                node: node.name_any(),
                drift: drift.clone(),
            })
        });
        Self {
            items,
            drift: drift.collect(),
            unlisted: unlisted(cluster, only),
            unclaimed: Vec::new(),
            unread: Vec::new(),
            now,
        }
    }
}

impl View for Orphans {
    const KIND: &'static str = "OrphanList";

    fn text(&self, _: bool, paint: Paint) -> String {
        let mut parts = vec![self.orphans_text(paint)];
        if !self.drift.is_empty() {
            let findings = counted(self.drift.len(), "finding");
            parts.push(format!("\nDrift on the nodes, {findings}:\n"));
        }
        for DriftView { node, drift } in &self.drift {
            let kind = paint.of(Style::Warning, &drift.kind);
            let message = wrap(&drift.message, 100, 4);
            let object = one_line(&drift.object);
            parts.push(format!("  {kind}: {object} on {node}\n    {message}\n"));
        }
        if self.unlisted > 0 {
            let count = self.unlisted;
            parts.push(format!(
                "\n{count} more on the nodes, for which their status has no room: it lists them as others are resolved.\n"
            ));
        }
        if !self.unclaimed.is_empty() {
            let objects = counted(self.unclaimed.len(), "object");
            parts.push(format!("\n{objects} unclaimed:\n"));
        }
        for it in &self.unclaimed {
            let kind = paint.of(Style::Warning, &it.kind);
            let (name, message) = (&it.name, wrap(&it.message, 100, 4));
            let claim = it.claim.as_ref();
            let claim = claim.map(|it| format!(", created for claim {}/{}", it.namespace, it.name));
            let claim = claim.unwrap_or_default();
            parts.push(format!("  {kind}: {name}{claim}\n    {message}\n"));
        }
        let unread = self.unread.iter();
        parts
            .extend(unread.map(|why| format!("\nUnclaimed objects cannot be determined: {why}\n")));
        parts.concat()
    }
}

impl Orphans {
    fn orphans_text(&self, paint: Paint) -> String {
        if self.items.is_empty() {
            return "Every image is claimed by a volume or a snapshot.\n".to_owned();
        }
        let mut table = Table::new(&["IMAGE", "IS", "POOL", "NODE", "SIZE", "AGE"]);
        for orphan in &self.items {
            let mut what = named(orphan.identity.as_ref());
            if let Some(node) = &orphan.belongs_to {
                what = format!("{what}, belongs to {node}");
            }
            if orphan.trashed_since.is_some() {
                what.push_str(", in the trash");
            }
            table.row(vec![
                orphan.image.as_str().into(),
                what.into(),
                orphan.pool.as_str().into(),
                orphan.node.as_str().into(),
                human(Bytes(orphan.size_bytes)).into(),
                age(orphan.since, self.now).into(),
            ]);
        }
        table.render(paint)
            + "\nAdopt an image with `kubectl cistern orphans adopt IMAGE`; \
            remove it with `… reclaim IMAGE`.\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, cluster, object};

    #[test]
    fn orphans_are_listed_with_their_identity() {
        let text =
            Orphans::of(&cluster(), &Selection::default(), at(600)).text(false, Paint::plain());
        assert_eq!(
            text,
            "\
IMAGE         IS                POOL   NODE       SIZE    AGE
uid-of-lost   volume pvc-lost   fast   worker-1   1Gi     10m
who-knows     unknown           fast   worker-1   512Mi   10m

Adopt an image with `kubectl cistern orphans adopt IMAGE`; remove it with `… reclaim IMAGE`.
"
        );
    }

    #[test]
    fn an_image_of_another_node_is_listed_with_that_node_and_cannot_be_selected() {
        let mut cluster = cluster();
        let status = cluster.nodes[0].status.as_mut().unwrap();
        status.pools[0].orphans[0].belongs_to = Some("worker-0".to_owned());
        let all = Selection::default();
        let text = Orphans::of(&cluster, &all, at(600)).text(false, Paint::plain());
        assert!(
            text.contains("volume pvc-lost, belongs to worker-0"),
            "{text}"
        );
        let refused = choose(&cluster, "pvc-lost", &all).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "image uid-of-lost on worker-1 belongs to node worker-0, which has volume pvc-lost: if the \
             disk has moved, follow \"A disk moves to another machine\" in docs/recovery.md; to give up \
             the image, delete that first"
        );
    }

    #[test]
    fn an_image_in_the_trash_is_listed_with_the_time_since_when() {
        let mut cluster = cluster();
        let status = cluster.nodes[0].status.as_mut().unwrap();
        status.pools[0].orphans[0].trashed_since = Some(at(60));
        let view = Orphans::of(&cluster, &Selection::default(), at(600));
        let text = view.text(false, Paint::plain());
        assert!(text.contains("volume pvc-lost, in the trash "), "{text}");
        let json = serde_json::to_value(view).unwrap();
        assert_eq!(json["items"][0]["trashedSince"], "1970-01-01T00:01:00Z");
        assert_eq!(json["items"][1].get("trashedSince"), None);
    }

    #[test]
    fn drift_is_listed_below_orphans() {
        let mut cluster = Cluster::default();
        cluster.nodes.push(object(serde_json::json!({
            "metadata": {"name": "n"}, "spec": {"topology": {}},
            "status": {"drift": [{"kind": "LoopWithoutUse", "object": "/dev/loop3",
                "message": "its image is gone", "since": "1970-01-01T00:00:00Z"}]},
        })));
        let view = Orphans::of(&cluster, &Selection::default(), at(0));
        let text = view.text(false, Paint::plain());
        assert!(
            text.contains("LoopWithoutUse: /dev/loop3 on n\n    its image is gone"),
            "{text}"
        );
        let json = serde_json::to_value(view).unwrap();
        assert_eq!(json["drift"][0]["kind"], "LoopWithoutUse");
    }

    #[test]
    fn orphans_and_drift_beyond_the_room_of_a_status_are_counted() {
        let mut cluster = cluster();
        let status = cluster.nodes[0].status.as_mut().unwrap();
        (status.unlisted_drift, status.pools[0].unlisted_orphans) = (2, 40);
        let view = Orphans::of(&cluster, &Selection::default(), at(0));
        assert_eq!(view.unlisted, 42);
        let text = view.text(false, Paint::plain());
        assert!(text.contains("\n42 more on the nodes"), "{text}");
    }

    #[test]
    fn an_orphan_is_selected_by_its_image_or_its_identity() {
        let all = Selection::default();
        for name in ["uid-of-lost", "pvc-lost"] {
            let choice = choose(&cluster(), name, &all).unwrap();
            assert_eq!(choice.image, "uid-of-lost");
        }
        let elsewhere = Selection {
            node: Some("worker-2".to_owned()),
            pool: None,
        };
        assert!(matches!(
            choose(&cluster(), "pvc-lost", &elsewhere),
            Err(Error::Unknown { .. })
        ));
        assert!(matches!(
            choose(&cluster(), "who-knows", &all),
            Err(Error::NoIdentity { .. })
        ));
        let mut twice = cluster();
        let again = twice.nodes[0].clone();
        twice.nodes.push(again);
        assert!(matches!(
            choose(&twice, "pvc-lost", &all),
            Err(Error::Ambiguous { count: 2, .. })
        ));
    }
}
