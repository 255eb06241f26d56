//! What the agents say of images that nobody claims, and which of them is meant. Pure.

use std::fmt;

use chrono::{DateTime, Utc};
use cistern_crds::{Bytes, Drift, Orphan, SourceKind, StorageNode, health::OrphanIdentity};
use kube::ResourceExt as _;
use serde::Serialize;

use super::{Error, unclaimed::UnclaimedView};
use crate::{
    arguments::Selection,
    cluster::Cluster,
    duration::age,
    output::{Paint, Table, Tone, View, counted, human, one_line, wrap},
};

/// Images that nobody claims, and what else does not belong together.
#[derive(Clone, Debug, Serialize)]
pub struct Orphans {
    /// The images.
    pub items: Vec<OrphanView>,
    /// Whatever else there is.
    pub drift: Vec<DriftView>,
    /// Volumes and snapshots that nobody claims.
    pub unclaimed: Vec<UnclaimedView>,
    /// Why it is not known whether there are any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<String>,
    /// When somebody looked.
    #[serde(skip)]
    pub now: DateTime<Utc>,
}

/// An image that nobody claims.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OrphanView {
    /// Name of the image.
    pub image: String,
    /// Its pool.
    pub pool: String,
    /// Its node.
    pub node: String,
    /// The room that it takes.
    pub size_bytes: u64,
    /// What it says itself of what it is. One without cannot be adopted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<OrphanIdentity>,
    /// Since when.
    pub since: DateTime<Utc>,
    /// The other node that its custom resource is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub belongs_to: Option<String>,
}

/// Something on a node that does not belong together.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DriftView {
    /// The node.
    pub node: String,
    /// What it is.
    #[serde(flatten)]
    pub drift: Drift,
}

/// The orphan that is meant, and what it says that it is.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Name of the image.
    pub image: String,
    /// Its pool.
    pub pool: String,
    /// Its node.
    pub node: String,
    /// What it says that it is.
    pub identity: OrphanIdentity,
}

impl fmt::Display for Choice {
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

/// Every orphan that is selected, with its pool and node.
fn all<'a>(
    cluster: &'a Cluster,
    only: &'a Selection,
) -> impl Iterator<Item = (&'a StorageNode, &'a str, &'a Orphan)> {
    let nodes = cluster.nodes.iter();
    let nodes = nodes.filter(|node| {
        only.node
            .as_ref()
            .is_none_or(|name| *name == node.name_any())
    });
    nodes.flat_map(|node| {
        let pools = node.status.iter().flat_map(|status| &status.pools);
        let pools = pools.filter(|pool| only.pool.as_ref().is_none_or(|name| *name == pool.name));
        pools.flat_map(move |pool| {
            let orphans = pool.orphans.iter();
            orphans.map(move |orphan| (node, pool.name.as_str(), orphan))
        })
    })
}

/// The orphan that is called so.
pub fn choose(cluster: &Cluster, name: &str, only: &Selection) -> Result<Choice, Error> {
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
        return Err(Error::Elsewhere {
            what: named(orphan.identity.as_ref()),
            image,
            node,
            owner,
        });
    }
    match orphan.identity.clone() {
        Some(identity) => Ok(Choice {
            image,
            pool,
            node,
            identity,
        }),
        None => Err(Error::Nameless { image, pool, node }),
    }
}

impl Orphans {
    /// Those of a cluster.
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
            })
            .collect();
        items.sort_by(|a, b| (&a.node, &a.pool, &a.image).cmp(&(&b.node, &b.pool, &b.image)));
        let nodes = cluster.nodes.iter();
        let nodes = nodes.filter(|node| {
            only.node
                .as_ref()
                .is_none_or(|name| *name == node.name_any())
        });
        let drift = nodes.flat_map(|node| {
            let drift = node.status.iter().flat_map(|status| &status.drift);
            drift.map(|drift| DriftView {
                node: node.name_any(),
                drift: drift.clone(),
            })
        });
        Self {
            items,
            drift: drift.collect(),
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
            let things = counted(self.drift.len(), "thing");
            parts.push(format!("\nOn the nodes, {things} out of place:\n"));
        }
        for DriftView { node, drift } in &self.drift {
            let kind = paint.of(Tone::Warning, &drift.kind);
            let message = wrap(&drift.message, 100, 4);
            let object = one_line(&drift.object);
            parts.push(format!("  {kind}: {object} on {node}\n    {message}\n"));
        }
        if !self.unclaimed.is_empty() {
            let objects = counted(self.unclaimed.len(), "object");
            parts.push(format!("\n{objects} that nobody claims:\n"));
        }
        for it in &self.unclaimed {
            let kind = paint.of(Tone::Warning, &it.kind);
            let (name, message) = (&it.name, wrap(&it.message, 100, 4));
            let claim = it.claim.as_ref();
            let claim = claim.map(|it| format!(", made for claim {}/{}", it.namespace, it.name));
            let claim = claim.unwrap_or_default();
            parts.push(format!("  {kind}: {name}{claim}\n    {message}\n"));
        }
        let unread = self.unread.iter();
        parts.extend(unread.map(|why| format!("\nNobody knows what is unclaimed: {why}\n")));
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
            let what = named(orphan.identity.as_ref());
            let what = match &orphan.belongs_to {
                None => what,
                Some(node) => format!("{what}, belongs to {node}"),
            };
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
            + "\nTake one up again with `kubectl cistern orphans adopt IMAGE`; \
               have it removed with `… reclaim IMAGE`.\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, cluster, object};

    #[test]
    fn orphans_are_listed_with_what_they_say_that_they_are() {
        let text =
            Orphans::of(&cluster(), &Selection::default(), at(600)).text(false, Paint::plain());
        assert_eq!(
            text,
            "\
IMAGE         IS                POOL   NODE       SIZE    AGE
uid-of-lost   volume pvc-lost   fast   worker-1   1Gi     10m
who-knows     unknown           fast   worker-1   512Mi   10m

Take one up again with `kubectl cistern orphans adopt IMAGE`; have it removed with `… reclaim IMAGE`.
"
        );
    }

    #[test]
    fn an_image_of_another_node_is_listed_with_that_node_and_cannot_be_chosen() {
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
            "image uid-of-lost on worker-1 belongs to node worker-0, which has volume pvc-lost: give \
             the node its old name, or move the disk back; to give up the image, delete that first"
        );
    }

    #[test]
    fn what_else_does_not_belong_together_is_told_below() {
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
    fn an_orphan_is_chosen_by_its_image_or_by_what_it_says_that_it_is() {
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
            Err(Error::Nameless { .. })
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
