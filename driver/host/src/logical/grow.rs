//! Growing the logical volume of a volume.
//!
//! ```text
//! prepare_growth: another logical volume ─▶ zeros on all of it    hours, while the volume is used
//! finish_growth:  it is removed ─▶ the volume gets its extents
//! ```
//!
//! A raw block volume shows its new part to its pod at once, so that has to read zero before.

use std::io;

use cistern_types::Bytes;

use super::{VolumeGroup, make::zero, making::Making, report::SegmentRow, volume::LogicalVolume};
use crate::{
    cause::Cause,
    command::Command,
    id::{InvalidUid, Uid},
    image::{Content, Error, Image},
    progress::Stoppable,
    system::OFlags,
};

/// What a volume grows by: zeroed extents for a raw block volume, and nothing for any other. If the growth is not finished,
/// the next one removes what this one has made, or a sweep.
#[derive(Debug, Default)]
pub struct Growth(Option<Zeroed>);

/// A logical volume that reads zero.
#[derive(Debug)]
struct Zeroed {
    uid: Uid,
    /// Keeps it from the sweep.
    _making: Making,
}

impl VolumeGroup {
    /// Zeroes what a raw block volume needs to grow to at least this size. Does nothing for a volume that is large
    /// enough, and for one with a filesystem, which shows nothing of what was on the disks before. Fails if the volume
    /// is missing, if the group lacks the space, or if the progress stops it.
    pub fn prepare_growth(
        &self,
        uid: &Uid,
        size: Bytes,
        progress: Stoppable<'_>,
    ) -> Result<Growth, Error> {
        let volume = self.made(uid)?.ok_or_else(|| self.missing(uid))?;
        let size = size.saturating_add(volume.header());
        if volume.size >= size || !shows_data(&volume) {
            return Ok(Growth::default());
        }
        let zeroed = self.zero_growth(&volume, size, progress);
        let zeroed = zeroed.map_err(|source| self.not_grown(&volume, size, source))?;
        Ok(Growth(Some(zeroed)))
    }

    /// Grows a volume to at least this size. Does not change one that is large enough. A filesystem grows when it is staged
    /// or expanded. Fails if the volume is missing, if its growth to this size was not prepared, or if the group lacks the
    /// space.
    pub fn finish_growth(&self, uid: &Uid, size: Bytes, growth: Growth) -> Result<Image, Error> {
        let volume = self.made(uid)?.ok_or_else(|| self.missing(uid))?;
        let size = size.saturating_add(volume.header());
        if volume.size < size {
            let grown = match growth.0 {
                Some(zeroed) => self.extend_by(&volume, size, &zeroed),
                None if shows_data(&volume) => Err(io::Error::other("it is not zeroed yet").into()),
                None => self.extend(&volume, size, Vec::new(), &self.allocating()),
            };
            grown.map_err(|source| self.not_grown(&volume, size, source))?;
        }
        self.volume(uid)?.ok_or_else(|| self.missing(uid))
    }

    fn not_grown(&self, volume: &LogicalVolume, size: Bytes, source: Cause) -> Error {
        let more = size.saturating_sub(volume.size);
        self.no_space_or("extend the logical volume", (&volume.uid, more), source)
    }

    /// Extends a logical volume, by these extents if there are any, while no other call gets any.
    fn extend(
        &self,
        volume: &LogicalVolume,
        size: Bytes,
        extents: Vec<String>,
        _alone: &Making,
    ) -> Result<(), Cause> {
        let command = self.lvm.command("lvextend");
        let command = command.option("--extents", self.extents(size).to_string());
        let command = command.operand(self.path_of(&volume.uid));
        let command = extents.into_iter().fold(command, Command::operand);
        self.change(&command)
    }

    /// Makes the logical volume whose extents a volume gets to have this size.
    fn zero_growth(
        &self,
        volume: &LogicalVolume,
        size: Bytes,
        progress: Stoppable<'_>,
    ) -> Result<Zeroed, Cause> {
        let system = &*self.system;
        let uid = growth_of(&volume.uid).map_err(io::Error::other)?;
        let making = Making::begin(self.path_of(&uid));
        // What an interrupted call has left.
        if let Some(left) = self.find(&uid).map_err(io::Error::other)? {
            self.remove_growth(&left)?;
        }
        let more = self.more(volume, size);
        self.allocate_extents(&uid, volume.identity.as_ref(), more)?;
        let growth = self.growth(&uid)?;
        let device = self.open_device(&growth, OFlags::RDWR)?;
        zero(system, &device, growth.size, progress)?;
        system.sync(device.as_fd())?;
        Ok(Zeroed {
            uid,
            _making: making,
        })
    }

    /// Extends a volume by the extents of a logical volume that reads zero, and removes that.
    fn extend_by(&self, volume: &LogicalVolume, size: Bytes, zeroed: &Zeroed) -> Result<(), Cause> {
        let name = self.path_of(&zeroed.uid);
        let rows: Vec<SegmentRow> = self.by_own(|lvm| lvm.report(&name))?;
        let ranges = rows.iter().flat_map(|row| row.ranges.split_whitespace());
        let ranges: Vec<String> = ranges.map(str::to_owned).collect();
        // Without them the volume would get extents with the data of others.
        let more = self.more(volume, size);
        if count(&ranges) != Some(more) {
            let text = format!("LVM reports the extents {ranges:?} and not {more}");
            return Err(io::Error::other(text).into());
        }
        // No other call gets the extents between the two commands.
        let alone = self.allocating();
        // Meanwhile somebody may have made a snapshot of it.
        self.remove_growth(&self.growth(&zeroed.uid)?)?;
        self.extend(volume, size, ranges, &alone)
    }

    /// How many extents a volume gets.
    fn more(&self, volume: &LogicalVolume, size: Bytes) -> u64 {
        self.extents(size).saturating_sub(self.extents(volume.size))
    }

    /// Finds a logical volume whose extents a volume gets. Fails if it does not exist.
    fn growth(&self, uid: &Uid) -> io::Result<LogicalVolume> {
        let found = self.find(uid).map_err(io::Error::other)?;
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn remove_growth(&self, growth: &LogicalVolume) -> Result<(), Cause> {
        growth.refuse_dependents().map_err(io::Error::other)?;
        self.lvremove(&growth.uid)
    }
}

/// Whether a volume shows what was on the disks to its pod at once: the new part of a raw block volume, but not what is
/// behind the header of an encrypted one, which reads as noise.
fn shows_data(volume: &LogicalVolume) -> bool {
    volume
        .identity
        .as_ref()
        .is_none_or(|it| it.content == Content::Block && it.encryption.is_none())
}

/// The logical volume whose extents a volume gets.
fn growth_of(uid: &Uid) -> Result<Uid, InvalidUid> {
    format!("{uid}-growth").parse()
}

/// How many extents these ranges have, each `DEVICE:FIRST-LAST`; none if one is something else.
fn count(ranges: &[String]) -> Option<u64> {
    ranges.iter().try_fold(0_u64, |sum, range| {
        let (_, extents) = range.rsplit_once(':')?;
        let (first, last) = extents.split_once('-')?;
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extents_of_ranges_are_counted_and_anything_else_is_no_count() {
        let counted = |ranges: &[&str]| {
            let ranges: Vec<String> = ranges.iter().map(|range| (*range).to_owned()).collect();
            count(&ranges)
        };
        assert_eq!(counted(&["/dev/sda:0-9", "/dev/a:b:5-5"]), Some(11));
        assert_eq!(counted(&[]), Some(0));
        for other in ["", "/dev/sda", "/dev/sda:5", "/dev/sda:9-5", "/dev/sda:a-b"] {
            assert_eq!(counted(&["/dev/sda:0-9", other]), None, "{other}");
        }
    }
}
