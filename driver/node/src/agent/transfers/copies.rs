//! The progress of copies that are received, as the condition `Ready` of their volumes reports it, and how far the
//! copies are, for the metrics.

use std::{collections::HashMap, sync::Arc};

use chrono::{DateTime, Utc};
use cistern_crds::{
    Bytes, Condition, ConditionType, Reason,
    condition::{self, ConditionUpdate},
};
use cistern_host::percent;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;

use crate::agent::{
    progress::Progress,
    running::{Running, RunningWork},
};

/// Offsets up to which copies are complete, by name of the volume. None for a copy of which nothing is left to
/// receive.
type Offsets = Arc<Mutex<HashMap<String, Option<u64>>>>;

/// Copies that this node receives.
#[derive(Debug, Default)]
pub struct Copies {
    running: Running<CopyProgress>,
    queued: Running<()>,
    offsets: Offsets,
    /// Bytes of data that were received.
    pub received: Counter,
}

/// How far a copy is that is not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyState {
    /// It is received, up to this offset until now.
    Running(u64),
    /// It waits until fewer others run.
    Queued,
    /// It waits at this offset, after a failure or for its permission.
    Waiting(u64),
}

/// The progress of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyProgress {
    /// Kind and name of what is copied, and the node that it comes from.
    what: String,
    began: DateTime<Utc>,
    /// Bytes of data since then.
    data: u64,
    percent: Progress,
    /// Bytes per second since the copy began or went on.
    rate: Bytes,
    /// Seconds until the end at that rate; None before the first step.
    left: Option<u64>,
}

/// A copy that is received. Dropping it ends the report.
#[derive(Debug)]
pub struct RunningCopy {
    work: RunningWork<CopyProgress>,
    volume: String,
    offsets: Offsets,
    received: Counter,
    /// Offset at which it began or went on.
    from: u64,
    size: u64,
}

impl Copies {
    /// Begins to report a copy of `size` bytes that goes on at an offset.
    pub fn begin(
        &self,
        volume: &str,
        what: String,
        (from, size): (Bytes, Bytes),
        now: DateTime<Utc>,
    ) -> RunningCopy {
        let mut progress = CopyProgress {
            what,
            began: now,
            data: 0,
            percent: Progress::begun(now),
            rate: Bytes::ZERO,
            left: None,
        };
        progress.percent.reach(percent(from.0, size.0));
        let offset = Some(from.0);
        self.offsets.lock().insert(volume.to_owned(), offset);
        RunningCopy {
            work: self.running.begin(volume, progress),
            volume: volume.to_owned(),
            offsets: Arc::clone(&self.offsets),
            received: self.received.clone(),
            from: from.0,
            size: size.0,
        }
    }

    /// The progress of the copy for a volume, if these conditions report something else.
    pub fn unreported_progress(
        &self,
        volume: &str,
        conditions: &[Condition],
    ) -> Option<CopyProgress> {
        let progress = self.running.progress(volume)?;
        let reported = condition::find(conditions, ConditionType::Ready);
        let message = finding(&progress).message;
        let is_reported = reported.is_some_and(|reported| reported.message == message);
        (!is_reported).then_some(progress)
    }

    /// Begins to wait until fewer others run. Dropping the result ends the wait.
    pub fn queue(&self, volume: &str) -> RunningWork<()> {
        self.queued.begin(volume, ())
    }

    /// Records that nothing is left to receive for a volume.
    pub fn complete(&self, volume: &str) {
        self.offsets.lock().insert(volume.to_owned(), None);
    }

    /// How far the copy for a volume is; None once it is complete.
    pub fn state(&self, volume: &str) -> Option<CopyState> {
        // Of a copy that is older than this process, nothing is known until it goes on.
        let offset = self.offsets.lock().get(volume).copied();
        let offset = offset.unwrap_or(Some(0))?;
        Some(if self.queued.progress(volume).is_some() {
            CopyState::Queued
        } else if self.running.progress(volume).is_some() {
            CopyState::Running(offset)
        } else {
            CopyState::Waiting(offset)
        })
    }

    /// Forgets a volume that is gone.
    pub fn forget(&self, volume: &str) {
        self.offsets.lock().remove(volume);
    }
}

impl RunningCopy {
    /// Records that `length` more bytes of data were received, and the offset up to which the copy is complete.
    pub fn reached(&self, offset: u64, length: u64, now: DateTime<Utc>) {
        self.received.inc_by(length);
        if let Some(known) = self.offsets.lock().get_mut(&self.volume) {
            *known = Some(offset);
        }
        self.work.update(|progress| {
            progress.data += length;
            self.step(progress, offset, now);
        });
    }

    fn step(&self, progress: &mut CopyProgress, offset: u64, now: DateTime<Utc>) {
        if !progress.percent.reach(percent(offset, self.size)) {
            return;
        }
        let elapsed = (now - progress.began).num_milliseconds().max(1);
        let elapsed = u64::try_from(elapsed).unwrap_or(1);
        progress.rate = Bytes(progress.data.saturating_mul(1000) / elapsed);
        let passed = u128::from(offset.saturating_sub(self.from).max(1));
        let rest = u128::from(self.size.saturating_sub(offset));
        let left = u128::from(elapsed) * rest / passed / 1000;
        progress.left = u64::try_from(left).ok();
    }
}

/// The `Ready` condition for a progress.
pub fn finding(progress: &CopyProgress) -> ConditionUpdate {
    let CopyProgress {
        what,
        percent,
        rate,
        left,
        ..
    } = progress;
    let pace = left.map_or_else(String::new, |left| {
        let rate = rate.0 >> 20;
        format!(", {rate} MiB of data per second, about {left} s are left")
    });
    let message = format!("{what} is being copied {percent}{pace}");
    ConditionUpdate::new(ConditionType::Ready, false, Reason::Copying, message)
}

#[cfg(test)]
mod tests {
    use cistern_crds::{HasImage as _, PoolVolume};
    use kube::ResourceExt as _;

    use super::*;
    use crate::testing::{admitted_volume, at};

    fn unreported(copies: &Copies, volume: &PoolVolume) -> Option<CopyProgress> {
        copies.unreported_progress(&volume.name_any(), volume.conditions())
    }

    #[test]
    fn each_step_of_a_copy_is_reported_once_with_rate_and_time_left() {
        let (copies, mut volume) = (Copies::default(), admitted_volume());
        let size = Bytes::gib(1);
        let what = "snapshot s of node w2".to_owned();
        let copy = copies.begin(&volume.name_any(), what, (Bytes::ZERO, size), at(0));
        let mut reported = |copies: &Copies| {
            let finding = finding(&unreported(copies, &volume)?);
            let status = volume.status.get_or_insert_default();
            condition::set(&mut status.conditions, &finding, None, at(0));
            assert_eq!(unreported(copies, &volume), None);
            Some(finding.message)
        };
        let begun =
            "snapshot s of node w2 is being copied since 1970-01-01T00:00:00Z: 0 % are done";
        assert_eq!(reported(&copies).as_deref(), Some(begun));
        copy.reached(size.0 / 4, 100 << 20, at(10));
        let quarter = "snapshot s of node w2 is being copied since 1970-01-01T00:00:00Z: 25 % are done, \
                       10 MiB of data per second, about 30 s are left";
        assert_eq!(reported(&copies).as_deref(), Some(quarter));
        copy.reached(size.0 / 4 + 1, 1 << 20, at(11));
        assert_eq!(reported(&copies), None);
        drop(copy);
        assert_eq!(unreported(&copies, &admitted_volume()), None);
    }

    #[test]
    fn a_copy_is_queued_running_or_waiting_until_nothing_is_left_to_receive() {
        let (copies, size) = (Copies::default(), Bytes::gib(1));
        assert_eq!(copies.state("v"), Some(CopyState::Waiting(0)));
        let queued = copies.queue("v");
        assert_eq!(copies.state("v"), Some(CopyState::Queued));
        drop(queued);
        let copy = copies.begin("v", "it".to_owned(), (Bytes::mib(1), size), at(0));
        assert_eq!(copies.state("v"), Some(CopyState::Running(1 << 20)));
        copy.reached(2 << 20, 1 << 20, at(1));
        assert_eq!(copies.state("v"), Some(CopyState::Running(2 << 20)));
        assert_eq!(copies.received.get(), 1 << 20);
        drop(copy);
        assert_eq!(copies.state("v"), Some(CopyState::Waiting(2 << 20)));
        copies.complete("v");
        assert_eq!(copies.state("v"), None);
        copies.forget("v");
        assert_eq!(copies.state("v"), Some(CopyState::Waiting(0)));
    }

    #[test]
    fn a_copy_that_goes_on_counts_what_was_copied_before() {
        let (copies, volume) = (Copies::default(), admitted_volume());
        let size = Bytes::gib(1);
        let half = Bytes::mib(512);
        let copy = copies.begin(&volume.name_any(), "it".to_owned(), (half, size), at(0));
        copy.reached(size.0 / 4 * 3, 1 << 20, at(10));
        let message = finding(&unreported(&copies, &volume).unwrap()).message;
        assert!(message.contains(": 75 % are done"), "{message}");
        assert!(message.contains("about 10 s are left"), "{message}");
    }
}
