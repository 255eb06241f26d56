//! Waits until problems of pools and volumes are reported in conditions, CSI calls, events and metrics.

use cistern_crds::{
    ConditionType, PoolVolume, StorageNode, StoragePool,
    condition::{self, Condition},
    health::Problem,
};
use cistern_e2e::{Test, cluster::PATIENCE, eventually};
use cistern_proto::csi::v1::{
    ControllerGetVolumeHealthRequest, ControllerGetVolumeRequest, NodeGetStorageHealthRequest,
    NodeGetVolumeHealthRequest, VolumeHealth, controller_client::ControllerClient,
    node_client::NodeClient,
};

use super::Patient;

/// Reason of the condition `Healthy` without problems.
pub(super) const HEALTHY: &str = "Reconciled";

impl Patient {
    /// Waits until the volume, the driver on its node, and the controller report this reason, or that the
    /// volume is healthy.
    pub(super) async fn volume_is(&self, test: &Test, reason: &str) {
        let volumes = test.all::<PoolVolume>();
        let what = format!("the volume to be {reason}");
        eventually(&what, PATIENCE, async || {
            let volume = volumes.get(&self.volume).await;
            let status = volume.map_err(|error| error.to_string())?.status;
            let status = status.unwrap_or_default();
            is(&status.conditions, &status.problems, &[reason])
        })
        .await;
        eventually(&what, PATIENCE, async || {
            says_so(&self.by_node().await?, reason)
        })
        .await;
        eventually(&what, PATIENCE, async || {
            let (reported, is_abnormal) = self.by_controller(test).await?;
            says_so(&reported, reason)?;
            if is_abnormal == (reason != HEALTHY) {
                return Ok(());
            }
            Err(format!("VOLUME_CONDITION: abnormal={is_abnormal}"))
        })
        .await;
    }

    /// Returns the health that the driver on the node reports.
    async fn by_node(&self) -> Result<VolumeHealth, String> {
        let request = NodeGetVolumeHealthRequest {
            volume_id: self.volume.clone(),
            ..NodeGetVolumeHealthRequest::default()
        };
        let mut driver = NodeClient::new(self.harness.csi(&self.node).await?);
        let reported = driver.node_get_volume_health(request).await;
        let reported = reported.map_err(|status| status.to_string())?.into_inner();
        reported
            .volume_health
            .ok_or_else(|| "it has no health".into())
    }

    /// Returns the health that a controller reports, and whether the VolumeCondition of CSI 1.12 is abnormal.
    async fn by_controller(&self, test: &Test) -> Result<(VolumeHealth, bool), String> {
        let volume_id = self.volume.clone();
        let channel = self.harness.csi_of_controller(&test.cluster).await?;
        let mut driver = ControllerClient::new(channel);
        let request = ControllerGetVolumeHealthRequest {
            volume_id: volume_id.clone(),
            ..ControllerGetVolumeHealthRequest::default()
        };
        let reported = driver.controller_get_volume_health(request).await;
        let reported = reported.map_err(|status| status.to_string())?.into_inner();
        let request = ControllerGetVolumeRequest { volume_id };
        let volume = driver.controller_get_volume(request).await;
        let volume = volume.map_err(|status| status.to_string())?.into_inner();
        let condition = volume.status.and_then(|status| status.volume_condition);
        let condition = condition.ok_or("it has no VolumeCondition")?;
        let reported = reported.volume_health.ok_or("it has no health")?;
        Ok((reported, condition.abnormal))
    }

    /// Waits until the pool on its node, the driver there, the node, and the StoragePool report one of these
    /// reasons, or that they are healthy.
    pub(super) async fn pool_is(&self, test: &Test, reasons: &[&str]) {
        let (nodes, pools) = (test.all::<StorageNode>(), test.all::<StoragePool>());
        let healthy = reasons == [HEALTHY];
        let what = format!("the pool on its node to be {reasons:?}");
        eventually(&what, PATIENCE, async || {
            let node = nodes.get(&self.node).await;
            let status = node.map_err(|error| error.to_string())?.status;
            let mut pools = status.unwrap_or_default().pools.into_iter();
            let pool = pools.find(|pool| pool.name == self.pool);
            let pool = pool.ok_or("the node has no such pool")?;
            is(&pool.conditions, &pool.problems, reasons)
        })
        .await;
        eventually(&what, PATIENCE, async || {
            let mut driver = NodeClient::new(self.harness.csi(&self.node).await?);
            let reported = driver.node_get_storage_health(NodeGetStorageHealthRequest::default());
            let reported = reported
                .await
                .map_err(|status| status.to_string())?
                .into_inner();
            let all = reported.backend_health.iter();
            let mut ours = all.filter(|entry| entry.message.contains(&self.pool));
            let fits = if healthy {
                ours.next().is_none()
            } else {
                ours.any(|entry| reasons.contains(&entry.reason.as_str()))
            };
            if fits {
                return Ok(());
            }
            Err(format!("{reported:?}"))
        })
        .await;
        eventually("the node and the pool to report it", PATIENCE, async || {
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

    /// Waits until the claim and the pod have this event, the agent's metrics have this state, and kubelet
    /// reports it in an event of the pod and in its own metric.
    pub(super) async fn volume_is_reported(&self, test: &Test, event: &str, state: &str) {
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

    /// Waits until StoragePool and StorageNode have this event, and the agent's metrics have this state.
    pub(super) async fn pool_is_reported(&self, test: &Test, event: &str, state: &str) {
        let Self { node, pool, .. } = self;
        test.event("StoragePool", pool, &[event]).await;
        test.event("StorageNode", node, &[event, pool]).await;
        let line =
            format!("cistern_pool_health{{node=\"{node}\",pool=\"{pool}\",state=\"{state}\"}} 1");
        test.cluster.agent_shows(node, &line).await;
    }

    /// Waits until the recovery of the volume is reported in conditions, an event and kubelet's metric.
    pub(super) async fn volume_has_recovered(&self, test: &Test) {
        self.volume_is(test, HEALTHY).await;
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

/// Checks that the driver reports this reason, or none if healthy.
fn says_so(health: &VolumeHealth, reason: &str) -> Result<(), String> {
    let reported = &health.health_statuses;
    let mut reasons = reported.iter().map(|entry| &entry.reason);
    match reason {
        HEALTHY if reported.is_empty() => Ok(()),
        _ if reasons.any(|reported| reported == reason) => Ok(()),
        _ => Err(format!("{reported:?}")),
    }
}

/// Checks that the problems include one of these reasons, and that `Healthy` agrees.
fn is<Severity: std::fmt::Debug>(
    conditions: &[Condition],
    problems: &[Problem<Severity>],
    reasons: &[&str],
) -> Result<(), String> {
    let healthy = reasons == [HEALTHY];
    let mut reported = problems.iter().map(|problem| problem.reason.as_str());
    let fits = if healthy {
        reported.next().is_none()
    } else {
        reported.any(|reason| reasons.contains(&reason))
    };
    if !fits {
        return Err(format!("{problems:?}"));
    }
    says(conditions, healthy)
}

/// Checks the status of `Healthy`.
fn says(conditions: &[Condition], healthy: bool) -> Result<(), String> {
    let expected = if healthy { "True" } else { "False" };
    match condition::find(conditions, ConditionType::Healthy) {
        Some(found) if found.status == expected => Ok(()),
        other => Err(format!("{other:?}")),
    }
}
