//! Takes a snapshot, or returns the existing one.
//!
//! *Invariant:* a final error leaves no object behind: an object that no agent has admitted is
//! withdrawn first. An admitted object stays, and the error is not final
//! ([`objects::Error::Pending`]).

use cistern_crds::{HasImage as _, PoolSnapshot, PoolVolume};
use futures::FutureExt as _;
use kube::ResourceExt as _;
use tokio::time::Instant;

use super::{Error, ListedSnapshot, NewSnapshot, Snapshots};
use crate::{
    objects::{
        self,
        advice::advice,
        ensure::{Attempt, attempt},
        follow::Refusal,
        in_flight::Operation,
        listing::Listed as _,
        named, not_found,
    },
    volumes::ListedVolume,
};

impl Snapshots {
    /// Ensures that the snapshot is taken (CS-04, CS-06).
    ///
    /// Fails if a different snapshot has this name, if the volume does not exist, if its node is
    /// not allowed, refuses the snapshot or has a silent agent, or if a request to the API server
    /// fails. Also fails at the deadline: the state stays as it is, and a repeated call resumes.
    pub async fn ensure(
        &self,
        wanted: &NewSnapshot,
        deadline: Instant,
    ) -> Result<ListedSnapshot, Error> {
        let ensuring = async |operation: &mut _| self.ensure_ready(wanted, operation).await;
        self.objects
            .run_exclusive(&wanted.id(), deadline, ensuring)
            .await
    }

    async fn ensure_ready(
        &self,
        wanted: &NewSnapshot,
        operation: &mut Operation<PoolSnapshot>,
    ) -> Result<ListedSnapshot, Error> {
        loop {
            let create = || self.create(wanted).boxed();
            match attempt(&self.objects, wanted, operation, create).await? {
                Attempt::Made(snapshot) => {
                    self.listing.until_shown(operation.name(), true).await;
                    return Ok(snapshot);
                }
                Attempt::Refused {
                    refusal,
                    is_new: true,
                } => return Err(refused(wanted, refusal)),
                // The refusal may be out of date, so the agent is asked once more.
                Attempt::Refused { is_new: false, .. } => {}
            }
        }
    }

    /// Creates the object. Returns None if it exists meanwhile.
    async fn create(&self, wanted: &NewSnapshot) -> Result<Option<PoolSnapshot>, Error> {
        let (volume, image) = self.source(wanted).await?;
        let created = self.objects.create(&wanted.of(&volume, &image)).await?;
        if let Some(snapshot) = &created {
            let (name, node) = (snapshot.name_any(), &snapshot.spec.node_name);
            tracing::info!(snapshot = name, node, "snapshot requested");
        }
        Ok(created)
    }

    /// Reads the source volume and the name of its image. Fails if the volume does not exist,
    /// cannot be used yet or is under deletion, if it moves to another node, if its agent has not reported
    /// the image, or if a request to the API server fails.
    pub async fn volume(&self, id: &str) -> Result<(PoolVolume, String), objects::Error> {
        let found = self.volumes.find(id).await?;
        let volume = found
            .filter(|volume| !volume.spec.deletion_requested && ListedVolume::of(volume).is_some())
            .ok_or_else(|| not_found::<PoolVolume>(id))?;
        if let Some(target) = &volume.spec.target {
            let object = named::<PoolVolume>(id);
            let waits_for = format!("its move to node {}", target.node_name);
            return Err(objects::Error::Pending { object, waits_for });
        }
        let Some(image) = volume.image().map(|image| image.uid.clone()) else {
            let object = named::<PoolVolume>(id);
            let waits_for = "its agent to say which image it has".to_owned();
            return Err(objects::Error::Pending { object, waits_for });
        };
        Ok((volume, image))
    }

    /// The source volume, if a snapshot of it satisfies the request.
    async fn source(&self, wanted: &NewSnapshot) -> Result<(PoolVolume, String), Error> {
        let id = &wanted.source_volume;
        let (volume, image) = self.volume(id).await?;
        if !wanted.requirement.allows(&volume.spec.node_name) {
            return Err(Error::OutOfReach {
                volume: id.clone(),
                node: volume.spec.node_name,
            });
        }
        let (node, pool) = (&volume.spec.node_name, &volume.spec.pool_name);
        let nodes = self.objects.nodes();
        let never = nodes.copies(node, pool).err();
        if let Some(why) = never.or_else(|| nodes.unavailable(node, pool)) {
            let refusal = Refusal {
                node: node.clone(),
                pool: pool.clone(),
                why,
            };
            return Err(refused(wanted, refusal));
        }
        Ok((volume, image))
    }
}

fn refused(wanted: &NewSnapshot, refusal: Refusal) -> Error {
    let Refusal { node, pool, why } = refusal;
    Error::Refused {
        volume: wanted.source_volume.clone(),
        node,
        advice: advice(why.reason, &pool),
        why,
    }
}
