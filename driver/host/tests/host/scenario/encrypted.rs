//! Steps of encrypted volumes and of their clones.

use std::{
    error::Error,
    fs,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use chrono::Utc;
use cistern_host::{ImageRequest, Key, Keys, Pool, Root, SourceImage, Unlock};
use cistern_types::{Bytes, Consistency, Encryption, ExtentLimits, Provisioning};
use serde_json::Value;

use super::{
    Step, Volumes as _, path_in, snapshot_member, stage_with, uid, unique_uid, volume,
    wait_until_unbound,
};

/// A thick encrypted volume, so that its first stage includes allocation.
fn encrypted(folder: &Path) -> ImageRequest {
    ImageRequest {
        encryption: Some(Encryption::Luks2),
        uid: unique_uid(folder, "e"),
        volume: "pvc-e".to_owned(),
        size: Bytes::mib(32),
        ..volume()
    }
}

fn key(letter: u8) -> Result<Key, Box<dyn Error>> {
    Ok(Key::new(vec![letter; 32])?)
}

/// Takes a step of an encrypted volume.
pub(super) fn use_volume(
    step: Step,
    root: &Root,
    pool: &Pool,
    folder: &Path,
) -> Result<(), Box<dyn Error>> {
    let (request, staging) = (encrypted(folder), folder.join("kubelet/encrypted"));
    match step {
        Step::StageEncrypted => {
            stage(pool, &request, &staging, &Keys::new(key(b'k')?, None))?;
        }
        Step::DismissEncrypted => {
            root.unstage(&staging)?;
            wait_until_unbound(folder, &request.uid)?;
            pool.remove_image(&request.uid)?;
            // It does not exist before the first preparation.
            let _ = fs::remove_dir(&staging);
        }
        _ => {
            fs::create_dir_all(&staging)?;
            pool.new_image(&request)?;
        }
    }
    Ok(())
}

fn stage(
    pool: &Pool,
    request: &ImageRequest,
    staging: &Path,
    keys: &Keys,
) -> Result<(), Box<dyn Error>> {
    let unlock = Unlock {
        keys,
        discard: false,
        mkfs_options: &request.mkfs_options,
        extent_size: None,
    };
    stage_with(pool, &request.uid, staging, Some(unlock))
}

/// An encrypted volume, and a clone of a snapshot of it that has a key of its own.
pub(super) struct Clones<'a> {
    root: &'a Root,
    pool: &'a Pool,
    folder: &'a Path,
    staging: PathBuf,
    source: ImageRequest,
    clone: ImageRequest,
}

impl<'a> Clones<'a> {
    pub(super) fn new(root: &'a Root, pool: &'a Pool, folder: &'a Path) -> Self {
        let source = ImageRequest {
            size: Bytes::mib(64),
            provisioning: Provisioning::Thin,
            ..encrypted(folder)
        };
        let clone = ImageRequest {
            uid: unique_uid(folder, "f"),
            volume: "pvc-f".to_owned(),
            source: Some(SourceImage {
                uid: uid("uid-s"),
                extent_limits: ExtentLimits::number(u64::MAX),
            }),
            ..source.clone()
        };
        Self {
            root,
            pool,
            folder,
            staging: folder.join("kubelet/encrypted"),
            source,
            clone,
        }
    }

    /// Takes a step.
    pub(super) fn run(&self, step: Step) -> Result<(), Box<dyn Error>> {
        match step {
            Step::CloneEncrypted => drop(self.pool.new_image(&self.clone)?),
            Step::StageClone => {
                let keys = Keys::new(key(b'c')?, Some(key(b'k')?));
                stage(self.pool, &self.clone, &self.staging, &keys)?;
                self.has_one_key()?;
            }
            Step::DismissClone => {
                self.unstage(&self.clone)?;
                self.pool.remove_image(&self.clone.uid)?;
            }
            Step::StageEach => {
                self.unstage(&self.clone)?;
                for (request, letter) in [(&self.clone, b'c'), (&self.source, b'k')] {
                    self.stage_alone(request, letter)?;
                }
            }
            Step::DismissEncryptedSource => {
                self.pool.remove_image(&self.source.uid)?;
                self.pool.remove_image(&uid("uid-s"))?;
                fs::remove_dir(&self.staging)?;
            }
            _ => self.prepare()?,
        }
        Ok(())
    }

    fn prepare(&self) -> Result<(), Box<dyn Error>> {
        fs::create_dir_all(&self.staging)?;
        self.pool.new_image(&self.source)?;
        self.stage_alone(&self.source, b'k')?;
        let member = snapshot_member(self.pool, &self.source, "s");
        self.root
            .take_snapshots(&[member], Consistency::Crash, Utc::now)?;
        Ok(())
    }

    /// Stages and unstages a volume with one key.
    fn stage_alone(&self, request: &ImageRequest, letter: u8) -> Result<(), Box<dyn Error>> {
        let keys = Keys::new(key(letter)?, None);
        stage(self.pool, request, &self.staging, &keys)?;
        self.unstage(request)
    }

    fn unstage(&self, request: &ImageRequest) -> Result<(), Box<dyn Error>> {
        self.root.unstage(&self.staging)?;
        Ok(wait_until_unbound(self.folder, &request.uid)?)
    }

    /// Fails if more keys than that of the clone open it. The metadata of LUKS2 follow a binary header of 4 KiB.
    fn has_one_key(&self) -> Result<(), Box<dyn Error>> {
        let path = path_in(self.folder, "images", self.clone.uid.as_str());
        let mut metadata = [0; 12 << 10];
        fs::File::open(path)?.read_exact_at(&mut metadata, 4 << 10)?;
        let mut metadata = serde_json::Deserializer::from_slice(&metadata).into_iter::<Value>();
        let metadata = metadata.next().ok_or("no metadata")??;
        let slots = metadata.get("keyslots").and_then(Value::as_object);
        match slots.map(serde_json::Map::len) {
            Some(1) => Ok(()),
            slots => Err(format!("keyslots of the clone: {slots:?}").into()),
        }
    }
}
