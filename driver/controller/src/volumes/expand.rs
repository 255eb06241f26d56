//! Making a volume larger.
//!
//! ```text
//! spec.size raised ─▶ agent admits ─▶ agent grows the image ─▶ status.size: done
//!                     agent refuses ─▶ spec.size taken back to what is promised: does not fit
//! ```
//!
//! *Invariant:* a refusal is answered only when the wish for it is taken back, so that nobody grows
//! the volume later when there is room. What is admitted is never taken back.

use cistern_crds::{Bytes, ConditionType, PoolVolume, condition};
use kube::ResourceExt as _;
use serde_json::json;
use tokio::time::Instant;

use super::{Error, SizeRange, Volumes};
use crate::objects::{attendance::Attention, not_found};

impl Volumes {
    /// Makes sure that a volume has a size in the range, and says which (CEV-08, CEV-13).
    ///
    /// When the deadline comes first, everything stays as it is and a repeat goes on with it.
    pub async fn expand(
        &self,
        volume: PoolVolume,
        range: SizeRange,
        deadline: Instant,
    ) -> Result<Bytes, Error> {
        let id = volume.name_any();
        let growing = async |attention: &mut _| self.grow(volume, range, attention).await;
        self.objects.attending(&id, deadline, growing).await
    }

    async fn grow(
        &self,
        mut volume: PoolVolume,
        range: SizeRange,
        attention: &mut Attention<PoolVolume>,
    ) -> Result<Bytes, Error> {
        // A refusal from before this call may be old: then it is asked once more.
        let (mut asked, mut refusal) = (false, None);
        loop {
            let next = match progress(&volume, range) {
                Progress::Done(size) => return Ok(size),
                Progress::Leaving => return Err(not_found::<PoolVolume>(attention.name()).into()),
                Progress::TooLarge(size) => {
                    let limit = range.limit.unwrap_or_default();
                    return Err(impossible(
                        &volume,
                        format!("it has {size}, and at most {limit} is asked for"),
                    ));
                }
                Progress::Ask => {
                    if let Some(why) = refusal.take() {
                        return Err(impossible(&volume, why));
                    }
                    asked = true;
                    attention.note("the API server to take the larger size");
                    self.set_size(&volume, range.chosen).await?
                }
                Progress::Refused {
                    wish,
                    promised,
                    why,
                } => {
                    refusal = (asked && wish == range.chosen).then_some(why);
                    attention.note("the API server to take back a size that was refused");
                    self.set_size(&volume, promised).await?
                }
                Progress::Waits(said) => {
                    asked = true;
                    attention.note(self.growing(&volume, &said));
                    match self.objects.change(&volume, attention).await? {
                        Some(changed) => Some(changed),
                        None => self.objects.find_again(&volume).await?,
                    }
                }
            };
            volume = next.ok_or_else(|| not_found::<PoolVolume>(attention.name()))?;
        }
    }

    /// Changes the size that is asked for; gives the object as it is then, also where somebody else
    /// was faster.
    async fn set_size(
        &self,
        volume: &PoolVolume,
        size: Bytes,
    ) -> Result<Option<PoolVolume>, Error> {
        let (name, from) = (volume.name_any(), volume.spec.size);
        tracing::info!(volume = name, %from, to = %size, "changing the size that is asked for");
        let change = json!({"spec": {"size": size}});
        let changed = self.objects.patch("change the size of", volume, change);
        Ok(changed.await?)
    }

    /// What a growth waits for.
    fn growing(&self, volume: &PoolVolume, said: &str) -> String {
        let node = &volume.spec.node_name;
        match self.objects.nodes().unfit(node, &volume.spec.pool_name) {
            Some(unfit) => format!("node {node} to make it larger, which {unfit}"),
            None => format!("node {node} to make it larger: {said}"),
        }
    }
}

fn impossible(volume: &PoolVolume, why: String) -> Error {
    Error::SizeNotPossible {
        volume: volume.name_any(),
        why,
    }
}

/// Where a volume stands on its way to a size.
#[derive(Debug, PartialEq, Eq)]
enum Progress {
    /// It has such a size, this one.
    Done(Bytes),
    /// It has more than it may have. Nothing is ever made smaller.
    TooLarge(Bytes),
    /// Its deletion is asked for.
    Leaving,
    /// Nobody has asked for such a size, or it was taken back.
    Ask,
    /// The agent will not grow it to the size in the spec.
    Refused {
        /// What the spec asks for.
        wish: Bytes,
        /// What the ledger holds.
        promised: Bytes,
        /// The agent's words.
        why: String,
    },
    /// The agent has not answered yet, or is at it; what it says.
    Waits(String),
}

fn progress(volume: &PoolVolume, range: SizeRange) -> Progress {
    let status = volume.status.clone().unwrap_or_default();
    if volume.spec.deletion_requested {
        return Progress::Leaving;
    }
    if let Some(size) = status.size {
        if range.limit.is_some_and(|limit| size > limit) {
            return Progress::TooLarge(size);
        }
        if size >= range.required {
            return Progress::Done(size);
        }
    }
    if let Some(refused) = volume.refused_growth() {
        return Progress::Refused {
            wish: volume.spec.size,
            promised: status.reserved.unwrap_or_default(),
            why: refused.message.clone(),
        };
    }
    if volume.spec.size < range.chosen {
        return Progress::Ask;
    }
    let expanded = condition::find(&status.conditions, ConditionType::Expanded);
    Progress::Waits(expanded.map_or_else(String::new, |expanded| expanded.message.clone()))
}

#[cfg(test)]
mod tests {
    use cistern_crds::{Reason, condition::Finding};

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

    /// A volume of 1 GiB whose spec asks for more, and what its agent says to that.
    fn asked(gib: u64, said: Option<(Reason, i64)>) -> PoolVolume {
        let mut volume = ready_volume();
        volume.spec.size = Bytes::gib(gib);
        volume.metadata.generation = Some(2);
        if let Some((reason, generation)) = said {
            let finding = Finding::new(ConditionType::Expanded, false, reason, "said");
            let conditions = &mut volume.status.as_mut().unwrap().conditions;
            condition::set(conditions, &finding, Some(generation), at(0));
        }
        volume
    }

    #[test]
    fn cev_13_cev_14_what_is_large_enough_stays_as_it_is_and_nothing_is_made_smaller() {
        let volume = ready_volume();
        assert_eq!(progress(&volume, at_least(1)), Progress::Done(GIB));
        assert_eq!(progress(&volume, at_least(0)), Progress::Done(GIB));
        assert_eq!(progress(&volume, range(0, Some(1))), Progress::Done(GIB));
        let mut large = volume;
        large.status.as_mut().unwrap().size = Some(Bytes::gib(3));
        assert_eq!(
            progress(&large, range(1, Some(2))),
            Progress::TooLarge(Bytes::gib(3))
        );
    }

    #[test]
    fn a_larger_size_is_asked_for_once_and_then_waited_for() {
        assert_eq!(progress(&ready_volume(), at_least(2)), Progress::Ask);
        let waits = |text: &str| Progress::Waits(text.to_owned());
        assert_eq!(progress(&asked(2, None), at_least(2)), waits(""));
        assert_eq!(progress(&asked(3, None), at_least(2)), waits(""));
        assert_eq!(progress(&asked(2, None), at_least(3)), Progress::Ask);
        let growing = asked(2, Some((Reason::ExpansionFailed, 2)));
        assert_eq!(progress(&growing, at_least(2)), waits("said"));
    }

    #[test]
    fn cev_07_a_refusal_holds_for_what_it_was_said_of_and_is_taken_back_first() {
        let refused = Progress::Refused {
            wish: Bytes::gib(2),
            promised: GIB,
            why: "said".to_owned(),
        };
        for reason in [Reason::NoSpace, Reason::TooLarge, Reason::PoolClosed] {
            let volume = asked(2, Some((reason, 2)));
            assert_eq!(progress(&volume, at_least(2)), refused);
            // Whatever else is wanted, the refused wish goes.
            assert_eq!(progress(&volume, at_least(3)), refused);
            // Said of an earlier wish.
            let anew = asked(2, Some((reason, 1)));
            let waits = progress(&anew, at_least(2));
            assert!(matches!(waits, Progress::Waits(_)), "{waits:?}");
        }
        let taken_back = asked(1, Some((Reason::NoSpace, 1)));
        assert_eq!(progress(&taken_back, at_least(2)), Progress::Ask);
    }

    #[test]
    fn what_is_promised_is_waited_for_and_never_taken_back() {
        let mut volume = asked(2, Some((Reason::NoSpace, 2)));
        volume.status.as_mut().unwrap().reserved = Some(Bytes::gib(2));
        let waits = progress(&volume, at_least(2));
        assert!(matches!(waits, Progress::Waits(_)), "{waits:?}");
    }

    #[test]
    fn a_volume_whose_end_is_asked_for_is_not_found() {
        let mut volume = asked(2, None);
        volume.spec.deletion_requested = true;
        assert_eq!(progress(&volume, at_least(1)), Progress::Leaving);
    }
}
