//! What is wrong with pools and volumes is said while it lasts, harms nobody else, and is seen to be
//! over.

mod calls;
mod disk;

use cistern_crds::{
    Bytes, ConditionType, NodePoolStatus, PoolVolume, VolumeProblem, VolumeSeverity, condition,
};
use cistern_e2e::{ControlPlane, Driver, driver::Options, eventually};
use failing_disk::Mode;
use kube::{Api, ResourceExt as _};

use self::disk::Disk;
use crate::{
    Fixture, SOON,
    node_service::{Place, text},
    orphans::has_orphan,
    said, status,
};

/// Short enough for a test, and long enough for a disk of a machine that is busy.
const OPTIONS: Options = Options {
    log_level: "info,cistern_driver=debug,cistern_node=debug,cistern_host=debug",
    health_interval: "2s",
};

impl Fixture {
    pub(crate) async fn looking_often(name: &str) -> Self {
        let control_plane = ControlPlane::shared().await;
        let driver = Driver::start_with(control_plane, name, OPTIONS).await;
        driver.add_image_pool(name, Bytes::gib(1)).await;
        Self {
            driver,
            volumes: Api::all(control_plane.client()),
            name: name.to_owned(),
        }
    }

    /// Waits until a volume tells of this and nothing else.
    pub(crate) async fn tells(
        &self,
        volume: &str,
        severity: VolumeSeverity,
        reason: &str,
    ) -> VolumeProblem {
        let is_told = |object: &PoolVolume| {
            let problems = status(object).problems;
            matches!(&problems[..], [one] if one.severity == severity && one.reason == reason)
                && said(ConditionType::Healthy, "False", reason)(object)
        };
        let what = format!("to tell of {reason}");
        let object = self.until(volume, &what, is_told).await;
        status(&object).problems.remove(0)
    }

    pub(crate) async fn is_well(&self, volume: &str) -> PoolVolume {
        let is_well = |object: &PoolVolume| {
            status(object).problems.is_empty()
                && said(ConditionType::Healthy, "True", "AsDesired")(object)
                && said(ConditionType::Ready, "True", "AsDesired")(object)
        };
        self.until(volume, "to be well", is_well).await
    }

    /// A volume of the fixture's own pool can be made, and the node plugin lives.
    async fn serves_others(&self, volume: &str) {
        let object = self.volume(volume, Bytes::mib(64)).await;
        self.remove(&object.name_any()).await;
        let alive = self.driver.node().get("/healthz").await.unwrap();
        assert!(alive.starts_with("HTTP/1.1 200 "), "{alive}");
    }
}

/// Whether a pool is said to be neither ready nor healthy, and has no room.
fn takes_nothing(pool: &NodePoolStatus) -> bool {
    let not = |kind| condition::find(&pool.conditions, kind).is_some_and(|it| it.status == "False");
    let room = pool.thin_room.max(pool.thick_room);
    not(ConditionType::Ready) && not(ConditionType::Healthy) && room == Bytes::ZERO
}

/// Whether a pool takes nothing, for this reason.
fn is_unreachable(pool: &NodePoolStatus, reason: &str) -> bool {
    let mut conditions = pool.conditions.iter();
    takes_nothing(pool) && conditions.all(|condition| condition.reason == reason)
}

fn is_well(pool: &NodePoolStatus) -> bool {
    condition::holds(&pool.conditions, ConditionType::Healthy)
        && pool.problems.is_empty()
        && pool.is_ready()
        && pool.thin_room > Bytes::ZERO
}

// Shows: NUP-05, NUS-05.
#[tokio::test]
async fn a_pool_whose_disk_fails_takes_nothing_until_it_is_well_and_others_do_not_notice() {
    let mut node = Fixture::looking_often("agent-health-failing").await;
    let disk = Disk::attach(&node).await;
    let before = disk.pool_until(&node, "to be well", is_well).await;
    let object = disk.volume(&node, "kept").await;
    let name = object.name_any();
    let place = Place::of(&node, &object);
    place.stage(&[]).await.unwrap();
    place.publish("target", &[], false).await.unwrap();
    node.shell(
        "echo kept > $1/file && sync $1/file",
        &[&text(&place.staging)],
    )
    .await;

    disk.set(Mode::Eio);
    let failed = |pool: &NodePoolStatus| {
        let mut problems = pool.problems.iter();
        let found = problems.find(|problem| problem.reason == "ProbeFailed");
        found.map(|problem| problem.since)
    };
    let is_failed = |pool: &NodePoolStatus| takes_nothing(pool) && failed(pool).is_some();
    let told = disk.pool_until(&node, "to be unreachable", is_failed);
    let since = failed(&told.await);
    let not_ready = said(ConditionType::Healthy, "False", "PoolNotReady");
    node.until(&name, "to be inaccessible", not_ready).await;
    node.serves_others("meanwhile").await;
    drop(place);
    // What has begun before the agent did lasts on.
    node.driver.restart_node().await;
    let told = disk.pool_until(&node, "to be unreachable still", is_failed);
    assert_eq!(failed(&told.await), since);
    let place = Place::of(&node, &object);
    // NUP-05, NUS-05: the way back needs no pool.
    place.unpublish("target").await.unwrap();
    place.unstage().await.unwrap();

    disk.set(Mode::Ok);
    let after = disk.pool_until(&node, "to recover", is_well).await;
    assert_eq!(after.filesystem_uuid, before.filesystem_uuid);
    let recovered = node.is_well(&name).await;
    assert_eq!(status(&recovered).image, status(&object).image);
    place.stage(&[]).await.unwrap();
    node.shell("grep kept $1/file", &[&text(&place.staging)])
        .await;
    place.unstage().await.unwrap();
    disk.detach(&node).await;
    node.finish().await;
}

#[tokio::test]
async fn what_something_took_from_a_pools_file_is_allocated_again() {
    let node = Fixture::looking_often("agent-health-sparse").await;
    let file = node.images().parent().unwrap().with_extension("img");
    let blocks = async || {
        let blocks = node.shell("stat -c %b $1", &[&text(&file)]).await;
        blocks.trim().parse::<u64>().unwrap() * 512
    };
    let script = "fallocate -p -o 900MiB -l 64MiB $1";
    node.shell(script, &[&text(&file)]).await;
    eventually(
        "the file to be allocated in full",
        SOON,
        async || match blocks().await {
            enough if enough >= Bytes::gib(1).0 => Ok(()),
            few => Err(few.to_string()),
        },
    )
    .await;
    node.pool_until("to be well", is_well).await;
    node.finish().await;
}

#[tokio::test]
async fn r16_a_pool_whose_disk_hangs_holds_up_nobody_and_piles_up_no_threads() {
    let node = Fixture::looking_often("agent-health-hanging").await;
    let disk = Disk::attach(&node).await;
    let object = disk.volume(&node, "kept").await;
    let place = Place::of(&node, &object);
    place.stage(&[]).await.unwrap();
    place.publish("target", &[], false).await.unwrap();
    let before = threads(&node);

    disk.set(Mode::Hang);
    let hangs = |pool: &NodePoolStatus| is_unreachable(pool, "ProbeTimedOut");
    disk.pool_until(&node, "to be unreachable", hangs).await;
    let not_ready = said(ConditionType::Healthy, "False", "PoolNotReady");
    node.until(&object.name_any(), "to be inaccessible", not_ready)
        .await;
    for volume in ["first", "second", "third"] {
        node.serves_others(volume).await;
    }
    place.unpublish("target").await.unwrap();
    assert!(threads(&node) < before + 16, "{before} {}", threads(&node));

    disk.set(Mode::Ok);
    disk.pool_until(&node, "to recover", is_well).await;
    node.is_well(&object.name_any()).await;
    place.unstage().await.unwrap();
    disk.detach(&node).await;
    node.finish().await;
}

#[tokio::test]
async fn r16_an_orphan_on_a_disk_that_hangs_holds_up_no_comparison_of_the_node() {
    let control_plane = ControlPlane::shared().await;
    // Nobody else finds the disk first.
    let options = Options {
        health_interval: "30m",
        ..OPTIONS
    };
    let driver = Driver::start_with(control_plane, "agent-orphan-hanging", options).await;
    let name = "agent-orphan-hanging";
    driver.add_image_pool(name, Bytes::gib(1)).await;
    let mut node = Fixture {
        driver,
        volumes: Api::all(control_plane.client()),
        name: name.to_owned(),
    };
    let disk = Disk::attach(&node).await;
    let object = disk.volume(&node, "lost").await;
    let image = object.uid().unwrap();
    node.forget(&object.name_any()).await;
    disk.pool_until(&node, "to have an orphan", has_orphan(&image, false))
        .await;
    node.age_orphans().await;
    node.reclaim_after_an_hour().await;
    disk.pool_until(&node, "to have a trash", has_orphan(&image, true))
        .await;

    // Its time comes, and removing it hangs.
    disk.set(Mode::Hang);
    let pool = text(&disk.path(&node));
    let age = "for it in $1/trash/$2.*; do mv $it ${it%.*}.$((${it##*.} - 7200)); done";
    node.shell(age, &[&pool, &image]).await;
    for file in ["first.txt", "second.txt"] {
        node.shell("touch $0/$1", &[file]).await;
        // A pool that does not answer may take 20 seconds of each comparison.
        let patience = 4 * SOON;
        eventually(&format!("{file} to be reported"), patience, async || {
            let drift = node.driver.storage_node().await.status.unwrap().drift;
            let mut objects = drift.iter().map(|finding| &finding.object);
            if objects.any(|object| object.ends_with(file)) {
                Ok(())
            } else {
                Err(format!("{drift:?}"))
            }
        })
        .await;
    }

    disk.set(Mode::Ok);
    let is_gone = |pool: &NodePoolStatus| pool.orphans.is_empty();
    disk.pool_until(&node, "to be rid of the orphan", is_gone)
        .await;
    node.shell("rm $0/first.txt $0/second.txt", &[]).await;
    disk.detach(&node).await;
    node.finish().await;
}

/// How many threads the node plugin has.
fn threads(node: &Fixture) -> usize {
    let pid = node.driver.node().process().id();
    std::fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap()
        .count()
}

#[tokio::test]
async fn a_pool_that_became_read_only_is_mounted_anew_as_soon_as_nothing_uses_it() {
    let node = Fixture::looking_often("agent-health-read-only").await;
    let object = node.volume("kept", Bytes::mib(64)).await;
    let uuid = node.pool_until("to be well", is_well).await.filesystem_uuid;
    // Something that is no volume is in it, and does not write.
    let mut user = node.driver.command_on_node("sh");
    user.args(["-euc", "cd $0 && exec sleep infinity"])
        .arg(node.images());
    let mut user = user.spawn().unwrap();
    let folder = format!("/proc/{}/cwd", user.id());
    eventually(
        "the pool to be in use",
        SOON,
        async || match std::fs::read_link(&folder) {
            Ok(path) if path.ends_with("images") => Ok(()),
            seen => Err(format!("{seen:?}")),
        },
    )
    .await;
    node.shell("mount -o remount,ro $0/..", &[]).await;
    let read_only = |pool: &NodePoolStatus| is_unreachable(pool, "ReadOnly");
    node.pool_until("to be read-only", read_only).await;
    user.kill().unwrap();
    user.wait().unwrap();
    let after = node.pool_until("to recover", is_well).await;
    assert_eq!(after.filesystem_uuid, uuid);
    node.is_well(&object.name_any()).await;
    node.finish().await;
}

#[tokio::test]
async fn what_becomes_of_an_image_is_told_of_its_volume_until_it_is_back() {
    let node = Fixture::looking_often("agent-health-images").await;
    let object = node.volume("one", Bytes::mib(64)).await;
    let other = node.volume("other", Bytes::mib(64)).await.name_any();
    let (name, uid) = (object.name_any(), object.uid().unwrap());
    node.is_well(&name).await;
    let before = node.is_well(&other).await.resource_version();
    let change = async |script: &str| {
        node.shell(script, &[&uid]).await;
    };
    let data_loss = VolumeSeverity::DataLoss;
    let keep = "cp --archive --reflink=always $0/$1 $0/../kept";
    let bring_back = "mv $0/../kept $0/$1";

    change("mv $0/$1 $0/../kept").await;
    let told = node.tells(&name, data_loss, "ImageMissing").await;
    assert!(told.message.contains(&name), "{}", told.message);
    change(bring_back).await;
    node.is_well(&name).await;

    change(keep).await;
    change("truncate --size=32M $0/$1").await;
    node.tells(&name, data_loss, "ImageTooSmall").await;
    change(bring_back).await;
    node.is_well(&name).await;

    let place = Place::of(&node, &object);
    place.stage(&[]).await.unwrap();
    change(keep).await;
    change("rm $0/$1").await;
    let told = node.tells(&name, data_loss, "ImageDeleted").await;
    assert!(told.message.contains("copy the data"), "{}", told.message);
    place.unstage().await.unwrap();
    change(bring_back).await;
    node.is_well(&name).await;
    // R05: nothing was written of what is as it was.
    let after = node.get(&other).await.resource_version();
    assert_eq!(after, before);
    node.finish().await;
}

#[tokio::test]
async fn errors_that_a_filesystem_counts_are_told_until_it_is_checked() {
    let node = Fixture::looking_often("agent-health-errors").await;
    let place = Place::new(&node).await;
    place.stage(&[]).await.unwrap();
    let staging = text(&place.staging);
    let script = "device=$(findmnt --noheadings --output SOURCE $1); \
                  echo test > /sys/fs/ext4/${device#/dev/}/trigger_fs_error";
    node.shell(script, &[&staging]).await;
    let degraded = VolumeSeverity::Degraded;
    node.tells(&place.volume, degraded, "FilesystemErrors")
        .await;
    place.unstage().await.unwrap();
    place.stage(&[]).await.unwrap();
    node.is_well(&place.volume).await;
    place.unstage().await.unwrap();
    node.finish().await;
}
