//! The parts of a group whose volumes are on several nodes are taken in step, or not at all. Two machines stand for two nodes.

use std::{
    fs,
    sync::{Barrier as Point, Mutex},
    thread,
};

use chrono::{DateTime, Utc};
use cistern_host::{
    Image, Member, Pool,
    snapshot::{Barrier, Error, NotFrozen, Stopped},
};
use cistern_types::{Consistency, FilesystemType};

use crate::{
    harness::{Machine, must, open_new},
    moment::{Kind, Writer, Written},
    snapshot::{moment, snapshot_of},
};

/// Keeps two threads in step. The first one says the time.
struct InStep<'a> {
    points: &'a [Point; 3],
    time: &'a Mutex<Option<DateTime<Utc>>>,
    unfrozen: usize,
}

impl Barrier for InStep<'_> {
    fn prepared(&mut self, unfrozen: usize) -> Result<(), Stopped> {
        self.unfrozen = unfrozen;
        self.points[0].wait();
        Ok(())
    }

    fn frozen(&mut self) -> Result<DateTime<Utc>, Stopped> {
        self.points[1].wait();
        Ok(*self.time.lock().unwrap().get_or_insert_with(Utc::now))
    }

    fn cloned(&mut self) -> Result<(), Stopped> {
        self.points[2].wait();
        Ok(())
    }
}

/// Ends the attempt at one of the steps.
struct StopsAt(usize);

impl StopsAt {
    fn step(&mut self) -> Result<(), Stopped> {
        let is_last = self.0 == 0;
        self.0 = self.0.saturating_sub(1);
        if is_last {
            return Err(Stopped("another node is gone".to_owned()));
        }
        Ok(())
    }
}

impl Barrier for StopsAt {
    fn prepared(&mut self, _: usize) -> Result<(), Stopped> {
        self.step()
    }

    fn frozen(&mut self) -> Result<DateTime<Utc>, Stopped> {
        self.step().map(|()| Utc::now())
    }

    fn cloned(&mut self) -> Result<(), Stopped> {
        self.step()
    }
}

fn take(
    machine: &Machine,
    pool: &Pool,
    source: &Image,
    name: &str,
    barrier: &mut dyn Barrier,
) -> Result<Image, Error> {
    let request = snapshot_of(source, name);
    let members = [Member { pool, request }];
    let taken = machine
        .root()
        .take_part(&members, Consistency::Crash, barrier)?;
    let [image] = <[Image; 1]>::try_from(taken).unwrap();
    Ok(image)
}

#[test]
fn r09_a_group_across_nodes_keeps_write_order_across_its_volumes() {
    let files = Kind::Filesystem;
    for kinds in [
        [files(FilesystemType::Ext4), files(FilesystemType::Xfs)],
        [files(FilesystemType::Btrfs), Kind::Block],
        [Kind::Block, files(FilesystemType::Xfs)],
    ] {
        let machines = [Machine::new(), Machine::new()];
        let pools = [open_new(&machines[0]), open_new(&machines[1])];
        let mut kinds = kinds.into_iter();
        let volumes = [0, 1].map(|node| {
            let kind = kinds.next().unwrap();
            Written::new(&machines[node], &pools[node], "a", kind)
        });
        let copies = volumes.iter().map(|it| it.file.try_clone().unwrap());
        let writer = Writer::begin(copies.collect());
        for round in 0..3 {
            writer.goes_on(100);
            let before = writer.acknowledged();
            let (points, time) = ([2; 3].map(Point::new), Mutex::new(None));
            let part = |node: usize| {
                let mut barrier = InStep {
                    points: &points,
                    time: &time,
                    unfrozen: 0,
                };
                let (source, name) = (&volumes[node].image, format!("s{round}"));
                must(take(
                    &machines[node],
                    &pools[node],
                    source,
                    &name,
                    &mut barrier,
                ))
            };
            let taken = thread::scope(|scope| {
                let other = scope.spawn(|| part(1));
                [part(0), other.join().unwrap()]
            });
            writer.goes_on(1);
            assert_eq!(moment(&taken[0]), moment(&taken[1]));
            let found =
                |node: usize| volumes[node].prefix(&machines[node], &pools[node], &taken[node]);
            let (first, second) = (found(0), found(1));
            // Each number is written to the first volume, and then to the second.
            assert!(
                second <= first && first <= second + 1 && before <= second,
                "{before} {first} {second}"
            );
        }
        writer.end();
    }
}

#[test]
fn an_attempt_that_another_node_ends_leaves_nothing_frozen_and_no_image() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let volume = Written::new(&machine, &pool, "a", Kind::Filesystem(FilesystemType::Ext4));
    let writer = Writer::begin(vec![volume.file.try_clone().unwrap()]);
    for step in 0..3 {
        let stopped = take(&machine, &pool, &volume.image, "s", &mut StopsAt(step));
        assert!(matches!(stopped, Err(Error::Stopped(_))), "{stopped:?}");
        writer.goes_on(10);
        let found = machine.inventory().pools;
        assert_eq!(found[0].images.len(), 1, "{:?}", found[0].images);
        assert!(found[0].temporary.is_empty(), "{:?}", found[0].temporary);
    }
    // What an attempt has left that was not decided on is taken again.
    let first = must(take(&machine, &pool, &volume.image, "s", &mut StopsAt(9)));
    writer.goes_on(10);
    let second = must(take(&machine, &pool, &volume.image, "s", &mut StopsAt(9)));
    assert!(moment(&first) < moment(&second));
    assert!(volume.prefix(&machine, &pool, &second) >= 10);
    writer.end();
}

#[test]
fn a_part_says_whether_it_has_a_volume_that_cannot_be_frozen_and_refuses_a_second_one() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let blocks = ["a", "b"].map(|name| Written::new(&machine, &pool, name, Kind::Block));
    let files = Written::new(&machine, &pool, "c", Kind::Filesystem(FilesystemType::Ext4));
    let member = |of: &Written, name: &str| Member {
        pool: &pool,
        request: snapshot_of(&of.image, name),
    };
    let take = |members: &[Member<'_>]| {
        let (points, time) = ([1; 3].map(Point::new), Mutex::new(None));
        let mut barrier = InStep {
            points: &points,
            time: &time,
            unfrozen: 9,
        };
        let root = machine.root();
        let taken = root.take_part(members, Consistency::Crash, &mut barrier);
        taken.map(|_| barrier.unfrozen)
    };
    assert_eq!(take(&[member(&files, "c1")]).unwrap(), 0);
    let mixed = [member(&files, "c2"), member(&blocks[0], "a2")];
    assert_eq!(take(&mixed).unwrap(), 1);
    let refused = take(&[member(&blocks[0], "a3"), member(&blocks[1], "b3")]);
    let why = NotFrozen::SecondUnfrozen;
    assert!(
        matches!(&refused, Err(Error::FreezeFailed { why: found, .. }) if *found == why),
        "{refused:?}"
    );
    fs::write(machine.staging("c").join("after"), "after").unwrap();
}
