//! `snapshots`: what was made from what, as trees: a volume, its snapshots, the volumes made from
//! them, and so on. Pure.
//!
//! *Invariant:* who was made from whom is told by the images, not by names, which may be another's by
//! now; and every volume and snapshot stands in one tree and once.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use cistern_crds::{
    Bytes, ConditionType, PoolSnapshot, PoolVolume, SourceKind, Stored, volume::ClaimReference,
};
use kube::ResourceExt as _;
use serde::Serialize;

use crate::{
    arguments::Selection,
    cluster::Cluster,
    duration::age,
    output::{Cell, Paint, Table, Tone, View, human},
    truth::Truth,
};

/// Trees of origins.
#[derive(Clone, Debug, Serialize)]
pub struct Origins {
    /// What was made from nothing that is still there.
    pub origins: Vec<Origin>,
    /// When somebody looked.
    #[serde(skip)]
    pub now: DateTime<Utc>,
}

/// A volume or snapshot, and what was made from it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Origin {
    /// Which of both.
    pub kind: SourceKind,
    /// Its name.
    pub name: String,
    /// Its pool.
    pub pool: String,
    /// Its node.
    pub node: String,
    /// Claim of a volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim: Option<ClaimReference>,
    /// Group that a snapshot was taken with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Name of what it was made from, where that is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost_source: Option<String>,
    /// Size of the volume, or of a volume made from the snapshot.
    pub size_bytes: u64,
    /// What the ledger of the node holds for it.
    pub reserved_bytes: u64,
    /// The moment that a snapshot shows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taken: Option<DateTime<Utc>>,
    /// Whether it can be used.
    pub ready: Truth,
    /// What was made from it.
    pub children: Vec<Origin>,
}

impl Origin {
    fn of<K: Stored>(kind: SourceKind, object: &K) -> Self {
        Self {
            kind,
            name: object.name_any(),
            pool: object.pool_name().to_owned(),
            node: object.node_name().to_owned(),
            claim: None,
            group: None,
            lost_source: None,
            size_bytes: 0,
            reserved_bytes: object.reserved().unwrap_or_default().0,
            taken: None,
            ready: Truth::of(object.conditions(), ConditionType::Ready),
            children: Vec::new(),
        }
    }

    fn volume(volume: &PoolVolume, cluster: &Cluster) -> Self {
        let size = volume.status.as_ref().and_then(|status| status.size);
        Self {
            claim: cluster.claim(volume),
            size_bytes: size.unwrap_or(volume.spec.size).0,
            ..Self::of(SourceKind::Volume, volume)
        }
    }

    fn snapshot(snapshot: &PoolSnapshot) -> Self {
        let status = snapshot.status.as_ref();
        let size = status.and_then(|status| status.size);
        Self {
            group: snapshot.spec.group_name.clone(),
            size_bytes: size.unwrap_or_default().0,
            taken: status.and_then(|status| status.creation_time),
            ..Self::of(SourceKind::Snapshot, snapshot)
        }
    }

    fn has(&self, volume: &str) -> bool {
        let is_it = self.kind == SourceKind::Volume && self.name == volume;
        is_it || self.children.iter().any(|child| child.has(volume))
    }
}

/// Something that is there, and what it was made from.
struct Member {
    image: String,
    /// Image and name of what it was made from.
    source: Option<(String, String)>,
    origin: Origin,
}

/// The image of an object, or the name that it is going to have.
fn image_of<K: Stored>(object: &K) -> String {
    let image = object.image().map(|image| image.uid.clone());
    image.unwrap_or_else(|| object.uid().unwrap_or_default())
}

impl Origins {
    /// The trees of a cluster: those with branches, or all.
    pub fn of(
        cluster: &Cluster,
        only: &Selection,
        volume: Option<&str>,
        all: bool,
        now: DateTime<Utc>,
    ) -> Self {
        let volumes = cluster.volumes.iter().map(|object| Member {
            image: image_of(object),
            source: object
                .spec
                .content_source
                .clone()
                .map(|source| (source.image, source.name)),
            origin: Origin::volume(object, cluster),
        });
        let snapshots = cluster.snapshots.iter().map(|object| Member {
            image: image_of(object),
            source: Some((
                object.spec.source_image.clone(),
                object.spec.source_volume.clone(),
            )),
            origin: Origin::snapshot(object),
        });
        let mut origins = grow(volumes.chain(snapshots).collect());
        origins.retain(|origin| {
            let is_branched = !origin.children.is_empty() || origin.lost_source.is_some();
            only.pool.as_ref().is_none_or(|pool| *pool == origin.pool)
                && only.node.as_ref().is_none_or(|node| *node == origin.node)
                && volume.is_none_or(|name| origin.has(name))
                && (all || volume.is_some() || is_branched)
        });
        Self { origins, now }
    }
}

/// Makes trees of what was made from what.
fn grow(members: Vec<Member>) -> Vec<Origin> {
    let images: BTreeSet<String> = members.iter().map(|member| member.image.clone()).collect();
    let mut branches: BTreeMap<String, Vec<Member>> = BTreeMap::new();
    let mut roots = Vec::new();
    for mut member in members {
        match member.source.take() {
            Some((image, _)) if images.contains(&image) && image != member.image => {
                branches.entry(image).or_default().push(member);
            }
            Some((_, name)) => {
                member.origin.lost_source = Some(name);
                roots.push(member);
            }
            None => roots.push(member),
        }
    }
    let mut trees = Vec::new();
    for root in roots {
        trees.push(branch_out(root, &mut branches));
    }
    // Whatever is left goes in a circle, which no agent makes; it is shown all the same.
    while let Some((_, rest)) = branches.pop_first() {
        trees.extend(rest.into_iter().map(|member| member.origin));
    }
    sort(&mut trees);
    trees
}

fn branch_out(member: Member, branches: &mut BTreeMap<String, Vec<Member>>) -> Origin {
    let mut origin = member.origin;
    for child in branches.remove(&member.image).unwrap_or_default() {
        origin.children.push(branch_out(child, branches));
    }
    sort(&mut origin.children);
    origin
}

/// Snapshots in the order of their moments, all else by name.
fn sort(origins: &mut [Origin]) {
    origins.sort_by(|a, b| (a.taken, &a.name).cmp(&(b.taken, &b.name)));
}

impl View for Origins {
    const KIND: &'static str = "OriginTree";

    fn text(&self, wide: bool, paint: Paint) -> String {
        if self.origins.is_empty() {
            return "There are no snapshots and no copies.\n".to_owned();
        }
        let mut headings = vec!["NAME", "CLAIM", "NODE", "SIZE", "HOLDS", "TAKEN", "READY"];
        if wide {
            headings.extend(["POOL", "GROUP"]);
        }
        let mut table = Table::new(&headings);
        for origin in &self.origins {
            if let Some(lost) = &origin.lost_source {
                table.row(vec![Cell::new(format!("{lost} (gone)"), Tone::Faint)]);
                self.rows(&mut table, origin, "└─ ", "   ", wide);
            } else {
                self.rows(&mut table, origin, "", "", wide);
            }
        }
        table.render(paint)
    }
}

impl Origins {
    /// A row for an origin behind `branch`, and those of its children behind `indent`.
    fn rows(&self, table: &mut Table, origin: &Origin, branch: &str, indent: &str, wide: bool) {
        let name = match origin.kind {
            SourceKind::Snapshot => (Tone::Plain, origin.name.clone()),
            SourceKind::Volume => (Tone::Strong, origin.name.clone()),
        };
        let claim = origin.claim.as_ref();
        let claim = claim.map(|claim| format!("{}/{}", claim.namespace, claim.name));
        let mut row = vec![
            Cell::of(vec![(Tone::Faint, branch.to_owned()), name]),
            claim.unwrap_or_default().into(),
            origin.node.as_str().into(),
            human(Bytes(origin.size_bytes)).into(),
            human(Bytes(origin.reserved_bytes)).into(),
            origin
                .taken
                .map(|taken| age(taken, self.now))
                .unwrap_or_default()
                .into(),
            Cell::truth(origin.ready),
        ];
        if wide {
            let group = origin.group.as_deref().unwrap_or_default();
            row.extend([origin.pool.as_str().into(), group.into()]);
        }
        table.row(row);
        for (index, child) in origin.children.iter().enumerate() {
            let (branch, below) = if index + 1 == origin.children.len() {
                ("└─ ", "   ")
            } else {
                ("├─ ", "│  ")
            };
            let (branch, below) = (format!("{indent}{branch}"), format!("{indent}{below}"));
            self.rows(table, child, &branch, &below, wide);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, cluster};

    fn origins(cluster: &Cluster, volume: Option<&str>) -> Origins {
        Origins::of(cluster, &Selection::default(), volume, false, at(600))
    }

    #[test]
    fn what_was_made_from_something_stands_below_it() {
        assert_eq!(
            origins(&cluster(), None).text(false, Paint::plain()),
            "\
NAME          CLAIM       NODE       SIZE   HOLDS   TAKEN   READY
pvc-1         shop/data   worker-1   2Gi    2Gi     -       True
└─ snap-1     -           worker-1   2Gi    2Gi     5m      True
   └─ pvc-2   shop/copy   worker-1   2Gi    2Gi     -       False
"
        );
    }

    #[test]
    fn a_snapshot_whose_volume_is_gone_stands_below_its_name() {
        let mut cluster = cluster();
        cluster
            .volumes
            .retain(|volume| volume.name_any() != "pvc-1");
        let text = origins(&cluster, None).text(false, Paint::plain());
        assert!(text.contains("pvc-1 (gone)\n└─ snap-1"), "{text}");
        assert!(text.contains("   └─ pvc-2"), "{text}");
    }

    #[test]
    fn a_later_volume_of_the_same_name_is_not_the_source() {
        let mut cluster = cluster();
        for volume in &mut cluster.volumes {
            if volume.name_any() == "pvc-1" {
                volume.status.as_mut().unwrap().image.as_mut().unwrap().uid = "other".to_owned();
            }
        }
        let json = serde_json::to_value(origins(&cluster, None)).unwrap();
        assert_eq!(json["origins"][0]["name"], "snap-1");
        assert_eq!(json["origins"][0]["lostSource"], "pvc-1");
    }

    #[test]
    fn the_family_of_one_volume_can_be_asked_for() {
        assert_eq!(origins(&cluster(), Some("pvc-2")).origins.len(), 1);
        assert!(origins(&cluster(), Some("pvc-9")).origins.is_empty());
    }

    #[test]
    fn a_circle_is_shown_and_does_not_hang() {
        let mut cluster = cluster();
        for volume in &mut cluster.volumes {
            if volume.name_any() == "pvc-1" {
                volume.spec.content_source = Some(cistern_crds::ContentSource {
                    kind: SourceKind::Volume,
                    name: "pvc-2".to_owned(),
                    image: "uid-of-pvc-2".to_owned(),
                });
            }
        }
        let origins = Origins::of(&cluster, &Selection::default(), None, true, at(0));
        assert_eq!(origins.origins.len(), 3);
    }
}
