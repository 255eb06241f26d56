//! Metrics of kubelet and of Cistern's components, in the format that Prometheus scrapes.

use kube::ResourceExt as _;

use super::{Cluster, NAMESPACE, PATIENCE};
use crate::eventually;

impl Cluster {
    /// Waits until the metrics of a node's agent contain this line.
    pub async fn agent_shows(&self, node: &str, line: &str) {
        eventually(
            &format!("the agent of {node} to show {line}"),
            PATIENCE,
            async || {
                let agents = self.component("node").await;
                let agent = agents.get(node).ok_or("it has no pod")?.name_any();
                let path =
                    format!("/api/v1/namespaces/{NAMESPACE}/pods/{agent}:9808/proxy/metrics");
                self.shows(&path, line).await
            },
        )
        .await;
    }

    /// Waits until the metrics of a node's kubelet contain this line.
    pub async fn kubelet_shows(&self, node: &str, line: &str) {
        eventually(
            &format!("the kubelet of {node} to show {line}"),
            PATIENCE,
            async || {
                let path = format!("/api/v1/nodes/{node}/proxy/metrics");
                self.shows(&path, line).await
            },
        )
        .await;
    }

    /// Returns the size in bytes that kubelet last read from the driver for the volume of a claim.
    pub async fn volume_capacity(
        &self,
        node: &str,
        namespace: &str,
        claim: &str,
    ) -> Result<f64, String> {
        let series = format!(
            "kubelet_volume_stats_capacity_bytes{{namespace=\"{namespace}\",persistentvolumeclaim=\"{claim}\"}} "
        );
        let path = format!("/api/v1/nodes/{node}/proxy/metrics");
        let text = self.scrape(&path).await?;
        let value = text.lines().find_map(|line| line.strip_prefix(&series));
        let value = value.ok_or_else(|| format!("no {series}"))?;
        value.parse().map_err(|error| format!("{value}: {error}"))
    }

    async fn scrape(&self, path: &str) -> Result<String, String> {
        let request = http::Request::get(path).body(Vec::new());
        let request = request.expect("the path is one of a URL");
        let text = self.client().request_text(request).await;
        text.map_err(|error| error.to_string())
    }

    /// Returns whether this line exists; otherwise an error with the lines of the same metric.
    async fn shows(&self, path: &str, line: &str) -> Result<(), String> {
        let text = self.scrape(path).await?;
        if text.lines().any(|found| found == line) {
            return Ok(());
        }
        let metric = line.split(['{', ' ']).next().unwrap_or(line);
        let same: Vec<&str> = text
            .lines()
            .filter(|found| found.starts_with(metric))
            .collect();
        Err(same.join("\n"))
    }
}
