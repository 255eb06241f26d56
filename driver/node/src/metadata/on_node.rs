//! The snapshots of one node, read from its pools.

use std::{sync::Arc, time::Duration};

use cistern_crds::{PoolSnapshot, names};
use futures::{FutureExt as _, future::BoxFuture};
use kube::{Api, Client};
use tokio::time::timeout;

use super::{Error, NotReady, Snapshot, Snapshots, Walk};
use crate::{
    agent::{Agent, desired::readable, pools::Usable},
    image::SNAPSHOTS,
};

/// How long a call waits for the first reconcile of the pools after a start, and for the API server.
const PATIENCE: Duration = Duration::from_secs(10);

/// The snapshots of one node.
#[derive(Debug)]
pub struct OnNode {
    agent: Arc<Agent>,
    objects: Api<PoolSnapshot>,
}

impl OnNode {
    /// The snapshots of an agent.
    pub fn new(agent: Arc<Agent>, client: Client) -> Self {
        Self {
            agent,
            objects: Api::all(client),
        }
    }

    /// Reads a snapshot from the API server: it may be newer than the watch, or on another node.
    async fn fetch(&self, id: &str) -> Result<Snapshot, Error> {
        let silent = |source: Box<dyn std::error::Error + Send + Sync>| Error::Api {
            snapshot: id.to_owned(),
            source,
        };
        let fetched = timeout(PATIENCE, self.objects.get_opt(id))
            .await
            .map_err(|elapsed| silent(elapsed.into()))?
            .map_err(|error| silent(error.into()))?;
        match fetched {
            Some(object) if object.spec.node_name == self.agent.node.name => {
                Snapshot::read(&object)
            }
            elsewhere => Err(Error::NotFound {
                snapshot: id.to_owned(),
                node: elsewhere.map(|object| object.spec.node_name),
            }),
        }
    }
}

impl Snapshots for OnNode {
    fn find<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Snapshot, Error>> {
        let found = async move {
            if !names::is_id(id) {
                return Err(Error::NotFound {
                    snapshot: id.to_owned(),
                    node: None,
                });
            }
            if timeout(PATIENCE, self.agent.pools.reconciled())
                .await
                .is_err()
            {
                return Err(Error::NotReady {
                    snapshot: id.to_owned(),
                    why: NotReady::Starting,
                });
            }
            let known = self.agent.desired.snapshot(id);
            match known
                .as_ref()
                .and_then(|known| readable(known))
                .map(Snapshot::read)
            {
                Some(Ok(snapshot)) => Ok(snapshot),
                Some(Err(_)) | None => self.fetch(id).await,
            }
        };
        found.boxed()
    }

    fn walk(&self, base: Option<&Snapshot>, target: &Snapshot, from: u64) -> Result<Walk, Error> {
        let found = self.agent.pools.usable(&target.pool);
        let (_, Usable { pool, .. }) = found.map_err(|unavailable| Error::NotReady {
            snapshot: target.id.clone(),
            why: unavailable.into(),
        })?;
        let pool = pool.images_for(SNAPSHOTS)?;
        let changes = match base {
            Some(base) => pool.changes(&base.image, &target.image, from)?,
            None => pool.allocated(&target.image, from)?,
        };
        Ok(Box::new(changes))
    }
}
