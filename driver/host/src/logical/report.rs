//! What LVM's commands print as JSON.

use std::{collections::BTreeMap, io, path::PathBuf, str::FromStr};

use serde::{Deserialize, de::DeserializeOwned};

use crate::system::DeviceNumber;

/// One kind of row of a report.
pub(super) trait Report: DeserializeOwned {
    /// The command that lists such rows.
    const VERB: &'static str;
    /// The fields of a row.
    const FIELDS: &'static str;
}

/// A volume group. All numbers are text, and sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct GroupRow {
    #[serde(rename = "vg_extent_size")]
    pub(super) extent_size: String,
    #[serde(rename = "vg_extent_count")]
    pub(super) extent_count: String,
    /// Room for metadata.
    #[serde(rename = "vg_mda_free")]
    pub(super) mda_free: String,
    #[serde(rename = "vg_tags")]
    pub(super) tags: String,
    #[serde(rename = "vg_exported")]
    pub(super) exported: String,
    #[serde(rename = "vg_lock_type")]
    pub(super) lock_type: String,
    #[serde(rename = "vg_permissions")]
    pub(super) permissions: String,
    #[serde(rename = "vg_missing_pv_count")]
    pub(super) missing_pv_count: String,
    /// Counts the changes of the group.
    #[serde(rename = "vg_seqno")]
    pub(super) change: String,
    /// One of its disks: each has a row.
    #[serde(flatten)]
    pub(super) disk: GroupDisk,
}

impl Report for GroupRow {
    const VERB: &'static str = "vgs";
    const FIELDS: &'static str = "vg_extent_size,vg_extent_count,vg_mda_free,vg_tags,vg_exported,\
        vg_lock_type,vg_permissions,vg_missing_pv_count,vg_seqno,pv_name,pv_major,pv_minor,\
        pv_pe_count,pv_pe_alloc_count,pv_allocatable";
}

/// A disk of a volume group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct GroupDisk {
    #[serde(rename = "pv_name")]
    pub(super) path: PathBuf,
    #[serde(rename = "pv_major")]
    major: String,
    #[serde(rename = "pv_minor")]
    minor: String,
    #[serde(rename = "pv_pe_count")]
    extent_count: String,
    #[serde(rename = "pv_pe_alloc_count")]
    allocated_count: String,
    /// Empty if LVM shall allocate nothing on it (pvchange -x n).
    #[serde(rename = "pv_allocatable")]
    allocatable: String,
}

impl GroupDisk {
    /// The number of its device.
    pub(super) fn number(&self) -> io::Result<DeviceNumber> {
        Ok(DeviceNumber {
            major: number(&self.major)?,
            minor: number(&self.minor)?,
        })
    }

    /// How many of its extents volumes can get.
    pub(super) fn free(&self) -> io::Result<u64> {
        if self.allocatable.is_empty() {
            return Ok(0);
        }
        let all: u64 = number(&self.extent_count)?;
        Ok(all.saturating_sub(number(&self.allocated_count)?))
    }
}

/// The name of a volume group, and its tags.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct GroupTags {
    #[serde(rename = "vg_name")]
    pub(super) name: String,
    #[serde(rename = "vg_tags")]
    pub(super) tags: String,
}

impl Report for GroupTags {
    const VERB: &'static str = "vgs";
    const FIELDS: &'static str = "vg_name,vg_tags";
}

/// How LVM names the group of a physical volume that is marked as used, and whose group it does not find.
const UNKNOWN: &str = "[unknown]";

/// A physical volume.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct DiskRow {
    #[serde(rename = "pv_uuid")]
    pub(super) uuid: String,
    #[serde(rename = "pv_major")]
    major: String,
    #[serde(rename = "pv_minor")]
    minor: String,
    /// Its group; empty if it is in none.
    #[serde(rename = "vg_name")]
    pub(super) group: String,
}

impl Report for DiskRow {
    const VERB: &'static str = "pvs";
    const FIELDS: &'static str = "pv_uuid,pv_major,pv_minor,vg_name";
}

impl DiskRow {
    /// Whether it lies on this device.
    pub(super) fn is_on(&self, device: DeviceNumber) -> bool {
        let part = |text: &str| text.parse::<u32>().ok();
        part(&self.major) == Some(device.major) && part(&self.minor) == Some(device.minor)
    }

    /// Whether it is in no group that LVM knows.
    pub(super) fn is_alone(&self) -> bool {
        self.group.is_empty() || self.group == UNKNOWN
    }
}

/// A logical volume.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct VolumeRow {
    #[serde(rename = "lv_name")]
    pub(super) name: String,
    #[serde(rename = "lv_uuid")]
    pub(super) uuid: String,
    /// UUID of its group.
    #[serde(rename = "vg_uuid")]
    pub(super) group_uuid: String,
    #[serde(rename = "lv_size")]
    pub(super) size: String,
    #[serde(rename = "lv_tags")]
    pub(super) tags: String,
    /// `open` while something uses it.
    #[serde(rename = "lv_device_open")]
    pub(super) open: String,
    /// What it is a snapshot of. LVM puts the names of hidden logical volumes in brackets.
    pub(super) origin: String,
    /// What caches it.
    #[serde(rename = "pool_lv")]
    pub(super) cache: String,
    /// Counts the changes of its group.
    #[serde(rename = "vg_seqno")]
    pub(super) change: String,
}

impl Report for VolumeRow {
    const VERB: &'static str = "lvs";
    const FIELDS: &'static str =
        "lv_name,lv_uuid,vg_uuid,lv_size,lv_tags,lv_device_open,origin,pool_lv,vg_seqno";
}

/// A segment of a logical volume.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct SegmentRow {
    /// Its extents, each range as `DEVICE:FIRST-LAST`, separated by spaces.
    #[serde(rename = "seg_pe_ranges")]
    pub(super) ranges: String,
}

impl Report for SegmentRow {
    const VERB: &'static str = "lvs";
    const FIELDS: &'static str = "seg_pe_ranges";
}

#[derive(Deserialize)]
struct Printed {
    report: Vec<BTreeMap<String, serde_json::Value>>,
}

/// Returns the rows of a printed report, which has one list. Its name depends on the fields that were asked for. LVM prints
/// some messages between the lines of a report, such as "Retrying metadata scan".
pub(super) fn parse<T: Report>(text: &str) -> io::Result<Vec<T>> {
    let is_message = |line: &&str| line.trim_start().starts_with(char::is_alphabetic);
    let lines: Vec<&str> = text.lines().filter(|line| !is_message(line)).collect();
    let printed: Printed = serde_json::from_str(&lines.join("\n"))?;
    let mut all = Vec::new();
    for list in printed.report.into_iter().flat_map(BTreeMap::into_values) {
        all.extend(serde_json::from_value::<Vec<T>>(list)?);
    }
    Ok(all)
}

/// Returns the number in a field.
pub(super) fn number<T: FromStr>(field: &str) -> io::Result<T> {
    field
        .parse()
        .map_err(|_| io::Error::other(format!("LVM reports {field:?} instead of a number")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_of_a_report_are_read() {
        let text = r#"{"report": [{"lv": [{"lv_name":"cistern-a", "lv_uuid":"x-y", "vg_uuid":"v-w",
            "lv_size":"4194304", "lv_tags":"a,b", "lv_device_open":"", "origin":"", "pool_lv":"",
            "vg_seqno":"3"}]}], "log": []}"#;
        let rows: Vec<VolumeRow> = parse(text).unwrap();
        assert_eq!(rows.len(), 1);
        assert_eq!(number::<u64>(&rows[0].size).unwrap(), 4_194_304);
        // What was not asked for is an error, and not an empty list.
        assert!(parse::<GroupRow>(text).is_err());
        assert!(parse::<VolumeRow>("no report").is_err());
        let between = text.replacen("{\"lv\"", "\n  Retrying metadata scan.\n{\"lv\"", 1);
        assert_eq!(parse::<VolumeRow>(&between).unwrap(), rows);
        assert!(number::<u64>("").is_err());
    }

    #[test]
    fn each_row_of_a_group_has_a_disk_whose_free_extents_count_if_lvm_may_allocate_them() {
        let row = |minor: u32, allocatable: &str| {
            format!(
                r#"{{"vg_extent_size":"4194304", "vg_extent_count":"198", "vg_mda_free":"9", "vg_tags":"",
                "vg_exported":"", "vg_lock_type":"", "vg_permissions":"writeable",
                "vg_missing_pv_count":"0", "vg_seqno":"3", "pv_name":"/dev/loop{minor}",
                "pv_major":"7", "pv_minor":"{minor}", "pv_pe_count":"99", "pv_pe_alloc_count":"9",
                "pv_allocatable":"{allocatable}"}}"#
            )
        };
        let rows = [row(1, "allocatable"), row(2, "")].join(",");
        let rows: Vec<GroupRow> = parse(&format!(r#"{{"report": [{{"vg": [{rows}]}}]}}"#)).unwrap();
        let disks = rows.iter().map(|row| {
            let disk = &row.disk;
            (disk.number().unwrap(), disk.free().unwrap())
        });
        let disks: Vec<_> = disks.collect();
        let number = DeviceNumber::of_loop;
        assert_eq!(disks, [(number(1), 90), (number(2), 0)]);
    }
}
