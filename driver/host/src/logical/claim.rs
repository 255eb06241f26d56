//! Opening a volume group: it becomes a pool once, and is the same pool from then on.

mod state;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use cistern_types::Bytes;
use parking_lot::Mutex;

pub(super) use self::state::{numbers, read, record_of, sector_size};
use super::{
    Error, GroupSource, Unfit, VolumeGroup,
    command::{Lvm, PROGRAM},
    disks,
    report::{GroupRow, number},
    tags,
};
use crate::{
    cause::Cause,
    command,
    encryption::DEVICE_MAPPER,
    id::Uuid,
    pool::{self, Expectation, GroupUnavailable, PoolClaim, PoolRecord},
    root::Root,
};

/// Longest name of a mapping (`DM_NAME_LEN` of the kernel, less the end of the text).
const LONGEST_MAPPING: usize = 127;

impl VolumeGroup {
    /// Opens a group as a pool. If the pool is new, and a group of the given name is none, it becomes this one: its tags say
    /// so, and nothing else of it is changed. A group of disks is made, if the pool is new and there is none yet. A
    /// group that was this pool before its StoragePool was recreated is adopted. Fails if there is no such group or
    /// more than one, if it cannot be changed here, and if it is another pool or that of another node.
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

    /// Makes a group with a given name no pool again: removes its tags, and nothing else. A group that Cistern has made
    /// is left as it is, as the disk of a pool is. Succeeds if there is no such group, or if it is not this pool. Fails
    /// while a volume of the pool is in it.
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

/// Whether device-mapper has room for the names of volumes in a group of this name.
fn has_room_for_volumes(name: &str) -> bool {
    // GROUP-cistern--UID--growth, in which each hyphen of a name is written twice, and a UUID has four.
    let of_volume = 1 + "cistern--".len() + 36 + 4 + "--growth".len();
    let hyphens = name.matches('-').count();
    name.len() + hyphens + of_volume <= LONGEST_MAPPING
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
    use crate::pool::Owner;

    fn claim(name: &str, uid: &str, other: &str) -> PoolClaim {
        PoolClaim {
            uid: uid.parse().unwrap(),
            name: name.to_owned(),
            others: vec![other.parse().unwrap()],
            node: Owner {
                node: "w1".to_owned(),
                machine: None,
            },
            take_over: None,
        }
    }

    #[test]
    fn of_two_pools_that_name_a_group_the_one_in_its_tags_keeps_it_and_the_other_is_told_which() {
        let [first, second] = [claim("first", "u-1", "u-2"), claim("second", "u-2", "u-1")];
        let known = |byte| Expectation::Known {
            filesystem_uuid: Uuid::from_bytes([byte; 16]),
        };
        let record = PoolRecord::new(&first, Uuid::from_bytes([1; 16]));
        for expectation in [Expectation::New, Expectation::Made, known(1)] {
            // Nothing is written.
            let kept = expected(Some(&record), "vg", &first, expectation);
            assert_eq!(kept.unwrap(), record);
        }
        for expectation in [Expectation::New, Expectation::Made, known(1), known(2)] {
            match expected(Some(&record), "vg", &second, expectation) {
                Err(pool::Error::Group(Error::Unfit {
                    why: Unfit::OtherPool(owner),
                    ..
                })) => assert!(
                    owner.starts_with("pool first of node w1 (UID u-1, "),
                    "{owner}"
                ),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_group_whose_name_leaves_no_room_for_those_of_volumes_is_refused() {
        assert!(has_room_for_volumes(&"v".repeat(69)));
        assert!(!has_room_for_volumes(&"v".repeat(70)));
        assert!(!has_room_for_volumes(&format!("{}-", "v".repeat(68))));
    }
}
