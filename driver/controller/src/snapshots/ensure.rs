//! Taking a snapshot, or finding it as it was taken before.
//!
//! *Invariant:* an error that the caller takes for final leaves no object behind: one that no agent
//! has admitted is withdrawn first, and one that was admitted stays and the error says so
//! ([`objects::Error::Pending`]).

use cistern_crds::{PoolSnapshot, PoolVolume, Stored as _};
use kube::ResourceExt as _;
use tokio::time::Instant;

use super::{Error, ListedSnapshot, NewSnapshot, Snapshots, advice};
use crate::{
    objects::{
        self,
        attendance::Attention,
        follow::{Outcome, Refusal},
        listing::Listed as _,
        named, not_found,
    },
    volumes::ListedVolume,
};

impl Snapshots {
    /// Makes sure that the snapshot is cut (CS-04, CS-06).
    ///
    /// When the deadline comes first, everything stays as it is and a repeat goes on with it.
    pub async fn ensure(
        &self,
        wanted: &NewSnapshot,
        deadline: Instant,
    ) -> Result<ListedSnapshot, Error> {
        let settling = async |attention: &mut _| self.settle(wanted, attention).await;
        self.objects
            .attending(&wanted.id(), deadline, settling)
            .await
    }

    async fn settle(
        &self,
        wanted: &NewSnapshot,
        attention: &mut Attention<PoolSnapshot>,
    ) -> Result<ListedSnapshot, Error> {
        // A refusal from before this call may be old: then the agent is asked once more.
        let mut asked = false;
        loop {
            let mut found = self.objects.find(attention.name()).await?;
            if found.is_none() {
                asked = true;
                found = self.create(wanted).await?;
            }
            // None: another replica was faster, so look again.
            let Some(snapshot) = found else { continue };
            if snapshot.spec.deletion_requested {
                self.objects.see_off(snapshot, attention).await?;
                continue;
            }
            if let Some(difference) = wanted.difference(&snapshot) {
                let object = named::<PoolSnapshot>(attention.name());
                return Err(objects::Error::Different { object, difference }.into());
            }
            let pool = snapshot.spec.pool_name.clone();
            match self.objects.follow(snapshot, attention).await? {
                Outcome::Ready(snapshot) => {
                    self.listing.until_shown(attention.name(), true).await;
                    return Ok(snapshot);
                }
                Outcome::Changed => {}
                Outcome::Withdraw(snapshot, refusal) => {
                    attention
                        .note("the API server to forget a snapshot that no agent has admitted");
                    let withdrawn = self.objects.withdraw(*snapshot).await?;
                    if let Some(refusal) = refusal.filter(|_| withdrawn && asked) {
                        return Err(refused(wanted, refusal, &pool));
                    }
                }
            }
        }
    }

    /// Writes the wish. None when the object is there by now.
    async fn create(&self, wanted: &NewSnapshot) -> Result<Option<PoolSnapshot>, Error> {
        let (volume, image) = self.source(wanted).await?;
        let created = self.objects.create(&wanted.of(&volume, &image)).await?;
        if let Some(snapshot) = &created {
            let (name, node) = (snapshot.name_any(), &snapshot.spec.node_name);
            tracing::info!(snapshot = name, node, "snapshot asked for");
        }
        Ok(created)
    }

    /// A volume that there can be a snapshot of, and the name of its image. One that is to go is not
    /// there.
    pub async fn volume(&self, id: &str) -> Result<(PoolVolume, String), objects::Error> {
        let found = self.volumes.find(id).await?;
        let volume = found
            .filter(|volume| !volume.spec.deletion_requested && ListedVolume::of(volume).is_some())
            .ok_or_else(|| not_found::<PoolVolume>(id))?;
        let Some(image) = volume.image().map(|image| image.uid.clone()) else {
            let object = named::<PoolVolume>(id);
            let waits_for = "its agent to say which image it has".to_owned();
            return Err(objects::Error::Pending { object, waits_for });
        };
        Ok((volume, image))
    }

    /// The same, if a snapshot of it serves the request.
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
        if let Some(unfit) = self.objects.nodes().unfit(node, pool) {
            let refusal = Refusal {
                node: node.clone(),
                reason: None,
                message: unfit.to_string(),
            };
            return Err(refused(wanted, refusal, pool));
        }
        Ok((volume, image))
    }
}

fn refused(wanted: &NewSnapshot, refusal: Refusal, pool: &str) -> Error {
    let Refusal {
        node,
        reason,
        message,
    } = refusal;
    Error::Refused {
        volume: wanted.source_volume.clone(),
        node,
        reason,
        message,
        advice: advice(reason, pool),
    }
}
