//! Where the space of a pool on each node comes from: an image file, block devices, or a volume group of LVM.
//!
//! *Invariant:* a source is exactly one of these. A directory is written in only one way, and the name of a volume
//! group is one that LVM allows.

use cistern_types::Bytes;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::device::{DeviceEngine, DeviceSource};
use crate::bounds;

/// Source of a pool's space: exactly one of these fields.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.image), has(self.device), has(self.volumeGroup)].filter(x, x).size() == 1")
    .message("a source is exactly one of image, device and volumeGroup"))]
pub struct PoolSource {
    /// An image file of a given size on the node's own disk. Works on every node. Absent if the
    /// source is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageSource>,
    /// Blank block devices. Absent if the source is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceSource>,
    /// A volume group of LVM that exists on each node. Its volumes are thick, and have no snapshots,
    /// clones or moves. Absent if the source is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_group: Option<VolumeGroupSource>,
}

impl PoolSource {
    /// Whether the volumes of the pool are images: files, which can be thin, copied and moved. Otherwise the pool is a
    /// volume group, which exists already or which the node makes of devices, and they are thick logical volumes.
    pub fn has_images(&self) -> bool {
        let is_image = |device: &DeviceSource| device.engine == DeviceEngine::Image;
        self.volume_group.is_none() && self.device.as_ref().is_none_or(is_image)
    }
}

/// A pool in a file on each node, by default under `/var/lib/cistern`.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageSource {
    /// Size in bytes of the image file on every node, at least 1Gi. It can be raised, and lowered
    /// again down to the largest file that a node has created (`status.largestFile`). A node
    /// without room for a larger file keeps its current one.
    #[x_kube(validation = Rule::new("quantity(self).compareTo(quantity('1Gi')) >= 0").message("a pool has at least 1Gi"))]
    pub size: Bytes,
    /// Directory of each node in which the image file is, for example `/data/cistern` on a disk that is
    /// mounted at `/data`: an absolute path without symbolic links, at most 512 characters. It must exist, and the
    /// node plugin must allow it, or a directory above it (`POOL_DIRECTORIES`). Immutable. Absent by default:
    /// the file is under `/var/lib/cistern`. Set by an administrator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = bounds::DIRECTORY))]
    #[x_kube(validation = Rule::new(DIRECTORY_RULE)
        .message("a directory is an absolute path without '.', '..', control characters, ':' \
            and a slash at its end"))]
    pub directory: Option<String>,
}

/// What [`PoolSource::has_images`] denies, as a part of the rules of the schema.
pub(super) const IS_GROUP: &str = "(has(self.spec.source.volumeGroup) \
    || (has(self.spec.source.device) && self.spec.source.device.engine == 'LogicalVolume'))";

/// The directory of an image is the former one.
pub(super) const SAME_DIRECTORY_RULE: &str = "!has(self.image) || !has(oldSelf.image) \
    || (has(self.image.directory) == has(oldSelf.image.directory) \
        && (!has(self.image.directory) || self.image.directory == oldSelf.image.directory))";

/// What [`is_directory`] requires, as a rule of the schema.
const DIRECTORY_RULE: &str = concat!(
    r"self.matches(r'^(/[^/:\x00-\x1f\x7f\x{80}-\x{9f}]+)+$')",
    " && !self.split('/').exists(part, part == '.' || part == '..')",
);

/// Whether a text names a directory of a host in only one way: an absolute path without empty, `.` and `..`
/// parts and control characters, within [`bounds::DIRECTORY`]. A colon is not allowed, because no container
/// can mount a path with one.
pub fn is_directory(text: &str) -> bool {
    let is_part = |part: &str| !matches!(part, "" | "." | "..");
    let is_letter = |letter: char| letter != ':' && !letter.is_control();
    text.chars().count() <= bounds::DIRECTORY
        && text.chars().all(is_letter)
        && text
            .strip_prefix('/')
            .is_some_and(|parts| parts.split('/').all(is_part))
}

/// A volume group of LVM that exists on each node. Each volume is one thick logical volume in it.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeGroupSource {
    /// Name of the volume group, the same on every node, for example `vg-data`: letters, digits, `_`, `+`,
    /// `.` and `-`, with no `-` at the beginning, at most 69 characters, of which each hyphen counts twice. The group must exist, be neither
    /// exported nor shared between machines, and be the source of no other pool. Cistern adds tags to it
    /// and logical volumes whose names begin with `cistern-`, and leaves its other logical volumes alone.
    /// Immutable. Set by an administrator; required.
    #[schemars(length(min = 1, max = bounds::VOLUME_GROUP), regex(pattern = VOLUME_GROUP_PATTERN))]
    #[x_kube(validation = Rule::new("self != '.' && self != '..'").message("the name of a volume group is not '.' or '..'"))]
    #[x_kube(validation = Rule::new("size(self) + size(self.split('-')) - 1 <= 69")
        .message("the name of a volume group has at most 69 characters, of which each hyphen counts twice"))]
    pub name: String,
}

/// The letters of the name of a volume group, as in lvm(8).
const VOLUME_GROUP_PATTERN: &str = "^[A-Za-z0-9_+.][A-Za-z0-9_+.-]*$";

/// Whether a text can be the name of a volume group of LVM, within [`bounds::VOLUME_GROUP`]. Device-mapper
/// writes each hyphen twice.
pub fn is_volume_group_name(text: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '+' | '.' | '-');
    text.len() + text.matches('-').count() <= bounds::VOLUME_GROUP
        && text.chars().all(is_letter)
        && !matches!(text, "" | "." | "..")
        && !text.starts_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_an_absolute_path_that_is_written_in_only_one_way() {
        let longest = format!("/{}", "\u{fc}".repeat(bounds::DIRECTORY - 1));
        for text in ["/data", "/data/cistern", "/a.b/..c/.d/e f/\u{fc}", &longest] {
            assert!(is_directory(text), "{text}");
        }
        let too_long = format!("{longest}d");
        for text in [
            "", "/", "data", "./data", "/data/", "//data", "/data//x", "/data/..", "/../data",
            "/./data", "/data/.", "/a:b", "/a\nb", "/a\0", "/a\u{85}", "/a\u{7f}", &too_long,
        ] {
            assert!(!is_directory(text), "{text:?}");
        }
    }

    #[test]
    fn the_name_of_a_volume_group_is_one_that_lvm_allows() {
        let longest = "v".repeat(bounds::VOLUME_GROUP);
        for text in ["vg-data", "VG_0+1.x", ".hidden", "...", "_", &longest] {
            assert!(is_volume_group_name(text), "{text}");
        }
        let too_long = [format!("{longest}v"), format!("{}-", &longest[1..])];
        for text in [
            "",
            ".",
            "..",
            "-vg",
            "a/b",
            "a b",
            "a:b",
            "\u{fc}",
            "a\n",
            &too_long[0],
            &too_long[1],
        ] {
            assert!(!is_volume_group_name(text), "{text:?}");
        }
    }
}
