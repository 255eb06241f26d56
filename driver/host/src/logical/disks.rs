//! The volume group that Cistern makes of the blank disks of a pool.
//!
//! *Invariants:* a disk becomes a physical volume only if it is blank, by the same inspection as for a pool in a
//! filesystem, or if an interrupted call has [begun] to make it one. LVM does not get `--yes`, so it refuses a disk on
//! which it finds a signature. The UUID of a physical volume names its pool, so a disk that was begun is known again.
//! No disk leaves a group, and no group is removed.

use std::{collections::BTreeSet, io, path::PathBuf};

use super::{
    begun,
    claim::failed,
    command::Lvm,
    report::DiskRow,
    search::{self, Wanted},
    tags,
};
use crate::{
    cause::Cause,
    id::{Uid, Uuid},
    pool::{
        self, Candidate, Expectation, PoolClaim, PoolRecord, Unusable, join, node, number_of,
        objection_to_path,
    },
    system::{DeviceNumber, System},
};

/// How the name of a group begins that Cistern has made. Twelve letters of the pool's UUID follow: each node has
/// another one, so that a group keeps its name in another machine.
const PREFIX: &str = "cistern-";
/// What blkid calls a physical volume.
const PHYSICAL_VOLUME: &str = "LVM2_member";
/// Room for the metadata of some ten thousand volumes.
const METADATA: &str = "16m";
/// Size of the extents, which is the unit of the sizes of volumes.
const EXTENT: &str = "1m";

/// A disk that can become a physical volume of the pool.
#[derive(Debug)]
pub(super) struct BlankDisk {
    /// The kernel's own name for it.
    pub(super) path: PathBuf,
    /// Whether an interrupted call has begun to make it one.
    is_begun: bool,
}

/// What the disks of a pool are.
#[derive(Debug, Default)]
pub(super) struct Inspected {
    pub(super) blank: Vec<BlankDisk>,
    pub(super) unusable: Vec<(PathBuf, Unusable)>,
    /// Whether they are blank is not known.
    pub(super) unread: Vec<(PathBuf, io::Error)>,
}

/// Returns the name of the group of a pool. Makes the group if the pool is new, and there is none.
pub(super) fn find_or_make(
    lvm: &Lvm,
    claim: &PoolClaim,
    (paths, stripes): (&[PathBuf], u32),
    expectation: Expectation,
) -> Result<String, pool::Error> {
    if let Some(name) = search::find(lvm, Wanted::Claim(claim, expectation))? {
        return Ok(name);
    }
    if expectation != Expectation::New {
        let what = format!("the volume group of the pool (listed: {})", join(paths));
        return Err(pool::Error::BackingMissing { what });
    }
    // Another pool that lists the same disks does not take them meanwhile.
    let _lock = pool::lock(lvm.root())?;
    make(lvm, claim, paths, stripes)
}

/// Makes the group of a new pool of all blank disks, and returns its name.
fn make(
    lvm: &Lvm,
    claim: &PoolClaim,
    paths: &[PathBuf],
    stripes: u32,
) -> Result<String, pool::Error> {
    let Inspected {
        blank,
        unusable: devices,
        unread,
    } = inspect(lvm, &claim.uid, paths, &BTreeSet::new())?;
    if !unread.is_empty() {
        let unread = unread.into_iter();
        return Err(pool::Error::Ambiguous {
            name: claim.name.clone(),
            found: unread
                .map(|(path, error)| (path, Candidate::unread(error)))
                .collect(),
        });
    }
    if blank.is_empty() {
        return Err(pool::Error::NoUsableDevice { devices });
    }
    if blank.len() < stripes as usize {
        return Err(pool::Error::TooFewDevices {
            blank: blank.into_iter().map(|disk| disk.path).collect(),
            stripes,
            devices,
        });
    }
    let uuid = Uuid::new_v4();
    let name = name_of(uuid);
    make_of(lvm, claim, uuid, &blank).map_err(failed("make the disks", &name))?;
    let disks = blank.iter().map(|disk| disk.path.clone());
    let disks = join(&disks.collect::<Vec<_>>());
    tracing::info!(
        pool = claim.name,
        group = name,
        disks,
        "made the volume group"
    );
    Ok(name)
}

/// Makes the group of a new pool of these disks.
fn make_of(lvm: &Lvm, claim: &PoolClaim, uuid: Uuid, blank: &[BlankDisk]) -> Result<(), Cause> {
    let tags = tags::of_record(&PoolRecord::new(claim, uuid))?;
    for disk in blank {
        prepare(lvm, &claim.uid, disk)?;
    }
    let mut command = lvm
        .command("vgcreate")
        .option("--physicalextentsize", EXTENT)
        .option("--setautoactivation", "n");
    for tag in tags {
        command = command.option("--addtag", tag);
    }
    let command = command.operand(name_of(uuid));
    let command = blank
        .iter()
        .fold(command, |it, disk| it.operand(&disk.path));
    lvm.run(&command)?;
    Ok(())
}

/// Inspects the disks of a pool, without those that are in its group.
pub(super) fn inspect(
    lvm: &Lvm,
    pool: &Uid,
    paths: &[PathBuf],
    members: &BTreeSet<DeviceNumber>,
) -> Result<Inspected, pool::Error> {
    let (root, system) = (lvm.root(), &*lvm.root().system);
    let (mut seen, mut inspected) = (BTreeSet::new(), Inspected::default());
    let mut rows: Option<Vec<DiskRow>> = None;
    for path in paths {
        // A member is not read: its disk may be broken.
        if number_of(system, path).is_ok_and(|number| members.contains(&number)) {
            continue;
        }
        let (number, objection) = match objection_to_path(root, path) {
            Ok(found) => found,
            Err(Cause::Io(error)) if !pool::is_certain(&error) => {
                inspected.unread.push((path.clone(), error));
                continue;
            }
            Err(cause) => {
                inspected.unusable.push((path.clone(), cause.into()));
                continue;
            }
        };
        if !seen.insert(number) {
            continue;
        }
        let may_be_begun = may_be_begun(lvm, &mut rows, number, objection.as_ref())?;
        // A disk that cannot be read stops none of the others.
        match blank_disk(system, pool, number, objection.is_none(), may_be_begun) {
            Ok(Some(disk)) => inspected.blank.push(disk),
            Ok(None) => inspected
                .unusable
                .extend(objection.map(|why| (path.clone(), why))),
            Err(error) => inspected.unread.push((path.clone(), error)),
        }
    }
    Ok(inspected)
}

/// A disk that can become a physical volume of a pool; none if it is neither blank nor begun.
fn blank_disk(
    system: &dyn System,
    pool: &Uid,
    number: DeviceNumber,
    is_blank: bool,
    may_be_begun: bool,
) -> io::Result<Option<BlankDisk>> {
    if !is_blank && !may_be_begun {
        return Ok(None);
    }
    let path = node(system, number)?;
    let is_begun = may_be_begun && begun::is_begun(system, &path, &uuid_prefix(pool))?;
    Ok((is_blank || is_begun).then_some(BlankDisk { path, is_begun }))
}

/// Whether an interrupted call may have begun to make a disk a physical volume, by what it has. `rows` are those that LVM
/// lists, which it is asked for once.
fn may_be_begun(
    lvm: &Lvm,
    rows: &mut Option<Vec<DiskRow>>,
    number: DeviceNumber,
    objection: Option<&Unusable>,
) -> Result<bool, pool::Error> {
    match objection {
        Some(Unusable::Holds { format }) if format == PHYSICAL_VOLUME => {
            let all = if let Some(rows) = rows.take() {
                rows
            } else {
                // A disk that LVM cannot read is none that was begun.
                let listed = lvm.report_all();
                listed.map_err(pool::failed("list the physical volumes"))?.0
            };
            let is_it = |row: &DiskRow| row.is_on(number) && row.is_alone();
            Ok(rows.insert(all).iter().any(is_it))
        }
        // A label is written last.
        Some(Unusable::NotZeros { .. }) => Ok(true),
        _ => Ok(false),
    }
}

/// Makes a blank disk a physical volume.
pub(super) fn prepare(lvm: &Lvm, pool: &Uid, disk: &BlankDisk) -> Result<(), Cause> {
    if disk.is_begun {
        begun::clear(&*lvm.root().system, &disk.path)?;
    }
    let command = lvm
        .command("pvcreate")
        .arg("--norestorefile")
        .option("--uuid", disk_uuid(pool, Uuid::new_v4()))
        .option("--metadatasize", METADATA);
    lvm.run(&command.operand(&disk.path))?;
    // With its label, the disk is known again whatever is written next.
    Ok(lvm.flush([&disk.path])?)
}

fn name_of(pool: Uuid) -> String {
    let letters = pool.to_string().replace('-', "");
    format!("{PREFIX}{}", &letters[..12])
}

/// Whether a group has a name that Cistern gives.
pub(super) fn is_made(name: &str) -> bool {
    let letters = name.strip_prefix(PREFIX);
    letters.is_some_and(|letters| {
        letters.len() == 12 && letters.bytes().all(|it| it.is_ascii_hexdigit())
    })
}

/// How the UUIDs of the physical volumes of a pool begin, without their hyphens.
fn uuid_prefix(pool: &Uid) -> String {
    format!("{:0<12}cistern", pool.label())
}

/// The UUID of a new physical volume of a pool, as lvm(8) writes one.
fn disk_uuid(pool: &Uid, random: Uuid) -> String {
    let letters = uuid_prefix(pool) + &random.to_string().replace('-', "");
    let mut rest = &letters[..32];
    let parts = [6, 4, 4, 4, 4, 4, 6].map(|length| {
        let (part, others) = rest.split_at(length);
        rest = others;
        part
    });
    parts.join("-")
}

/// How a message names the group of a pool before it is found.
pub(super) fn described(claim: &PoolClaim) -> String {
    format!("of pool {}", claim.name)
}
