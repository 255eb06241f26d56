//! The state of a volume group: it is read, and verified, before each change.

use std::{collections::BTreeSet, io};

use super::{failed, other_pool, unfit};
use crate::{
    cause::Cause,
    command::Command,
    logical::{
        Error, Unfit, VolumeGroup,
        command::Lvm,
        report::{DiskRow, GroupDisk, GroupRow, number},
        tags,
    },
    pool::PoolRecord,
    system::{DeviceNumber, System},
};

/// What LVM warns of when a second device has the label of a physical volume: `Not using device DEVICE for PV UUID`.
const FOUND_TWICE: &str = "Not using device";

impl VolumeGroup {
    /// Verifies that the group is still the pool, and can be changed, and that no device has a copy of one of its
    /// disks. Fails with the first difference.
    pub fn check(&self) -> Result<(), Error> {
        self.look().map(drop)
    }

    /// Reads the state of the group. Fails as [`Self::check`] does, but for a copy.
    pub(in crate::logical) fn row(&self) -> Result<GroupRow, Error> {
        Ok(self.read()?.0)
    }

    /// As [`Self::row`], with the disks of the group. Reads other devices only if these are not all of its disks by now.
    pub(in crate::logical) fn read(&self) -> Result<(GroupRow, Vec<GroupDisk>), Error> {
        let found = self.read_by(&self.own());
        let Err(
            Error::Missing { .. }
            | Error::Unfit {
                why: Unfit::MissingDisks(_),
                ..
            },
        ) = found
        else {
            return found;
        };
        match self.read_by(&self.lvm) {
            Err(error) if still_runs(&error) => found,
            result => result,
        }
    }

    /// Reads the state of the group from all devices, as [`Self::check`] does, or from its own disks if one of the
    /// others does not answer. Returns how to call LVM for a change after that, and the disks.
    fn look(&self) -> Result<(Lvm, Vec<GroupDisk>), Error> {
        match self.read_by(&self.lvm.looking()) {
            Err(error) if still_runs(&error) => {
                let (_, disks) = self.read_by(&self.own())?;
                Ok((self.own(), disks))
            }
            // A change that does not see a disk of the group would record that it is missing.
            found => Ok((self.lvm.of_group(&self.name), found?.1)),
        }
    }

    fn read_by(&self, lvm: &Lvm) -> Result<(GroupRow, Vec<GroupDisk>), Error> {
        let name = &self.name;
        let (row, disks) = read(lvm, name)?;
        match record_of(&row, name)? {
            Some(found) if found == self.record => {}
            Some(found) => return Err(other_pool(&found, name)),
            None => return Err(unfit(name, Unfit::NoPool(self.record.pool_name.clone()))),
        }
        *self.disks.lock() = numbers(&disks, name)?;
        Ok((row, disks))
    }

    /// How to call LVM for the disks that the group had when it was read last, so that no other device is waited for.
    fn own(&self) -> Lvm {
        let disks = self.disks.lock().clone();
        self.lvm.of_group(&self.name).only(disks)
    }

    /// Calls LVM for the disks of the group, or for all devices if that fails: the group may have other disks by now.
    pub(in crate::logical) fn by_own<T>(
        &self,
        call: impl Fn(&Lvm) -> Result<T, Cause>,
    ) -> Result<T, Cause> {
        match call(&self.own()) {
            Err(cause) if cause.is_failed_tool() => call(&self.lvm),
            result => result,
        }
    }

    /// Runs a command that changes what exists in the group, and makes that durable. LVM would record for good that a
    /// disk is missing which it does not find, so all of them have to be there.
    pub(in crate::logical) fn change(&self, command: &Command) -> Result<(), Cause> {
        let (lvm, disks) = self.look().map_err(io::Error::other)?;
        lvm.run(command)?;
        Ok(lvm.flush(disks.iter().map(|disk| &disk.path))?)
    }

    pub(in crate::logical) fn failed(
        &self,
        operation: &'static str,
    ) -> impl FnOnce(Cause) -> Error + use<> {
        failed(operation, &self.name)
    }
}

/// Reads the state of the group of this name, which can be changed on this machine, and its disks.
pub(in crate::logical) fn read(lvm: &Lvm, name: &str) -> Result<(GroupRow, Vec<GroupDisk>), Error> {
    let read = lvm.report_with_warnings(name).map_err(|cause| {
        // LVM has one exit code for all failures.
        let group = name.to_owned();
        if cause.says(&format!("Volume group \"{name}\" not found")) {
            return Error::Missing { group };
        }
        if cause.says("Multiple VGs found with the same name") {
            return Error::Ambiguous { group };
        }
        if cause.says(&format!("Cannot access VG {name} with system ID")) {
            return unfit(name, Unfit::OtherSystem);
        }
        failed("read the state", name)(cause)
    });
    let (mut rows, warnings): (Vec<GroupRow>, _) = read?;
    let disks = rows.iter().map(|row| row.disk.clone()).collect();
    let row = rows.pop().ok_or_else(|| {
        let group = name.to_owned();
        Error::Missing { group }
    })?;
    refuse(&row, name)?;
    refuse_duplicates(lvm, name, &warnings)?;
    Ok((row, disks))
}

/// Fails if LVM has found a physical volume of a group twice, which it says only in a warning. It changes nothing of
/// such a group.
fn refuse_duplicates(lvm: &Lvm, name: &str, warnings: &str) -> Result<(), Error> {
    let mut found = warnings.lines().filter(|line| line.contains(FOUND_TWICE));
    if found.clone().next().is_none() {
        return Ok(());
    }
    let (rows, _) = lvm
        .report_all::<DiskRow>()
        .map_err(failed("list the disks", name))?;
    let is_own = |line: &&str| {
        let mut own = rows.iter().filter(|row| row.group == name);
        own.any(|row| line.contains(&row.uuid))
    };
    match found.find(is_own) {
        Some(line) => Err(unfit(name, Unfit::DuplicateDisk(line.trim().to_owned()))),
        None => Ok(()),
    }
}

/// The numbers of the devices of a group's disks.
pub(in crate::logical) fn numbers(
    disks: &[GroupDisk],
    name: &str,
) -> Result<BTreeSet<DeviceNumber>, Error> {
    let numbers: io::Result<_> = disks.iter().map(GroupDisk::number).collect();
    numbers.map_err(|error| failed("list the disks", name)(error.into()))
}

/// The logical sector size of a group's disks in bytes: the largest one, as that of a volume on all of them would be.
/// Unless it is configured otherwise, LVM takes no disks with different ones into a group.
pub(in crate::logical) fn sector_size(
    system: &dyn System,
    disks: &BTreeSet<DeviceNumber>,
    name: &str,
) -> Result<u32, Error> {
    let largest = || -> io::Result<u32> {
        let sizes = disks.iter().map(|disk| system.sector_size(*disk));
        let sizes: Vec<Option<u32>> = sizes.collect::<io::Result<_>>()?;
        let largest = sizes.into_iter().flatten().max();
        largest.ok_or_else(|| io::ErrorKind::NotFound.into())
    };
    largest().map_err(|error| failed("read the sector size of the disks", name)(error.into()))
}

/// Reads from its tags which pool a group is; none if it is no pool.
pub(in crate::logical) fn record_of(
    row: &GroupRow,
    name: &str,
) -> Result<Option<PoolRecord>, Error> {
    tags::record(&row.tags).map_err(|field| unfit(name, Unfit::Tag(field)))
}

/// Whether LVM waits for a device that does not answer.
fn still_runs(error: &Error) -> bool {
    matches!(error, Error::Failed { source, .. } if source.still_runs())
}

/// Fails if a group cannot be changed on this machine.
fn refuse(row: &GroupRow, name: &str) -> Result<(), Error> {
    let missing = number(&row.missing_pv_count).unwrap_or(0);
    let why = if missing > 0 {
        Unfit::MissingDisks(missing)
    } else if !row.exported.is_empty() {
        Unfit::Exported
    } else if !row.lock_type.is_empty() && row.lock_type != "none" {
        Unfit::Shared(row.lock_type.clone())
    } else if row.permissions != "writeable" {
        Unfit::ReadOnly
    } else {
        return Ok(());
    };
    Err(unfit(name, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> GroupRow {
        GroupRow {
            extent_size: "4194304".to_owned(),
            extent_count: "100".to_owned(),
            mda_free: "1000000".to_owned(),
            tags: String::new(),
            exported: String::new(),
            lock_type: String::new(),
            permissions: "writeable".to_owned(),
            missing_pv_count: "0".to_owned(),
            change: "1".to_owned(),
            disk: GroupDisk::default(),
        }
    }

    #[test]
    fn a_group_that_cannot_be_changed_here_is_refused() {
        assert!(refuse(&row(), "group").is_ok());
        let text = |text: &str| text.to_owned();
        for (row, expected) in [
            (
                GroupRow {
                    permissions: text("read-only"),
                    ..row()
                },
                Unfit::ReadOnly,
            ),
            (
                GroupRow {
                    exported: text("exported"),
                    ..row()
                },
                Unfit::Exported,
            ),
            (
                GroupRow {
                    lock_type: text("sanlock"),
                    ..row()
                },
                Unfit::Shared(text("sanlock")),
            ),
            (
                GroupRow {
                    missing_pv_count: text("2"),
                    ..row()
                },
                Unfit::MissingDisks(2),
            ),
        ] {
            match refuse(&row, "group") {
                Err(Error::Unfit { why, .. }) => assert_eq!(why, expected),
                other => panic!("{other:?}"),
            }
        }
    }
}
