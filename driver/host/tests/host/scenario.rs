//! The life of a pool and a volume in steps, each of which can be repeated and undone.

use std::{error::Error, fs, path::Path, sync::Arc, thread, time::Duration};

use chrono::{DateTime, Utc};
use cistern_crds::{Bytes, Consistency, FilesystemType, MkfsOptions, Provisioning};
use cistern_host::{
    BlockPublishRequest, BlockStageRequest, Checking, Content, ExpandRequest, Expectation,
    ImageRequest, Linux, Member, MountOptions, Pool, PoolDeclaration, PublishRequest, Root,
    SnapshotRequest, Source, SourceImage, StageRequest, System, Uid, pool::Owner,
};

/// A step of a pool's or a volume's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A pool is made on a device.
    MakeDevicePool,
    /// A pool is made in a file.
    MakePool,
    /// It is made larger.
    GrowPool,
    /// A volume is made.
    Create,
    /// And so on, as CSI has it.
    Stage,
    Publish,
    Unpublish,
    Unstage,
    /// The volume's image grows.
    Grow,
    /// Its next pod comes, and its filesystem grows with being staged anew.
    StageGrown,
    /// A second volume, with XFS, is made, staged, and its image grown: no faults are walked here.
    Prepare,
    /// Its filesystem grows while it is mounted.
    Expand,
    /// The second volume goes.
    Dismiss,
    /// A raw block volume is made, staged, published and removed; it is unpublished and unstaged as
    /// others are.
    CreateDevice,
    StageDevice,
    PublishDevice,
    RemoveDevice,
    /// The pool is opened, and all is thawed that was left frozen: with this each of the following
    /// begins.
    Open,
    /// A snapshot is cut of the volume with its filesystem at rest; of the volume and a raw block
    /// volume that is staged beside it together; and both snapshots go.
    CutStill,
    PrepareGroup,
    CutGroup,
    RemoveCuts,
    DismissGroup,
    /// A volume with XFS and a snapshot of it are made, a larger volume is made from that, and all
    /// go: no faults are walked here but at the second.
    PrepareSource,
    Restore,
    RemoveRestored,
    RemoveSource,
    /// The pool comes back with another UID: while its volume is staged, after a reboot, and on a
    /// device after a reboot.
    AdoptUsed,
    AdoptPool,
    AdoptDevicePool,
    /// The volume goes to the trash, comes back, and is removed from there.
    Discard,
    TakeBack,
    RemoveDiscarded,
    /// The volume is removed.
    Remove,
    /// The pool is removed.
    RemovePool,
}

pub(crate) fn linux(folder: &Path) -> Arc<dyn System> {
    Arc::new(Linux::new(folder.join("root/dev")))
}

/// A UID that belongs to a folder: no test shares its folder with another.
pub(crate) fn unique_uid(folder: &Path, name: &str) -> Uid {
    let letters = |c: &char| c.is_ascii_alphanumeric();
    let folder: String = folder.to_string_lossy().chars().filter(letters).collect();
    uid(&format!("uid-{name}-{folder}"))
}

pub(crate) fn uid(text: &str) -> Uid {
    text.parse().expect("a UID")
}

/// The pool, as it comes back.
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

/// The node that a host is.
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
        source: Source::Image { size },
    }
}

/// Thick, so that nothing is left out.
pub(crate) fn volume() -> ImageRequest {
    ImageRequest {
        volume: "pvc-a".to_owned(),
        uid: uid("uid-a"),
        size: Bytes::mib(64),
        filesystem: Some(FilesystemType::Ext4),
        mkfs_options: MkfsOptions::default(),
        provisioning: Provisioning::Thick,
        source: None,
    }
}

/// A volume whose filesystem grows while it is mounted.
fn online_volume() -> ImageRequest {
    ImageRequest {
        volume: "pvc-b".to_owned(),
        uid: uid("uid-b"),
        size: Bytes::mib(300),
        filesystem: Some(FilesystemType::Xfs),
        mkfs_options: MkfsOptions::default(),
        provisioning: Provisioning::Thin,
        source: None,
    }
}

/// A raw block volume.
fn device(folder: &Path) -> ImageRequest {
    ImageRequest {
        volume: "pvc-c".to_owned(),
        uid: unique_uid(folder, "c"),
        size: Bytes::mib(8),
        filesystem: None,
        mkfs_options: MkfsOptions::default(),
        provisioning: Provisioning::Thick,
        source: None,
    }
}

/// A volume that is made from a snapshot of the one with XFS, and is larger.
fn restored() -> ImageRequest {
    ImageRequest {
        volume: "pvc-d".to_owned(),
        uid: uid("uid-d"),
        size: GROWN,
        source: Some(SourceImage {
            uid: uid("uid-s"),
            maximum_extents: u64::MAX,
        }),
        ..online_volume()
    }
}

fn cut_of<'a>(pool: &'a Pool, source: &ImageRequest, name: &str) -> Member<'a> {
    let request = SnapshotRequest {
        snapshot: format!("snapshot-{name}"),
        uid: uid(&format!("uid-{name}")),
        volume: source.volume.clone(),
        source: source.uid.clone(),
        maximum_extents: u64::MAX,
    };
    Member { pool, request }
}

/// As an agent begins.
fn open_again(root: &Root, expectation: Expectation) -> Result<Pool, Box<dyn Error>> {
    root.thaw_all()?;
    let pool = root.open_pool(&pool(Bytes::gib(1)), expectation)?;
    pool.sweep()?;
    Ok(pool)
}

/// What both grow to.
const GROWN: Bytes = Bytes::mib(340);

/// Does one step from opening the pool on, as an agent does that has just been started.
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
    let open = |size| again(pool(size));
    match step {
        Step::MakeDevicePool => {
            drop(again(on_disk(folder, pool(Bytes::ZERO)))?);
        }
        Step::AdoptUsed | Step::AdoptPool => drop(again(returned(Bytes::gib(1)))?),
        Step::AdoptDevicePool => drop(again(on_disk(folder, returned(Bytes::ZERO)))?),
        Step::Discard => open(Bytes::gib(1))?.discard(&volume().uid, DateTime::UNIX_EPOCH)?,
        Step::TakeBack | Step::RemoveDiscarded => from_trash(step, &open(Bytes::gib(1))?)?,
        Step::MakePool => drop(open(Bytes::gib(1))?),
        Step::GrowPool => drop(open(Bytes::gib(2))?),
        Step::Create => drop(open(Bytes::gib(1))?.create_image(&volume())?),
        Step::Stage => stage(&open(Bytes::gib(1))?, &volume().uid, &staging)?,
        Step::StageGrown => {
            root.unstage(&staging)?;
            wait_until_unbound(folder, &volume().uid)?;
            stage(&open(Bytes::gib(1))?, &volume().uid, &staging)?;
        }
        Step::Grow => drop(open(Bytes::gib(1))?.grow_image(&volume().uid, GROWN)?),
        Step::Prepare => {
            let (pool, volume) = (open(Bytes::gib(1))?, online_volume());
            pool.create_image(&volume)?;
            stage(&pool, &volume.uid, &staging)?;
            pool.grow_image(&volume.uid, GROWN)?;
        }
        Step::Expand => drop(open(Bytes::gib(1))?.expand(&ExpandRequest {
            image: &online_volume().uid,
            filesystem: online_volume().filesystem,
            path: &staging,
            required: GROWN,
            limit: None,
        })?),
        Step::Dismiss => {
            root.unstage(&staging)?;
            open(Bytes::gib(1))?.remove_image(&online_volume().uid)?;
        }
        Step::CreateDevice => drop(open(Bytes::gib(1))?.create_image(&device(folder))?),
        Step::StageDevice => stage_block(&open(Bytes::gib(1))?, &device(folder), &staging)?,
        Step::PublishDevice => root.publish_block(&BlockPublishRequest {
            image: &device(folder).uid,
            read_only: true,
            staging: &staging,
            target: &target,
        })?,
        Step::RemoveDevice => open(Bytes::gib(1))?.remove_image(&device(folder).uid)?,
        Step::Open => drop(open_again(&root, expectation)?),
        Step::CutStill => {
            let pool = open_again(&root, expectation)?;
            let member = cut_of(&pool, &volume(), "s");
            root.cut(&[member], Consistency::Filesystem, Utc::now)?;
        }
        Step::PrepareGroup => {
            let pool = open_again(&root, expectation)?;
            pool.create_image(&device(folder))?;
            stage_block(&pool, &device(folder), &kubelet.join("device"))?;
        }
        Step::DismissGroup => {
            root.unstage(&kubelet.join("device"))?;
            open_again(&root, expectation)?.remove_image(&device(folder).uid)?;
        }
        Step::CutGroup => {
            let pool = open_again(&root, expectation)?;
            let members = [
                cut_of(&pool, &volume(), "s"),
                cut_of(&pool, &device(folder), "t"),
            ];
            root.cut(&members, Consistency::Crash, Utc::now)?;
        }
        Step::RemoveCuts => {
            let pool = open_again(&root, expectation)?;
            pool.remove_image(&uid("uid-s"))?;
            pool.remove_image(&uid("uid-t"))?;
        }
        Step::PrepareSource => {
            let pool = open_again(&root, expectation)?;
            pool.create_image(&online_volume())?;
            let member = cut_of(&pool, &online_volume(), "s");
            root.cut(&[member], Consistency::Crash, Utc::now)?;
        }
        Step::Restore => drop(open_again(&root, expectation)?.create_image(&restored())?),
        Step::RemoveRestored => open_again(&root, expectation)?.remove_image(&restored().uid)?,
        Step::RemoveSource => {
            let pool = open_again(&root, expectation)?;
            pool.remove_image(&online_volume().uid)?;
            pool.remove_image(&uid("uid-s"))?;
        }
        Step::Publish => publish(&root, &staging, &target)?,
        Step::Unpublish => root.unpublish(&target)?,
        Step::Unstage => root.unstage(&staging)?,
        Step::Remove => open(Bytes::gib(1))?.remove_image(&volume().uid)?,
        Step::RemovePool => root.remove_pool(&pool(Bytes::gib(1)), expectation)?,
    }
    Ok(())
}

fn stage(pool: &Pool, image: &Uid, staging: &Path) -> Result<(), Box<dyn Error>> {
    let image = pool.image(image)?.ok_or("no image")?;
    let identity = image.identity.ok_or("no identity")?;
    let Content::Filesystem { filesystem, uuid } = identity.content else {
        return Err("no filesystem".into());
    };
    pool.stage(&StageRequest {
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
        provisioning: volume.provisioning,
        options: &MountOptions::default(),
        read_only: false,
        staging,
        target,
    })?;
    Ok(())
}

/// Waits until no loop device has a volume's image: another test that looks at one keeps it bound for a
/// moment, and what is bound does not grow before it is mounted. Past the faults, whose calls are
/// counted.
fn wait_until_unbound(folder: &Path, image: &Uid) -> std::io::Result<()> {
    for _ in 0..200 {
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
        // None where it is bound to nothing, or just gone.
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
