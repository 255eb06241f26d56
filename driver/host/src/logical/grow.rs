//! Growing the logical volume of a volume.
//!
//! A raw block volume shows its new part to its pod at once, so that has to read zero before. It gets the extents of another logical
//! volume, which is zeroed and removed first.

use std::io;

use cistern_types::Bytes;

use super::{
    VolumeGroup,
    make::{ALLOCATION, zero},
    making::Making,
    report::SegmentRow,
    volume::LogicalVolume,
};
use crate::{
    cause::Cause,
    command::Command,
    id::{InvalidUid, Uid},
    image::{Content, Error, Image},
    progress::Progress,
    system::OFlags,
};

impl VolumeGroup {
    /// Grows a volume to at least this size. Does not change one that is large enough. A filesystem grows when it is staged
    /// or expanded, and shows nothing of what was on the disks before. The new part of a raw block volume is zeroed first.
    /// Fails if the volume is missing, or if the group lacks the space.
    pub fn grow(&self, uid: &Uid, size: Bytes, progress: Progress<'_>) -> Result<Image, Error> {
        let volume = self.made(uid)?.ok_or_else(|| self.missing(uid))?;
        let size = size.saturating_add(volume.header());
        if volume.size < size {
            let identity = volume.identity.as_ref();
            // What is behind the header of an encrypted one reads as noise.
            let shows_data = identity.is_none_or(|identity| {
                identity.content == Content::Block && identity.encryption.is_none()
            });
            let grown = if shows_data {
                self.extend_by_zeros(&volume, size, progress)
            } else {
                self.extend(&volume, size, Vec::new())
            };
            let more = size.saturating_sub(volume.size);
            grown.map_err(|source| {
                self.no_space_or("extend the logical volume", (uid, more), source)
            })?;
        }
        self.volume(uid)?.ok_or_else(|| self.missing(uid))
    }

    /// Extends a logical volume, by these extents if there are any.
    fn extend(
        &self,
        volume: &LogicalVolume,
        size: Bytes,
        extents: Vec<String>,
    ) -> Result<(), Cause> {
        let command = self.lvm.command("lvextend")?;
        let command = command.option("--extents", self.extents(size).to_string());
        let command = command.operand(self.path_of(&volume.uid));
        let command = extents.into_iter().fold(command, Command::operand);
        self.change(&command)
    }

    fn extend_by_zeros(
        &self,
        volume: &LogicalVolume,
        size: Bytes,
        progress: Progress<'_>,
    ) -> Result<(), Cause> {
        let system = &*self.system;
        let uid = growth_of(&volume.uid).map_err(io::Error::other)?;
        let making = Making::begin(self.path_of(&uid));
        // What an interrupted call has left.
        let look = |growth: &Uid| self.find(growth).map_err(io::Error::other);
        if look(&uid)?.is_some() {
            self.remove_growth(&uid)?;
        }
        let more = self.extents(size).saturating_sub(self.extents(volume.size));
        self.allocate_extents(&uid, volume.identity.as_ref(), more)?;
        let growth = look(&uid)?.ok_or(io::ErrorKind::NotFound);
        let growth = growth.map_err(io::Error::from)?;
        let device = self.open_device(&growth, OFlags::RDWR)?;
        zero(system, &device, growth.size, (&making, progress))?;
        system.sync(device.as_fd())?;
        drop(device);
        let name = self.path_of(&uid);
        let rows: Vec<SegmentRow> = self.lvm.report(&name)?;
        let ranges = rows.iter().flat_map(|row| row.ranges.split_whitespace());
        let ranges: Vec<String> = ranges.map(str::to_owned).collect();
        // Without them the volume would get extents with the data of others.
        if count(&ranges) != Some(more) {
            let text = format!("LVM reports the extents {ranges:?} and not {more}");
            return Err(io::Error::other(text).into());
        }
        // No other call gets the extents between the two commands.
        let _alone = ALLOCATION.lock();
        self.remove_growth(&uid)?;
        self.extend(volume, size, ranges)
    }

    fn remove_growth(&self, uid: &Uid) -> Result<(), Cause> {
        let command = self.lvm.command("lvremove")?.arg("--yes");
        self.change(&command.operand(self.path_of(uid)))
    }
}

/// The logical volume whose extents a volume gets.
pub(super) fn growth_of(uid: &Uid) -> Result<Uid, InvalidUid> {
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
