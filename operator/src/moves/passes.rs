//! Copies a volume in passes while pods use it, until little is left to copy. Pure.
//!
//! ```text
//! record the pass ─▶ take its snapshot ─▶ record the image ─▶ copied ─▶ remove the snapshot before ─▶ record the copy ─┐
//!        ▲────────────────────── until the rest is small, or no pass makes it smaller ◀────────────────────────────────┘
//! ```
//!
//! The new node applies what differs from the last copy, so the snapshot of that is kept as the base of the next pass, or
//! of the closed volume.
//!
//! A standby copy goes on with the passes for ever, at its interval.
//!
//! *Invariants:* the name of a snapshot is recorded before the snapshot is taken, and until it is removed. A pass is
//! optional: where one is not possible, the volume moves once its pods have ended. For a standby copy, it is tried again.

use chrono::{DateTime, TimeDelta, Utc};
use cistern_crds::{
    ConditionType, Cutover, Explanation, HasImage as _, MovePass, PoolSnapshot, PoolVolume,
    PreparedCopy, Reason, ReceivedSnapshot, ReplicaPurpose, VolumeMove, bounds, condition, names,
    time,
};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::{
    actions::{Action, Seen, copying, is_copied_while_used},
    removal::{self, Removal},
};

/// Seconds of a pass after which the rest is small: what changes meanwhile is copied in less.
const SMALL: u32 = 3;
/// Maximum number of passes before the rest counts as small enough.
const PASSES: u32 = 8;
/// How old the last pass may be when the pods are evicted.
const FRESH: TimeDelta = TimeDelta::minutes(1);
/// How often the copy is renewed while the move waits for a user.
const RENEWED: TimeDelta = TimeDelta::minutes(10);
/// Pause before the next pass for each extent of the volume. A snapshot blocks the writers of a volume for 20 µs for each
/// extent at most, and may take a hundredth of the time.
const PAUSE: TimeDelta = TimeDelta::milliseconds(2);

/// How far a volume is copied while pods use it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Passes {
    pub(super) copying: Option<MovePass>,
    pub(super) prepared: Option<PreparedCopy>,
    pub(super) not_copied: Option<String>,
}

impl Passes {
    /// What a move has recorded.
    pub(super) fn of(object: &VolumeMove) -> Self {
        let status = object.status.clone().unwrap_or_default();
        Self {
            copying: status.copying,
            prepared: status.prepared,
            not_copied: status.not_copied,
        }
    }

    /// The change of the status that records this.
    pub(super) fn change(&self) -> Value {
        json!({"copying": self.copying, "prepared": self.prepared, "notCopied": self.not_copied})
    }

    /// Why the move waits for its pods, with the reason for which the volume is not copied meanwhile.
    pub(super) fn explain(&self, why: &Explanation) -> Explanation {
        let message = match &self.not_copied {
            Some(not_copied) => format!("{}; it is not copied before: {not_copied}", why.message),
            None => why.message.clone(),
        };
        Explanation::new(why.reason, message)
    }

    /// The pass after the prepared copy, which the new node has.
    fn begin(self, object: &VolumeMove) -> Action {
        let number = self.prepared.as_ref().map_or(1, |it| it.number + 1);
        let volume = &object.spec.volume_name;
        Action::Record(Self {
            copying: Some(MovePass {
                number,
                snapshot_name: names::pass_snapshot_name(volume, &object.move_uid(), number),
                image: None,
                base_image: self.prepared.as_ref().map(|it| it.image.clone()),
            }),
            ..self
        })
    }
}

/// The next step while pods use the volume; None once they are to be evicted.
pub(super) fn next(seen: &Seen<'_>, volume: &PoolVolume) -> Option<Action> {
    let passes = Passes::of(seen.object);
    match (passes.copying.clone(), passes.prepared.clone()) {
        (Some(pass), _) => Some(go_on(seen, passes, pass)),
        (None, None) => Some(passes.begin(seen.object)),
        (None, Some(prepared)) => after(seen, volume, passes, &prepared),
    }
}

/// What is left of a pass that has ended although no pod uses the volume any more; None if none has. Without that, its
/// copy would be of no use for the closed volume.
pub(super) fn ended(seen: &Seen<'_>) -> Option<Action> {
    let passes = Passes::of(seen.object);
    let pass = passes.copying.clone()?;
    received(seen, &pass)?;
    Some(go_on(seen, passes, pass))
}

/// What is done if a node has no room for a replica: without room for passes, the volume moves once its pods have ended.
/// None if it waits for the room.
pub(super) fn refused(
    seen: &Seen<'_>,
    purpose: ReplicaPurpose,
    why: &Explanation,
) -> Option<Action> {
    let is_for_passes = purpose == ReplicaPurpose::Incoming
        && is_copied_while_used(seen.object)
        && seen.object.standby_interval().is_none();
    let is_full = matches!(
        why.reason,
        Reason::NoSpace | Reason::TooLarge | Reason::Overcommitted
    );
    (is_for_passes && is_full).then(|| {
        let why = format!("that needs twice its size on the new node: {}", why.message);
        give_up(Passes::of(seen.object), why)
    })
}

/// The copy of the snapshot of a pass, if the new node has it.
fn received<'a>(seen: &Seen<'a>, pass: &MovePass) -> Option<&'a ReceivedSnapshot> {
    let received = seen.incoming?.received_snapshot()?;
    (pass.image.as_ref() == Some(&received.image)).then_some(received)
}

/// Goes on with a pass.
fn go_on(seen: &Seen<'_>, passes: Passes, pass: MovePass) -> Action {
    if let Some(received) = received(seen, &pass) {
        return prepared(seen, &passes, pass, received);
    }
    let [Some(snapshot), _] = seen.snapshots else {
        if pass.image.is_none() {
            return Action::TakeSnapshot;
        }
        // Somebody has removed it: the next pass takes another one.
        let why = format!("snapshot {} is gone", pass.snapshot_name);
        return not_possible(seen, passes, why);
    };
    if let Some(why) = refusal(snapshot) {
        return refused_snapshot(seen, passes, snapshot, why);
    }
    match (&pass.image, image_of(snapshot)) {
        (Some(_), _) => {}
        (None, Some(image)) => {
            let pass = MovePass {
                image: Some(image),
                ..pass
            };
            return Action::Record(Passes {
                copying: Some(pass),
                ..passes
            });
        }
        (None, None) => {
            let (node, number) = (&snapshot.spec.node_name, pass.number);
            let message = format!("node {node} takes the snapshot of pass {number}");
            return Action::Wait(while_used(seen, &passes, Reason::Copying, &message));
        }
    }
    let Some(incoming) = seen.incoming else {
        return Action::Wait(Explanation::new(Reason::Copying, "the copy is gone"));
    };
    let why = copying(seen.plan, incoming);
    if why.reason == Reason::NoSpace && seen.object.standby_interval().is_none() {
        return give_up(passes, why.message);
    }
    let message = format!("pass {}: {}", pass.number, why.message);
    Action::Wait(while_used(seen, &passes, why.reason, &message))
}

/// Records the copy of a pass, once the snapshot before it is removed.
fn prepared(
    seen: &Seen<'_>,
    passes: &Passes,
    pass: MovePass,
    received: &ReceivedSnapshot,
) -> Action {
    let [snapshot, before] = seen.snapshots;
    if let Some(before) = before {
        return remove(before);
    }
    let last = passes.prepared.as_ref().and_then(|it| it.seconds);
    let is_settled = is_settled(pass.number, received.seconds, last);
    Action::Record(Passes {
        copying: None,
        prepared: Some(PreparedCopy {
            number: pass.number,
            snapshot_name: pass.snapshot_name,
            taken: snapshot.and_then(|it| it.status.as_ref()?.creation_time),
            image: received.image.clone(),
            received: received.received,
            seconds: received.seconds,
            settled: seen.is_fragmented || is_settled,
        }),
        not_copied: None,
    })
}

/// What comes after a pass; None once the pods are to be evicted.
fn after(
    seen: &Seen<'_>,
    volume: &PoolVolume,
    passes: Passes,
    prepared: &PreparedCopy,
) -> Option<Action> {
    let received = seen.incoming.and_then(|it| it.received_snapshot());
    if received.is_none_or(|received| received.image != prepared.image) {
        // The new node has lost the copy.
        return end(seen, &passes);
    }
    let cutover = seen.object.spec.cutover;
    let due = due(seen.object, volume, prepared);
    if seen.now >= due && (!seen.is_fragmented || cutover == Cutover::Never) {
        return Some(passes.begin(seen.object));
    }
    if prepared.settled && cutover == Cutover::Automatic {
        return None;
    }
    let (number, at) = (prepared.number + 1, due.format("%H:%M:%S UTC"));
    let message = format!("pass {number} begins at {at}");
    let why = while_used(seen, &passes, Reason::Copying, &message);
    Some(Action::Wait(why))
}

/// When the pass after the prepared copy begins.
fn due(object: &VolumeMove, volume: &PoolVolume, prepared: &PreparedCopy) -> DateTime<Utc> {
    let extents = volume.status.as_ref().and_then(|it| it.extents);
    let pause = pause(extents.unwrap_or_default());
    let earliest = prepared.received + pause;
    if let Some(interval) = object.standby_interval() {
        let taken = prepared.taken.unwrap_or(prepared.received);
        return earliest.max(taken + interval);
    }
    match (prepared.settled, object.spec.cutover) {
        (false, _) => earliest,
        (true, Cutover::Manual) => earliest.max(prepared.received + RENEWED),
        (true, _) => earliest.max(prepared.received + FRESH),
    }
}

/// When to look at a standby copy again that is as new as it is to be. None while a pass goes on.
pub(super) fn next_look(object: &VolumeMove, volume: &PoolVolume) -> Option<DateTime<Utc>> {
    let passes = Passes::of(object);
    let prepared = passes.prepared.filter(|_| passes.copying.is_none())?;
    Some(due(object, volume, &prepared))
}

/// Why the move waits while pods use the volume: for a pass, or for a user.
fn while_used(seen: &Seen<'_>, passes: &Passes, reason: Reason, message: &str) -> Explanation {
    let prepared = passes.prepared.as_ref().filter(|it| it.settled);
    let Some(prepared) = prepared.filter(|_| reason == Reason::Copying) else {
        return Explanation::new(reason, message);
    };
    if seen.object.spec.cutover != Cutover::Manual {
        // The copy is renewed while a budget does not allow the eviction: that stays the reason.
        return blocked(seen.object).unwrap_or_else(|| Explanation::new(reason, message));
    }
    let to = &seen.plan.to_node;
    let at = prepared.received.format("%H:%M UTC");
    let pods = seen.users.iter().filter(|pod| pod.is_bound());
    let pods: Vec<String> = pods.map(ToString::to_string).collect();
    let message = format!(
        "node {to} has the volume as of {at}; it moves once spec.cutover is Automatic, or these pods have ended: {}",
        pods.join(", ")
    );
    Explanation::new(Reason::ReadyToCutOver, message)
}

/// Why the pods were not evicted at the last attempt, if that is what the move reports.
fn blocked(object: &VolumeMove) -> Option<Explanation> {
    let conditions = &object.status.as_ref()?.conditions;
    let found = condition::failing(conditions, ConditionType::Ready)?;
    let is_blocked = found.reason == Reason::EvictionBlocked.as_str();
    is_blocked.then(|| Explanation::new(Reason::EvictionBlocked, &*found.message))
}

/// Whether little is left to copy after a pass, or no other pass makes it less.
fn is_settled(number: u32, seconds: Option<u32>, before: Option<u32>) -> bool {
    let Some(seconds) = seconds else {
        return number >= PASSES;
    };
    // A pass that takes nearly as long as the one before it copies what is written meanwhile.
    let is_no_less = before.is_some_and(|before| seconds.saturating_mul(5) >= before * 4);
    seconds <= SMALL || is_no_less || number >= PASSES
}

fn pause(extents: u64) -> TimeDelta {
    let extents = i32::try_from(extents).unwrap_or(i32::MAX);
    PAUSE.checked_mul(extents).unwrap_or(TimeDelta::MAX)
}

/// What is done if a pass is not possible. A standby copy is tried again: the pass takes another snapshot.
fn not_possible(seen: &Seen<'_>, passes: Passes, why: String) -> Action {
    if seen.object.standby_interval().is_none() {
        return give_up(passes, why);
    }
    Action::Record(Passes {
        copying: None,
        ..passes
    })
}

/// What is done if the snapshot of a pass is refused. That of a standby copy is taken again after its interval.
fn refused_snapshot(
    seen: &Seen<'_>,
    passes: Passes,
    snapshot: &PoolSnapshot,
    why: String,
) -> Action {
    let Some(interval) = seen.object.standby_interval() else {
        return give_up(passes, why);
    };
    let made = snapshot.metadata.creation_timestamp.as_ref();
    let again = made.map_or(seen.now, |made| time::from_kubernetes(made) + interval);
    if seen.now < again {
        return Action::Wait(Explanation::new(Reason::Copying, why));
    }
    remove(snapshot)
}

/// Copies no more while pods use the volume.
fn give_up(passes: Passes, why: String) -> Action {
    Action::Record(Passes {
        not_copied: Some(bounds::truncate(why, bounds::MESSAGE)),
        ..passes
    })
}

/// Ends the passes: removes what they have left; None once nothing is left.
pub(super) fn end(seen: &Seen<'_>, passes: &Passes) -> Option<Action> {
    if let Some(action) = remove_snapshots(seen) {
        return Some(action);
    }
    let is_wanted = seen.object.spec.cutover != Cutover::WhenUnused;
    let ended = Passes {
        not_copied: passes.not_copied.clone().filter(|_| is_wanted),
        ..Passes::default()
    };
    (ended != *passes).then_some(Action::Record(ended))
}

/// Removes the snapshots of the move; None once they are gone.
pub(super) fn remove_snapshots(seen: &Seen<'_>) -> Option<Action> {
    let [snapshot, before] = seen.snapshots;
    snapshot.or(before).map(remove)
}

/// Removes a snapshot, after its image.
fn remove(snapshot: &PoolSnapshot) -> Action {
    let name = snapshot.name_any();
    match removal::next(snapshot, "a snapshot that was copied") {
        Removal::Request => Action::RemoveSnapshot(name),
        Removal::Wait(why) => Action::Wait(why),
        Removal::Release => Action::ReleaseSnapshot(name),
    }
}

/// Why the node refuses to take a snapshot.
fn refusal(snapshot: &PoolSnapshot) -> Option<String> {
    let node = &snapshot.spec.node_name;
    let refused = condition::failing(snapshot.conditions(), ConditionType::Admitted)?;
    let is_refused = snapshot.reserved().is_none();
    is_refused.then(|| {
        format!(
            "node {node} cannot take a snapshot of it: {}",
            refused.message
        )
    })
}

/// The image of a snapshot that is taken.
fn image_of(snapshot: &PoolSnapshot) -> Option<String> {
    let is_ready = condition::holds(snapshot.conditions(), ConditionType::Ready);
    let image = snapshot.image().filter(|_| is_ready);
    image.map(|image| image.uid.clone())
}

#[cfg(test)]
mod tests;
