//! Creates, for a test, the objects that users of Cistern write.

use cistern_crds::{Bytes, PoolVolume, StorageNode, StoragePool, names};
use k8s_openapi::api::{
    core::v1::{Event, Node, PersistentVolumeClaim, Pod},
    storage::v1::{StorageClass, VolumeAttributesClass},
};
use kube::{
    Api, Resource,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{PATIENCE, PODS_FORGOTTEN, TEST_LABEL, Test};
use crate::{eventually, gone};

/// The volume binding mode of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// The volume is created when it is claimed.
    Immediate,
    /// The volume is created when a pod uses its claim.
    WaitForFirstConsumer,
}

/// Appends the numbers 1, 2, 3 … to `/data/log` and syncs each before the next. Continues where an earlier pod
/// stopped, and notes before the first write what it found: otherwise it would write lost numbers again, and the
/// log would look complete. Ends when a read or a write fails.
pub const WRITER: &str = "n=0; if [ -s /data/log ]; then n=$(tail -n 1 /data/log) || exit 1; fi
echo $n > /found
while echo $((n += 1)) >> /data/log && sync -d /data/log; do sleep 0.1; done; exit 1";

impl Test {
    /// Creates a pool of image files on some nodes and waits until it is ready on all of them.
    pub async fn pool(&self, name: &str, size: Bytes, nodes: &[&str]) -> String {
        let source = json!({"image": {"size": size.to_string()}});
        self.pool_from(name, source, nodes).await
    }

    /// Creates a pool as [`Self::pool`] does, with any source.
    pub async fn pool_from(&self, name: &str, source: Value, nodes: &[&str]) -> String {
        let name = self.own(name);
        for node in nodes {
            self.add_to_pool(&name, node).await;
        }
        let spec = json!({
            "nodeSelector": {"matchLabels": {pool_label(&name): "here"}},
            "source": source,
        });
        self.create::<StoragePool>(&self.all(), &name, json!({"spec": spec}))
            .await;
        let count = u32::try_from(nodes.len()).expect("a few");
        self.pool_on(&name, count).await;
        name
    }

    /// Waits until the pool is ready on exactly that many nodes.
    pub async fn pool_on(&self, name: &str, nodes: u32) -> StoragePool {
        let pools: Api<StoragePool> = self.all();
        let what = format!("pool {name} to be ready on {nodes} nodes");
        eventually(&what, PATIENCE, async || {
            let pool = pools.get(name).await.map_err(|error| error.to_string())?;
            match &pool.status {
                Some(status) if (status.nodes, status.nodes_ready) == (nodes, nodes) => Ok(pool),
                status => Err(format!("{status:?}")),
            }
        })
        .await
    }

    /// Waits until the node's status reports this sum in the pool's ledger. The node reports it later than the
    /// volumes' statuses.
    pub async fn ledger_holds(&self, node: &str, pool: &str, sum: Bytes) {
        let nodes: Api<StorageNode> = self.all();
        let what = format!("the ledger of {node} to hold {sum} for {pool}");
        eventually(&what, PATIENCE, async || {
            let node = nodes.get(node).await.map_err(|error| error.to_string())?;
            let pools = node.status.unwrap_or_default().pools;
            match pools.into_iter().find(|on_node| on_node.name == pool) {
                Some(on_node) if on_node.reserved == sum => Ok(()),
                other => Err(format!("{:?}", other.map(|on_node| on_node.reserved))),
            }
        })
        .await;
    }

    /// Labels the node so that the pool's selector matches it.
    pub async fn add_to_pool(&self, pool: &str, node: &str) {
        self.label(node, pool, json!("here")).await;
    }

    /// Removes the label, so that the pool's selector no longer matches the node.
    pub async fn remove_from_pool(&self, pool: &str, node: &str) {
        self.label(node, pool, Value::Null).await;
    }

    async fn label(&self, node: &str, pool: &str, value: Value) {
        let nodes: Api<Node> = self.all();
        let patch = json!({"metadata": {"labels": {pool_label(pool): value}}});
        nodes
            .patch(node, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .expect("nodes can be labelled");
    }

    /// Creates a StorageClass for a pool, with additional parameters.
    pub async fn class(
        &self,
        name: &str,
        pool: &str,
        binding: Binding,
        parameters: &[(&str, &str)],
    ) -> String {
        let mut all = json!({"pool": pool});
        for (key, value) in parameters {
            all[key] = json!(value);
        }
        self.class_of(name, binding, all).await
    }

    /// Creates a StorageClass with exactly these parameters.
    pub async fn class_of(&self, name: &str, binding: Binding, parameters: Value) -> String {
        let name = self.own(name);
        let content = json!({
            "provisioner": names::DRIVER,
            "allowVolumeExpansion": true,
            "volumeBindingMode": format!("{binding:?}"),
            "parameters": parameters,
        });
        self.create::<StorageClass>(&self.all(), &name, content)
            .await;
        name
    }

    /// Creates a VolumeAttributesClass.
    pub async fn attributes_class(&self, name: &str, parameters: Value) -> String {
        let name = self.own(name);
        let content = json!({"driverName": names::DRIVER, "parameters": parameters});
        self.create::<VolumeAttributesClass>(&self.all(), &name, content)
            .await;
        name
    }

    /// Creates a claim.
    pub async fn claim(&self, name: &str, class: &str, size: Bytes) -> PersistentVolumeClaim {
        self.object(name, claim_spec(class, size)).await
    }

    /// Creates a claim with a given access mode.
    pub async fn claim_in(
        &self,
        access_mode: &str,
        name: &str,
        class: &str,
        size: Bytes,
    ) -> PersistentVolumeClaim {
        let mut spec = claim_spec(class, size);
        spec["accessModes"] = json!([access_mode]);
        self.object(name, spec).await
    }

    /// Creates a claim of a raw block volume.
    pub async fn block_claim(&self, name: &str, class: &str, size: Bytes) -> PersistentVolumeClaim {
        let mut spec = claim_spec(class, size);
        spec["volumeMode"] = json!("Block");
        self.object(name, spec).await
    }

    /// Creates an object with this spec in the test's namespace.
    pub async fn object<K>(&self, name: &str, spec: Value) -> K
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + serde::Serialize
            + std::fmt::Debug,
    {
        self.create(&self.namespaced(), name, json!({"spec": spec}))
            .await
    }

    /// Creates a pod that writes endlessly to the volume of a claim, on any node.
    pub async fn writer(&self, name: &str, claim: &str) -> Pod {
        self.pod(name, claim, WRITER, json!({})).await
    }

    /// Creates a writer that keeps running when a write fails.
    pub async fn lasting_writer(&self, name: &str, claim: &str) -> Pod {
        let script = format!("({WRITER}) || sleep 3600");
        self.pod(name, claim, &script, json!({})).await
    }

    /// Creates a pod that runs a shell script with a claim's volume at `/data`.
    pub async fn pod(&self, name: &str, claim: &str, script: &str, node_selector: Value) -> Pod {
        let volume = json!({"persistentVolumeClaim": {"claimName": claim}});
        let mut spec = pod_spec(script, volume);
        spec["nodeSelector"] = node_selector;
        self.object(name, spec).await
    }

    /// Creates an idle pod with the device of a claim at `/dev/data`, and waits until it runs.
    pub async fn device_pod(&self, name: &str, claim: &str) {
        let spec = device_pod_spec(&json!({"claimName": claim}));
        self.object::<Pod>(name, spec).await;
        self.running(name).await;
    }

    /// Runs a shell script in a pod.
    pub async fn shell(&self, pod: &str, script: &str) -> Result<String, String> {
        let command = ["sh", "-euc", script];
        self.cluster
            .exec(&self.namespace, pod, "main", &command)
            .await
    }

    /// Waits until the pod runs and returns the name of its node.
    pub async fn running(&self, pod: &str) -> String {
        let pods: Api<Pod> = self.namespaced();
        eventually(&format!("pod {pod} to run"), PATIENCE, async || {
            let pod = pods.get(pod).await.map_err(|error| error.to_string())?;
            let node = pod.spec.and_then(|spec| spec.node_name);
            match (pod.status.as_ref().and_then(|s| s.phase.as_deref()), node) {
                (Some("Running"), Some(node)) => Ok(node),
                _ => Err(format!("{:?}", pod.status)),
            }
        })
        .await
    }

    /// Waits until the claim is bound and returns the PoolVolume.
    pub async fn bound(&self, claim: &str) -> PoolVolume {
        let claims: Api<PersistentVolumeClaim> = self.namespaced();
        let volume = eventually(
            &format!("claim {claim} to be bound"),
            PATIENCE,
            async || {
                let claim = claims.get(claim).await.map_err(|error| error.to_string())?;
                let volume = claim.spec.and_then(|spec| spec.volume_name);
                match (
                    claim.status.as_ref().and_then(|s| s.phase.as_deref()),
                    volume,
                ) {
                    (Some("Bound"), Some(volume)) => Ok(volume),
                    _ => Err(format!("{:?}", claim.status)),
                }
            },
        )
        .await;
        // The PersistentVolume, the CSI volume and the PoolVolume share one name.
        self.all::<PoolVolume>()
            .get(&volume)
            .await
            .expect("a bound claim has a PoolVolume")
    }

    /// Deletes an object and waits until it is gone.
    pub async fn delete<K>(&self, api: &Api<K>, name: &str)
    where
        K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
    {
        api.delete(name, &DeleteParams::default())
            .await
            .unwrap_or_else(|error| panic!("deleting {name}: {error}"));
        self.gone(api, name).await;
    }

    /// Waits until an object is gone.
    pub async fn gone<K>(&self, api: &Api<K>, name: &str)
    where
        K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
    {
        gone(api, name, PATIENCE).await;
    }

    /// Waits until Kubernetes has forgotten a pod whose Node is deleted.
    pub async fn pod_forgotten(&self, name: &str) {
        gone(&self.namespaced::<Pod>(), name, PODS_FORGOTTEN).await;
    }

    /// Waits for an event about an object that contains all of these strings, and returns its reason and message.
    pub async fn event(&self, kind: &str, object: &str, says: &[&str]) -> String {
        // Events about cluster-scoped objects are in the namespace `default`.
        let events: Api<Event> = Api::all(self.cluster.client());
        let about = format!("involvedObject.kind={kind},involvedObject.name={object}");
        let what = format!("an event about {kind} {object} that says {says:?}");
        eventually(&what, PATIENCE, async || {
            let list = events
                .list(&ListParams::default().fields(&about))
                .await
                .map_err(|error| error.to_string())?;
            let text = |event: Event| {
                let (reason, message) = (event.reason, event.message);
                let text = [reason.unwrap_or_default(), message.unwrap_or_default()];
                text.join(": ")
            };
            let events: Vec<String> = list.into_iter().map(text).collect();
            let fits = |event: &&String| says.iter().all(|part| event.contains(part));
            match events.iter().find(fits) {
                Some(event) => Ok(event.clone()),
                None => Err(format!("{events:#?}")),
            }
        })
        .await
    }

    /// Counts the numbers that writers have written.
    ///
    /// # Panics
    /// When a number is missing, because data was lost.
    pub async fn written(&self, pod: &str) -> u64 {
        self.count_written(pod)
            .await
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Waits until the writer pod has written more.
    pub async fn writes_go_on(&self, pod: &str) -> u64 {
        let mut before = None;
        eventually(&format!("{pod} to go on writing"), PATIENCE, async || {
            // While kubelet restarts, exec fails.
            let now = self.count_written(pod).await?;
            match *before.get_or_insert(now) {
                before if now > before + 3 => Ok(now),
                before => Err(format!("{now} numbers written, {before} before")),
            }
        })
        .await
    }

    /// Waits until a writer pod has written more on the volume of an earlier one, or on a copy of it.
    ///
    /// # Panics
    /// When it did not find all numbers that were acknowledged before: `counted` is how many the earlier pod had written.
    pub async fn writes_go_on_after(&self, pod: &str, counted: u64) -> u64 {
        let what = format!("{pod} to note what it found");
        let found = eventually(&what, PATIENCE, async || {
            let noted = self.shell(pod, "cat /found").await?;
            noted
                .trim()
                .parse::<u64>()
                .map_err(|_| format!("it has noted {noted:?}"))
        })
        .await;
        // The last number that was counted may not have been synced.
        assert!(
            found + 1 >= counted,
            "{pod} found {found} of the {counted} numbers that were written before it: acknowledged writes are lost"
        );
        self.writes_go_on(pod).await
    }

    async fn count_written(&self, pod: &str) -> Result<u64, String> {
        let command = ["cat", "/data/log"];
        let log = self
            .cluster
            .exec(&self.namespace, pod, "main", &command)
            .await?;
        // The last line may be incomplete.
        let complete = log.rsplit_once('\n').map_or("", |(complete, _)| complete);
        let mut count = 0;
        for line in complete.lines() {
            count += 1;
            assert_eq!(line, count.to_string(), "the log of {pod} is damaged");
        }
        Ok(count)
    }

    /// Returns an API of the test's namespace.
    pub fn namespaced<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        Api::namespaced(self.cluster.client(), &self.namespace)
    }

    /// Returns an API of cluster-scoped objects.
    pub fn all<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = kube::core::ClusterResourceScope>,
    {
        Api::all(self.cluster.client())
    }

    async fn create<K>(&self, api: &Api<K>, name: &str, mut content: Value) -> K
    where
        K: Resource<DynamicType = ()>
            + Clone
            + DeserializeOwned
            + serde::Serialize
            + std::fmt::Debug,
    {
        content["apiVersion"] = json!(K::api_version(&()));
        content["kind"] = json!(K::kind(&()));
        content["metadata"] = json!({"name": name, "labels": {TEST_LABEL: self.name}});
        let object = serde_json::from_value(content).expect("the content fits the kind");
        api.create(&PostParams::default(), &object)
            .await
            .unwrap_or_else(|error| panic!("creating {} {name}: {error}", K::kind(&())))
    }
}

/// Returns the spec of a claim of a `ReadWriteOnce` volume with a filesystem.
pub fn claim_spec(class: &str, size: Bytes) -> Value {
    json!({
        "storageClassName": class,
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": size.to_string()}},
    })
}

/// Returns the spec of a pod that runs a shell script with a volume at `/data`.
pub fn pod_spec(script: &str, mut volume: Value) -> Value {
    volume["name"] = json!("data");
    json!({
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [{
            "name": "main",
            "image": "busybox:1.37",
            "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", script],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        }],
        "volumes": [volume],
    })
}

/// Returns the spec of an idle pod with the device of a claim at `/dev/data`.
pub fn device_pod_spec(claim: &Value) -> Value {
    let mut spec = pod_spec("sleep 3600", json!({"persistentVolumeClaim": claim}));
    let container = &mut spec["containers"][0];
    container["volumeMounts"] = json!([]);
    container["volumeDevices"] = json!([{"name": "data", "devicePath": "/dev/data"}]);
    spec
}

/// Returns the label that adds a node to a test's pool.
pub(super) fn pool_label(pool: &str) -> String {
    format!("e2e.cistern.storage/{pool}")
}
