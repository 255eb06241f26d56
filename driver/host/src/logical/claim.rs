//! Opening a volume group: it becomes a pool once, and is the same pool from then on.

use std::sync::Arc;

use cistern_types::Bytes;

use super::{
    Error, Unfit, VolumeGroup,
    command::Lvm,
    report::{GroupRow, number},
    tags,
};
use crate::{
    cause::Cause,
    id::{Uid, Uuid},
    pool::Expectation,
    root::Root,
    system::System,
};

/// Longest name of a mapping (`DM_NAME_LEN` of the kernel, less the end of the text).
const LONGEST_MAPPING: usize = 127;

/// The pool that a group is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupClaim {
    /// UID of the StoragePool.
    pub pool: Uid,
    /// Name of the StoragePool.
    pub pool_name: String,
    /// Name of the node.
    pub node: String,
}

impl VolumeGroup {
    /// Opens the group of this name as a pool. If the pool is new, and the group is none, it becomes this one: its tags say
    /// so, and nothing else of it is changed. Fails if there is no such group or more than one, if it cannot be changed
    /// here, or if it is another pool.
    pub fn open(
        root: &Root,
        name: &str,
        claim: GroupClaim,
        expectation: Expectation,
    ) -> Result<Self, Error> {
        let system = Arc::clone(&root.system);
        if !has_room_for_volumes(name) {
            return Err(unfit(name, Unfit::LongName));
        }
        let lvm = Lvm::new(root).map_err(|error| failed("list the devices", name)(error.into()))?;
        let mut row = read(&*system, &lvm, name)?;
        if tags::value(&row.tags, "pool").is_none() && expectation == Expectation::New {
            let tag = |field, value: &str| {
                tags::tag(field, value)
                    .map_err(|error| failed("write the tags", name)(error.into()))
            };
            let mut command = lvm.command("vgchange");
            for tag in [
                tag("pool", claim.pool.as_str())?,
                tag("pool-name", &claim.pool_name)?,
                tag("pool-uuid", &Uuid::new_v4().to_string())?,
                tag("node", &claim.node)?,
            ] {
                command = command.option("--addtag", tag);
            }
            lvm.run(&*system, &command.operand(name))
                .map_err(failed("write the tags", name))?;
            row = read(&*system, &lvm, name)?;
        }
        let pool_uuid = pool_of(&row, &claim, expectation).map_err(|why| unfit(name, why))?;
        let extent_size = number(&row.extent_size)
            .map_err(|error| failed("read the size of the extents", name)(error.into()))?;
        Ok(Self {
            system,
            root: root.clone(),
            lvm,
            name: name.to_owned(),
            claim,
            pool_uuid,
            extent_size: Bytes(extent_size),
        })
    }

    /// Makes the group no pool again: removes its tags, and nothing else. Succeeds if there is no such group, or if it is not
    /// this pool. Fails while a volume of the pool is in it.
    pub fn release(
        root: &Root,
        name: &str,
        claim: GroupClaim,
        expectation: Expectation,
    ) -> Result<(), Error> {
        // A group that is not the pool has nothing of it.
        let expectation = match expectation {
            Expectation::New => Expectation::Made,
            known => known,
        };
        let group = match Self::open(root, name, claim, expectation) {
            Ok(group) => group,
            Err(
                Error::Missing { .. }
                | Error::Unfit {
                    why: Unfit::NoPool(_) | Unfit::OtherPool(_),
                    ..
                },
            ) => return Ok(()),
            Err(error) => return Err(error),
        };
        let count = group.logical_volumes()?.len();
        if count > 0 {
            let why = Unfit::VolumesRemain(count);
            return Err(unfit(name, why));
        }
        let row = group.row()?;
        let mut command = group.lvm.command("vgchange");
        for tag in tags::own(&row.tags) {
            command = command.option("--deltag", tag);
        }
        let done = group.lvm.run(&*group.system, &command.operand(name));
        done.map(drop).map_err(failed("remove the tags", name))
    }

    /// Verifies that the group is still the pool, and can be changed. Fails with the first difference.
    pub fn check(&self) -> Result<(), Error> {
        self.row().map(drop)
    }

    /// Reads the state of the group. Fails as [`Self::check`] does.
    pub(super) fn row(&self) -> Result<GroupRow, Error> {
        let name = &self.name;
        let row = read(&*self.system, &self.lvm, name)?;
        let expectation = Expectation::Known {
            filesystem_uuid: self.pool_uuid,
        };
        pool_of(&row, &self.claim, expectation).map_err(|why| unfit(name, why))?;
        Ok(row)
    }

    pub(super) fn failed(&self, operation: &'static str) -> impl FnOnce(Cause) -> Error + use<> {
        failed(operation, &self.name)
    }
}

/// Reads the state of the group of this name, which can be changed on this machine.
pub(super) fn read(system: &dyn System, lvm: &Lvm, name: &str) -> Result<GroupRow, Error> {
    let rows = lvm.report(system, name);
    let row = one(rows.map_err(failed("read the state", name))?, name)?;
    refuse(&row, name)?;
    Ok(row)
}

/// Whether device-mapper has room for the names of volumes in a group of this name.
fn has_room_for_volumes(name: &str) -> bool {
    // GROUP-cistern--UID, in which each hyphen of a name is written twice, and a UUID has four.
    let of_volume = 1 + "cistern--".len() + 36 + 4;
    let hyphens = name.matches('-').count();
    name.len() + hyphens + of_volume <= LONGEST_MAPPING
}

/// The only row of a report about one name.
fn one(mut rows: Vec<GroupRow>, name: &str) -> Result<GroupRow, Error> {
    let (group, count) = (name.to_owned(), rows.len());
    match rows.pop() {
        Some(row) if count == 1 => Ok(row),
        Some(_) => Err(Error::Ambiguous { group, count }),
        None => Err(Error::Missing { group }),
    }
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

/// The UUID of the pool that a group is, if it is the expected one.
fn pool_of(row: &GroupRow, claim: &GroupClaim, expectation: Expectation) -> Result<Uuid, Unfit> {
    let tag = |field| tags::value(&row.tags, field);
    let Some(pool) = tag("pool") else {
        return Err(Unfit::NoPool(claim.pool_name.clone()));
    };
    let (name, node) = (
        tag("pool-name").unwrap_or_default(),
        tag("node").unwrap_or_default(),
    );
    let found = tag("pool-uuid").and_then(|uuid| uuid.parse::<Uuid>().ok());
    let found = found.ok_or_else(|| Unfit::Tag("cistern.pool-uuid".to_owned()))?;
    let is_known = match expectation {
        Expectation::Known { filesystem_uuid } => found == filesystem_uuid,
        Expectation::New | Expectation::Made => true,
    };
    if pool == claim.pool.as_str() && node == claim.node && is_known {
        return Ok(found);
    }
    Err(Unfit::OtherPool(format!(
        "pool {name} of node {node} (UID {pool}, UUID {found})"
    )))
}

fn unfit(group: &str, why: Unfit) -> Error {
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
            free_count: "100".to_owned(),
            mda_free: "1000000".to_owned(),
            tags: String::new(),
            exported: String::new(),
            lock_type: String::new(),
            permissions: "writeable".to_owned(),
            missing_pv_count: "0".to_owned(),
        }
    }

    #[test]
    fn a_group_whose_name_leaves_no_room_for_those_of_volumes_is_refused() {
        assert!(has_room_for_volumes(&"v".repeat(77)));
        assert!(!has_room_for_volumes(&"v".repeat(78)));
        assert!(!has_room_for_volumes(&format!("{}-", "v".repeat(76))));
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
