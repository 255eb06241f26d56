//! ListVolumes with very many volumes, beside the API server's own list of them, and the memory that the
//! controller needs for its cache.

use std::time::Instant;

use cistern_crds::PoolVolume;
use cistern_e2e::{
    ControlPlane, Replica,
    measure::{self, milliseconds, percentile},
    objects,
};
use cistern_proto::csi::v1::ListVolumesRequest;
use futures::{StreamExt as _, stream};
use kube::{Api, api::ListParams};

use crate::{Figure, POOL};

const VOLUMES: usize = 10_000;
const PAGE: u32 = 100;
/// Number of concurrent writers.
const WRITERS: usize = 16;

/// Creates the objects of very many volumes, starts a controller with an empty cache, and reads all pages of its list.
pub(crate) async fn figures(control_plane: &ControlPlane) -> Vec<Figure> {
    let api: Api<PoolVolume> = Api::all(control_plane.client());
    stream::iter(0..VOLUMES)
        .for_each_concurrent(WRITERS, async |number| add(&api, number).await)
        .await;
    // Its first list is the same as a relist: all objects arrive together.
    let mut replica = Replica::start(control_plane).await;
    let ours = pages(&replica).await;
    let beside = bare_pages(&api).await;
    let process = replica.service().process().id();
    let [steady, peak] = [measure::resident(process), measure::peak(process)];
    replica.service().stop().await;
    let [ours, beside] = [ours, beside].map(|samples| percentile(&samples, 50));
    vec![
        Figure {
            what: format!("ListVolumes, {PAGE} of {VOLUMES}, p50"),
            ours: format!("{ours:.1} ms"),
            beside: format!("a page from the API server {beside:.1} ms"),
            ratio: Some(ours / beside),
            aim: "",
        },
        Figure {
            what: format!("controller with {VOLUMES} volumes"),
            ours: format!("{steady:.0} MiB"),
            beside: format!("at the first list {peak:.0} MiB"),
            ratio: Some(steady / peak),
            aim: "<= 40, <= 64 MiB",
        },
    ]
}

/// Creates a volume that is ready, on a node without an agent.
async fn add(api: &Api<PoolVolume>, number: usize) {
    let name = format!("pvc-{number:08}-0000-4000-8000-000000000000");
    let node = format!("node-{}", number % 100);
    objects::create_ready_volume(api, &name, (&node, POOL), number).await;
}

/// Milliseconds of each page of the controller's list.
async fn pages(replica: &Replica) -> Vec<f64> {
    let mut client = replica.client().await;
    let (mut samples, mut listed) = (Vec::new(), 0);
    let mut request = ListVolumesRequest {
        max_entries: i32::try_from(PAGE).expect("a hundred"),
        starting_token: String::new(),
    };
    loop {
        let started = Instant::now();
        let page = client.list_volumes(request.clone()).await;
        samples.push(milliseconds(started));
        let page = page.expect("the token is its own").into_inner();
        listed += page.entries.len();
        if page.next_token.is_empty() {
            break;
        }
        request.starting_token = page.next_token;
    }
    assert!(listed >= VOLUMES, "{listed} are listed");
    samples
}

/// Milliseconds of each page of the API server's list.
async fn bare_pages(api: &Api<PoolVolume>) -> Vec<f64> {
    let mut samples = Vec::new();
    let mut parameters = ListParams::default().limit(PAGE);
    loop {
        let started = Instant::now();
        let page = api.list(&parameters).await.expect("it answers");
        samples.push(milliseconds(started));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            None => return samples,
            Some(token) => parameters = parameters.continue_token(&token),
        }
    }
}
