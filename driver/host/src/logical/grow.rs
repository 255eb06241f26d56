//! Growing the logical volume of a volume.

use cistern_types::Bytes;

use super::VolumeGroup;
use crate::{
    id::Uid,
    image::{Content, Error, Image},
};

impl VolumeGroup {
    /// Grows a volume with a filesystem to at least this size. Does not change one that is large enough. The filesystem
    /// grows when it is staged or expanded, and shows nothing of what was on the disks before. A raw block volume, which
    /// would, does not grow. Fails if the volume is missing, or if the group lacks the space.
    pub fn grow(&self, uid: &Uid, size: Bytes) -> Result<Image, Error> {
        let system = &*self.system;
        let volume = self.made(uid)?.ok_or_else(|| self.missing(uid))?;
        if volume.size < size {
            let content = volume.identity.as_ref().map(|identity| identity.content);
            if !matches!(content, Some(Content::Filesystem { .. })) {
                let pool = self.to_string();
                let what = "the expansion of raw block volumes";
                return Err(Error::Unsupported { what, pool });
            }
            let command = self.lvm.command("lvextend");
            let command = command.option("--extents", self.extents(size).to_string());
            let grown = self.lvm.run(system, &command.operand(self.path_of(uid)));
            let more = size.saturating_sub(volume.size);
            grown.map_err(|source| {
                self.no_space_or("extend the logical volume", (uid, more), source)
            })?;
        }
        self.volume(uid)?.ok_or_else(|| self.missing(uid))
    }
}
