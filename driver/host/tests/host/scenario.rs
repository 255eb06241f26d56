//! The lifecycle of a pool and a volume in steps, each of which can be repeated and undone.

// Also tests of another crate have this file, by its path.
#[path = "scenario/encrypted.rs"]
mod encrypted;
#[path = "scenario/moves.rs"]
mod moves;
#[path = "scenario/snapshots.rs"]
mod snapshots;
#[path = "scenario/volumes.rs"]
mod volumes;

use std::{
    error::Error,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use chrono::DateTime;
use cistern_host::{
    AdoptionRequest, BlockPublishRequest, BlockStageRequest, Checking, Content, ExpandRequest,
    Expectation, ImageRequest, Linux, Member, MountOptions, Pool, PoolDeclaration, PublishRequest,
    Root, SnapshotRequest, Source, StageRequest, System, Uid, Unlock, pool::Owner,
};
use cistern_types::{Bytes, ExtentLimits, ExtentSize, FilesystemType, MkfsOptions, Provisioning};
use rustix::fs::FallocateFlags;

pub(crate) use self::volumes::Volumes;

/// A step in the lifecycle of a pool or a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Creates a pool on a device.
    MakeDevicePool,
    /// Creates a pool in a file.
    MakePool,
    /// Grows the pool.
    GrowPool,
    /// Creates a volume.
    Create,
    /// The CSI calls of the same name.
    Stage,
    Publish,
    Unpublish,
    Unstage,
    /// Grows the volume's image.
    Grow,
    /// Makes the volume thin, and thick again.
    MakeThin,
    MakeThick,
    /// Stages the volume again, which grows its filesystem.
    StageGrown,
    /// Creates and stages a second volume, with XFS, and grows its image. No faults are injected here.
    Prepare,
    /// Grows its filesystem while it is mounted.
    Expand,
    /// Removes the second volume.
    Dismiss,
    /// Creates, stages, publishes and removes a raw block volume. `Unpublish` and `Unstage` apply to
    /// it as well.
    CreateDevice,
    StageDevice,
    PublishDevice,
    RemoveDevice,
    /// Opens the pool and thaws every filesystem that was left frozen. Each of the following steps
    /// begins with this.
    Open,
    /// Takes a snapshot of the volume with its filesystem frozen; takes a group snapshot of the volume
    /// and a staged raw block volume; removes both snapshots.
    SnapshotFrozen,
    PrepareGroup,
    SnapshotGroup,
    RemoveSnapshots,
    DismissGroup,
    /// Creates a volume with XFS and a snapshot of it, restores that to a larger volume, and removes
    /// all. Faults are injected only into `Restore` and `Receive`.
    PrepareSource,
    Restore,
    /// Copies the snapshot, as if it were on another node, and restores the copy.
    Receive,
    RemoveRestored,
    RemoveSource,
    /// Adopts the pool under another UID: while its volume is staged, after a reboot, and on a device
    /// after a reboot.
    AdoptUsed,
    AdoptPool,
    AdoptDevicePool,
    /// Moves the volume to the trash, restores it, and removes it from the trash.
    Discard,
    TakeBack,
    RemoveDiscarded,
    /// Closes the volume for a move, opens it again, and removes the closed image.
    BeginClosing,
    Close,
    Reopen,
    RemoveClosed,
    /// Copies the closed volume, as if it were on another node, and makes the copy the volume. Faults are injected
    /// only into `OpenCopy`.
    PrepareCopy,
    OpenCopy,
    /// Takes two snapshots of a raw block volume that moves, as if it were on another node, and copies the first one.
    /// `Pass` copies the second one over it, and `Promote` makes the first copy the volume. Faults are injected only into both.
    PreparePass,
    Pass,
    Promote,
    DismissPass,
    /// Creates a raw block volume that has an XFS, adopts it, and removes the volume. Faults are injected only into
    /// `AdoptFilesystem`.
    PrepareRaw,
    AdoptFilesystem,
    DismissRaw,
    /// Creates an encrypted volume, stages it for the first time, which formats it, and removes it. Faults are injected only
    /// into `StageEncrypted`.
    PrepareEncrypted,
    StageEncrypted,
    DismissEncrypted,
    /// Creates an encrypted volume, stages it, takes a snapshot, clones that, and stages the clone for the
    /// first time, with a key of its own. Then stages each with its own key, and removes all. Faults are injected only into
    /// `StageClone`.
    PrepareEncryptedSource,
    CloneEncrypted,
    StageClone,
    DismissClone,
    StageEach,
    DismissEncryptedSource,
    /// Removes the volume.
    Remove,
    /// Removes the pool.
    RemovePool,
}

pub(crate) fn linux(folder: &Path) -> Arc<dyn System> {
    Arc::new(Linux::new(folder.join("root/dev")))
}

/// A UID that is unique to a folder. Each test has a folder of its own.
pub(crate) fn unique_uid(folder: &Path, name: &str) -> Uid {
    let letters = |c: &char| c.is_ascii_alphanumeric();
    let folder: String = folder.to_string_lossy().chars().filter(letters).collect();
    uid(&format!("uid-{name}-{folder}"))
}

pub(crate) fn uid(text: &str) -> Uid {
    text.parse().expect("a UID")
}

/// The pool under another UID.
pub(crate) fn returned(size: Bytes) -> PoolDeclaration {
    PoolDeclaration {
        uid: uid("1a2b3c4d-0000-4000-8000-00000000cafe"),
        ..pool(size)
    }
}

fn on_disk(folder: &Path, pool: PoolDeclaration) -> PoolDeclaration {
    let source = Source::Device {
        paths: vec![folder.join("disk")],
        identity: None,
    };
    PoolDeclaration { source, ..pool }
}

/// The owner of a pool: a node and its machine ID.
pub(crate) fn node(name: &str) -> Owner {
    Owner {
        node: name.to_owned(),
        machine: Some(format!("machine-of-{name}")),
    }
}

pub(crate) fn pool(size: Bytes) -> PoolDeclaration {
    PoolDeclaration {
        uid: uid("9f8e7d6c-0000-4000-8000-00000000beef"),
        name: "fast".to_owned(),
        others: Vec::new(),
        node: node("w1"),
        take_over: None,
        replaced: Vec::new(),
        source: Source::Image {
            size,
            directory: None,
        },
    }
}

/// A thick volume, so that the steps include allocation.
pub(crate) fn volume() -> ImageRequest {
    ImageRequest {
        encryption: None,
        volume: "pvc-a".to_owned(),
        uid: uid("uid-a"),
        size: Bytes::mib(64),
        filesystem: Some(FilesystemType::Ext4),
        mkfs_options: MkfsOptions::default(),
        extent_size: None,
        provisioning: Provisioning::Thick,
        source: None,
    }
}

/// A volume whose filesystem grows while it is mounted.
fn online_volume() -> ImageRequest {
    ImageRequest {
        encryption: None,
        volume: "pvc-b".to_owned(),
        uid: uid("uid-b"),
        size: Bytes::mib(300),
        filesystem: Some(FilesystemType::Xfs),
        mkfs_options: MkfsOptions::default(),
        extent_size: Some(ExtentSize::Mib1),
        provisioning: Provisioning::Thin,
        source: None,
    }
}

/// A raw block volume.
fn device(folder: &Path) -> ImageRequest {
    ImageRequest {
        encryption: None,
        volume: "pvc-c".to_owned(),
        uid: unique_uid(folder, "c"),
        size: Bytes::mib(8),
        filesystem: None,
        mkfs_options: MkfsOptions::default(),
        extent_size: None,
        provisioning: Provisioning::Thick,
        source: None,
    }
}

fn snapshot_member<'a>(pool: &'a Pool, source: &ImageRequest, name: &str) -> Member<'a> {
    let request = SnapshotRequest {
        snapshot: format!("snapshot-{name}"),
        uid: uid(&format!("uid-{name}")),
        volume: source.volume.clone(),
        source: source.uid.clone(),
        extent_limits: ExtentLimits::number(u64::MAX),
    };
    Member { pool, request }
}

/// Opens the pool as an agent does at its start.
fn open_again(root: &Root, expectation: Expectation) -> Result<Pool, Box<dyn Error>> {
    thaw(root)?;
    let pool = root.open_pool(&pool(Bytes::gib(1)), expectation)?;
    pool.sweep()?;
    Ok(pool)
}

/// Thaws what an earlier process left frozen. Returns the images whose filesystem was frozen.
pub(crate) fn thaw(root: &Root) -> Result<Vec<Uid>, Box<dyn Error>> {
    let mut frozen = Vec::new();
    for (image, was_frozen) in root.thaw_left_frozen(Duration::from_mins(1), |_| true)? {
        if was_frozen? {
            frozen.push(image);
        }
    }
    Ok(frozen)
}

/// Size to which both volumes grow.
const GROWN: Bytes = Bytes::mib(340);

/// Opens the pool and grows its file, as an agent does.
fn open_and_resize(
    root: &Root,
    size: Bytes,
    expectation: Expectation,
) -> Result<Pool, cistern_host::pool::Error> {
    let pool = root.open_pool(&pool(size), expectation)?;
    pool.resize_file(size)?;
    Ok(pool)
}

/// Runs one step, beginning with opening the pool, as an agent does after its start.
pub(crate) fn run(
    step: Step,
    folder: &Path,
    system: Arc<dyn System>,
    expectation: Expectation,
) -> Result<(), Box<dyn Error>> {
    let root = Root::new(folder.join("root"), system);
    let kubelet = folder.join("kubelet");
    let (staging, target) = (kubelet.join("globalmount"), kubelet.join("target"));
    let again = |declaration| root.open_pool(&declaration, expectation);
    let open = |size| open_and_resize(&root, size, expectation);
    match step {
        Step::MakeDevicePool => {
            drop(again(on_disk(folder, pool(Bytes::ZERO)))?);
        }
        Step::AdoptUsed | Step::AdoptPool => drop(again(returned(Bytes::gib(1)))?),
        Step::AdoptDevicePool => drop(again(on_disk(folder, returned(Bytes::ZERO)))?),
        Step::Discard => open(Bytes::gib(1))?.discard(&volume().uid, DateTime::UNIX_EPOCH)?,
        Step::TakeBack | Step::RemoveDiscarded => from_trash(step, &open(Bytes::gib(1))?)?,
        Step::BeginClosing
        | Step::Close
        | Step::Reopen
        | Step::RemoveClosed
        | Step::PrepareCopy
        | Step::OpenCopy => moves::move_volume(step, &open(Bytes::gib(1))?)?,
        Step::MakePool => drop(open(Bytes::gib(1))?),
        Step::GrowPool => drop(open(Bytes::gib(2))?),
        Step::Create => drop(open(Bytes::gib(1))?.new_image(&volume())?),
        Step::Stage => stage(&open(Bytes::gib(1))?, &volume().uid, &staging)?,
        Step::StageGrown => {
            root.unstage(&staging)?;
            wait_until_unbound(folder, &volume().uid)?;
            stage(&open(Bytes::gib(1))?, &volume().uid, &staging)?;
        }
        Step::Grow => drop(open(Bytes::gib(1))?.grow_image(&volume().uid, GROWN)?),
        Step::MakeThin => make_thin(&open(Bytes::gib(1))?, folder)?,
        Step::MakeThick => make_thick(&open(Bytes::gib(1))?)?,
        Step::Prepare => {
            let (pool, volume) = (open(Bytes::gib(1))?, online_volume());
            pool.new_image(&volume)?;
            stage(&pool, &volume.uid, &staging)?;
            pool.grow_image(&volume.uid, GROWN)?;
        }
        Step::Expand => expand(&open(Bytes::gib(1))?, &staging)?,
        Step::Dismiss => {
            root.unstage(&staging)?;
            open(Bytes::gib(1))?.remove_image(&online_volume().uid)?;
        }
        Step::CreateDevice => drop(open(Bytes::gib(1))?.new_image(&device(folder))?),
        Step::StageDevice => stage_block(&open(Bytes::gib(1))?, &device(folder), &staging)?,
        Step::PublishDevice => root.publish_block(&BlockPublishRequest {
            image: &device(folder).uid,
            read_only: true,
            staging: &staging,
            target: &target,
        })?,
        Step::RemoveDevice => open(Bytes::gib(1))?.remove_image(&device(folder).uid)?,
        Step::Open => drop(open_again(&root, expectation)?),
        Step::SnapshotFrozen
        | Step::PrepareGroup
        | Step::SnapshotGroup
        | Step::RemoveSnapshots
        | Step::DismissGroup => {
            snapshots::take(step, &root, &open_again(&root, expectation)?, folder)?;
        }
        Step::PrepareSource
        | Step::Restore
        | Step::Receive
        | Step::RemoveRestored
        | Step::RemoveSource => snapshots::restore(step, &root, &open_again(&root, expectation)?)?,
        Step::PreparePass | Step::Pass | Step::Promote | Step::DismissPass => {
            moves::pass(step, &root, &open_again(&root, expectation)?, folder)?;
        }
        Step::PrepareRaw | Step::AdoptFilesystem | Step::DismissRaw => {
            adopt_filesystem(step, &open_again(&root, expectation)?, folder)?;
        }
        Step::PrepareEncrypted | Step::StageEncrypted | Step::DismissEncrypted => {
            encrypted::use_volume(step, &root, &open_again(&root, expectation)?, folder)?;
        }
        Step::PrepareEncryptedSource
        | Step::CloneEncrypted
        | Step::StageClone
        | Step::DismissClone
        | Step::StageEach
        | Step::DismissEncryptedSource => {
            let pool = open_again(&root, expectation)?;
            encrypted::Clones::new(&root, &pool, folder).run(step)?;
        }
        Step::Publish => publish(&root, &staging, &target)?,
        Step::Unpublish => root.unpublish(&target)?,
        Step::Unstage => root.unstage(&staging)?,
        Step::Remove => open(Bytes::gib(1))?.remove_image(&volume().uid)?,
        Step::RemovePool => root.remove_pool(&pool(Bytes::gib(1)), expectation)?,
    }
    Ok(())
}

fn expand(pool: &Pool, staging: &Path) -> Result<(), cistern_host::grow::Error> {
    let expanded = pool.expand(&ExpandRequest {
        keys: None,
        image: &online_volume().uid,
        filesystem: online_volume().filesystem,
        path: staging,
        required: GROWN,
        limit: None,
    });
    expanded.map(drop)
}

/// Takes a step of the adoption of a filesystem. The raw block volume is larger than that.
fn adopt_filesystem(step: Step, pool: &Pool, folder: &Path) -> Result<(), Box<dyn Error>> {
    let raw = ImageRequest {
        size: GROWN,
        provisioning: Provisioning::Thin,
        ..device(folder)
    };
    match step {
        Step::DismissRaw => pool.remove_image(&raw.uid)?,
        Step::PrepareRaw => {
            pool.new_image(&raw)?;
            let original = pool.new_image(&online_volume())?;
            let path = |uid: &Uid| path_in(folder, "images", uid.as_str());
            let mut from = fs::File::open(path(&original.uid))?;
            let mut to = fs::File::options().write(true).open(path(&raw.uid))?;
            std::io::copy(&mut from, &mut to)?;
            to.sync_all()?;
            pool.remove_image(&original.uid)?;
        }
        _ => {
            let request = AdoptionRequest {
                image: &raw.uid,
                volume: &raw.volume,
                filesystem: Some(FilesystemType::Xfs),
                extent_size: None,
                extent_limits: ExtentLimits::number(u64::MAX),
            };
            let adopted = pool.adopt_filesystem(&request, &|_| {})?;
            let Some(Content::Filesystem { .. }) = adopted.identity.map(|it| it.content) else {
                return Err("the filesystem is not adopted".into());
            };
        }
    }
    Ok(())
}

fn path_in(folder: &Path, part: &str, name: &str) -> PathBuf {
    let of_pool = pool(Bytes::ZERO).uid;
    folder.join(format!("root/pools/{of_pool}/{part}/{name}"))
}

fn stage(pool: &Pool, image: &Uid, staging: &Path) -> Result<(), Box<dyn Error>> {
    stage_with(pool, image, staging, None)
}

fn stage_with(
    pool: &Pool,
    image: &Uid,
    staging: &Path,
    unlock: Option<Unlock<'_>>,
) -> Result<(), Box<dyn Error>> {
    let image = pool.image(image)?.ok_or("no image")?;
    let identity = image.identity.ok_or("no identity")?;
    let Content::Filesystem { filesystem, uuid } = identity.content else {
        return Err("no filesystem".into());
    };
    pool.stage(&StageRequest {
        unlock,
        image: &image.uid,
        volume: identity.owner.volume().ok_or("no volume")?,
        filesystem,
        filesystem_uuid: uuid,
        size: identity.size,
        provisioning: identity.provisioning,
        options: &MountOptions::default(),
        read_only: false,
        checking: Checking::UNSEEN,
        staging,
    })?;
    Ok(())
}

fn make_thick(pool: &Pool) -> Result<(), cistern_host::image::Error> {
    pool.provision(&volume().uid, Provisioning::Thick)?;
    pool.allocate_all(&volume().uid)
}

/// Makes the volume thin, and frees blocks as a discard inside the volume does.
fn make_thin(pool: &Pool, folder: &Path) -> Result<(), Box<dyn Error>> {
    pool.provision(&volume().uid, Provisioning::Thin)?;
    let path = path_in(folder, "images", volume().uid.as_str());
    let file = std::fs::File::options().write(true).open(path)?;
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, flags, 32 << 20, 8 << 20)?;
    Ok(())
}

fn from_trash(step: Step, pool: &Pool) -> Result<(), Box<dyn Error>> {
    if step == Step::TakeBack {
        pool.take_back(&volume().uid)?;
    } else {
        pool.remove_discarded(&volume().uid)?;
    }
    Ok(())
}

fn stage_block(pool: &Pool, device: &ImageRequest, staging: &Path) -> Result<(), Box<dyn Error>> {
    pool.stage_block(&BlockStageRequest {
        unlock: None,
        image: &device.uid,
        volume: &device.volume,
        size: device.size,
        staging,
    })?;
    Ok(())
}

fn publish(root: &Root, staging: &Path, target: &Path) -> Result<(), Box<dyn Error>> {
    let volume = volume();
    root.publish(&PublishRequest {
        image: &volume.uid,
        filesystem: FilesystemType::Ext4,
        options: &MountOptions::default(),
        read_only: false,
        staging,
        target,
    })?;
    Ok(())
}

/// Waits until no loop device has a volume's image. Another test that inspects loop devices delays
/// this, and a bound image does not grow before it is mounted. Bypasses fault injection, which counts
/// calls.
fn wait_until_unbound(folder: &Path, image: &Uid) -> std::io::Result<()> {
    for _ in 0..6000 {
        if !is_bound(folder, image)? {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(50));
    }
    Err(std::io::Error::other(
        "the volume's loop device stays bound",
    ))
}

fn is_bound(folder: &Path, image: &Uid) -> std::io::Result<bool> {
    for device in fs::read_dir("/sys/block")? {
        // The file is missing for an unbound or removed loop device.
        let Ok(file) = fs::read_to_string(device?.path().join("loop/backing_file")) else {
            continue;
        };
        let file = Path::new(file.trim_end());
        if file.starts_with(folder) && file.ends_with(image.as_str()) {
            return Ok(true);
        }
    }
    Ok(false)
}
