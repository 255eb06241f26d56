//! Streams over scripted walks.

use std::{
    io, iter,
    sync::atomic::{AtomicUsize, Ordering},
};

use cistern_crds::{ConditionType, Reason, condition::ConditionUpdate};
use cistern_host::Cause;
use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _};
use proptest::prelude::*;

use super::*;
use crate::testing::{at, ready_snapshot};

const SIZE: u64 = 1 << 20;

fn snapshot(id: &str) -> Snapshot {
    let (source, hour) = id.split_once('-').unwrap();
    Snapshot {
        id: id.to_owned(),
        pool: "fast".to_owned(),
        image: format!("uid-of-{id}").parse().unwrap(),
        source_image: format!("uid-of-{source}"),
        size: Bytes(SIZE),
        creation_time: at(hour.parse().unwrap()),
    }
}

/// Snapshots named `<volume>-<second>`, each of which returns the same probes.
#[derive(Debug)]
struct Written {
    probes: Vec<Vec<Range<u64>>>,
    /// Whether the walk fails after them.
    fails: bool,
    taken: Arc<AtomicUsize>,
}

impl Snapshots for Written {
    fn find<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Snapshot, Error>> {
        let found = match id {
            "unknown" => Err(Error::NotFound {
                snapshot: id.to_owned(),
                node: None,
            }),
            id => Ok(snapshot(id)),
        };
        std::future::ready(found).boxed()
    }

    fn walk(&self, _: Option<&Snapshot>, _: &Snapshot, from: u64) -> Result<Walk, Error> {
        let taken = Arc::clone(&self.taken);
        let probes = self.probes.clone().into_iter().map(move |probe| {
            taken.fetch_add(1, Ordering::SeqCst);
            Ok(probe.into_iter().filter(|range| range.end > from).collect())
        });
        let failure = self.fails.then(|| {
            Err(image::Error::Failed {
                operation: "read the extents",
                uid: "uid-1".parse().unwrap(),
                source: Cause::from(io::Error::from_raw_os_error(5)),
            })
        });
        Ok(Box::new(probes.chain(failure)))
    }
}

fn metadata(probes: Vec<Vec<Range<u64>>>, fails: bool) -> (Metadata, Arc<AtomicUsize>) {
    let taken = Arc::new(AtomicUsize::new(0));
    let written = Written {
        probes,
        fails,
        taken: Arc::clone(&taken),
    };
    (Metadata::new(Arc::new(written)), taken)
}

fn query(base: Option<&str>, target: &str) -> Query {
    Query {
        base: base.map(str::to_owned),
        target: target.to_owned(),
        from: 0,
        most: 3,
    }
}

/// Probes with one range each, all disjoint.
fn single(count: u64) -> Vec<Vec<Range<u64>>> {
    (0..count)
        .map(|probe| iter::once(probe * 8192..probe * 8192 + 4096).collect())
        .collect()
}

// Shows: MDD-09.
#[tokio::test]
async fn mdd_04_mdd_07_only_an_earlier_snapshot_of_the_same_volume_is_compared_with() {
    let (metadata, _) = metadata(Vec::new(), false);
    let stream = async |base: &str, target: &str| {
        metadata
            .stream_ranges(query(Some(base), target))
            .await
            .err()
    };
    assert!(stream("a-10", "a-20").await.is_none());
    assert!(stream("a-10", "a-10").await.is_none(), "MDD-09");
    for (base, target) in [("a-20", "a-10"), ("a-10", "b-20")] {
        let error = stream(base, target).await.unwrap();
        assert!(matches!(error, Error::NotComparable { .. }), "{error}");
    }
    for (base, target) in [("unknown", "a-10"), ("a-10", "unknown")] {
        let error = stream(base, target).await.unwrap();
        assert!(matches!(error, Error::NotFound { .. }), "{error}");
    }
}

#[tokio::test]
async fn smd_11_smd_13_a_stream_begins_at_any_byte_up_to_the_end() {
    let (metadata, _) = metadata(single(2), false);
    let stream = async |from| {
        let query = Query {
            from,
            ..query(None, "a-10")
        };
        let stream = metadata.stream_ranges(query).await?;
        stream.batches.try_collect::<Vec<_>>().await
    };
    assert_eq!(stream(0).await.unwrap().concat().len(), 2);
    assert_eq!(stream(4096).await.unwrap().concat().len(), 1);
    assert!(stream(SIZE).await.unwrap().is_empty());
    let error = stream(SIZE + 1).await.unwrap_err();
    assert!(matches!(error, Error::OutOfRange { .. }), "{error}");
}

#[tokio::test]
async fn smd_02_a_stream_that_fails_ends_with_the_error() {
    let (metadata, _) = metadata(single(4), true);
    let stream = metadata.stream_ranges(query(None, "a-10")).await.unwrap();
    let batches: Vec<_> = stream.batches.collect().await;
    let (last, before) = batches.split_last().unwrap();
    assert!(matches!(last, Err(Error::Image(_))), "{last:?}");
    assert!(before.iter().all(Result::is_ok));
}

#[tokio::test]
async fn smd_02_a_panic_does_not_end_a_stream_as_if_it_was_complete() {
    let walk = iter::repeat_with(|| panic!("in the test"));
    let batches: Vec<_> = batch::stream(Box::new(walk), 3).collect().await;
    assert!(
        matches!(batches[..], [Err(Error::Broken(_))]),
        "{batches:?}"
    );
}

#[tokio::test]
async fn smd_03_nothing_is_read_that_is_not_requested() {
    let (metadata, taken) = metadata(single(100), false);
    let mut stream = metadata.stream_ranges(query(None, "a-10")).await.unwrap();
    assert_eq!(taken.load(Ordering::SeqCst), 0);
    stream.batches.next().await.unwrap().unwrap();
    drop(stream);
    assert_eq!(taken.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn smd_10_the_size_is_the_snapshots() {
    let (metadata, _) = metadata(Vec::new(), false);
    let stream = metadata
        .stream_ranges(query(Some("a-10"), "a-20"))
        .await
        .unwrap();
    assert_eq!(stream.size, Bytes(SIZE));
}

#[test]
fn a_snapshot_can_be_read_from_ready_until_its_deletion_is_requested() {
    let mut object = ready_snapshot();
    let set = |object: &mut PoolSnapshot, is_ready: bool| {
        let finding =
            ConditionUpdate::new(ConditionType::Ready, is_ready, Reason::PoolNotReady, "x");
        let status = object.status.as_mut().unwrap();
        cistern_crds::condition::set(&mut status.conditions, &finding, None, at(0));
    };
    let not_ready = |object: &PoolSnapshot| {
        let read = Snapshot::read(object);
        matches!(read, Err(Error::NotReady { .. }))
    };
    assert!(not_ready(&object), "it has no condition");
    set(&mut object, false);
    assert!(not_ready(&object));
    set(&mut object, true);
    let read = Snapshot::read(&object).unwrap();
    assert_eq!(
        (read.image.as_str(), read.size),
        ("uid-of-snapshot-1", Bytes::gib(1))
    );
    let mut unfinished = object.clone();
    unfinished.status = None;
    assert!(not_ready(&unfinished));
    object.spec.deletion_requested = true;
    let gone = Snapshot::read(&object);
    assert!(matches!(gone, Err(Error::NotFound { .. })), "{gone:?}");
}

proptest! {
    // Shows: SMD-08.
    #[test]
    fn smd_01_batches_hold_all_ranges_in_order_and_at_most_the_requested_number(
        probes in prop::collection::vec(0..5_u64, 0..80),
        most in 1..9_usize,
    ) {
        let mut next = 0..;
        let probes: Vec<Vec<Range<u64>>> = probes
            .into_iter()
            .map(|count| next.by_ref().take(usize::try_from(count).unwrap()).map(|n| n * 2..n * 2 + 1).collect())
            .collect();
        let all = probes.concat();
        let walk: Walk = Box::new(probes.into_iter().map(Ok));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let batches: Vec<_> =
            runtime.block_on(batch::stream(walk, most).try_collect()).unwrap();
        prop_assert!(batches.iter().all(|batch| (1..=most).contains(&batch.len())));
        let full = batches.split_last().map_or(&[][..], |(_, before)| before);
        prop_assert!(full.iter().all(|batch| batch.len() == most));
        prop_assert_eq!(batches.concat(), all);
    }
}
