//! Who is told of what is wrong with a pool or volume, and in which words.

use std::time::Duration;

use cistern_crds::{
    ConditionType, PoolVolume, StorageNode, StoragePool,
    condition::{self, Condition},
    health::Problem,
};
use cistern_e2e::{Test, eventually};
use cistern_proto::csi::v1::{
    ControllerGetVolumeHealthRequest, ControllerGetVolumeRequest, NodeGetStorageHealthRequest,
    NodeGetVolumeHealthRequest, VolumeHealth, controller_client::ControllerClient,
    node_client::NodeClient,
};

use super::Patient;

/// A cluster of the harness is looked at every five seconds. A disk that hangs is told of after the
/// second look that was not answered, what is over after the second that is good, and a busy machine
/// may be late.
const SOON: Duration = Duration::from_secs(45);
/// The reason of `Healthy` where nothing is wrong.
pub(super) const WELL: &str = "AsDesired";

impl Patient {
    /// Waits until the volume says why it is not healthy, or that it is; and the driver on its node
    /// and the controller say the same.
    pub(super) async fn volume_is(&self, test: &Test, reason: &str) {
        let volumes = test.all::<PoolVolume>();
        let what = format!("the volume to be {reason}");
        eventually(&what, SOON, async || {
            let volume = volumes.get(&self.volume).await;
            let status = volume.map_err(|error| error.to_string())?.status;
            let status = status.unwrap_or_default();
            is(&status.conditions, &status.problems, &[reason])
        })
        .await;
        eventually(&what, SOON, async || {
            says_so(&self.by_node().await?, reason)
        })
        .await;
        eventually(&what, SOON, async || {
            let (told, is_abnormal) = self.by_controller(test).await?;
            says_so(&told, reason)?;
            if is_abnormal == (reason != WELL) {
                return Ok(());
            }
            Err(format!("VOLUME_CONDITION: abnormal={is_abnormal}"))
        })
        .await;
    }

    /// What the driver says of the volume on its node.
    async fn by_node(&self) -> Result<VolumeHealth, String> {
        let request = NodeGetVolumeHealthRequest {
            volume_id: self.volume.clone(),
            ..NodeGetVolumeHealthRequest::default()
        };
        let mut driver = NodeClient::new(self.harness.csi(&self.node).await?);
        let told = driver.node_get_volume_health(request).await;
        let told = told.map_err(|status| status.to_string())?.into_inner();
        told.volume_health.ok_or_else(|| "it says nothing".into())
    }

    /// What a controller says of it, and whether it is abnormal in the words of CSI 1.12.
    async fn by_controller(&self, test: &Test) -> Result<(VolumeHealth, bool), String> {
        let volume_id = self.volume.clone();
        let channel = self.harness.csi_of_controller(&test.cluster).await?;
        let mut driver = ControllerClient::new(channel);
        let request = ControllerGetVolumeHealthRequest {
            volume_id: volume_id.clone(),
            ..ControllerGetVolumeHealthRequest::default()
        };
        let told = driver.controller_get_volume_health(request).await;
        let told = told.map_err(|status| status.to_string())?.into_inner();
        let request = ControllerGetVolumeRequest { volume_id };
        let volume = driver.controller_get_volume(request).await;
        let volume = volume.map_err(|status| status.to_string())?.into_inner();
        let condition = volume.status.and_then(|status| status.volume_condition);
        let condition = condition.ok_or("it has no VolumeCondition")?;
        let told = told.volume_health.ok_or("it says nothing")?;
        Ok((told, condition.abnormal))
    }

    /// Waits until the pool on its node, the driver there, the node, and the pool as a whole say why
    /// they are not healthy, by any of these reasons, or that they are.
    pub(super) async fn pool_is(&self, test: &Test, reasons: &[&str]) {
        let (nodes, pools) = (test.all::<StorageNode>(), test.all::<StoragePool>());
        let healthy = reasons == [WELL];
        let what = format!("the pool on its node to be {reasons:?}");
        eventually(&what, SOON, async || {
            let node = nodes.get(&self.node).await;
            let status = node.map_err(|error| error.to_string())?.status;
            let mut pools = status.unwrap_or_default().pools.into_iter();
            let pool = pools.find(|pool| pool.name == self.pool);
            let pool = pool.ok_or("the node has no such pool")?;
            is(&pool.conditions, &pool.problems, reasons)
        })
        .await;
        eventually(&what, SOON, async || {
            let mut driver = NodeClient::new(self.harness.csi(&self.node).await?);
            let told = driver.node_get_storage_health(NodeGetStorageHealthRequest::default());
            let told = told
                .await
                .map_err(|status| status.to_string())?
                .into_inner();
            let all = told.backend_health.iter();
            let mut ours = all.filter(|entry| entry.message.contains(&self.pool));
            let fits = if healthy {
                ours.next().is_none()
            } else {
                ours.any(|entry| reasons.contains(&entry.reason.as_str()))
            };
            if fits {
                return Ok(());
            }
            Err(format!("{told:?}"))
        })
        .await;
        eventually("the node and the pool to say so", SOON, async || {
            let node = nodes.get(&self.node).await;
            let status = node.map_err(|error| error.to_string())?.status;
            let conditions = status.unwrap_or_default().conditions;
            // Pools of other tests on this node may be broken.
            match condition::find(&conditions, ConditionType::Healthy) {
                Some(of_node) if healthy && !of_node.message.contains(&self.pool) => {}
                _ => says(&conditions, healthy)?,
            }
            let pool = pools.get(&self.pool).await;
            let status = pool.map_err(|error| error.to_string())?.status;
            says(&status.unwrap_or_default().conditions, healthy)
        })
        .await;
    }

    /// Waits until the volume's claim and pod have an event of this kind, the agent's metrics tell it,
    /// and kubelet has heard of it: an event of the pod, and a metric of its own.
    pub(super) async fn volume_is_told(&self, test: &Test, event: &str, state: &str) {
        test.event("PersistentVolumeClaim", "claim", &[event]).await;
        test.event("Pod", "writer", &[event]).await;
        let heard = ["VolumeConditionAbnormal: Volume data: "];
        test.event("Pod", "writer", &heard).await;
        self.kubelet_says(test, "claim", true).await;
        let Self {
            node, pool, volume, ..
        } = self;
        let line = format!(
            "cistern_volume_health\
             {{node=\"{node}\",volume=\"{volume}\",pool=\"{pool}\",state=\"{state}\"}} 1"
        );
        test.cluster.agent_shows(node, &line).await;
    }

    /// Waits until StoragePool and StorageNode have an event of this kind, and the agent's metrics tell
    /// it.
    pub(super) async fn pool_is_told(&self, test: &Test, event: &str, state: &str) {
        let Self { node, pool, .. } = self;
        test.event("StoragePool", pool, &[event]).await;
        test.event("StorageNode", node, &[event, pool]).await;
        let line =
            format!("cistern_pool_health{{node=\"{node}\",pool=\"{pool}\",state=\"{state}\"}} 1");
        test.cluster.agent_shows(node, &line).await;
    }

    /// Waits until everybody who was told that the volume is not well has been told that it is again.
    pub(super) async fn volume_has_recovered(&self, test: &Test) {
        self.volume_is(test, WELL).await;
        test.event("PersistentVolumeClaim", "claim", &["VolumeRecovered"])
            .await;
        self.kubelet_says(test, "claim", false).await;
    }

    pub(super) async fn kubelet_says(&self, test: &Test, claim: &str, abnormal: bool) {
        let line = format!(
            "kubelet_volume_stats_health_status_abnormal\
             {{namespace=\"{}\",persistentvolumeclaim=\"{claim}\"}} {}",
            test.namespace,
            u8::from(abnormal)
        );
        test.cluster.kubelet_shows(&self.node, &line).await;
    }
}

/// Whether this is among the reasons that a driver gives, or it gives none.
fn says_so(health: &VolumeHealth, reason: &str) -> Result<(), String> {
    let told = &health.health_statuses;
    let mut reasons = told.iter().map(|entry| &entry.reason);
    match reason {
        WELL if told.is_empty() => Ok(()),
        _ if reasons.any(|told| told == reason) => Ok(()),
        _ => Err(format!("{told:?}")),
    }
}

/// Whether one of these is among the problems, and `Healthy` agrees.
fn is<Severity: std::fmt::Debug>(
    conditions: &[Condition],
    problems: &[Problem<Severity>],
    reasons: &[&str],
) -> Result<(), String> {
    let healthy = reasons == [WELL];
    let mut told = problems.iter().map(|problem| problem.reason.as_str());
    let fits = if healthy {
        told.next().is_none()
    } else {
        told.any(|reason| reasons.contains(&reason))
    };
    if !fits {
        return Err(format!("{problems:?}"));
    }
    says(conditions, healthy)
}

/// Whether `Healthy` holds, or does not.
fn says(conditions: &[Condition], healthy: bool) -> Result<(), String> {
    let expected = if healthy { "True" } else { "False" };
    match condition::find(conditions, ConditionType::Healthy) {
        Some(found) if found.status == expected => Ok(()),
        other => Err(format!("{other:?}")),
    }
}
