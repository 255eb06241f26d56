//! SMD, MDA, MDD: the allocated and the changed blocks of snapshots, as a backup requests them.

use std::{fs::File, os::unix::fs::FileExt as _, time::Duration};

use cistern_crds::PoolSnapshot;
use cistern_e2e::eventually;
use cistern_proto::csi::v1::{
    BlockMetadata, BlockMetadataType, CreateSnapshotRequest, DeleteSnapshotRequest,
    GetMetadataAllocatedRequest, GetMetadataAllocatedResponse, GetMetadataDeltaRequest,
    GetMetadataDeltaResponse, snapshot_metadata_client::SnapshotMetadataClient,
};
use kube::{Api, ResourceExt as _};
use tonic::{
    Code, Status, Streaming,
    transport::{Channel, Endpoint},
};

use crate::{POOL, SIZE, block, code, controller, objects, shared, volume::Volume};

/// How long each wait may take.
const SOON: Duration = Duration::from_mins(2);

/// A message of either stream.
trait Message {
    fn parts(self) -> (i32, i64, Vec<BlockMetadata>);
}

impl Message for GetMetadataAllocatedResponse {
    fn parts(self) -> (i32, i64, Vec<BlockMetadata>) {
        let Self {
            block_metadata_type: kind,
            volume_capacity_bytes: size,
            block_metadata: ranges,
        } = self;
        (kind, size, ranges)
    }
}

impl Message for GetMetadataDeltaResponse {
    fn parts(self) -> (i32, i64, Vec<BlockMetadata>) {
        let Self {
            block_metadata_type: kind,
            volume_capacity_bytes: size,
            block_metadata: ranges,
        } = self;
        (kind, size, ranges)
    }
}

/// The ranges of each message of a stream: (byte_offset, size_bytes).
type Ranges = Vec<Vec<(i64, i64)>>;

/// Reads a stream to its end, and checks each of its messages.
async fn read<M: Message>(mut stream: Streaming<M>, from: i64) -> Result<Ranges, Status> {
    let mut messages = Vec::new();
    let mut end = 0;
    while let Some(message) = stream.message().await? {
        let (kind, size, ranges) = message.parts();
        assert_eq!(kind, i32::from(BlockMetadataType::VariableLength));
        assert_eq!(size, SIZE.to_i64());
        for range in &ranges {
            assert!(range.byte_offset >= end && range.size_bytes > 0);
            end = range.byte_offset + range.size_bytes;
            assert!(end > from && end <= size, "{range:?}");
        }
        messages.push(
            ranges
                .iter()
                .map(|range| (range.byte_offset, range.size_bytes))
                .collect(),
        );
    }
    Ok(messages)
}

/// The service of the node, and that of the controller, which asks the node.
async fn clients() -> [SnapshotMetadataClient<Channel>; 2] {
    let driver = shared().await;
    [
        driver.metadata_client().await,
        driver.relayed_metadata_client().await,
    ]
}

/// The answer of both processes.
fn same(answers: Vec<Result<Ranges, Status>>) -> Result<Ranges, Status> {
    let answered = |answer: &Result<Ranges, Status>| match answer {
        Ok(ranges) => Ok(ranges.clone()),
        // Only the node says where it has looked.
        Err(error) => Err((error.code(), error.message().replace(" here", ""))),
    };
    let [node, controller] = answers.try_into().unwrap();
    assert_eq!(answered(&node), answered(&controller));
    controller
}

async fn allocated(
    snapshot: &str,
    starting_offset: i64,
    max_results: i32,
) -> Result<Ranges, Status> {
    let request = GetMetadataAllocatedRequest {
        snapshot_id: snapshot.to_owned(),
        starting_offset,
        max_results,
        ..GetMetadataAllocatedRequest::default()
    };
    let mut answers = Vec::new();
    for mut client in clients().await {
        let stream = client.get_metadata_allocated(request.clone()).await;
        answers.push(match stream {
            Ok(stream) => read(stream.into_inner(), starting_offset).await,
            Err(error) => Err(error),
        });
    }
    same(answers)
}

async fn delta(
    [base, target]: [&str; 2],
    starting_offset: i64,
    max_results: i32,
) -> Result<Ranges, Status> {
    let request = GetMetadataDeltaRequest {
        base_snapshot_id: base.to_owned(),
        target_snapshot_id: target.to_owned(),
        starting_offset,
        max_results,
        ..GetMetadataDeltaRequest::default()
    };
    let mut answers = Vec::new();
    for mut client in clients().await {
        let stream = client.get_metadata_delta(request.clone()).await;
        answers.push(match stream {
            Ok(stream) => read(stream.into_inner(), starting_offset).await,
            Err(error) => Err(error),
        });
    }
    same(answers)
}

/// A published raw block volume, and its snapshots.
struct Disk {
    volume: Volume,
    snapshots: Vec<String>,
}

impl Disk {
    async fn new(name: &str) -> Self {
        let volume = Volume::new(name, block(), SIZE).await;
        volume.stage().await.unwrap();
        volume.publish("target", false).await.unwrap();
        Self {
            volume,
            snapshots: Vec::new(),
        }
    }

    /// Writes `count` blocks of 4096 bytes, each `stride` blocks after the previous one.
    async fn write_each(&self, first: u64, count: u64, stride: u64) {
        let file = self.open().await;
        for index in 0..count {
            // The data varies, so that no write repeats what a block had before.
            let bytes = [u8::try_from(index % 255).unwrap() + 1; 4096];
            file.write_all_at(&bytes, (first + index * stride) * 4096)
                .unwrap();
        }
        file.sync_all().unwrap();
    }

    async fn write(&self, first: u64, count: u64) {
        self.write_each(first, count, 1).await;
    }

    /// Opens the device as a pod does. Only the node sees its mount.
    async fn open(&self) -> File {
        let node = shared().await.node().process().id();
        let path = format!("/proc/{node}/root{}", self.volume.path("target"));
        File::options().write(true).open(path).unwrap()
    }

    async fn discard(&self, first: u64, count: u64) {
        let script = "blkdiscard --offset \"$1\" --length \"$2\" target";
        let [offset, length] = [first, count].map(|blocks| (blocks * 4096).to_string());
        self.volume
            .shell(script, &[&offset, &length])
            .await
            .unwrap();
    }

    /// Takes a snapshot and returns its id.
    async fn snapshot(&mut self) -> String {
        let request = CreateSnapshotRequest {
            name: format!("{}-{}", self.volume.id, self.snapshots.len()),
            source_volume_id: self.volume.id.clone(),
            ..CreateSnapshotRequest::default()
        };
        let answer = controller().await.create_snapshot(request).await.unwrap();
        let snapshot = answer.into_inner().snapshot.unwrap();
        assert!(snapshot.ready_to_use);
        self.snapshots.push(snapshot.snapshot_id.clone());
        snapshot.snapshot_id
    }

    /// All bytes of a snapshot, read from its image.
    async fn bytes(&self, snapshot: &str) -> Vec<u8> {
        let image = image(snapshot).await;
        let folder = shared().await.storage_root().join("pools");
        let folder = folder.join(format!("uid-of-{POOL}")).join("images");
        let path = folder.join(image);
        let script = "cp --sparse=always \"$1\" copy";
        self.volume
            .shell(script, &[path.to_str().unwrap()])
            .await
            .unwrap();
        std::fs::read(self.volume.folder.join("copy")).unwrap()
    }

    async fn end(self) {
        for snapshot in &self.snapshots {
            delete(snapshot).await.unwrap();
        }
        self.volume.unpublish("target").await.unwrap();
        self.volume.unstage().await.unwrap();
        self.volume.end().await;
    }
}

async fn delete(snapshot: &str) -> Result<(), Status> {
    let request = DeleteSnapshotRequest {
        snapshot_id: snapshot.to_owned(),
        ..DeleteSnapshotRequest::default()
    };
    controller().await.delete_snapshot(request).await.map(drop)
}

/// Name of a snapshot's image.
async fn image(snapshot: &str) -> String {
    let snapshots: Api<PoolSnapshot> = Api::all(objects().await.into_client());
    snapshots.get(snapshot).await.unwrap().uid().unwrap()
}

/// Copies the reported ranges of `target` into `base`.
fn patched(mut base: Vec<u8>, target: &[u8], ranges: &Ranges) -> Vec<u8> {
    for &(offset, size) in ranges.iter().flatten() {
        let start = usize::try_from(offset).unwrap();
        let range = start..start + usize::try_from(size).unwrap();
        base[range.clone()].copy_from_slice(&target[range]);
    }
    base
}

// Shows: SMD-01, SMD-04, SMD-05, SMD-06, SMD-09, SMD-10, SMD-14: in each stream of these tests.
// Shows: MDA-05, MDD-08, MDD-09.
#[tokio::test]
async fn mda_04_mdd_06_the_reported_ranges_rebuild_a_snapshot_from_zeros_and_from_an_earlier_one() {
    let mut disk = Disk::new("rebuilt").await;
    let empty = disk.snapshot().await;
    disk.write(0, 300).await;
    disk.write_each(1000, 20, 2).await;
    let monday = disk.snapshot().await;
    disk.write(100, 7).await;
    disk.discard(200, 50).await;
    disk.write(3000, 4).await;
    let tuesday = disk.snapshot().await;
    let again = disk.snapshot().await;

    assert_eq!(allocated(&empty, 0, 0).await.unwrap().concat(), []);
    let zeros = || vec![0; usize::try_from(SIZE.0).unwrap()];
    let bytes = [disk.bytes(&monday).await, disk.bytes(&tuesday).await];
    for (snapshot, bytes) in [&monday, &tuesday].into_iter().zip(&bytes) {
        let ranges = allocated(snapshot, 0, 0).await.unwrap();
        assert!(patched(zeros(), bytes, &ranges) == *bytes, "{ranges:?}");
    }
    let [before, after] = bytes;
    let ranges = delta([&monday, &tuesday], 0, 0).await.unwrap();
    assert!(patched(before, &after, &ranges) == after, "{ranges:?}");
    let changed = [(100, 7), (200, 50), (3000, 4)].map(|(b, n)| (b * 4096, n * 4096));
    assert_eq!(ranges.concat(), changed, "no other range");
    let ranges = delta([&empty, &tuesday], 0, 0).await.unwrap();
    assert!(patched(zeros(), &after, &ranges) == after, "{ranges:?}");
    assert_eq!(delta([&tuesday, &again], 0, 0).await.unwrap().concat(), []);
    assert_eq!(delta([&monday, &monday], 0, 0).await.unwrap().concat(), []);
    disk.end().await;
}

// Shows: SMD-06, SMD-13.
#[tokio::test]
async fn smd_07_smd_08_a_stream_is_resumed_at_any_byte_and_its_messages_are_as_long_as_requested() {
    let mut disk = Disk::new("resumed").await;
    let base = disk.snapshot().await;
    disk.write_each(10, 20, 2).await;
    disk.write(500, 100).await;
    let target = disk.snapshot().await;
    let pair = [base.as_str(), target.as_str()];
    let all = delta(pair, 0, 0).await.unwrap().concat();
    assert_eq!(all.len(), 21);
    for most in [1, 3, 1000, i32::MAX] {
        let ranges = delta(pair, 0, most).await.unwrap();
        assert!(
            ranges
                .iter()
                .all(|message| message.len() <= usize::try_from(most).unwrap())
        );
        assert_eq!(ranges.concat(), all);
        assert_eq!(allocated(&target, 0, most).await.unwrap().concat(), all);
    }
    for (index, (offset, size)) in all.iter().enumerate() {
        let behind = delta(pair, offset + size, 0).await.unwrap().concat();
        assert_eq!(behind, all[index + 1..]);
        // From inside a range: the rest of the range may begin at the start of its block.
        let inside = allocated(&target, offset + size / 2 + 1, 2)
            .await
            .unwrap()
            .concat();
        let (first, rest) = inside.split_first().unwrap();
        assert_eq!(first.0 + first.1, offset + size);
        assert_eq!(rest, &all[index + 1..]);
    }
    let end = SIZE.to_i64();
    assert_eq!(delta(pair, end, 0).await.unwrap().concat(), []);
    assert_eq!(allocated(&target, end, 0).await.unwrap().concat(), []);
    disk.end().await;
}

// Shows: SMD-11, SMD-12, MDA-02, MDA-03, MDD-02, MDD-03, MDD-04.
#[tokio::test]
async fn mdd_07_snapshots_that_cannot_be_compared_are_refused_with_their_code() {
    let (mut disk, mut other) = (Disk::new("refused").await, Disk::new("refused-other").await);
    let (base, target) = (disk.snapshot().await, disk.snapshot().await);
    let stranger = other.snapshot().await;
    let (base, target) = (base.as_str(), target.as_str());
    let end = SIZE.to_i64();
    for (snapshot, from, most, expected) in [
        ("", 0, 0, Code::InvalidArgument),
        (target, 0, -1, Code::InvalidArgument),
        (target, -1, 0, Code::OutOfRange),
        (target, end + 1, 0, Code::OutOfRange),
        ("unknown", 0, 0, Code::NotFound),
        ("no/id\u{7}", 0, 0, Code::NotFound),
        (&disk.volume.id, 0, 0, Code::NotFound),
    ] {
        let refused = allocated(snapshot, from, most).await;
        assert_eq!(code(&refused), expected, "{snapshot}: {refused:?}");
    }
    for (pair, from, most, expected) in [
        (["", target], 0, 0, Code::InvalidArgument),
        ([base, ""], 0, 0, Code::InvalidArgument),
        ([base, target], 0, -1, Code::InvalidArgument),
        ([base, target], -1, 0, Code::OutOfRange),
        ([base, target], end + 1, 0, Code::OutOfRange),
        (["unknown", target], 0, 0, Code::NotFound),
        ([base, "unknown"], 0, 0, Code::NotFound),
        ([target, base], 0, 0, Code::InvalidArgument),
        ([base, &stranger], 0, 0, Code::InvalidArgument),
    ] {
        let refused = delta(pair, from, most).await;
        assert_eq!(code(&refused), expected, "{pair:?}: {refused:?}");
    }
    disk.end().await;
    other.end().await;
}

/// A caller that cancels a stream keeps no image open.
#[tokio::test]
async fn smd_03_a_cancelled_stream_closes_its_images() {
    let mut disk = Disk::new("cancelled").await;
    let base = disk.snapshot().await;
    disk.write_each(0, 2000, 2).await;
    let target = disk.snapshot().await;
    let images = [image(&base).await, image(&target).await];
    let open = async || {
        let files = open_files().await;
        let of_these = |file: &&String| images.iter().any(|image| file.ends_with(image));
        files.iter().filter(of_these).count()
    };
    // The window is smaller than the answer, so that an unread stream stays open.
    let socket = shared().await.node().socket().display();
    let endpoint = Endpoint::from_shared(format!("unix://{socket}")).unwrap();
    let channel = endpoint.initial_stream_window_size(1024).connect().await;
    let mut client = SnapshotMetadataClient::new(channel.unwrap());
    let mut streams = Vec::new();
    for _ in 0..10 {
        let request = GetMetadataDeltaRequest {
            base_snapshot_id: base.clone(),
            target_snapshot_id: target.clone(),
            max_results: 1,
            ..GetMetadataDeltaRequest::default()
        };
        let answer = client.get_metadata_delta(request).await.unwrap();
        let mut stream = answer.into_inner();
        stream.message().await.unwrap().unwrap();
        streams.push(stream);
    }
    eventually("the images to be open", SOON, async || match open().await {
        20 => Ok(()),
        count => Err(format!("{count} are open")),
    })
    .await;
    drop(streams);
    eventually("the images to be closed", SOON, async || {
        match open().await {
            0 => Ok(()),
            count => Err(format!("{count} are open")),
        }
    })
    .await;
    disk.end().await;
}

/// The paths of the files that the node process has open.
async fn open_files() -> Vec<String> {
    let node = shared().await.node().process().id();
    let links = std::fs::read_dir(format!("/proc/{node}/fd")).unwrap();
    let target = |link: std::fs::DirEntry| std::fs::read_link(link.path()).ok();
    let targets = links.filter_map(Result::ok).filter_map(target);
    targets.map(|path| path.display().to_string()).collect()
}
