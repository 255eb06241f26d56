//! Creates a volume, or returns the existing one.
//!
//! *Invariant:* a final error leaves no object behind: an object that no agent has admitted is
//! withdrawn first. An admitted object stays, and the error is not final
//! ([`crate::objects::Error::Pending`]).

use std::sync::Arc;

use cistern_crds::{
    PoolVolume, PoolVolumeSpec, SourceKind, StorageNode,
    names::{self, SELECTED_NODE_ANNOTATION},
    parameters::RestorePlacement,
};
use futures::FutureExt as _;
use kube::ResourceExt as _;
use tokio::time::Instant;

use super::{
    Error, ListedVolume, NewVolume, Volumes,
    placement::{self, Choice},
    source::{self, Source, SourceReference},
};
use crate::objects::{
    ensure::{Attempt, attempt},
    failed,
    follow::Refusal,
    in_flight::Operation,
};

/// Maximum number of pools and nodes that one call tries. The caller repeats the call, and the published
/// capacity has changed by then.
const ATTEMPTS: usize = 5;

impl Volumes {
    /// Ensures that the volume exists and can be used (CV-06, CV-29).
    ///
    /// Fails if a different volume has this name, if its source cannot be copied, if no node takes
    /// it, if the agent of its node is silent, or if a request to the API server fails. Also fails
    /// at the deadline: the state stays as it is, and a repeated call resumes.
    pub async fn ensure(
        &self,
        wanted: &NewVolume,
        deadline: Instant,
    ) -> Result<ListedVolume, Error> {
        let ensuring = async |operation: &mut _| self.ensure_ready(wanted, operation).await;
        self.objects
            .run_exclusive(&wanted.id(), deadline, ensuring)
            .await
    }

    /// Tries one pool of one node after another until an agent has created the volume.
    async fn ensure_ready(
        &self,
        wanted: &NewVolume,
        operation: &mut Operation<PoolVolume>,
    ) -> Result<ListedVolume, Error> {
        let mut refusals = Vec::new();
        let of_volume = |source: &&SourceReference| source.kind == SourceKind::Volume;
        let cloned = wanted.source.as_ref().filter(of_volume);
        if let Some(cloned) = cloned {
            operation.note(format!("a snapshot of {}", cloned.named()));
        }
        loop {
            let create = || self.create(wanted, &refusals).boxed();
            match attempt(&self.objects, wanted, operation, create).await? {
                Attempt::Made(volume) => {
                    if cloned.is_some() {
                        self.unpin();
                    }
                    self.listing.until_shown(operation.name(), true).await;
                    return Ok(volume);
                }
                Attempt::Refused { refusal, .. } => {
                    refusals.push(unless_final(wanted, refusal)?);
                }
            }
        }
    }

    /// Chooses a node and creates the object. Returns None if the object exists meanwhile.
    ///
    /// Reads the source each time: it may have grown since a node refused to copy it.
    async fn create(
        &self,
        wanted: &NewVolume,
        refusals: &[Refusal],
    ) -> Result<Option<PoolVolume>, Error> {
        let object = match &wanted.source {
            None => {
                let Choice { node, pool, .. } = self.choose(wanted, refusals).await?;
                wanted.in_pool(&pool, &node, None)
            }
            Some(reference) => {
                let source = self.source(reference).await?;
                source.is_copied(self.objects.nodes())?;
                let wanted = source.complete(wanted)?;
                let chosen = self.choose_for_copy(&source, &wanted, refusals).await;
                let Choice { node, pool, .. } = chosen?;
                let source = if source.needs_snapshot(&node) {
                    self.pin(&wanted.id(), &source).await?
                } else {
                    source
                };
                // A volume may have grown before its snapshot was taken.
                let wanted = source.complete(&wanted)?;
                wanted.in_pool(&pool, &node, Some(source.content(&node)))
            }
        };
        let created = self.objects.create(&object).await?;
        if let Some(volume) = &created {
            let PoolVolumeSpec {
                node_name,
                pool_name,
                ..
            } = &volume.spec;
            let volume = volume.name_any();
            tracing::info!(volume, node = node_name, pool = pool_name, "volume placed");
        }
        Ok(created)
    }

    /// Chooses the node of the source if a pod can go there, or else another one to which the source is copied. If
    /// the scheduler has chosen the node of the source, and that cannot take the copy, the scheduler must choose
    /// again: only it knows whether the pod can go elsewhere.
    ///
    /// Nothing is copied while the agent of the source is silent: the request is repeated, and the source can be
    /// read by then.
    async fn choose_for_copy(
        &self,
        source: &Source,
        wanted: &NewVolume,
        refusals: &[Refusal],
    ) -> Result<Choice, Error> {
        let nodes = self.all_nodes()?;
        let is_silent = self.objects.nodes().silence(source.node()).is_some();
        let elsewhere = source.elsewhere(wanted, &nodes).filter(|_| !is_silent);
        let Some(elsewhere) = elsewhere else {
            return self.choose_beside(source, wanted, refusals).await;
        };
        if wanted.placement == RestorePlacement::Chosen {
            // No node has room: as below.
            if let Err(error) = placement::choose(wanted, &nodes, refusals) {
                return Err(source.misplaced(error.into()));
            }
            let choice = self.choose(wanted, refusals).await?;
            if elsewhere.requirement.allows(&choice.node) {
                return Ok(choice);
            }
        }
        let at_source = if self.is_unschedulable(source.node()).await? {
            let why = format!("Node {} takes no pods (it is cordoned)", source.node());
            Err(source.no_room(wanted.size.chosen, why).into())
        } else {
            self.choose_beside(source, wanted, refusals).await
        };
        let Err(Error::Source(source::Error::NoRoom { size, why, .. })) = &at_source else {
            return at_source;
        };
        // No node has room: to choose again, as the scheduler does after other errors, would change nothing.
        if let Err(others) = placement::choose(&elsewhere, &nodes, refusals) {
            let why = format!("{why}; and it cannot be copied to another node: {others}");
            return Err(source.no_room(*size, why).into());
        }
        let first = wanted.requirement.preferred.first();
        if first == Some(&names::topology_value(source.node()))
            && self.scheduler_has_chosen(wanted).await?
        {
            return Err(choose_again(wanted, &nodes, refusals, why));
        }
        self.choose(&elsewhere, refusals).await
    }

    /// Chooses the node and the pool of the source.
    async fn choose_beside(
        &self,
        source: &Source,
        wanted: &NewVolume,
        refusals: &[Refusal],
    ) -> Result<Choice, Error> {
        let chosen = self.choose(&source.beside(wanted)?, refusals).await;
        chosen.map_err(|error| source.misplaced(error))
    }

    /// Whether the Node takes no pods.
    async fn is_unschedulable(&self, node: &str) -> Result<bool, Error> {
        let found = self.nodes().get_opt(node).await;
        let found = found.map_err(failed(|| format!("read Node {node}")))?;
        let spec = found.map(|node| node.spec.unwrap_or_default());
        Ok(spec.is_some_and(|spec| spec.unschedulable.unwrap_or_default()))
    }

    /// Chooses the first node with room, and its pool. If the scheduler has chosen a node for the pod, chooses no
    /// other node and fails: the scheduler must choose again, because only it knows the pod.
    async fn choose(&self, wanted: &NewVolume, refusals: &[Refusal]) -> Result<Choice, Error> {
        if refusals.len() >= ATTEMPTS {
            let each: Vec<String> = refusals
                .iter()
                .map(|Refusal { node, pool, why }| format!("{node} refused in pool {pool}: {why}"))
                .collect();
            return Err(no_room(wanted, each.join("; ")).into());
        }
        let nodes = self.all_nodes()?;
        let choice = placement::choose(wanted, &nodes, refusals)?;
        match &choice.passed_over {
            Some(why) if self.scheduler_has_chosen(wanted).await? => {
                Err(choose_again(wanted, &nodes, refusals, why))
            }
            Some(_) | None => Ok(choice),
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

/// The error for a volume that no node can take now.
fn no_room(wanted: &NewVolume, why: String) -> placement::Error {
    placement::Error::NoRoom {
        pools: wanted.pools.clone(),
        size: wanted.size.chosen,
        why,
    }
}

/// The error that makes the scheduler choose again, because the first preferred node cannot take the volume.
///
/// A copy may have no room there although the published capacity shows room. Then the scheduler would choose that node
/// again, without an end, so the error is one with a back-off.
fn choose_again(
    wanted: &NewVolume,
    nodes: &[Arc<StorageNode>],
    refusals: &[Refusal],
    why: &str,
) -> Error {
    let why = format!("{why}, and the scheduler has chosen it");
    let first = wanted.requirement.preferred.first();
    match wanted.source.as_ref().zip(first) {
        Some((source, first)) if placement::has_published_room(wanted, first, nodes, refusals) => {
            source::Error::NoRoom {
                origin: source.named(),
                node: first.clone(),
                size: wanted.size.chosen,
                why: format!(
                    "{why}, where its pools have room for the claim, but not for the copy"
                ),
            }
            .into()
        }
        Some(_) | None => no_room(wanted, why).into(),
    }
}

/// Returns a refusal that other pools and nodes, or the same pool later, may not repeat. Fails if the refusal
/// is final.
fn unless_final(wanted: &NewVolume, refusal: Refusal) -> Result<Refusal, Error> {
    let source = wanted.source.as_ref();
    match source.and_then(|source| source::refused(source, &refusal)) {
        Some(error) => Err(error),
        None => Ok(refusal),
    }
}
