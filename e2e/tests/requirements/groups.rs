//! GGC, CGS, DGS, GGS: snapshots of several real volumes at one point in time.

use std::time::Duration;

use cistern_crds::{Bytes, PoolSnapshotGroup};
use cistern_e2e::{ControlPlane, Driver, eventually};
use cistern_proto::csi::v1::{
    CreateVolumeGroupSnapshotRequest, DeleteVolumeGroupSnapshotRequest,
    GetVolumeGroupSnapshotRequest, VolumeGroupSnapshot, volume_capability::access_mode::Mode,
};
use futures::future::join_all;
use kube::{Api, ResourceExt as _};
use rustix::process::Signal;
use tonic::{Code, Request, Status};

use crate::{
    POOL, SIZE, aborted, block, code,
    copies::{copy, from_snapshot},
    create, create_request, delete, map, mounted, shared,
    snapshots::{self, delete_snapshot, list, volume},
    start,
    volume::Volume,
};

type Change = fn(&mut CreateVolumeGroupSnapshotRequest);

const SOON: Duration = Duration::from_mins(3);

/// A request for a group of volumes.
pub(crate) fn of(name: &str, volumes: &[&str]) -> CreateVolumeGroupSnapshotRequest {
    CreateVolumeGroupSnapshotRequest {
        name: name.to_owned(),
        source_volume_ids: volumes.iter().map(|id| (*id).to_owned()).collect(),
        ..CreateVolumeGroupSnapshotRequest::default()
    }
}

async fn take_at(
    driver: &Driver,
    request: impl tonic::IntoRequest<CreateVolumeGroupSnapshotRequest>,
) -> Result<VolumeGroupSnapshot, Status> {
    let mut client = driver.group_client().await;
    let answer = client.create_volume_group_snapshot(request).await?;
    Ok(answer.into_inner().group_snapshot.unwrap())
}

pub(crate) async fn take(
    request: CreateVolumeGroupSnapshotRequest,
) -> Result<VolumeGroupSnapshot, Status> {
    take_at(shared().await, request).await
}

async fn get(group: &str, snapshots: &[String]) -> Result<VolumeGroupSnapshot, Status> {
    let request = GetVolumeGroupSnapshotRequest {
        group_snapshot_id: group.to_owned(),
        snapshot_ids: snapshots.to_vec(),
        ..GetVolumeGroupSnapshotRequest::default()
    };
    let mut client = shared().await.group_client().await;
    let answer = client.get_volume_group_snapshot(request).await?;
    Ok(answer.into_inner().group_snapshot.unwrap())
}

async fn remove_at(driver: &Driver, group: &str, snapshots: &[String]) -> Result<(), Status> {
    let request = DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: group.to_owned(),
        snapshot_ids: snapshots.to_vec(),
        ..DeleteVolumeGroupSnapshotRequest::default()
    };
    let mut client = driver.group_client().await;
    client.delete_volume_group_snapshot(request).await.map(drop)
}

pub(crate) async fn remove(group: &str, snapshots: &[String]) -> Result<(), Status> {
    remove_at(shared().await, group, snapshots).await
}

pub(crate) fn ids(group: &VolumeGroupSnapshot) -> Vec<String> {
    let snapshots = group.snapshots.iter();
    snapshots
        .map(|snapshot| snapshot.snapshot_id.clone())
        .collect()
}

/// The custom resources behind the groups.
async fn objects() -> Api<PoolSnapshotGroup> {
    Api::all(ControlPlane::shared().await.client())
}

/// Whether neither a group nor a snapshot of these volumes is left.
async fn is_gone(group: &str, volumes: &[&Volume]) -> bool {
    let listed = join_all(volumes.iter().map(|volume| list(&volume.id))).await;
    let group = objects().await.get_opt(group).await.unwrap();
    group.is_none() && listed.iter().all(Vec::is_empty)
}

// Shows: SAN-07, FLD-07, CGS-13.
// Shows: CGS-02, CGS-03, CGS-14, CS-17, DGS-02, DGS-05, FLD-12, FLD-14, GGS-02, GGS-04, SAN-06.
#[tokio::test]
async fn gen_05_gen_13_a_request_with_missing_or_illegal_fields_is_refused_and_takes_no_group() {
    let rows: &[(&str, Change, Code)] = &[
        ("CGS-02", |r| r.name.clear(), Code::InvalidArgument),
        (
            "CGS-03",
            |r| r.source_volume_ids.clear(),
            Code::InvalidArgument,
        ),
        (
            "CGS-03",
            |r| r.source_volume_ids[1].clear(),
            Code::InvalidArgument,
        ),
        (
            "a volume twice",
            |r| r.source_volume_ids[1] = r.source_volume_ids[0].clone(),
            Code::InvalidArgument,
        ),
        (
            "FLD-12",
            |r| r.name = "bell\u{7}".to_owned(),
            Code::InvalidArgument,
        ),
        (
            "FLD-14",
            |r| r.name = "x".repeat(129),
            Code::InvalidArgument,
        ),
        (
            "CS-17",
            |r| r.parameters = map(&[("bogus", "x")]),
            Code::InvalidArgument,
        ),
        (
            "CGS-14",
            |r| r.source_volume_ids[1] = "unknown".to_owned(),
            Code::NotFound,
        ),
        (
            "CGS-14",
            |r| r.source_volume_ids[1] = "../nodes".to_owned(),
            Code::NotFound,
        ),
    ];
    let (one, other) = (
        volume("illegal-group-1").await,
        volume("illegal-group-2").await,
    );
    for (ids, change, expected) in rows {
        let mut request = of("illegal", &[&one.id, &other.id]);
        change(&mut request);
        let answer = take(request).await;
        assert_eq!(code(&answer), *expected, "{ids}: {answer:?}");
        assert!(!answer.unwrap_err().message().is_empty(), "{ids}");
        assert!(is_gone("illegal", &[&one, &other]).await, "{ids}");
    }
    // DGS-02, DGS-05, GGS-02, GGS-04, SAN-06.
    assert_eq!(code(&remove("", &[]).await), Code::InvalidArgument);
    assert_eq!(code(&get("", &[]).await), Code::InvalidArgument);
    for unknown in ["unknown", "../nodes", "UPPER", &"x".repeat(128)] {
        remove(unknown, &[]).await.unwrap();
        assert_eq!(code(&get(unknown, &[]).await), Code::NotFound, "{unknown}");
    }
    one.end().await;
    other.end().await;
}

// Shows: CGS-01, CGS-09, CGS-17, DGS-01, GGS-01, GGS-03, GGS-05, DGS-03, DGS-07, GGS-06.
// Shows: DGS-04, DGS-08, DS-05, GGS-04, GGS-07.
#[tokio::test]
async fn cgs_05_cgs_06_cgs_11_cgs_15_ds_07_a_group_never_changes_and_is_deleted_as_a_whole() {
    let volumes = [
        Volume::new("whole-1", mounted("ext4", Mode::SingleNodeWriter), SIZE).await,
        Volume::new("whole-2", block(), SIZE).await,
        Volume::new(
            "whole-3",
            mounted("xfs", Mode::SingleNodeWriter),
            Bytes::mib(320),
        )
        .await,
    ];
    let [one, two, three] = [0, 1, 2].map(|number: usize| volumes[number].id.as_str());
    let group = take(of("Whole", &[one, two, three])).await.unwrap();
    assert!(group.ready_to_use && group.group_snapshot_id.len() <= 128);
    assert!(group.creation_time.unwrap().seconds > 1_700_000_000);
    for (volume, snapshot) in volumes.iter().zip(&group.snapshots) {
        assert_eq!(snapshot.source_volume_id, volume.id);
        assert_eq!(snapshot.group_snapshot_id, group.group_snapshot_id);
        assert_eq!(snapshot.creation_time, group.creation_time);
        assert!(snapshot.ready_to_use && snapshot.size_bytes > 0);
        assert_eq!(list(&volume.id).await, std::slice::from_ref(snapshot));
        assert_eq!(
            snapshots::get(&snapshot.snapshot_id).await.unwrap(),
            *snapshot
        );
        let alone = delete_snapshot(&snapshot.snapshot_id).await;
        assert_eq!(code(&alone), Code::InvalidArgument, "DS-05");
    }
    assert_eq!(take(of("Whole", &[three, one, two])).await.unwrap(), group);
    let members = ids(&group);
    assert_eq!(
        get(&group.group_snapshot_id, &members).await.unwrap(),
        group
    );

    let mut other_class = of("Whole", &[one, two, three]);
    other_class.parameters = map(&[("consistency", "filesystem")]);
    for other in [of("Whole", &[one, two]), other_class] {
        assert_eq!(code(&take(other).await), Code::AlreadyExists, "CGS-06");
    }
    let foreign = [&members[..], &["snap-foreign".to_owned()]].concat();
    for mismatch in [&[][..], &members[1..], &foreign] {
        let read = get(&group.group_snapshot_id, mismatch).await;
        assert_eq!(code(&read), Code::InvalidArgument, "GGS-07");
        let removed = remove(&group.group_snapshot_id, mismatch).await;
        assert_eq!(code(&removed), Code::InvalidArgument, "DGS-08");
    }
    assert_eq!(
        get(&group.group_snapshot_id, &members).await.unwrap(),
        group
    );

    for _ in 0..2 {
        remove(&group.group_snapshot_id, &members).await.unwrap();
        assert!(
            is_gone(&group.group_snapshot_id, &volumes.each_ref()).await,
            "DGS-04"
        );
        let read = get(&group.group_snapshot_id, &members).await;
        assert_eq!(code(&read), Code::NotFound, "GGS-04");
    }
    for volume in volumes {
        volume.end().await;
    }
}

/// Writes a rising number to the file of each volume in turn, each time once the previous write is on
/// the disk.
const IN_TURNS: &str = r#"
    number=0
    while ! test -e stop; do
        number=$((number + 1))
        for volume in "$@"; do
            printf %08d $number | dd of="$volume/target/file" conv=notrunc,fsync status=none
        done
        echo $number > written
    done
"#;

// Shows: CGS-21: a volume is created from each of its snapshots.
// Shows: FLD-09.
#[tokio::test]
async fn cgs_04_the_snapshots_of_a_group_preserve_the_order_of_writes_across_volumes() {
    let volumes = [volume("turns-1").await, volume("turns-2").await];
    let [first, second] = volumes.each_ref();
    for volume in &volumes {
        volume.use_at("target").await;
        volume.write("target", "00000000").await.unwrap();
        volume.sync("target").await;
    }
    let folder = |volume: &Volume| volume.folder.to_str().unwrap().to_owned();
    let folders = [folder(first), folder(second)];
    let folders = folders.each_ref().map(String::as_str);
    let written = async || {
        let written = first.shell("cat written", &[]).await.unwrap_or_default();
        written.parse().unwrap_or(0_u64)
    };
    let groups = async {
        let mut groups = Vec::new();
        for consistency in ["crash", "filesystem", "crash"] {
            let before = written().await;
            eventually("more to be written", SOON, async || {
                let now = written().await;
                (now > before + 3)
                    .then_some(())
                    .ok_or_else(|| now.to_string())
            })
            .await;
            let name = format!("turns-{}", groups.len());
            let mut request = of(&name, &[&first.id, &second.id]);
            request.parameters = map(&[("consistency", consistency)]);
            let acknowledged = written().await;
            groups.push((acknowledged, take(request).await));
        }
        first.shell("touch stop", &[]).await.unwrap();
        groups
    };
    let (ended, groups) = tokio::join!(first.shell(IN_TURNS, &folders), groups);
    ended.unwrap();
    for (acknowledged, group) in groups {
        let group = group.unwrap();
        let mut numbers = Vec::new();
        for (snapshot, source) in group.snapshots.iter().zip(&volumes) {
            let from = from_snapshot(&snapshot.snapshot_id);
            let name = format!("{}-{}", group.group_snapshot_id, source.id);
            let restored = Volume::from_request(copy(&name, source, from, Bytes::ZERO)).await;
            restored.use_at("target").await;
            numbers.push(restored.read("target").await.parse::<u64>().unwrap());
            restored.end_use_at("target").await;
        }
        let [first, second] = [numbers[0], numbers[1]];
        assert!(
            first == second || first == second + 1,
            "{first} and {second}"
        );
        assert!(second >= acknowledged, "{second} of {acknowledged}");
        remove(&group.group_snapshot_id, &ids(&group))
            .await
            .unwrap();
    }
    for volume in volumes {
        volume.end_use_at("target").await;
    }
}

#[tokio::test]
async fn dgs_06_a_group_that_a_reader_has_open_is_kept_until_the_reader_is_done() {
    let volumes = [volume("read-1").await, volume("read-2").await];
    let names = volumes.each_ref().map(|volume| volume.id.as_str());
    let group = take(of("read", &names)).await.unwrap();
    let members = ids(&group);
    let uid = snapshots::objects()
        .await
        .get(&members[0])
        .await
        .unwrap()
        .uid();
    let images = shared().await.storage_root().join("pools");
    let image = images
        .join(format!("uid-of-{POOL}"))
        .join("images")
        .join(uid.unwrap());
    // A reader of metadata or a copy holds the same lock.
    let image = [image.to_str().unwrap()];
    let reader = volumes[0].shell(
        r#"flock --shared "$1" sh -c 'touch reading; while ! test -e done; do sleep 0.1; done'"#,
        &image,
    );
    let removal = async {
        eventually("the reader to begin", SOON, async || {
            volumes[0].shell("test -e reading", &[]).await.map(drop)
        })
        .await;
        let refused = remove("read", &members).await;
        assert_eq!(code(&refused), Code::FailedPrecondition, "{refused:?}");
        // None of its data is deleted.
        for (volume, snapshot) in volumes.iter().zip(&group.snapshots) {
            assert_eq!(list(&volume.id).await, std::slice::from_ref(snapshot));
        }
        volumes[0].shell("touch done", &[]).await.unwrap();
    };
    tokio::join!(reader, removal).0.unwrap();
    eventually("the group to be deleted", SOON, async || {
        let removed = remove("read", &members).await;
        removed.map_err(|status| status.to_string())
    })
    .await;
    assert!(is_gone("read", &volumes.each_ref()).await);
    for volume in volumes {
        volume.end().await;
    }
}

// Shows: CON-06.
#[tokio::test]
async fn cgs_19_concurrent_calls_for_one_group_take_one_and_delete_it_once() {
    let volumes = [volume("crowd-1").await, volume("crowd-2").await];
    let names = volumes.each_ref().map(|volume| volume.id.as_str());
    let is_legal = |code| matches!(code, Code::Ok | Code::Aborted);
    let answers = join_all((0..8).map(|_| take(of("group-of-many", &names)))).await;
    assert!(answers.iter().all(|answer| is_legal(code(answer))));
    let taken: Vec<_> = answers.iter().filter_map(|one| one.as_ref().ok()).collect();
    assert!(!taken.is_empty() && taken.iter().all(|one| **one == *taken[0]));
    let (id, members) = (&taken[0].group_snapshot_id, ids(taken[0]));
    let answers = join_all((0..8).map(|_| remove(id, &members))).await;
    assert!(answers.iter().all(|answer| is_legal(code(answer))));
    remove(id, &members).await.unwrap();
    assert!(is_gone(id, &volumes.each_ref()).await);
    for volume in volumes {
        volume.end().await;
    }
}

#[tokio::test]
async fn cgs_04_volumes_of_two_nodes_are_snapshotted_together() {
    let driver = start("node-of-another-group", "another-group").await;
    let here = volume("group-here").await;
    let mut request = create_request("group-there");
    request.parameters = map(&[("pool", "another-group")]);
    let there = create(request).await.unwrap().volume_id;
    let group = eventually("the group to be ready", SOON, async || {
        match take(of("scattered", &[&here.id, &there])).await {
            Ok(group) if group.ready_to_use => Ok(group),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let members = ids(&group);
    for snapshot in &group.snapshots {
        assert_eq!(snapshot.creation_time, group.creation_time);
    }
    let read = get(&group.group_snapshot_id, &members).await.unwrap();
    assert_eq!(read, group);
    remove(&group.group_snapshot_id, &members).await.unwrap();
    assert!(is_gone("scattered", &[&here]).await);
    delete(&there).await.unwrap();
    here.end().await;
    driver.finish().await;
}

#[tokio::test]
async fn cgs_07_two_raw_block_volumes_in_use_are_refused_because_nothing_stops_their_writers() {
    let one = Volume::new("busy-1", block(), SIZE).await;
    let other = Volume::new("busy-2", block(), SIZE).await;
    for volume in [&one, &other] {
        volume.stage().await.unwrap();
    }
    let answer = take(of("busy", &[&one.id, &other.id])).await;
    let status = answer.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert!(status.message().contains("raw block"), "{status}");
    assert!(is_gone("busy", &[&one, &other]).await);
    for volume in [one, other] {
        volume.unstage().await.unwrap();
        volume.end().await;
    }
}

// Shows: CGS-13.
#[tokio::test]
async fn cgs_08_cgs_16_a_group_that_does_not_fit_is_refused_with_a_final_error_and_leaves_nothing()
{
    const POOL: &str = "full-groups";
    let driver = start("node-of-full-groups", POOL).await;
    let thick = async |name: &str, size| {
        let mut request = create_request(name);
        request.parameters = map(&[("pool", POOL), ("provisioning", "thick")]);
        request.capacity_range = crate::range(size, Bytes::ZERO);
        create(request).await.unwrap().volume_id
    };
    let names = [
        thick("full-1", Bytes::mib(64)).await,
        thick("full-2", Bytes::mib(64)).await,
    ];
    // The third volume takes the rest of the pool, so that a snapshot does not fit.
    let room = eventually("the room to be published", SOON, async || {
        let pool = driver.ready_pool(POOL).await;
        let is_known = pool.reserved >= Bytes::mib(128);
        let room = is_known.then_some(pool.thick_room);
        room.ok_or_else(|| pool.reserved.to_string())
    });
    let rest = Bytes::mib(room.await.0 >> 20);
    let rest = thick("the-rest", rest).await;

    let both = [names[0].as_str(), names[1].as_str()];
    let status = take_at(&driver, of("full", &both)).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert!(status.message().contains(POOL), "{status}");
    assert_eq!(objects().await.get_opt("full").await.unwrap(), None);
    // The shared controller lists what another one has taken and withdrawn.
    for name in &names {
        eventually("no snapshot to be listed", SOON, async || {
            let listed = list(name).await;
            let are_none = listed.is_empty();
            are_none.then_some(()).ok_or_else(|| format!("{listed:?}"))
        })
        .await;
    }
    delete(&rest).await.unwrap();
    let group = eventually("the room to be free again", SOON, async || {
        let taken = take_at(&driver, of("full", &both)).await;
        taken.map_err(|status| status.to_string())
    })
    .await;
    remove_at(&driver, "full", &ids(&group)).await.unwrap();
    for name in &names {
        delete(name).await.unwrap();
    }
    driver.finish().await;
}

// Shows: CON-01, CON-02: an agent that does not answer, and processes that restart.
#[tokio::test]
async fn con_04_cgs_05_a_group_that_timed_out_is_taken_by_a_repeat_and_survives_restarts_of_both_processes()
 {
    let mut driver = start("node-of-lost-groups", "lost-groups").await;
    for name in ["lost-1", "lost-2"] {
        let mut request = create_request(name);
        request.parameters = map(&[("pool", "lost-groups")]);
        create(request).await.unwrap();
    }
    let request = || of("lost", &["lost-1", "lost-2"]);
    driver.node().process().signal(Signal::STOP);
    aborted(async || {
        let mut with_deadline = Request::new(request());
        with_deadline.set_timeout(Duration::from_secs(4));
        take_at(&driver, with_deadline).await
    })
    .await;
    driver.restart_controller().await;
    driver.node().process().signal(Signal::CONT);
    let group = take_at(&driver, request()).await.unwrap();
    driver.restart_controller().await;
    driver.restart_node().await;
    assert_eq!(take_at(&driver, request()).await.unwrap(), group);
    let members = ids(&group);
    for _ in 0..2 {
        remove_at(&driver, "lost", &members).await.unwrap();
        driver.restart_controller().await;
    }
    for name in ["lost-1", "lost-2"] {
        delete(name).await.unwrap();
    }
    driver.finish().await;
}
