//! Block devices as the source of a pool: which ones are candidates, and how volumes lie on them.
//!
//! *Invariant:* candidates are named by paths or by a selector, never by both, and only logical volumes are striped.

use cistern_types::Bytes;
use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::bounds;

/// A pool on block devices: exactly one of `paths` and `selector` says which devices are candidates. With the
/// engine `Image`, each node uses the candidate that already holds this pool, or else the first blank one. If
/// several hold the pool's filesystem, or one cannot be read, the node uses none. With the engine
/// `LogicalVolume`, each node makes a volume group of all blank candidates. If one of its devices is missing, the
/// node changes nothing in it.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.paths) != has(self.selector)")
    .message("a device is exactly one of paths and selector"))]
#[x_kube(validation = Rule::new("!has(self.stripes) || self.engine == 'LogicalVolume'")
    .message("only logical volumes are striped"))]
pub struct DeviceSource {
    /// Paths of candidate devices, preferably under `/dev/disk/by-id`, because disks differ between
    /// nodes. Absent with a `selector`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "paths_schema")]
    pub paths: Vec<String>,
    /// Selects candidates by their properties, among the disks of each node that have a name in
    /// `/dev/disk/by-id` and are not removable, in the order of their names. A disk that another pool
    /// of the node lists is no candidate. Absent with `paths`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<DiskSelector>,
    /// How volumes lie on the devices; immutable. `Image`, the default: each volume is an image file in an XFS filesystem
    /// on one of the devices. `LogicalVolume`: each volume is a thick logical volume of LVM in a volume group of all
    /// blank devices, and has no snapshots, clones or moves. Set by an administrator.
    #[serde(default)]
    pub engine: DeviceEngine,
    /// Number of devices over which each logical volume is striped, between 2 and 16; immutable. The node makes the
    /// volume group once it has this many blank candidates. Absent by default: not striped. Only with the engine
    /// `LogicalVolume`. Set by an administrator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2, max = 16))]
    pub stripes: Option<u32>,
}

/// How the volumes of a pool lie on its devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DeviceEngine {
    /// Each volume is an image file in an XFS filesystem on one device, which is the first blank candidate. They can be
    /// thin, snapshotted, cloned and moved.
    #[default]
    Image,
    /// Each volume is a thick logical volume of LVM, without a loop device. All blank candidates become physical volumes
    /// of one volume group, and blank candidates that are listed or found later join it. There are no snapshots, clones
    /// or moves.
    LogicalVolume,
}

/// Selects disks that meet all of these requirements. At least one is set.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.minimumSize) || has(self.maximumSize) \
        || has(self.model) || has(self.rotational)")
    .message("a selector of disks has at least one requirement"))]
pub struct DiskSelector {
    /// Least size in bytes of a disk. Absent by default: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_size: Option<Bytes>,
    /// Largest size in bytes of a disk. Absent by default: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maximum_size: Option<Bytes>,
    /// Model of a disk, exactly as in `status.disks` of the StorageNode, or how it begins, followed by
    /// `*`. Absent by default: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = bounds::DISK_TEXT))]
    pub model: Option<String>,
    /// Whether the kernel takes a disk for one that rotates. Absent by default: either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotational: Option<bool>,
}

impl DiskSelector {
    /// Whether a disk meets all requirements.
    pub fn matches(&self, size: Bytes, model: Option<&str>, rotational: bool) -> bool {
        let is_model = |wanted: &String| match (wanted.strip_suffix('*'), model) {
            (Some(begin), model) => model.unwrap_or_default().starts_with(begin),
            (None, Some(model)) => model == wanted,
            (None, None) => false,
        };
        self.minimum_size.is_none_or(|least| size >= least)
            && self.maximum_size.is_none_or(|most| size <= most)
            && self.model.as_ref().is_none_or(is_model)
            && self.rotational.is_none_or(|wanted| wanted == rotational)
    }
}

fn paths_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "minItems": 1,
        "maxItems": 16,
        "x-kubernetes-list-type": "set",
        "items": {"type": "string", "maxLength": 1024, "pattern": "^/dev/.+$"},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_selected_if_it_meets_every_requirement() {
        let of = |text: &str| -> DiskSelector { serde_json::from_str(text).unwrap() };
        let matches = |text: &str, size: u64, model, rotational| {
            of(text).matches(Bytes::gib(size), model, rotational)
        };
        let sizes = r#"{"minimumSize": "2Gi", "maximumSize": "4Gi"}"#;
        assert!(
            [2, 3, 4]
                .into_iter()
                .all(|size| matches(sizes, size, None, true))
        );
        assert!(
            ![1, 5]
                .into_iter()
                .any(|size| matches(sizes, size, None, true))
        );
        let exact = r#"{"model": "Fast 980"}"#;
        assert!(matches(exact, 1, Some("Fast 980"), false));
        assert!(
            ![None, Some("Fast 980 PRO")]
                .into_iter()
                .any(|model| matches(exact, 1, model, false))
        );
        let begins = r#"{"model": "Fast*"}"#;
        assert!(matches(begins, 1, Some("Fast 980 PRO"), false));
        assert!(
            ![None, Some("Slow")]
                .into_iter()
                .any(|model| matches(begins, 1, model, false))
        );
        let both = r#"{"minimumSize": "2Gi", "rotational": false}"#;
        assert!(matches(both, 2, None, false));
        assert!(!matches(both, 2, None, true) && !matches(both, 1, None, false));
    }
}
