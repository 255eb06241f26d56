//! Making a volume, or finding it as it was made before.
//!
//! *Invariant:* an error that the caller takes for final leaves no object behind: one that no agent
//! has admitted is withdrawn first, and one that was admitted stays and the error says so
//! ([`objects::Error::Pending`]).

use cistern_crds::{PoolVolume, names::SELECTED_NODE_ANNOTATION};
use kube::ResourceExt as _;
use tokio::time::Instant;

use super::{Error, ListedVolume, NewVolume, Volumes, placement, source};
use crate::objects::{
    self,
    attendance::Attention,
    failed,
    follow::{Outcome, Refusal},
    named,
};

/// Nodes that one call asks. The caller repeats, and by then the room that is published has changed.
const ATTEMPTS: usize = 5;

impl Volumes {
    /// Makes sure that the volume is there and can be used (CV-06, CV-29).
    ///
    /// When the deadline comes first, everything stays as it is and a repeat goes on with it.
    pub async fn ensure(
        &self,
        wanted: &NewVolume,
        deadline: Instant,
    ) -> Result<ListedVolume, Error> {
        let settling = async |attention: &mut _| self.settle(wanted, attention).await;
        self.objects
            .attending(&wanted.id(), deadline, settling)
            .await
    }

    /// Asks one node after another until one has made the volume.
    async fn settle(
        &self,
        wanted: &NewVolume,
        attention: &mut Attention<PoolVolume>,
    ) -> Result<ListedVolume, Error> {
        let mut refusals = Vec::new();
        loop {
            let found = match self.objects.find(attention.name()).await? {
                Some(volume) => Some(volume),
                None => self.create(wanted, &refusals).await?,
            };
            // None: another replica was faster, so look again.
            let Some(volume) = found else { continue };
            if volume.spec.deletion_requested {
                self.objects.see_off(volume, attention).await?;
                continue;
            }
            if wanted.is_left_behind(&volume) {
                attention.note("the API server to forget a volume at a node that is not allowed");
                self.objects.withdraw(volume).await?;
                continue;
            }
            if let Some(difference) = wanted.difference(&volume) {
                let object = named::<PoolVolume>(attention.name());
                return Err(objects::Error::Different { object, difference }.into());
            }
            match self.objects.follow(volume, attention).await? {
                Outcome::Ready(volume) => {
                    self.listing.until_shown(attention.name(), true).await;
                    return Ok(volume);
                }
                Outcome::Changed => {}
                Outcome::Withdraw(volume, refusal) => {
                    attention.note("the API server to forget a volume that no agent has admitted");
                    if self.objects.withdraw(*volume).await? {
                        refusals.extend(not_final(wanted, refusal)?);
                    }
                }
            }
        }
    }

    /// Chooses a node and writes the wish. None when the object is there by now.
    ///
    /// A source is looked at each time: a volume may have grown since it was refused to be copied.
    async fn create(
        &self,
        wanted: &NewVolume,
        refusals: &[Refusal],
    ) -> Result<Option<PoolVolume>, Error> {
        let (node, object) = match &wanted.source {
            None => {
                let node = self.choose(wanted, refusals).await?;
                let object = wanted.on_node(&node, None);
                (node, object)
            }
            Some(reference) => {
                let source = self.source(reference).await?;
                let wanted = source.complete(wanted)?;
                let chosen = self.choose(&wanted, refusals).await;
                let node = chosen.map_err(|error| source.misplaced(error))?;
                let object = wanted.on_node(&node, Some(source.content()));
                (node, object)
            }
        };
        let created = self.objects.create(&object).await?;
        if let Some(volume) = &created {
            tracing::info!(volume = volume.name_any(), node, "volume placed");
        }
        Ok(created)
    }

    /// The first node with room; but where the scheduler has chosen the node of the pod, no other:
    /// it shall choose again, knowing the pod.
    async fn choose(&self, wanted: &NewVolume, refusals: &[Refusal]) -> Result<String, Error> {
        let no_room = |why: String| placement::Error::NoRoom {
            pool: wanted.pool.clone(),
            size: wanted.size.chosen,
            why,
        };
        if refusals.len() >= ATTEMPTS {
            let each: Vec<String> = refusals
                .iter()
                .map(|refusal| format!("{} refused: {}", refusal.node, refusal.message))
                .collect();
            return Err(no_room(each.join("; ")).into());
        }
        let nodes = self.objects.nodes().all().ok_or(objects::Error::Starting)?;
        let choice = placement::choose(wanted, &nodes, refusals)?;
        match choice.passed_over {
            Some(why) if self.scheduler_has_chosen(wanted).await? => {
                Err(no_room(format!("{why}, and the scheduler has chosen it")).into())
            }
            Some(_) | None => Ok(choice.node),
        }
    }

    async fn scheduler_has_chosen(&self, wanted: &NewVolume) -> Result<bool, Error> {
        let Some(claim) = &wanted.claim else {
            return Ok(false);
        };
        let found = self
            .claims(&claim.namespace)
            .get_metadata_opt(&claim.name)
            .await;
        let found = found.map_err(failed(|| {
            format!(
                "read PersistentVolumeClaim {}/{}",
                claim.namespace, claim.name
            )
        }))?;
        Ok(found.is_some_and(|claim| claim.annotations().contains_key(SELECTED_NODE_ANNOTATION)))
    }
}

/// A refusal that other nodes, or the same one later, need not repeat.
fn not_final(wanted: &NewVolume, refusal: Option<Refusal>) -> Result<Option<Refusal>, Error> {
    let source = wanted.source.as_ref().zip(refusal.as_ref());
    match source.and_then(|(source, refusal)| source::refused(source, refusal, &wanted.pool)) {
        Some(error) => Err(error),
        None => Ok(refusal),
    }
}
