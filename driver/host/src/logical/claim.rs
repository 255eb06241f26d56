//! Opening a volume group: it becomes a pool once, and is the same pool from then on.

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use cistern_types::Bytes;
use parking_lot::Mutex;

use super::{
    Error, GroupSource, Unfit, VolumeGroup,
    command::{Lvm, PROGRAM},
    disks,
    report::{DiskRow, GroupDisk, GroupRow, number},
    tags,
};
use crate::{
    cause::Cause,
    command::{self, Command},
    encryption::DEVICE_MAPPER,
    id::Uuid,
    pool::{self, Expectation, GroupUnavailable, PoolClaim, PoolRecord},
    root::Root,
    system::{DeviceNumber, System},
};

/// What LVM warns of when a second device has the label of a physical volume: `Not using device DEVICE for PV UUID`.
const FOUND_TWICE: &str = "Not using device";
/// Longest name of a mapping (`DM_NAME_LEN` of the kernel, less the end of the text).
const LONGEST_MAPPING: usize = 127;

impl VolumeGroup {
    /// Opens a group as a pool. If the pool is new, and a group of the given name is none, it becomes this one: its tags say
    /// so, and nothing else of it is changed. A group of disks is made, if the pool is new and there is none yet. A
    /// group that was this pool before its StoragePool was recreated is adopted. Fails if there is no such group or more than
    /// one, if it cannot be changed here, and if it is another pool or that of another node.
    pub fn open(
        root: &Root,
        source: &GroupSource,
        claim: &PoolClaim,
        expectation: Expectation,
    ) -> Result<Self, pool::Error> {
        let (lvm, name, stripes) = match source {
            GroupSource::Named(name) if !has_room_for_volumes(name) => {
                return Err(unfit(name, Unfit::LongName).into());
            }
            GroupSource::Named(name) => (lvm(root, name)?, name.clone(), 1),
            GroupSource::Disks { paths, stripes } => {
                let lvm = lvm(root, &disks::described(claim))?;
                let disks = (&paths[..], *stripes);
                let name = disks::find_or_make(&lvm, claim, disks, expectation)?;
                (lvm, name, *stripes)
            }
        };
        let (system, name) = (Arc::clone(&root.system), &name);
        let (mut row, mut disks) = read(&lvm, name)?;
        let mut found = record_of(&row, name)?;
        let _lock;
        if found.is_none() {
            // Another pool that names the same group does not become it meanwhile.
            _lock = pool::lock(root)?;
            (row, disks) = read(&lvm, name)?;
            found = record_of(&row, name)?;
        }
        let record = expected(found.as_ref(), name, claim, expectation)?;
        if found.as_ref() != Some(&record) {
            write(&lvm, name, &row, &record)?;
            if let Some(before) = found {
                before.log_adoption(&record);
            }
        }
        // Also what an earlier process has changed and not flushed.
        lvm.flush(disks.iter().map(|disk| &disk.path))
            .map_err(|error| failed("flush the disks", name)(error.into()))?;
        let extent_size = number(&row.extent_size)
            .map_err(|error| failed("read the size of the extents", name)(error.into()))?;
        let disks = numbers(&disks, name)?;
        let sector_size = sector_size(&*system, &disks, name)?;
        Ok(Self {
            system,
            root: root.clone(),
            lvm,
            name: name.to_owned(),
            record,
            disks: Mutex::new(disks),
            extent_size: Bytes(extent_size),
            sector_size,
            stripes,
        })
    }

    /// Makes a group with a given name no pool again: removes its tags, and nothing else. A group that Cistern has made is left
    /// as it is, as the disk of a pool is. Succeeds if there is no such group, or if it is not this pool. Fails while a
    /// volume of the pool is in it.
    pub fn release(
        root: &Root,
        source: &GroupSource,
        claim: &PoolClaim,
        expectation: Expectation,
    ) -> Result<(), pool::Error> {
        // A group that is no pool does not become one here.
        let expectation = match expectation {
            Expectation::New => Expectation::Made,
            known => known,
        };
        let group = match Self::open(root, source, claim, expectation) {
            Ok(group) => group,
            Err(
                pool::Error::BackingMissing { .. }
                | pool::Error::Group(
                    Error::Missing { .. }
                    | Error::Unfit {
                        why: Unfit::NoPool(_) | Unfit::OtherPool(_),
                        ..
                    },
                ),
            ) => return Ok(()),
            Err(error) => return Err(error),
        };
        let count = group.logical_volumes()?.len();
        if count > 0 {
            return Err(unfit(&group.name, Unfit::VolumesRemain(count)).into());
        }
        let GroupSource::Named(name) = source else {
            return Ok(());
        };
        let row = group.row()?;
        let untag = || -> Result<(), Cause> {
            let mut command = group.lvm.command("vgchange");
            for tag in tags::own(&row.tags) {
                command = command.option("--deltag", tag);
            }
            group.change(&command.operand(name))
        };
        Ok(untag().map_err(failed("remove the tags", name))?)
    }

    /// Verifies that the group is still the pool, and can be changed, and that no device has a copy of one of its disks. Fails
    /// with the first difference.
    pub fn check(&self) -> Result<(), Error> {
        self.look().map(drop)
    }

    /// Reads the state of the group. Fails as [`Self::check`] does, but for a copy.
    pub(super) fn row(&self) -> Result<GroupRow, Error> {
        Ok(self.read()?.0)
    }

    /// As [`Self::row`], with the disks of the group. Reads other devices only if these are not all of its disks by now.
    pub(super) fn read(&self) -> Result<(GroupRow, Vec<GroupDisk>), Error> {
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

    /// Reads the state of the group from all devices, as [`Self::check`] does, or from its own disks if one of the others does not
    /// answer. Returns how to call LVM for a change after that, and the disks.
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
    pub(super) fn by_own<T>(&self, call: impl Fn(&Lvm) -> Result<T, Cause>) -> Result<T, Cause> {
        match call(&self.own()) {
            Err(cause) if cause.is_failed_tool() => call(&self.lvm),
            result => result,
        }
    }

    /// Runs a command that changes what exists in the group, and makes that durable. LVM would record for good that a disk is
    /// missing which it does not find, so all of them have to be there.
    pub(super) fn change(&self, command: &Command) -> Result<(), Cause> {
        let (lvm, disks) = self.look().map_err(io::Error::other)?;
        lvm.run(command)?;
        Ok(lvm.flush(disks.iter().map(|disk| &disk.path))?)
    }

    pub(super) fn failed(&self, operation: &'static str) -> impl FnOnce(Cause) -> Error + use<> {
        failed(operation, &self.name)
    }
}

/// How to call LVM for a group. Fails if the node lacks LVM or device-mapper.
pub(super) fn lvm(root: &Root, name: &str) -> Result<Lvm, Error> {
    availability().map_err(|why| {
        let group = name.to_owned();
        Error::Unavailable { group, why }
    })?;
    Lvm::new(root).map_err(|error| failed("list the devices", name)(error.into()))
}

/// Checks whether this node can have volume groups. Looks at files only.
fn availability() -> Result<(), GroupUnavailable> {
    if !command::is_installed(PROGRAM) {
        return Err(GroupUnavailable::Tool);
    }
    if !Path::new(DEVICE_MAPPER).exists() {
        return Err(GroupUnavailable::DeviceMapper);
    }
    Ok(())
}

/// Reads the state of the group of this name, which can be changed on this machine, and its disks.
pub(super) fn read(lvm: &Lvm, name: &str) -> Result<(GroupRow, Vec<GroupDisk>), Error> {
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

/// Fails if LVM has found a physical volume of a group twice, which it says only in a warning. It changes nothing of such a group.
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
pub(super) fn numbers(disks: &[GroupDisk], name: &str) -> Result<BTreeSet<DeviceNumber>, Error> {
    let numbers: io::Result<_> = disks.iter().map(GroupDisk::number).collect();
    numbers.map_err(|error| failed("list the disks", name)(error.into()))
}

/// The logical sector size of a group's disks in bytes: the largest one, as that of a volume on all of them would be. Unless it is
/// configured otherwise, LVM takes no disks with different ones into a group.
pub(super) fn sector_size(
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

/// Whether LVM waits for a device that does not answer.
fn still_runs(error: &Error) -> bool {
    matches!(error, Error::Failed { source, .. } if source.still_runs())
}

/// Whether device-mapper has room for the names of volumes in a group of this name.
fn has_room_for_volumes(name: &str) -> bool {
    // GROUP-cistern--UID--growth, in which each hyphen of a name is written twice, and a UUID has four.
    let of_volume = 1 + "cistern--".len() + 36 + 4 + "--growth".len();
    let hyphens = name.matches('-').count();
    name.len() + hyphens + of_volume <= LONGEST_MAPPING
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

/// Reads from its tags which pool a group is; none if it is no pool.
pub(super) fn record_of(row: &GroupRow, name: &str) -> Result<Option<PoolRecord>, Error> {
    tags::record(&row.tags).map_err(|field| unfit(name, Unfit::Tag(field)))
}

/// Which pool a group is from now on.
fn expected(
    found: Option<&PoolRecord>,
    name: &str,
    claim: &PoolClaim,
    expectation: Expectation,
) -> Result<PoolRecord, pool::Error> {
    match (found, expectation) {
        (None, Expectation::New) => Ok(PoolRecord::new(claim, Uuid::new_v4())),
        (None, Expectation::Known { .. } | Expectation::Made) => {
            Err(unfit(name, Unfit::NoPool(claim.name.clone())).into())
        }
        (Some(found), Expectation::Known { filesystem_uuid })
            if found.filesystem_uuid != filesystem_uuid =>
        {
            Err(other_pool(found, name).into())
        }
        (Some(found), _) => match found.verify(&path_of(name), claim) {
            Ok(()) => Ok(found.settled(claim)),
            Err(pool::Error::BackingConflict { .. }) => Err(other_pool(found, name).into()),
            Err(error) => Err(error),
        },
    }
}

/// Writes to its tags which pool a group is. LVM changes all of them at once.
fn write(lvm: &Lvm, name: &str, row: &GroupRow, record: &PoolRecord) -> Result<(), Error> {
    let write = || -> Result<(), Cause> {
        let wanted = tags::of_record(record)?;
        let found: Vec<&str> = tags::own(&row.tags).collect();
        let mut command = lvm.command("vgchange");
        for tag in &found {
            if !wanted.iter().any(|it| it == tag) {
                command = command.option("--deltag", *tag);
            }
        }
        for tag in &wanted {
            if !found.contains(&tag.as_str()) {
                command = command.option("--addtag", tag.as_str());
            }
        }
        lvm.run(&command.operand(name))?;
        Ok(())
    };
    write().map_err(failed("write the tags", name))
}

/// The path that stands for a group.
pub(super) fn path_of(name: &str) -> PathBuf {
    Path::new("/dev").join(name)
}

fn other_pool(found: &PoolRecord, name: &str) -> Error {
    let owner = found.owner.as_ref().map(ToString::to_string);
    let why = Unfit::OtherPool(format!(
        "pool {} of node {} (UID {}, UUID {})",
        found.pool_name,
        owner.unwrap_or_default(),
        found.pool_uid,
        found.filesystem_uuid
    ));
    unfit(name, why)
}

pub(super) fn unfit(group: &str, why: Unfit) -> Error {
    let group = group.to_owned();
    Error::Unfit { group, why }
}

pub(super) fn failed(operation: &'static str, group: &str) -> impl FnOnce(Cause) -> Error + use<> {
    let group = group.to_owned();
    move |source| Error::Failed {
        operation,
        group,
        source,
    }
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
    fn a_group_whose_name_leaves_no_room_for_those_of_volumes_is_refused() {
        assert!(has_room_for_volumes(&"v".repeat(69)));
        assert!(!has_room_for_volumes(&"v".repeat(70)));
        assert!(!has_room_for_volumes(&format!("{}-", "v".repeat(68))));
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
