//! Expands a volume.
//!
//! ```text
//! spec.size raised ─▶ agent admits ─▶ agent grows the image ─▶ status.size: done
//!                     agent refuses ─▶ spec.size reset to the reserved size: does not fit
//! ```
//!
//! *Invariant:* a refusal is answered only after spec.size is reset, so that no agent grows the
//! volume later when there is room. An admitted size is never reset.

use cistern_crds::{Bytes, ConditionType, PoolVolume, condition};
use kube::ResourceExt as _;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    Error, SizeRange, Volumes,
    change::{Change, Step},
};
use crate::objects::nodes::Nodes;

impl Volumes {
    /// Ensures that a volume has a size in the range, and returns it (CEV-08, CEV-13).
    ///
    /// Fails if the volume is larger than the limit or is gone, if its node refuses the size, if
    /// the agent is silent, or if a request to the API server fails. Also fails at the deadline:
    /// the state stays as it is, and a repeated call resumes.
    pub async fn expand(
        &self,
        volume: PoolVolume,
        range: SizeRange,
        deadline: Instant,
    ) -> Result<Bytes, Error> {
        self.change(volume, &range, deadline).await
    }
}

impl Change for SizeRange {
    type Desired = Bytes;
    type Made = Bytes;

    const FIELD: &'static str = "size";
    const ASK: &'static str = "the API server to take the larger size";
    const RESTORE: &'static str = "the API server to take back a size that was refused";
    const MAKE: &'static str = "make it larger";

    fn next(&self, volume: &PoolVolume) -> Result<Step<Bytes, Bytes>, Error> {
        Ok(match progress(volume, *self) {
            ExpansionProgress::Done(size) => Step::Done(size),
            ExpansionProgress::Leaving => Step::Leaving,
            ExpansionProgress::TooLarge(size) => {
                let limit = self.limit.unwrap_or_default();
                let why = format!("its size {size} exceeds the requested limit {limit}");
                return Err(impossible(volume, why));
            }
            ExpansionProgress::Ask => Step::Ask(self.chosen),
            ExpansionProgress::Refused {
                desired,
                promised,
                why,
            } => Step::Restore {
                to: promised,
                refusal: (desired == self.chosen).then(|| impossible(volume, why)),
            },
            ExpansionProgress::Waits(message) => Step::Wait(message),
        })
    }

    /// Fails if the pool would round the size up above the limit: the volume would not shrink again.
    fn check(&self, nodes: &Nodes, volume: &PoolVolume, to: Bytes) -> Result<(), Error> {
        let rounded = nodes.size_of_volume(volume, to);
        match self.limit {
            Some(limit) if rounded > limit => {
                let why =
                    format!("its pool would round it up to {rounded}, above the limit {limit}");
                Err(impossible(volume, why))
            }
            Some(_) | None => Ok(()),
        }
    }

    fn current(volume: &PoolVolume) -> Bytes {
        volume.spec.size
    }

    fn patch(to: Bytes) -> Value {
        json!({"spec": {"size": to}})
    }
}

fn impossible(volume: &PoolVolume, why: String) -> Error {
    Error::SizeNotPossible {
        volume: volume.name_any(),
        why,
    }
}

/// Progress of an expansion.
#[derive(Debug, PartialEq, Eq)]
enum ExpansionProgress {
    /// The volume has a size in the requested range, this one.
    Done(Bytes),
    /// The volume is larger than the limit. Volumes never shrink.
    TooLarge(Bytes),
    /// Its deletion is requested.
    Leaving,
    /// The spec requests less than the chosen size, perhaps because it was reset.
    Ask,
    /// The agent refuses the size in the spec.
    Refused {
        /// Size in the spec.
        desired: Bytes,
        /// Bytes that the ledger reserves.
        promised: Bytes,
        /// The message of the agent.
        why: String,
    },
    /// The agent has not answered yet, or is expanding the volume; its message.
    Waits(String),
}

fn progress(volume: &PoolVolume, range: SizeRange) -> ExpansionProgress {
    let status = volume.status.clone().unwrap_or_default();
    if volume.spec.deletion_requested {
        return ExpansionProgress::Leaving;
    }
    if let Some(size) = status.size {
        if range.limit.is_some_and(|limit| size > limit) {
            return ExpansionProgress::TooLarge(size);
        }
        if size >= range.required {
            return ExpansionProgress::Done(size);
        }
    }
    if let Some(refused) = volume.refused_growth() {
        return ExpansionProgress::Refused {
            desired: volume.spec.size,
            promised: status.reserved.unwrap_or_default(),
            why: refused.message.clone(),
        };
    }
    if volume.spec.size < range.chosen {
        return ExpansionProgress::Ask;
    }
    let expanded = condition::find(&status.conditions, ConditionType::Expanded);
    ExpansionProgress::Waits(expanded.map_or_else(String::new, |expanded| expanded.message.clone()))
}

#[cfg(test)]
mod tests {
    use cistern_crds::{Reason, condition::ConditionUpdate};

    use super::*;
    use crate::testing::{at, ready_volume};

    const GIB: Bytes = Bytes::gib(1);

    fn range(required: u64, limit: Option<u64>) -> SizeRange {
        SizeRange {
            required: Bytes::gib(required),
            limit: limit.map(Bytes::gib),
            chosen: Bytes::gib(required),
        }
    }

    fn at_least(gib: u64) -> SizeRange {
        range(gib, None)
    }

    /// A volume of 1 GiB whose spec requests more, with the answer of its agent.
    fn asked(gib: u64, said: Option<(Reason, i64)>) -> PoolVolume {
        let mut volume = ready_volume();
        volume.spec.size = Bytes::gib(gib);
        volume.metadata.generation = Some(2);
        if let Some((reason, generation)) = said {
            let finding = ConditionUpdate::new(ConditionType::Expanded, false, reason, "said");
            let conditions = &mut volume.status.as_mut().unwrap().conditions;
            condition::set(conditions, &finding, Some(generation), at(0));
        }
        volume
    }

    #[test]
    fn cev_13_cev_14_what_is_large_enough_stays_as_it_is_and_nothing_is_made_smaller() {
        let volume = ready_volume();
        assert_eq!(progress(&volume, at_least(1)), ExpansionProgress::Done(GIB));
        assert_eq!(progress(&volume, at_least(0)), ExpansionProgress::Done(GIB));
        assert_eq!(
            progress(&volume, range(0, Some(1))),
            ExpansionProgress::Done(GIB)
        );
        let mut large = volume;
        large.status.as_mut().unwrap().size = Some(Bytes::gib(3));
        assert_eq!(
            progress(&large, range(1, Some(2))),
            ExpansionProgress::TooLarge(Bytes::gib(3))
        );
    }

    #[test]
    fn a_larger_size_is_asked_for_once_and_then_waited_for() {
        assert_eq!(
            progress(&ready_volume(), at_least(2)),
            ExpansionProgress::Ask
        );
        let waits = |text: &str| ExpansionProgress::Waits(text.to_owned());
        assert_eq!(progress(&asked(2, None), at_least(2)), waits(""));
        assert_eq!(progress(&asked(3, None), at_least(2)), waits(""));
        assert_eq!(
            progress(&asked(2, None), at_least(3)),
            ExpansionProgress::Ask
        );
        let growing = asked(2, Some((Reason::ExpansionFailed, 2)));
        assert_eq!(progress(&growing, at_least(2)), waits("said"));
    }

    #[test]
    fn cev_07_a_refusal_holds_for_what_it_was_said_of_and_is_taken_back_first() {
        let refused = ExpansionProgress::Refused {
            desired: Bytes::gib(2),
            promised: GIB,
            why: "said".to_owned(),
        };
        for reason in [Reason::NoSpace, Reason::TooLarge, Reason::PoolClosed] {
            let volume = asked(2, Some((reason, 2)));
            assert_eq!(progress(&volume, at_least(2)), refused);
            // The refused size is reset in any case.
            assert_eq!(progress(&volume, at_least(3)), refused);
            // The condition is of an earlier generation.
            let asked_again = asked(2, Some((reason, 1)));
            let waits = progress(&asked_again, at_least(2));
            assert!(matches!(waits, ExpansionProgress::Waits(_)), "{waits:?}");
        }
        let taken_back = asked(1, Some((Reason::NoSpace, 1)));
        assert_eq!(progress(&taken_back, at_least(2)), ExpansionProgress::Ask);
    }

    #[test]
    fn a_reserved_size_is_waited_for_and_never_reset() {
        let mut volume = asked(2, Some((Reason::NoSpace, 2)));
        volume.status.as_mut().unwrap().reserved = Some(Bytes::gib(2));
        let waits = progress(&volume, at_least(2));
        assert!(matches!(waits, ExpansionProgress::Waits(_)), "{waits:?}");
    }

    #[test]
    fn a_volume_whose_end_is_asked_for_is_not_found() {
        let mut volume = asked(2, None);
        volume.spec.deletion_requested = true;
        assert_eq!(progress(&volume, at_least(1)), ExpansionProgress::Leaving);
    }
}
