//! The service over walks that are written down.

use std::{
    io, iter,
    sync::atomic::{AtomicUsize, Ordering},
};

use cistern_crds::{ConditionType, Reason, condition::Finding};
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

/// Snapshots `<volume>-<second>`, in which all the same looks are found.
#[derive(Debug)]
struct Written {
    looks: Vec<Vec<Range<u64>>>,
    /// Whether the walk breaks off behind them.
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
        let looks = self.looks.clone().into_iter().map(move |look| {
            taken.fetch_add(1, Ordering::SeqCst);
            Ok(look.into_iter().filter(|range| range.end > from).collect())
        });
        let failure = self.fails.then(|| {
            Err(image::Error::Failed {
                operation: "read the extents",
                uid: "uid-1".parse().unwrap(),
                source: Cause::from(io::Error::from_raw_os_error(5)),
            })
        });
        Ok(Box::new(looks.chain(failure)))
    }
}

fn metadata(looks: Vec<Vec<Range<u64>>>, fails: bool) -> (Metadata, Arc<AtomicUsize>) {
    let taken = Arc::new(AtomicUsize::new(0));
    let written = Written {
        looks,
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

/// Looks with a range each, apart from each other.
fn single(count: u64) -> Vec<Vec<Range<u64>>> {
    (0..count)
        .map(|look| iter::once(look * 8192..look * 8192 + 4096).collect())
        .collect()
}

// Shows: MDD-09.
#[tokio::test]
async fn mdd_04_mdd_07_only_an_earlier_snapshot_of_the_same_volume_is_compared_with() {
    let (metadata, _) = metadata(Vec::new(), false);
    let told =
        async |base: &str, target: &str| metadata.tell(query(Some(base), target)).await.err();
    assert!(told("a-10", "a-20").await.is_none());
    assert!(told("a-10", "a-10").await.is_none(), "MDD-09");
    for (base, target) in [("a-20", "a-10"), ("a-10", "b-20")] {
        let error = told(base, target).await.unwrap();
        assert!(matches!(error, Error::NotComparable { .. }), "{error}");
    }
    for (base, target) in [("unknown", "a-10"), ("a-10", "unknown")] {
        let error = told(base, target).await.unwrap();
        assert!(matches!(error, Error::NotFound { .. }), "{error}");
    }
}

#[tokio::test]
async fn smd_11_smd_13_a_stream_begins_at_any_byte_up_to_the_end() {
    let (metadata, _) = metadata(single(2), false);
    let told = async |from| {
        let query = Query {
            from,
            ..query(None, "a-10")
        };
        let told = metadata.tell(query).await?;
        told.batches.try_collect::<Vec<_>>().await
    };
    assert_eq!(told(0).await.unwrap().concat().len(), 2);
    assert_eq!(told(4096).await.unwrap().concat().len(), 1);
    assert!(told(SIZE).await.unwrap().is_empty());
    let error = told(SIZE + 1).await.unwrap_err();
    assert!(matches!(error, Error::OutOfRange { .. }), "{error}");
}

#[tokio::test]
async fn smd_02_a_stream_that_breaks_off_says_so() {
    let (metadata, _) = metadata(single(4), true);
    let told = metadata.tell(query(None, "a-10")).await.unwrap();
    let batches: Vec<_> = told.batches.collect().await;
    let (last, before) = batches.split_last().unwrap();
    assert!(matches!(last, Err(Error::Image(_))), "{last:?}");
    assert!(before.iter().all(Result::is_ok));
}

#[tokio::test]
async fn smd_02_a_panic_does_not_end_a_stream_as_if_all_was_told() {
    let walk = iter::repeat_with(|| panic!("in the test"));
    let batches: Vec<_> = batch::stream(Box::new(walk), 3).collect().await;
    assert!(
        matches!(batches[..], [Err(Error::Broken(_))]),
        "{batches:?}"
    );
}

#[tokio::test]
async fn smd_03_nothing_is_looked_at_that_is_not_asked_for() {
    let (metadata, taken) = metadata(single(100), false);
    let mut told = metadata.tell(query(None, "a-10")).await.unwrap();
    assert_eq!(taken.load(Ordering::SeqCst), 0);
    told.batches.next().await.unwrap().unwrap();
    drop(told);
    assert_eq!(taken.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn smd_10_the_size_is_the_snapshots() {
    let (metadata, _) = metadata(Vec::new(), false);
    let told = metadata.tell(query(Some("a-10"), "a-20")).await.unwrap();
    assert_eq!(told.size, Bytes(SIZE));
}

#[test]
fn a_snapshot_is_read_once_it_is_ready_and_until_it_is_to_go() {
    let mut object = ready_snapshot();
    let set = |object: &mut PoolSnapshot, is_ready: bool| {
        let finding = Finding::new(ConditionType::Ready, is_ready, Reason::PoolNotReady, "x");
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
    fn smd_01_batches_hold_all_that_is_found_in_order_and_no_more_than_was_asked(
        looks in prop::collection::vec(0..5_u64, 0..80),
        most in 1..9_usize,
    ) {
        let mut next = 0..;
        let looks: Vec<Vec<Range<u64>>> = looks
            .into_iter()
            .map(|count| next.by_ref().take(usize::try_from(count).unwrap()).map(|n| n * 2..n * 2 + 1).collect())
            .collect();
        let all = looks.concat();
        let walk: Walk = Box::new(looks.into_iter().map(Ok));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let batches: Vec<_> =
            runtime.block_on(batch::stream(walk, most).try_collect()).unwrap();
        prop_assert!(batches.iter().all(|batch| (1..=most).contains(&batch.len())));
        let full = batches.split_last().map_or(&[][..], |(_, before)| before);
        prop_assert!(full.iter().all(|batch| batch.len() == most));
        prop_assert_eq!(batches.concat(), all);
    }
}
