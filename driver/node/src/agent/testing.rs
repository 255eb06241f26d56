//! Agents for tests.

use std::{convert::Infallible, future::pending, sync::Arc};

use chrono::Utc;
use cistern_crds::PoolVolume;
use cistern_host::{Linux, Root};
use cistern_transfer::KeyPair;
use http::{Request, Response};
use kube::{
    Client,
    client::Body,
    runtime::reflector::{self, store::Writer},
};
use tower::service_fn;

use super::{Agent, desired::Guarded};

/// A client whose requests are never answered.
pub(super) fn silent_client() -> Client {
    let api_server = |_: Request<Body>| pending::<Result<Response<Body>, Infallible>>();
    Client::new(service_fn(api_server), "default")
}

/// The agent of `node-1`, which gets no answer from the API server, and the watch of its volumes.
pub(super) fn watched_agent() -> (Agent, Writer<Guarded<PoolVolume>>) {
    let root = Root::new("/nowhere", Arc::new(Linux::new("/nowhere")));
    let keys = KeyPair::generate().unwrap();
    let (mut agent, _) = Agent::new(&silent_client(), "node-1", root, keys, Utc::now);
    let (volumes, watch) = reflector::store();
    agent.desired.volumes = volumes;
    (agent, watch)
}
