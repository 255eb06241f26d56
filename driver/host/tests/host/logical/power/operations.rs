//! The operations on a volume group during which power is cut, and what each promises.

use std::{
    fs::{self, File},
    io::Write as _,
    os::unix::fs::FileExt as _,
};

use cistern_host::{EncryptionState, Image, ImageRequest, UNSTOPPED, logical::VolumeGroup};
use cistern_types::{Bytes, FilesystemType};

use super::{
    super::{Grow as _, block, encrypted, open, volume},
    Powered,
};
use crate::{
    encryption::{keys, unlock},
    harness::{Machine, must, run, unmount},
    power::recording::Progress,
};

const SIZE: Bytes = Bytes::mib(8);
const GROWN: Bytes = Bytes::mib(12);
/// What a pod writes.
const DATA: &[u8] = &[b'd'; 8192];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// Creates a raw block volume.
    Create,
    /// Writes to it and syncs that.
    Write,
    /// Grows it.
    Grow,
    Remove,
    /// Creates a volume with a filesystem.
    CreateFiles,
    /// Mounts it, writes a file and syncs that.
    WriteFile,
    RemoveFiles,
    /// Creates an encrypted raw block volume.
    CreateSecret,
    /// Gives it the header of its encryption, as its first stage does.
    Format,
}

/// Those on a raw block volume.
pub(super) const BLOCK: [Operation; 4] = [
    Operation::Create,
    Operation::Write,
    Operation::Grow,
    Operation::Remove,
];
/// Those on a volume with a filesystem.
pub(super) const FILES: [Operation; 3] = [
    Operation::CreateFiles,
    Operation::WriteFile,
    Operation::RemoveFiles,
];
/// Those on an encrypted one.
pub(super) const SECRET: [Operation; 2] = [Operation::CreateSecret, Operation::Format];

/// The operations on one group.
pub(super) struct Operations<'a> {
    powered: &'a Powered<'a>,
    pool: VolumeGroup,
    all: &'static [Operation],
    raw: ImageRequest,
    files: ImageRequest,
    secret: ImageRequest,
}

impl<'a> Operations<'a> {
    pub(super) fn new(
        powered: &'a Powered<'a>,
        pool: VolumeGroup,
        all: &'static [Operation],
    ) -> Self {
        let machine = powered.machine;
        let raw = ImageRequest {
            size: SIZE,
            ..block(machine, "raw")
        };
        Self {
            powered,
            pool,
            all,
            raw,
            files: volume(machine, "files", Some(FilesystemType::Ext4)),
            secret: encrypted(machine, "secret"),
        }
    }

    fn machine(&self) -> &Machine {
        self.powered.machine
    }

    /// Runs an operation, which succeeds also after an interrupted attempt.
    pub(super) fn run(&self, operation: Operation) {
        match operation {
            Operation::Create => self.create(&self.raw),
            Operation::CreateFiles => self.create(&self.files),
            Operation::CreateSecret => self.create(&self.secret),
            Operation::Write => {
                let device = open(&self.pool, &self.raw);
                device.write_all_at(DATA, 0).unwrap();
                device.sync_all().unwrap();
            }
            Operation::Grow => drop(must(self.pool.grow(&self.raw.uid, GROWN, UNSTOPPED))),
            Operation::Remove => must(self.pool.remove(&self.raw.uid)),
            Operation::WriteFile => self.mounted(|| {
                let mut file = File::create(self.machine().path("mounted/file")).unwrap();
                file.write_all(DATA).unwrap();
                file.sync_all().unwrap();
            }),
            Operation::RemoveFiles => must(self.pool.remove(&self.files.uid)),
            Operation::Format => self.format(),
        }
    }

    /// Compares the group after a power cut, when the first `done` operations were acknowledged. Then it repeats the one that was
    /// interrupted.
    pub(super) fn compare(&self, done: usize) {
        let all = self.all;
        self.compare_volumes(Progress { all, done });
        must(self.pool.sweep());
        self.compare_volumes(Progress { all, done });
        if let Some(interrupted) = all.get(done) {
            self.run(*interrupted);
            let done = done + 1;
            self.compare_volumes(Progress { all, done });
        }
        let names = self
            .powered
            .lvm("lvs", &["--noheadings", "--options", "lv_name"]);
        let left = names.split_whitespace().count();
        assert_eq!(left, must(self.pool.volumes()).len(), "{names}");
    }

    fn compare_volumes(&self, progress: Progress<Operation>) {
        let volumes = must(self.pool.volumes());
        let find = |request: &ImageRequest, made, removed: Option<Operation>| {
            let found = volumes.iter().find(|image| image.uid == request.uid);
            let is_removed = removed.map_or(Some(false), |it| progress.is_done(&it));
            if let (Some(made), Some(removed)) = (progress.is_done(&made), is_removed) {
                assert_eq!(found.is_some(), made && !removed, "{volumes:?}");
            }
            found
        };
        let raw = find(&self.raw, Operation::Create, Some(Operation::Remove));
        let files = find(
            &self.files,
            Operation::CreateFiles,
            Some(Operation::RemoveFiles),
        );
        let secret = find(&self.secret, Operation::CreateSecret, None);
        let found = [raw, files, secret].into_iter().flatten().count();
        assert_eq!(volumes.len(), found, "{volumes:?}");
        if let Some(raw) = raw {
            self.compare_raw(raw, progress);
        }
        if files.is_some() {
            self.compare_files(progress);
        }
        if let Some(secret) = secret {
            self.compare_secret(secret, progress);
        }
    }

    fn compare_raw(&self, image: &Image, progress: Progress<Operation>) {
        if let Some(is_grown) = progress.is_done(&Operation::Grow) {
            assert_eq!(image.size, if is_grown { GROWN } else { SIZE });
        }
        let mut bytes = vec![0; usize::try_from(image.size.0).unwrap()];
        open(&self.pool, &self.raw)
            .read_exact_at(&mut bytes, 0)
            .unwrap();
        let (data, rest) = bytes.split_at(DATA.len());
        if let Some(is_written) = progress.is_done(&Operation::Write) {
            let expected = if is_written { DATA } else { &[0; DATA.len()] };
            assert!(data == expected, "written: {is_written}");
        }
        assert!(rest.iter().all(|byte| *byte == 0));
    }

    fn compare_files(&self, progress: Progress<Operation>) {
        self.mounted(|| {
            if let Some(is_written) = progress.is_done(&Operation::WriteFile) {
                let found = fs::read(self.machine().path("mounted/file")).ok();
                assert_eq!(found.is_some_and(|it| it == DATA), is_written);
            }
        });
    }

    fn compare_secret(&self, image: &Image, progress: Progress<Operation>) {
        let is_complete = image.encryption() == Some(EncryptionState::Complete);
        if let Some(is_formatted) = progress.is_done(&Operation::Format) {
            assert_eq!(is_complete, is_formatted);
        }
        if is_complete {
            let header = || {
                let mut bytes = vec![0; 1 << 20];
                let device = open(&self.pool, &self.secret);
                device.read_exact_at(&mut bytes, 0).unwrap();
                bytes
            };
            let before = header();
            assert!(before.starts_with(b"LUKS"));
            self.format();
            assert!(before == header(), "formatted again");
        }
    }

    fn create(&self, request: &ImageRequest) {
        must(self.pool.create(request, UNSTOPPED));
    }

    fn format(&self) {
        let (request, keys) = (&self.secret, keys(b'k'));
        let completed = self
            .pool
            .complete_encrypted(&request.uid, &request.volume, unlock(&keys));
        must(completed);
    }

    /// Mounts the volume with a filesystem meanwhile.
    fn mounted(&self, act: impl FnOnce()) {
        let number = must(self.pool.open_volume(&self.files.uid)).0.number();
        let folder = self.machine().path("mounted");
        fs::create_dir_all(&folder).unwrap();
        let device = format!("/dev/dm-{}", number.minor);
        run("mount", &[&device, folder.to_str().unwrap()]);
        act();
        unmount(&folder);
    }
}
