//! `snapshots`: trees of volumes, their snapshots, the volumes created from these, and so on. Pure.
//!
//! *Invariant:* sources are matched by image, not by name, because a name may be reused. Every volume and
//! snapshot is in exactly one tree, once.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use cistern_crds::{
    Bytes, ConditionType, HasImage, PoolSnapshot, PoolVolume, SourceKind, volume::ClaimReference,
};
use kube::ResourceExt as _;
use serde::Serialize;

use crate::{
    age::age,
    arguments::Selection,
    cluster::Cluster,
    condition_state::ConditionState,
    output::{Cell, Paint, Style, Table, View, human},
};

/// Trees of volumes and snapshots.
#[derive(Clone, Debug, Serialize)]
pub struct Origins {
    /// Roots: objects without a source, or whose source is gone.
    pub origins: Vec<Origin>,
    /// Time at which the objects were listed.
    #[serde(skip)]
    pub now: DateTime<Utc>,
}

/// A volume or snapshot, and the objects created from it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Origin {
    /// `Volume` or `Snapshot`.
    pub kind: SourceKind,
    /// Name of the object.
    pub name: String,
    /// Name of the pool.
    pub pool: String,
    /// Name of the node.
    pub node: String,
    /// Claim of a volume; absent for a snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim: Option<ClaimReference>,
    /// Snapshot group of a snapshot; absent for a volume, and for a snapshot without a group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Whether a user has deleted the snapshot, which is kept as a base of incremental backups; absent means false.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub kept_as_base: bool,
    /// Name of the source, if the source no longer exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost_source: Option<String>,
    /// Size in bytes of the volume, or of a volume restored from the snapshot.
    pub size_bytes: u64,
    /// Bytes that the node's ledger reserves for it; 0 before the admission.
    pub reserved_bytes: u64,
    /// Time at which a snapshot was taken; absent for a volume, and until the agent reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taken: Option<DateTime<Utc>>,
    /// Condition Ready.
    pub ready: ConditionState,
    /// Objects created from it.
    pub children: Vec<Origin>,
}

impl Origin {
    fn of<K: HasImage>(kind: SourceKind, object: &K) -> Self {
        Self {
            kind,
            name: object.name_any(),
            pool: object.pool_name().to_owned(),
            node: object.node_name().to_owned(),
            claim: None,
            group: None,
            kept_as_base: false,
            lost_source: None,
            size_bytes: 0,
            reserved_bytes: object.reserved().unwrap_or_default().0,
            taken: None,
            ready: ConditionState::of(object.conditions(), ConditionType::Ready),
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
            kept_as_base: snapshot.spec.is_kept_as_base(),
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

/// An existing object and its source.
struct Member {
    image: String,
    /// Image and name of the source.
    source: Option<(String, String)>,
    origin: Origin,
}

/// Returns the name of an object's image; before the image exists, the object's UID, which becomes its name.
fn image_of<K: HasImage>(object: &K) -> String {
    let image = object.image().map(|image| image.uid.clone());
    image.unwrap_or_else(|| object.uid().unwrap_or_default())
}

impl Origins {
    /// Builds the trees whose root `only` selects. With `volume`, builds only the tree that
    /// contains this volume. Leaves out objects without a source and without copies, unless `all`
    /// or `volume` is set.
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

/// Builds the trees: matches the source of each member with the image of another.
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
    // The remaining members form cycles, which no agent creates. They are shown as roots.
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

/// Sorts snapshots by creation time, and other objects by name. Objects without a creation time are
/// first.
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
                table.row(vec![Cell::new(format!("{lost} (gone)"), Style::Faint)]);
                self.rows(&mut table, origin, "└─ ", "   ", wide);
            } else {
                self.rows(&mut table, origin, "", "", wide);
            }
        }
        table.render(paint)
    }

    fn has_headings(&self) -> bool {
        !self.origins.is_empty()
    }
}

impl Origins {
    /// Adds the row of an origin with the prefix `branch`, and its children with the prefix `indent`.
    fn rows(&self, table: &mut Table, origin: &Origin, branch: &str, indent: &str, wide: bool) {
        let name = match origin.kind {
            SourceKind::Snapshot => (Style::Plain, origin.name.clone()),
            SourceKind::Volume => (Style::Strong, origin.name.clone()),
        };
        let claim = origin.claim.as_ref();
        let claim = claim.map(|claim| format!("{}/{}", claim.namespace, claim.name));
        let base = if origin.kept_as_base { " (base)" } else { "" };
        let parts = [(Style::Faint, branch), (Style::Faint, base)];
        let [branch, base] = parts.map(|(style, text)| (style, text.to_owned()));
        let mut row = vec![
            Cell::of(vec![branch, name, base]),
            claim.unwrap_or_default().into(),
            origin.node.as_str().into(),
            human(Bytes(origin.size_bytes)).into(),
            human(Bytes(origin.reserved_bytes)).into(),
            origin
                .taken
                .map(|taken| age(taken, self.now))
                .unwrap_or_default()
                .into(),
            Cell::condition(origin.ready),
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
    use cistern_crds::IncrementalBase;

    use super::*;
    use crate::testing::{at, cluster};

    fn origins(cluster: &Cluster, volume: Option<&str>) -> Origins {
        Origins::of(cluster, &Selection::default(), volume, false, at(600))
    }

    #[test]
    fn objects_are_listed_below_their_source() {
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
    fn a_deleted_snapshot_that_is_kept_as_a_base_is_marked() {
        let mut cluster = cluster();
        cluster.snapshots[0].spec.incremental_base = Some(IncrementalBase::Kept);
        let text = origins(&cluster, None).text(false, Paint::plain());
        assert!(text.contains("└─ snap-1 (base)"), "{text}");
    }

    #[test]
    fn a_snapshot_without_volume_is_listed_below_the_name_of_the_volume() {
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
    fn trees_are_filtered_by_volume() {
        assert_eq!(origins(&cluster(), Some("pvc-2")).origins.len(), 1);
        assert!(origins(&cluster(), Some("pvc-9")).origins.is_empty());
    }

    #[test]
    fn a_cycle_is_shown_and_terminates() {
        let mut cluster = cluster();
        for volume in &mut cluster.volumes {
            if volume.name_any() == "pvc-1" {
                volume.spec.content_source = Some(cistern_crds::ContentSource {
                    kind: SourceKind::Volume,
                    name: "pvc-2".to_owned(),
                    image: "uid-of-pvc-2".to_owned(),
                    node_name: None,
                    snapshot_name: None,
                });
            }
        }
        let origins = Origins::of(&cluster, &Selection::default(), None, true, at(0));
        assert_eq!(origins.origins.len(), 3);
    }
}
