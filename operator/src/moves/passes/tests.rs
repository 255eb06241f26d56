use cistern_crds::{
    Bytes, ConditionStatus, FenceState, PoolReplica, PoolSnapshotSpec, ReplicaPurpose,
    condition::ConditionUpdate,
    testing::{ready_snapshot, ready_volume},
};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use super::{
    super::testing::{Case, companion, pod},
    *,
};
use crate::{
    moves::{actions::room_for, together::Progress},
    testing::moment,
};

impl Case {
    fn passes(&self) -> Passes {
        Passes::of(&self.object)
    }

    fn record(&mut self, passes: Passes) {
        let status = self.object.status.as_mut().unwrap();
        status.copying = passes.copying;
        status.prepared = passes.prepared;
        status.not_copied = passes.not_copied;
    }

    /// The snapshots that the status names, of those that exist.
    fn name_snapshots(&mut self) {
        let passes = self.passes();
        let names = [
            passes.copying.map(|it| it.snapshot_name),
            passes.prepared.map(|it| it.snapshot_name),
        ];
        let mut exist: Vec<PoolSnapshot> =
            self.snapshots.iter_mut().filter_map(Option::take).collect();
        for (place, name) in self.snapshots.iter_mut().zip(names) {
            let found = exist.iter().position(|it| Some(it.name_any()) == name);
            *place = found.map(|at| exist.remove(at));
        }
        assert!(
            exist.is_empty(),
            "the status names each snapshot that exists"
        );
    }

    fn find(&mut self, name: &str) -> &mut Option<PoolSnapshot> {
        let mut places = self.snapshots.iter_mut();
        let is_it =
            |it: &&mut Option<PoolSnapshot>| it.as_ref().is_some_and(|it| it.name_any() == name);
        places.find(is_it).unwrap()
    }

    /// Takes the next step as operator and agents do; each pass takes this many seconds. Returns the step.
    fn advance(&mut self, seconds: u32) -> Action {
        let action = self.next();
        match action.clone() {
            Action::Record(passes) => {
                let image = passes.copying.as_ref().and_then(|it| it.image.clone());
                self.record(passes);
                if let Some(image) = image {
                    self.receive(image, Some(seconds));
                }
            }
            Action::TakeSnapshot => {
                let name = self.passes().copying.unwrap().snapshot_name;
                assert!(self.snapshots[0].is_none());
                self.snapshots[0] = Some(taken(&name));
            }
            Action::RemoveSnapshot(name) => {
                let snapshot = self.find(&name).as_mut().unwrap();
                snapshot.spec.deletion_requested = true;
                snapshot.status = None;
            }
            Action::ReleaseSnapshot(name) => *self.find(&name) = None,
            Action::Wait(_) => self.now += TimeDelta::seconds(10),
            Action::CutOver(_) => {}
            other => panic!("{other:?}"),
        }
        self.name_snapshots();
        action
    }

    fn receive(&mut self, image: String, seconds: Option<u32>) {
        let received = self.now;
        let status = self.incoming.as_mut().unwrap().status.as_mut().unwrap();
        status.snapshot = Some(ReceivedSnapshot {
            image,
            received,
            seconds,
        });
    }

    /// Goes on until a step is taken that `is` one.
    fn until(&mut self, seconds: u32, is: impl Fn(&Action) -> bool) -> Action {
        for _ in 0..200 {
            let action = self.advance(seconds);
            if is(&action) {
                return action;
            }
        }
        panic!("{:?} {:?}", self.passes(), self.next())
    }

    fn replica(&mut self, purpose: ReplicaPurpose) -> &mut PoolReplica {
        let replica = match purpose {
            ReplicaPurpose::Retained => &mut self.retained,
            ReplicaPurpose::Incoming => &mut self.incoming,
        };
        replica.as_mut().unwrap()
    }

    fn until_cut_over(&mut self, seconds: u32) -> u32 {
        self.until(seconds, |it| matches!(it, Action::CutOver(_)));
        self.passes().prepared.unwrap().number
    }
}

/// The snapshot of a pass, which is taken.
fn taken(name: &str) -> PoolSnapshot {
    let volume = ready_volume();
    let spec = PoolSnapshotSpec {
        copied_for: Some(volume.name_any()),
        ..ready_snapshot().spec
    };
    let mut snapshot = PoolSnapshot::new(name, spec);
    snapshot.status = ready_snapshot().status;
    let status = snapshot.status.as_mut().unwrap();
    status.image.as_mut().unwrap().uid = format!("image-of-{name}");
    let ready = ConditionUpdate::reconciled(ConditionType::Ready);
    condition::set(&mut status.conditions, &ready, Some(1), moment());
    snapshot
}

fn is_wait(reason: Reason) -> impl Fn(&Action) -> bool {
    move |action| matches!(action, Action::Wait(why) if why.reason == reason)
}

fn end_pods(case: &mut Case) {
    case.users.clear();
}

#[test]
fn a_volume_is_copied_in_passes_until_little_is_left_and_then_its_pods_are_evicted() {
    let mut case = Case::used(Cutover::Automatic);
    let Action::Record(begun) = case.advance(30) else {
        panic!("{:?}", case.next());
    };
    let pass = begun.copying.unwrap();
    assert_eq!(
        (pass.number, &pass.image, &pass.base_image),
        (1, &None, &None)
    );
    assert_eq!(case.advance(30), Action::TakeSnapshot);
    case.until(
        30,
        |it| matches!(it, Action::Record(it) if it.copying.is_none()),
    );
    let first = case.passes().prepared.unwrap();
    assert_eq!((first.number, first.settled), (1, false));
    case.until(
        3,
        |it| matches!(it, Action::Record(it) if it.copying.is_some()),
    );
    let second = case.passes().copying.unwrap();
    assert_eq!(second.base_image, Some(first.image.clone()));
    assert_ne!(second.snapshot_name, first.snapshot_name);
    assert_eq!(case.until_cut_over(3), 2);
    // The base of the copy of the closed volume, and nothing else.
    let [pass, base] = &case.snapshots;
    assert!(pass.is_none());
    assert_eq!(base.as_ref().unwrap().name_any(), second.snapshot_name);
    assert_eq!(case.next(), Action::CutOver(case.users.clone()));
}

#[test]
fn passes_end_when_they_take_no_less_time_or_are_too_many() {
    assert_eq!(Case::used(Cutover::Automatic).until_cut_over(SMALL), 1);
    assert_eq!(Case::used(Cutover::Automatic).until_cut_over(60), 2);
    for (number, seconds, before, expected) in [
        (1, Some(SMALL), None, true),
        (1, Some(SMALL + 1), None, false),
        (2, Some(79), Some(100), false),
        (2, Some(80), Some(100), true),
        (3, Some(200), Some(100), true),
        (PASSES, Some(50), Some(100), true),
        // An interrupted pass says nothing.
        (2, None, Some(100), false),
        (PASSES, None, None, true),
    ] {
        let is = is_settled(number, seconds, before);
        assert_eq!(is, expected, "{number} {seconds:?} {before:?}");
    }
    let mut fragmented = Case::used(Cutover::Automatic);
    fragmented.is_fragmented = true;
    assert_eq!(fragmented.until_cut_over(60), 1);
}

#[test]
fn a_snapshot_of_a_volume_with_many_extents_is_followed_by_a_longer_pause() {
    assert_eq!(pause(500), TimeDelta::seconds(1));
    assert_eq!(
        pause(u64::MAX),
        TimeDelta::milliseconds(2 * i64::from(i32::MAX))
    );
    let mut case = Case::used(Cutover::Automatic);
    case.volume
        .as_mut()
        .unwrap()
        .status
        .as_mut()
        .unwrap()
        .extents = Some(50_000);
    case.until(
        60,
        |it| matches!(it, Action::Record(it) if it.copying.is_none()),
    );
    let received = case.passes().prepared.unwrap().received;
    case.until(
        60,
        |it| matches!(it, Action::Record(it) if it.copying.is_some()),
    );
    assert!(case.now - received >= TimeDelta::seconds(100));
}

#[test]
fn a_manual_move_is_kept_fresh_and_waits_until_it_is_released() {
    let mut case = Case::used(Cutover::Manual);
    case.until(2, is_wait(Reason::ReadyToCutOver));
    let Action::Wait(why) = case.next() else {
        panic!("{:?}", case.next());
    };
    assert!(why.message.contains("shop/db-0"), "{}", why.message);
    let began = case.passes().prepared.unwrap();
    case.until(
        2,
        |it| matches!(it, Action::Record(it) if it.copying.is_some()),
    );
    assert!(case.now - began.received >= RENEWED);
    case.until(2, is_wait(Reason::ReadyToCutOver));
    assert_eq!(case.passes().prepared.unwrap().number, 2);
    case.object.spec.cutover = Cutover::Automatic;
    case.until_cut_over(2);
    let received = case.passes().prepared.unwrap().received;
    assert!(case.now - received <= FRESH);
}

#[test]
fn pods_that_end_by_themselves_let_the_volume_move_with_the_copy_that_is_complete() {
    let mut between = Case::used(Cutover::Manual);
    between.until(2, is_wait(Reason::ReadyToCutOver));
    end_pods(&mut between);
    assert_eq!(between.next(), Action::Declare);

    // The new node has the copy of a pass, and has replaced the one before.
    let mut ended = Case::used(Cutover::Automatic);
    ended.until(
        60,
        |it| matches!(it, Action::Record(it) if it.prepared.is_some()),
    );
    ended.until(60, |it| {
        matches!(it, Action::Record(it) if it.copying.as_ref().is_some_and(|it| it.image.is_some()))
    });
    end_pods(&mut ended);
    ended.until(
        60,
        |it| matches!(it, Action::Record(it) if it.copying.is_none()),
    );
    assert_eq!(ended.passes().prepared.unwrap().number, 2);
    assert_eq!(ended.next(), Action::Declare);

    // Nothing waits for a pass that has not ended.
    let mut early = Case::used(Cutover::Automatic);
    early.until(60, |it| *it == Action::TakeSnapshot);
    end_pods(&mut early);
    assert_eq!(early.next(), Action::Declare);
}

#[test]
fn a_volume_that_cannot_be_copied_while_used_keeps_nothing_and_moves_once_its_pods_have_ended() {
    let refuse: [fn(&mut Case); 2] = [
        |case| {
            let snapshot = case.snapshots[0].as_mut().unwrap();
            let status = snapshot.status.as_mut().unwrap();
            (status.reserved, status.image) = (None, None);
            let why = ConditionUpdate::new(ConditionType::Admitted, false, Reason::NoSpace, "full");
            status.conditions.clear();
            condition::set(&mut status.conditions, &why, Some(1), moment());
        },
        |case| {
            let status = case.incoming.as_mut().unwrap().status.as_mut().unwrap();
            status.reserved = None;
            let why = ConditionUpdate::new(ConditionType::Admitted, false, Reason::NoSpace, "full");
            condition::set(&mut status.conditions, &why, Some(1), moment());
        },
    ];
    for refuse in refuse {
        let mut case = Case::used(Cutover::Automatic);
        case.until(2, |it| *it == Action::TakeSnapshot);
        refuse(&mut case);
        case.until(2, |it| {
            matches!(it, Action::Record(it) if it == &Passes {
                not_copied: it.not_copied.clone(), ..Passes::default()
            })
        });
        assert_eq!(case.snapshots, [None, None]);
        // The room for passes is given back.
        assert_eq!(case.next(), Action::Remove(ReplicaPurpose::Incoming));
        case.incoming = None;
        let Action::Wait(why) = case.next() else {
            panic!("{:?}", case.next());
        };
        assert_eq!(why.reason, Reason::PodsRemain);
        assert!(why.message.contains("full"), "{}", why.message);
        end_pods(&mut case);
        assert_eq!(case.next(), Action::Create(ReplicaPurpose::Incoming));
        let (object, volume) = (&case.object, case.volume.as_ref().unwrap());
        let room = super::super::actions::room_for(object, volume, ReplicaPurpose::Incoming);
        assert_eq!(room, Bytes::gib(1));
        // A user asks for it once more.
        case.users = vec![pod(Some("node-1"), true)];
        case.object.spec.cutover = Cutover::WhenUnused;
        assert_eq!(case.next(), Action::Record(Passes::default()));
    }
}

#[test]
fn pods_that_nothing_makes_again_are_not_evicted_and_no_copy_is_held_for_them() {
    for (controller, says) in [
        (None, "has no controller"),
        (Some("DaemonSet"), "belongs to a DaemonSet"),
        (Some("Node"), "is a static pod"),
    ] {
        let mut case = Case::used(Cutover::Automatic);
        case.until(
            60,
            |it| matches!(it, Action::Record(it) if it.prepared.is_some()),
        );
        let mut stays = pod(Some("node-1"), true);
        stays.controller = controller.map(str::to_owned);
        case.users.push(stays.clone());
        case.until(60, |it| *it == Action::Record(Passes::default()));
        assert_eq!(case.snapshots, [None, None]);
        assert_eq!(case.next(), Action::Remove(ReplicaPurpose::Incoming));
        case.incoming = None;
        let Action::Wait(why) = case.next() else {
            panic!("{:?}", case.next());
        };
        assert_eq!(why.reason, Reason::EvictionBlocked);
        assert!(why.message.contains(says), "{}", why.message);
        case.object.spec.cutover = Cutover::Manual;
        assert_eq!(case.next(), Action::Create(ReplicaPurpose::Incoming));

        // One that came after the declaration.
        let mut late = Case::declared(Some(FenceState::Closing));
        late.object.spec.cutover = Cutover::Automatic;
        late.object.status.as_mut().unwrap().prepared = Some(prepared());
        late.users = vec![stays];
        assert_eq!(late.waits_for(), Some(Reason::EvictionBlocked));
    }
}

#[test]
fn pods_are_evicted_once_no_other_pod_gets_the_volume_and_those_that_end_are_awaited() {
    let mut case = Case::declared(None);
    case.object.spec.cutover = Cutover::Automatic;
    case.object.status.as_mut().unwrap().prepared = Some(prepared());
    case.users = vec![pod(Some("node-1"), true), pod(None, false)];
    assert_eq!(case.waits_for(), Some(Reason::Moving));
    let volume = case.volume.as_mut().unwrap();
    volume.status.as_mut().unwrap().fence = Case::declared(Some(FenceState::Closing))
        .volume
        .and_then(|it| it.status?.fence);
    assert_eq!(case.next(), Action::Evict(vec![pod(Some("node-1"), true)]));
    case.users[0].is_ending = true;
    assert_eq!(case.waits_for(), Some(Reason::Moving));
    // The next one of its name. It gets no volume, but keeps the other from being unstaged.
    let mut next = pod(Some("node-1"), false);
    next.created = Some(case.now);
    case.users = vec![next.clone()];
    assert_eq!(case.waits_for(), Some(Reason::Moving));
    case.now += TimeDelta::seconds(6);
    assert_eq!(case.next(), Action::Evict(vec![next]));
    case.object.spec.cutover = Cutover::WhenUnused;
    assert_eq!(case.waits_for(), Some(Reason::PodsRemain));
}

#[test]
fn a_blocked_eviction_stays_the_reason_while_the_copy_is_renewed() {
    let mut case = Case::used(Cutover::Automatic);
    case.until_cut_over(2);
    let why = ConditionUpdate::new(
        ConditionType::Ready,
        false,
        Reason::EvictionBlocked,
        "budget",
    );
    let status = case.object.status.as_mut().unwrap();
    condition::set(&mut status.conditions, &why, Some(1), moment());
    case.now += FRESH;
    let Action::Record(begun) = case.next() else {
        panic!("{:?}", case.next());
    };
    case.record(begun);
    case.snapshots[0] = Some(taken(&case.passes().copying.unwrap().snapshot_name));
    let status = case.snapshots[0].as_mut().unwrap().status.as_mut().unwrap();
    let ready = status.conditions.iter_mut();
    ready.for_each(|it| ConditionStatus::False.as_str().clone_into(&mut it.status));
    assert_eq!(case.waits_for(), Some(Reason::EvictionBlocked));
}

#[test]
fn a_move_that_is_undone_removes_its_snapshots_before_the_copy() {
    let mut case = Case::used(Cutover::Automatic);
    case.until(
        60,
        |it| matches!(it, Action::Record(it) if it.prepared.is_some()),
    );
    case.until(60, |it| *it == Action::TakeSnapshot);
    case.object.metadata.deletion_timestamp = Some(Time(Timestamp::default()));
    assert_eq!(case.next(), Action::Cancel);
    let spec = &mut case.volume.as_mut().unwrap().spec;
    spec.cancelled_move_uid = Some("move-1".to_owned());
    for _ in 0..2 {
        let removed = case.advance(60);
        assert!(matches!(removed, Action::RemoveSnapshot(_)), "{removed:?}");
        let released = case.advance(60);
        assert!(
            matches!(released, Action::ReleaseSnapshot(_)),
            "{released:?}"
        );
    }
    assert_eq!(case.next(), Action::Remove(ReplicaPurpose::Incoming));
}

#[test]
fn the_base_is_kept_until_the_volume_is_on_its_new_node() {
    let mut case = Case::arrived();
    case.incoming = None;
    case.snapshots[1] = Some(taken("snap-1"));
    assert_eq!(case.next(), Action::RemoveSnapshot("snap-1".to_owned()));
    let mut closed = Case::declared(Some(FenceState::Closed));
    closed.snapshots[1] = Some(taken("snap-1"));
    assert_eq!(closed.waits_for(), Some(Reason::Copying));
}

#[test]
fn the_copy_of_a_volume_that_has_grown_gets_more_room_and_stays_the_base_of_the_next_pass() {
    let mut case = Case::used(Cutover::Automatic);
    case.until(
        60,
        |it| matches!(it, Action::Record(it) if it.prepared.is_some()),
    );
    let before = case.passes().prepared.unwrap();
    let status = case.volume.as_mut().unwrap().status.as_mut().unwrap();
    status.reserved = Some(Bytes::gib(2));
    for purpose in [ReplicaPurpose::Retained, ReplicaPurpose::Incoming] {
        assert_eq!(case.next(), Action::Grow(purpose));
        let size = room_for(&case.object, case.volume.as_ref().unwrap(), purpose);
        case.replica(purpose).spec.size = size;
        assert_eq!(case.waits_for(), Some(Reason::Pending));
        let status = case.replica(purpose).status.as_mut();
        status.unwrap().reserved = Some(size);
    }
    let begun = case.until(
        60,
        |it| matches!(it, Action::Record(it) if it.copying.is_some()),
    );
    let Action::Record(begun) = begun else {
        panic!("{begun:?}");
    };
    assert_eq!(begun.copying.unwrap().base_image, Some(before.image));
}

#[test]
fn volumes_of_one_pod_leave_it_together() {
    let mut case = Case::used(Cutover::Automatic);
    case.companions = vec![companion(Progress::Reserved)];
    case.until(2, is_wait(Reason::WaitingForOthers));
    // Nothing grows old meanwhile.
    case.until(
        2,
        |it| matches!(it, Action::Record(it) if it.copying.is_some()),
    );
    case.companions = vec![companion(Progress::Prepared)];
    case.until_cut_over(2);
}

fn prepared() -> PreparedCopy {
    PreparedCopy {
        number: 1,
        snapshot_name: "snap-1".to_owned(),
        image: "image-1".to_owned(),
        taken: None,
        received: moment(),
        seconds: Some(1),
        settled: true,
    }
}
