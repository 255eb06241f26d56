//! One round: makes pods, waits until all are ready, deletes them, and waits until nothing of them is left.

use std::time::{Duration, Instant};

use cistern_crds::{Bytes, PoolVolume};
use cistern_e2e::{
    Test,
    cluster::objects::{claim_spec, pod_spec},
    eventually,
};
use futures::{StreamExt as _, future, stream};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::{
    Api, Resource,
    api::{DeleteParams, ListParams},
    runtime::{WatchStreamExt as _, watcher},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::timeline::{Moments, State, Timeline};

/// How long all pods of a round may take.
const PATIENCE: Duration = Duration::from_mins(10);
/// Requests that make pods and claims at the same time.
const REQUESTS: usize = 16;
/// Each pod sleeps, and is ready as soon as it runs.
const SCRIPT: &str = "trap 'exit 0' TERM; sleep 3600 & wait";

/// What the pods of a round mount.
pub(crate) enum Contents {
    Nothing,
    /// A volume of a claim of this class.
    Volume {
        class: String,
    },
}

/// The result of a round.
pub(crate) struct Round {
    pub(crate) pods: Vec<Moments>,
    /// Seconds until all pods were ready.
    pub(crate) ready: f64,
    /// Seconds until all pods, claims and volumes were gone.
    pub(crate) deleted: f64,
}

/// Measures `count` pods, whose names begin with `name`.
pub(crate) async fn measure(test: &Test, name: &str, count: usize, contents: &Contents) -> Round {
    let timeline = Timeline::default();
    let watches = future::join4(
        timeline.pods(shown(test.namespaced::<Pod>())),
        timeline.claims(shown(test.namespaced::<PersistentVolumeClaim>())),
        timeline.volumes(shown(test.all::<PoolVolume>())),
        timeline.persistent_volumes(shown(test.all::<PersistentVolume>())),
    );
    let round = run(test, name, count, contents, &timeline);
    match future::select(Box::pin(watches), Box::pin(round)).await {
        future::Either::Left(_) => panic!("a watch has ended"),
        future::Either::Right((round, _)) => round,
    }
}

fn shown<K>(api: Api<K>) -> impl futures::Stream<Item = watcher::Result<K>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    watcher(api, watcher::Config::default()).applied_objects()
}

async fn run(
    test: &Test,
    name: &str,
    count: usize,
    contents: &Contents,
    timeline: &Timeline,
) -> Round {
    let started = Instant::now();
    let names = (0..count).map(|number| format!("{name}-{number}"));
    stream::iter(names)
        .for_each_concurrent(REQUESTS, async |pod| {
            create(test, &pod, contents).await;
            timeline.reached(&pod, State::Created);
        })
        .await;
    let prefix = format!("{name}-");
    let pods = eventually(&format!("{count} pods to be ready"), PATIENCE, async || {
        let pods = timeline.of(&prefix);
        match pods.iter().filter(|pod| pod.is_ready()).count() {
            ready if ready == count => Ok(pods),
            ready => Err(format!("{ready} are ready")),
        }
    })
    .await;
    let ready = started.elapsed().as_secs_f64();
    let deleted = delete(test).await;
    Round {
        pods,
        ready,
        deleted,
    }
}

async fn create(test: &Test, name: &str, contents: &Contents) {
    let volume = match contents {
        Contents::Nothing => json!({"emptyDir": {}}),
        Contents::Volume { class } => {
            let spec = claim_spec(class, Bytes::mib(16));
            test.object::<PersistentVolumeClaim>(name, spec).await;
            json!({"persistentVolumeClaim": {"claimName": name}})
        }
    };
    let spec: Value = pod_spec(SCRIPT, volume);
    test.object::<Pod>(name, spec).await;
}

/// Deletes all pods and claims. Returns the seconds until they and their volumes were gone.
async fn delete(test: &Test) -> f64 {
    let started = Instant::now();
    let (pods, claims): (Api<Pod>, Api<PersistentVolumeClaim>) =
        (test.namespaced(), test.namespaced());
    let (how, all) = (DeleteParams::default(), ListParams::default());
    future::try_join(
        pods.delete_collection(&how, &all),
        claims.delete_collection(&how, &all),
    )
    .await
    .expect("pods and claims can be deleted");
    let volumes: Api<PoolVolume> = test.all();
    eventually("everything to be deleted", PATIENCE, async || {
        let left = [
            left(&pods).await?,
            left(&claims).await?,
            left(&volumes).await?,
        ];
        if left == [0; 3] {
            Ok(())
        } else {
            Err(format!("{left:?} pods, claims and volumes are left"))
        }
    })
    .await;
    started.elapsed().as_secs_f64()
}

async fn left<K>(api: &Api<K>) -> Result<usize, String>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    let list = api.list_metadata(&ListParams::default()).await;
    Ok(list.map_err(|error| error.to_string())?.items.len())
}
