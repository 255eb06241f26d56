//! Making a volume: its logical volume, zeros on all of it, and its filesystem.

use std::io;

use cistern_types::Bytes;

use super::{
    State, VolumeGroup, capacity::has_room_for_metadata, making::Making, report::GroupRow, tags,
    volume::LogicalVolume,
};
use crate::{
    base_device::LogicalDevice,
    cause::Cause,
    encryption::EncryptionState,
    id::{Uid, Uuid},
    image::{
        Content, Error, Identity, IdentityConflict, Image, ImageRequest, Owner, failed,
        make::{disagreement, verify_made},
    },
    mkfs,
    progress::{Stoppable, percent, stopped},
    system::{MAPPING, OFlags, System},
};

/// How much is zeroed between two reports of the progress.
const ZEROED_AT_ONCE: u64 = 64 << 20;

impl VolumeGroup {
    /// Creates a volume, whole or not at all. Returns an existing one that matches the request. Every byte of a new one
    /// reads zero, whatever was on the disks before, so this takes as long as writing the volume once, unless the disks
    /// can zero by themselves. Continues what an interrupted call has begun. Fails if an existing volume does not match,
    /// for what only an image can be (thin, a copy), if the group lacks space, and if the progress stops it.
    pub fn create(&self, request: &ImageRequest, progress: Stoppable<'_>) -> Result<Image, Error> {
        let uid = &request.uid;
        self.refuse_unsupported(request)?;
        let row = self.row()?;
        let _making = Making::begin(self.path_of(uid));
        match self.find(uid)? {
            Some(volume) if volume.state != State::Making => {}
            Some(volume) => {
                self.refuse_in_use(&volume)?;
                self.verify(&volume.clone().into_image(self.sector_size), request)?;
                self.complete(&volume, request, progress)?;
            }
            None => {
                self.allocate(request, &row)?;
                let volume = self.find(uid)?.ok_or_else(|| self.missing(uid))?;
                self.complete(&volume, request, progress)?;
            }
        }
        let image = self.volume(uid)?;
        let image = image.ok_or_else(|| self.missing(uid))?;
        self.verify(&image, request)?;
        Ok(image)
    }

    fn refuse_unsupported(&self, request: &ImageRequest) -> Result<(), Error> {
        use cistern_types::Provisioning::Thick;
        let what = if request.source.is_some() {
            "clones and restored snapshots"
        } else if request.provisioning != Thick {
            "thin volumes"
        } else {
            return Ok(());
        };
        Err(Error::Unsupported {
            what,
            pool: self.to_string(),
        })
    }

    /// Makes the logical volume, whose tags say that it is not whole.
    fn allocate(&self, request: &ImageRequest, row: &GroupRow) -> Result<(), Error> {
        let uid = &request.uid;
        let content = match request.filesystem {
            None => Content::Block,
            Some(filesystem) => Content::Filesystem {
                filesystem,
                uuid: Uuid::new_v4(),
            },
        };
        let identity = Identity {
            owner: Owner::Volume(request.volume.clone()),
            uid: uid.clone(),
            pool_uuid: self.pool_uuid(),
            size: request.size,
            content,
            provisioning: request.provisioning,
            source: None,
            encryption: request.encryption.map(|_| EncryptionState::Unformatted),
        };
        let size = request.size.saturating_add(identity.header());
        let has_room = has_room_for_metadata(row);
        if !has_room.map_err(failed("make the logical volume", uid))? {
            let why = "the metadata of the volume group has no room for another volume: use a group that was made \
                       with a larger --metadatasize";
            let (uid, pool, source) = (uid.clone(), self.to_string(), io::Error::other(why).into());
            return Err(Error::NoSpace { uid, pool, source });
        }
        let made = self.allocate_extents(uid, Some(&identity), self.extents(size));
        made.map_err(|source| self.no_space_or("make the logical volume", (uid, size), source))
    }

    /// Makes a logical volume of this many extents, whose tags say that it is not whole.
    pub(super) fn allocate_extents(
        &self,
        uid: &Uid,
        identity: Option<&Identity>,
        extents: u64,
    ) -> Result<(), Cause> {
        let tags = match identity {
            Some(identity) => tags::of_volume(identity)?,
            None => vec![State::Making.tag()],
        };
        let command = self.lvm.command("lvcreate").arg("--yes");
        // LVM neither clears the beginning nor looks for signatures: all of it is zeroed next.
        let command = command
            .option("--wipesignatures", "n")
            .option("--zero", "n");
        let mut command = command
            .option("--setautoactivation", "n")
            .option("--extents", extents.to_string())
            .option("--name", format!("{MAPPING}{uid}"));
        for tag in tags {
            command = command.option("--addtag", tag);
        }
        if self.stripes > 1 {
            command = command.option("--stripes", self.stripes.to_string());
        }
        let _alone = self.allocating();
        self.change(&command.operand(&self.name))
    }

    /// Keeps others from getting extents of the group while the result lives. Waits for those that have begun to.
    pub(super) fn allocating(&self) -> Making {
        Making::begin(self.name.clone())
    }

    /// Makes a logical volume whole. Its content is not known: an interrupted call may have begun.
    fn complete(
        &self,
        volume: &LogicalVolume,
        request: &ImageRequest,
        progress: Stoppable<'_>,
    ) -> Result<(), Error> {
        let (system, uid) = (&*self.system, &request.uid);
        let identity = volume
            .identity
            .as_ref()
            .ok_or_else(|| Error::IdentityConflict {
                uid: uid.clone(),
                why: IdentityConflict::NoIdentity,
            })?;
        let make = || -> Result<(), Cause> {
            let device = self.open_device(volume, OFlags::RDWR)?;
            zero(system, &device, volume.size, progress)?;
            if let Content::Filesystem { filesystem, uuid } = identity.content
                && identity.encryption.is_none()
            {
                mkfs::mapping(
                    system,
                    device.as_fd(),
                    filesystem,
                    uuid,
                    &request.mkfs_options,
                )?;
                verify_made(system, device.as_fd(), (filesystem, uuid), volume.size)?;
            }
            system.sync(device.as_fd())?;
            self.retag(volume, &[State::Made.tag()], &[State::Making.tag()])
        };
        make().map_err(failed("make the content", uid))
    }

    /// Fails if a volume is not the requested one.
    fn verify(&self, image: &Image, request: &ImageRequest) -> Result<(), Error> {
        let differs = disagreement(image, request, self.pool_uuid());
        differs.map_or(Ok(()), |why| {
            let uid = request.uid.clone();
            Err(Error::IdentityConflict { uid, why })
        })
    }

    /// [`Error::NoSpace`] if the group has less free than a volume needs, or else [`Error::Failed`].
    pub(super) fn no_space_or(
        &self,
        operation: &'static str,
        (uid, needs): (&Uid, Bytes),
        source: Cause,
    ) -> Error {
        let free = self.statistics().map(|statistics| statistics.available);
        if free.is_ok_and(|free| self.extents(free) < self.extents(needs)) {
            let (uid, pool) = (uid.clone(), self.to_string());
            return Error::NoSpace { uid, pool, source };
        }
        failed(operation, uid)(source)
    }
}

/// Zeroes a device of this size. The caller syncs it. Fails if the progress stops it.
pub(super) fn zero(
    system: &dyn System,
    device: &LogicalDevice,
    size: Bytes,
    progress: Stoppable<'_>,
) -> io::Result<()> {
    let mut at = 0;
    while at < size.0 {
        let end = size.0.min(at.saturating_add(ZEROED_AT_ONCE));
        system.zero(device.as_fd(), &(at..end))?;
        if progress(percent(end, size.0)).is_break() {
            return Err(stopped());
        }
        at = end;
    }
    Ok(())
}
