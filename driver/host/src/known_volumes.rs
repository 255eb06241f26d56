//! Which devices are logical volumes of Cistern, by their UUIDs, as LVM has listed them in the groups of the pools. The
//! kernel's tables have no tags, and a name proves nothing: a copy of a group has the same names, and other programs can give
//! them.
//!
//! *Invariants:* in a group that was listed, only what was listed there is a volume, and a volume that was listed is in no
//! other group. Only until then, as after a restart while the disks of a group are away, a name is believed, because the
//! volumes are still used and unmounted. Nothing here waits for LVM.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::{id::Uid, system::LOGICAL_VOLUME};

/// The groups that were listed, by how the UUIDs of the devices of their logical volumes begin.
static GROUPS: Mutex<BTreeMap<String, Listed>> = Mutex::new(BTreeMap::new());

/// The volumes of a group.
#[derive(Default)]
struct Listed {
    /// Counts the changes of the group.
    change: u64,
    /// By the UUIDs of their devices.
    volumes: BTreeMap<String, Uid>,
}

/// Records the volumes of a group, which is given by the letters of its UUID, as they were after this change of it.
pub(crate) fn note(group: &str, change: u64, volumes: BTreeMap<String, Uid>) {
    let mut groups = GROUPS.lock();
    let known = groups.entry(format!("{LOGICAL_VOLUME}{group}"));
    let known = known.or_default();
    if change < known.change {
        // An older list than that of another thread. No UUID is used again.
        known.volumes.extend(volumes);
    } else {
        *known = Listed { change, volumes };
    }
}

/// Whether the device with this UUID, which has the name of a volume, is that of the volume.
pub(crate) fn is_device_of(device: &str, volume: &Uid) -> bool {
    let groups = GROUPS.lock();
    let mut all = groups.iter();
    match all.find(|(group, _)| device.starts_with(*group)) {
        Some((_, listed)) => listed.volumes.get(device) == Some(volume),
        None => !groups
            .values()
            .any(|listed| listed.volumes.values().any(|known| known == volume)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uid(text: &str) -> Uid {
        text.parse().unwrap()
    }

    /// A list of volumes, each with the end of the UUID of its device.
    fn listed(group: &str, volumes: &[(&str, &str)]) -> BTreeMap<String, Uid> {
        let volumes = volumes.iter();
        let volumes = volumes.map(|(end, volume)| (format!("LVM-{group}{end}"), uid(volume)));
        volumes.collect()
    }

    #[test]
    fn a_device_is_a_volumes_by_its_uuid_once_the_volume_or_its_group_was_listed() {
        let is = |device: &str, volume: &str| is_device_of(device, &uid(volume));
        // After a restart.
        assert!(is("LVM-knownA1", "known-1"));
        note("knownA", 1, listed("knownA", &[("1", "known-1")]));
        assert!(is("LVM-knownA1", "known-1"));
        // Another logical volume of its name, in the same group and in a copy.
        assert!(!is("LVM-knownA2", "known-1"));
        assert!(!is("LVM-knownB1", "known-1"));
        // What LVM has listed without tags, or under another name.
        assert!(!is("LVM-knownA3", "known-3"));
        assert!(!is("LVM-knownA1", "known-3"));
        // A group that was not listed.
        assert!(is("LVM-knownB3", "known-3"));
    }

    #[test]
    fn an_older_list_takes_back_no_volume_that_a_newer_one_has() {
        let is = |end: &str, volume: &str| is_device_of(&format!("LVM-changed{end}"), &uid(volume));
        note("changed", 5, listed("changed", &[("2", "changed-2")]));
        note("changed", 4, listed("changed", &[("1", "changed-1")]));
        assert!(is("1", "changed-1") && is("2", "changed-2"));
        note("changed", 6, listed("changed", &[("2", "changed-2")]));
        assert!(!is("1", "changed-1") && is("2", "changed-2"));
        note("changed", 7, BTreeMap::new());
        assert!(!is("2", "changed-2"));
    }
}
