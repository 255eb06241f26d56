//! `volumes`: volumes with their claim, node, image, device and pods. Pure.

use std::{cmp::Reverse, collections::BTreeMap};

use chrono::{DateTime, Utc};
use cistern_crds::{
    AccessType, Bytes, ConditionStatus, ConditionType, ContentSource, FilesystemType,
    HasImage as _, IoLimits, PoolVolume, Provisioning, condition,
    health::{Problem, VolumeProblem},
    time,
    volume::ClaimReference,
};
use kube::ResourceExt as _;
use serde::Serialize;

use crate::{
    age::age,
    arguments::{Selection, VolumeOrder},
    cluster::Cluster,
    condition_state::ConditionState,
    output::{Cell, Paint, Style, Table, View, human, one_line},
};

/// List of volumes.
#[derive(Clone, Debug, Serialize)]
pub struct Volumes {
    /// Volumes in display order.
    pub items: Vec<VolumeView>,
    /// Time at which the objects were listed.
    #[serde(skip)]
    pub now: DateTime<Utc>,
}

/// A volume, with the objects that use it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeView {
    /// Name of the PoolVolume, which is the CSI volume ID.
    pub name: String,
    /// Claim that uses the volume; absent if none is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim: Option<ClaimReference>,
    /// Name of the PersistentVolume; absent if there is none, or if the user may not list the kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_volume: Option<String>,
    /// Name of the pool.
    pub pool: String,
    /// Name of the node.
    pub node: String,
    /// Size in bytes; the requested size until the volume is created.
    pub size_bytes: u64,
    /// Bytes that the node's ledger reserves for it; 0 before the admission.
    pub reserved_bytes: u64,
    /// Bytes of the pool that are allocated to its image, including extents that it shares with
    /// other images. Absent until the image exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocated_bytes: Option<u64>,
    /// Filesystem or raw block.
    pub access_type: AccessType,
    /// Type of the filesystem; absent for a raw block volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filesystem: Option<FilesystemType>,
    /// Thin, or thick with its full size reserved.
    pub provisioning: Provisioning,
    /// Limits of its I/O. The limits of its pool apply as well, and are not included.
    #[serde(skip_serializing_if = "IoLimits::is_none")]
    pub io_limits: IoLimits,
    /// Snapshot or volume from which it was created; absent if it was created empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<ContentSource>,
    /// Name of the image in the pool; absent until the image exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Approximate number of extents of the image; absent until the agent has counted them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extents: Option<u64>,
    /// Path of the block device, such as `/dev/loop7`; absent without `--devices`, and if the volume
    /// is not attached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Names of the pods that use its claim and are neither Succeeded nor Failed.
    pub pods: Vec<String>,
    /// Condition Ready: the volume is as its spec wants it, and pods can use it.
    pub ready: ConditionState,
    /// Condition Healthy: no problem is known.
    pub healthy: ConditionState,
    /// Summary in one word: `Ready`, `Pending`, `Deleting`, `Checking`, the highest severity of the
    /// problems, or the reason of the condition Ready.
    pub state: String,
    /// Progress of the filesystem check, while a check is pending or running.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checking: Option<String>,
    /// Progress of the allocation, while a volume that becomes thick is being allocated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocating: Option<String>,
    /// Problems that the agent reports.
    pub problems: Vec<VolumeProblem>,
    /// Creation time of the PoolVolume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<DateTime<Utc>>,
}

/// Paths of block devices, by name of the node and name of the volume.
pub type Devices = BTreeMap<(String, String), String>;

impl Volumes {
    /// Collects the selected volumes of a cluster, sorted by claim.
    pub fn of(
        cluster: &Cluster,
        only: &Selection,
        namespace: Option<&str>,
        devices: &Devices,
        now: DateTime<Utc>,
    ) -> Self {
        let is_wanted = |volume: &&PoolVolume| {
            let spec = &volume.spec;
            only.pool
                .as_ref()
                .is_none_or(|pool| *pool == spec.pool_name)
                && only
                    .node
                    .as_ref()
                    .is_none_or(|node| *node == spec.node_name)
        };
        let items = cluster
            .volumes
            .iter()
            .filter(is_wanted)
            .map(|volume| VolumeView::of(volume, cluster, devices))
            .filter(|volume| {
                let of = volume.claim.as_ref().map(|claim| claim.namespace.as_str());
                namespace.is_none() || of == namespace
            })
            .collect();
        let mut this = Self { items, now };
        this.sort(VolumeOrder::Claim);
        this
    }

    /// Sorts the volumes in this order, and by claim where it is equal.
    pub fn sort(&mut self, order: VolumeOrder) {
        let claim = |volume: &VolumeView| {
            let claim = volume.claim.clone();
            let claim = claim.map(|claim| (claim.namespace, claim.name));
            // Volumes without a claim come last.
            (claim.is_none(), claim, volume.name.clone())
        };
        self.items.sort_by_cached_key(claim);
        match order {
            VolumeOrder::Claim => {}
            VolumeOrder::Name => self.items.sort_by(|a, b| a.name.cmp(&b.name)),
            VolumeOrder::Node => self.items.sort_by(|a, b| a.node.cmp(&b.node)),
            VolumeOrder::Pool => self.items.sort_by(|a, b| a.pool.cmp(&b.pool)),
            VolumeOrder::Size => self.items.sort_by_key(|volume| Reverse(volume.size_bytes)),
            VolumeOrder::Age => self.items.sort_by_key(|volume| Reverse(volume.created)),
        }
    }
}

impl VolumeView {
    fn of(volume: &PoolVolume, cluster: &Cluster, devices: &Devices) -> Self {
        let (name, spec) = (volume.name_any(), &volume.spec);
        let status = volume.status.clone().unwrap_or_default();
        let claim = cluster.claim(volume);
        let pods = claim.iter().flat_map(|claim| cluster.pods_with(claim));
        let image = status.image.map(|image| image.uid);
        let device = devices.get(&(spec.node_name.clone(), name.clone()));
        Self {
            pods: pods.map(kube::ResourceExt::name_any).collect(),
            persistent_volume: cluster
                .persistent_volume(&name)
                .map(kube::ResourceExt::name_any),
            claim,
            pool: spec.pool_name.clone(),
            node: spec.node_name.clone(),
            size_bytes: status.size.unwrap_or(spec.size).0,
            reserved_bytes: status.reserved.unwrap_or_default().0,
            allocated_bytes: status.allocated.map(|allocated| allocated.0),
            access_type: volume.access_type(),
            filesystem: volume.filesystem_type(),
            provisioning: volume.admitted_attributes().provisioning,
            io_limits: volume.admitted_attributes().io_limits,
            source: spec.content_source.clone(),
            image,
            extents: status.extents,
            device: device.cloned(),
            ready: ConditionState::of(&status.conditions, ConditionType::Ready),
            healthy: ConditionState::of(&status.conditions, ConditionType::Healthy),
            state: state(volume),
            checking: volume.checking().map(|checking| checking.message.clone()),
            allocating: volume.allocating().map(|it| it.message.clone()),
            problems: status.problems,
            created: volume
                .creation_timestamp()
                .as_ref()
                .map(time::from_kubernetes),
            name,
        }
    }
}

/// Returns the summary of a volume in one word.
fn state(volume: &PoolVolume) -> String {
    if volume.spec.deletion_requested {
        return "Deleting".to_owned();
    }
    let status = volume.status.as_ref();
    let problems: &[VolumeProblem] = status.map_or(&[], |status| &status.problems);
    let ready = condition::find(volume.conditions(), ConditionType::Ready);
    match (Problem::worst(problems), ready) {
        (Some(worst), _) => format!("{:?}", worst.severity),
        (None, _) if volume.checking().is_some() => "Checking".to_owned(),
        (None, Some(ready)) if ready.status == ConditionStatus::True.as_str() => "Ready".to_owned(),
        (None, Some(ready)) => ready.reason.clone(),
        (None, None) => "Pending".to_owned(),
    }
}

const HEADINGS: [&str; 10] = [
    "CLAIM", "VOLUME", "NODE", "POOL", "SIZE", "USED", "TYPE", "STATE", "PODS", "AGE",
];
const WIDE: [&str; 6] = [
    "IMAGE",
    "DEVICE",
    "SOURCE",
    "PROVISIONING",
    "LIMITS",
    "EXTENTS",
];

impl View for Volumes {
    const KIND: &'static str = "VolumeList";

    fn text(&self, wide: bool, paint: Paint) -> String {
        if self.items.is_empty() {
            return "There are no such volumes.\n".to_owned();
        }
        // With `--devices`, the table has the column even if it is not wide.
        let devices = !wide && self.items.iter().any(|volume| volume.device.is_some());
        let more: &[&str] = match (wide, devices) {
            (true, _) => &WIDE,
            (false, true) => &["DEVICE"],
            (false, false) => &[],
        };
        let mut table = Table::new(&[&HEADINGS, more].concat());
        for volume in &self.items {
            let mut row = volume.row(self.now);
            let device: Cell = volume.device.as_deref().unwrap_or_default().into();
            if wide {
                let source = volume.source.as_ref().map_or("", |source| &source.name);
                let extents = volume.extents.map(|count| count.to_string());
                let limits = Some(volume.io_limits).filter(|limits| !limits.is_none());
                let limits = limits.map_or_else(String::new, |limits| limits.to_string());
                row.extend([
                    volume.image.as_deref().unwrap_or_default().into(),
                    device,
                    source.into(),
                    format!("{:?}", volume.provisioning).into(),
                    limits.into(),
                    extents.unwrap_or_default().into(),
                ]);
            } else if devices {
                row.push(device);
            }
            table.row(row);
        }
        let mut text = table.render(paint);
        for volume in &self.items {
            for progress in volume.checking.iter().chain(&volume.allocating) {
                text.extend([&volume.name, ": ", &one_line(progress), "\n"]);
            }
        }
        text
    }

    fn has_headings(&self) -> bool {
        !self.items.is_empty()
    }
}

impl VolumeView {
    fn row(&self, now: DateTime<Utc>) -> Vec<Cell> {
        let claim = self.claim.as_ref();
        let claim = claim.map(|claim| format!("{}/{}", claim.namespace, claim.name));
        let style = match self.state.as_str() {
            "Ready" => Style::Good,
            "Degraded" | "Deleting" | "Pending" | "Checking" => Style::Warning,
            _ => Style::Bad,
        };
        let filesystem = self.filesystem.map_or("block", FilesystemType::as_str);
        vec![
            claim.unwrap_or_default().into(),
            self.name.as_str().into(),
            self.node.as_str().into(),
            self.pool.as_str().into(),
            human(Bytes(self.size_bytes)).into(),
            self.allocated_bytes
                .map(|allocated| human(Bytes(allocated)))
                .unwrap_or_default()
                .into(),
            filesystem.into(),
            Cell::new(&self.state, style),
            few(&self.pods).into(),
            self.created
                .map(|since| age(since, now))
                .unwrap_or_default()
                .into(),
        ]
    }
}

/// Formats the first name and the number of others.
fn few(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [first, rest @ ..] => format!("{first} +{}", rest.len()),
    }
}

#[cfg(test)]
mod tests {
    use cistern_crds::Reason;

    use super::*;
    use crate::testing::{at, cluster};

    fn volumes(namespace: Option<&str>) -> Volumes {
        let devices = Devices::from([(
            ("worker-1".to_owned(), "pvc-1".to_owned()),
            "/dev/loop7".to_owned(),
        )]);
        Volumes::of(
            &cluster(),
            &Selection::default(),
            namespace,
            &devices,
            at(600),
        )
    }

    #[test]
    fn a_volume_is_listed_with_its_claim_node_and_pods() {
        let mut without_devices = volumes(None);
        for volume in &mut without_devices.items {
            volume.device = None;
        }
        assert_eq!(
            without_devices.text(false, Paint::plain()),
            "\
CLAIM       VOLUME   NODE       POOL   SIZE   USED    TYPE   STATE      PODS   AGE
shop/copy   pvc-2    worker-1   fast   2Gi    1.2Gi   ext4   DataLoss   -      10m
shop/data   pvc-1    worker-1   fast   2Gi    1.2Gi   ext4   Ready      db-0   10m
"
        );
        let wide = volumes(None).text(true, Paint::plain());
        assert!(wide.contains("uid-of-pvc-1   /dev/loop7"), "{wide}");
        assert!(
            volumes(None)
                .text(false, Paint::plain())
                .contains("/dev/loop7")
        );
    }

    /// The table of a cluster where a volume reports work with this condition.
    fn table_with(update: &condition::ConditionUpdate) -> String {
        let mut cluster = cluster();
        let volume = cluster
            .volumes
            .iter_mut()
            .find(|it| it.name_any() == "pvc-1");
        let conditions = &mut volume.unwrap().status.as_mut().unwrap().conditions;
        condition::set(conditions, update, None, at(0));
        let only = Selection::default();
        let volumes = Volumes::of(&cluster, &only, None, &Devices::new(), at(600));
        volumes.text(false, Paint::plain())
    }

    #[test]
    fn a_volume_on_which_work_goes_on_shows_its_progress() {
        for (kind, is_true, reason, state) in [
            (
                ConditionType::Checking,
                true,
                Reason::CheckRunning,
                "Checking",
            ),
            (
                ConditionType::AttributesApplied,
                false,
                Reason::Allocating,
                "Ready   ",
            ),
        ] {
            let message = "it goes on: 35 % are done";
            let update = condition::ConditionUpdate::new(kind, is_true, reason, message);
            let text = table_with(&update);
            assert!(text.contains(&format!("ext4   {state}   db-0")), "{text}");
            assert!(
                text.ends_with("pvc-1: it goes on: 35 % are done\n"),
                "{text}"
            );
        }
    }

    #[test]
    fn volumes_are_filtered_by_the_namespace_of_their_claim_and_sorted() {
        assert_eq!(volumes(Some("shop")).items.len(), 2);
        assert!(volumes(Some("other")).items.is_empty());
        let mut volumes = volumes(None);
        volumes.sort(VolumeOrder::Name);
        assert_eq!(volumes.items[0].name, "pvc-1");
    }

    #[test]
    fn json_contains_all_known_fields() {
        let json = serde_json::to_value(volumes(None)).unwrap();
        let item = &json["items"][1];
        assert_eq!(item["claim"]["namespace"], "shop");
        assert_eq!(item["persistentVolume"], "pv-pvc-1");
        assert_eq!(item["image"], "uid-of-pvc-1");
        assert_eq!(item["device"], "/dev/loop7");
        assert_eq!(item["sizeBytes"], 2_u64 << 30);
        assert_eq!(item["allocatedBytes"], 1280_u64 << 20);
        assert_eq!(json["items"][0]["problems"][0]["reason"], "ImageMissing");
        assert_eq!(json["items"][0]["source"]["kind"], "Snapshot");
    }
}
