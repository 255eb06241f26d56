//! A real Prometheus scrapes the real processes, runs the queries of the dashboard and the expressions of
//! the alerts, and fires one alert.

use std::{collections::BTreeSet, fmt::Write as _, net::SocketAddr, time::Duration};

use cistern_e2e::{
    Folder, Process, control_plane::free_addresses, eventually, process::dying_with_us,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{
    documented,
    installed::{BROKEN_POOL, Installed, NODE},
    rules,
};

const DASHBOARD: &str = include_str!("../../../manifests/monitoring/dashboard.json");
/// Metrics and matchers that have series only during problems or copies, or for attached volumes. This installation
/// has none of these.
const WITHOUT_SERIES: [&str; 13] = [
    "cistern_operator_volume_moves",
    "cistern_operator_standby",
    "cistern_operator_gone_node_objects",
    "cistern_volume_problem",
    "cistern_volumes_not_expanded",
    "cistern_volumes_not_limited",
    "cistern_volume_copied_bytes",
    "cistern_drift",
    "cistern_volume_reads_completed_total",
    "cistern_volume_read_bytes_total",
    "cistern_volume_writes_completed_total",
    "cistern_volume_written_bytes_total",
    "code!=\"Ok\"",
];
const SOON: Duration = Duration::from_mins(5);

/// The `prometheus` of Debian on a loopback address.
struct Prometheus {
    http: SocketAddr,
    _process: Process,
    // Dropped, and so removed, after the process that writes into it.
    _folder: Folder,
}

impl Prometheus {
    /// Starts a Prometheus that scrapes every three seconds and evaluates each second. An answer of a busy machine may take as
    /// long as its interval.
    fn start(installed: &Installed) -> Self {
        let (folder, [http]) = (Folder::new(), free_addresses());
        // Shortens `for` so that alerts fire within seconds, and changes nothing else.
        let rules = std::fs::read_to_string(rules::folder().join("rules.yaml")).unwrap();
        let rules = rules
            .lines()
            .map(|line| match line.strip_prefix("    for: ") {
                Some(_) => "    for: 2s",
                None => line,
            });
        let rules = rules.collect::<Vec<_>>().join("\n");
        std::fs::write(folder.join("rules.yaml"), rules).unwrap();
        let processes = installed.processes();
        let targets = processes.map(|(_, service)| service.http().to_string());
        let config = json!({
            "global": {"scrape_interval": "3s", "scrape_timeout": "3s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [{"job_name": "cistern", "static_configs": [{"targets": targets}]}],
        });
        let file = folder.join("prometheus.yml");
        std::fs::write(&file, config.to_string()).unwrap();
        let mut command = dying_with_us("prometheus");
        command
            .arg(format!("--config.file={}", file.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                folder.join("data").display()
            ))
            .arg(format!("--web.listen-address={http}"));
        Self {
            http,
            _process: Process::start("prometheus", &folder.join("prometheus.log"), command),
            _folder: folder,
        }
    }

    /// Returns the current result of a query.
    async fn query(&self, query: &str) -> Result<Vec<Value>, String> {
        let answer = self
            .get(&format!("/api/v1/query?query={}", escaped(query)))
            .await;
        let answer: Value = answer.map_err(|error| error.to_string())?;
        if answer["status"] != "success" {
            return Err(format!("{query}: {answer}"));
        }
        Ok(answer["data"]["result"]
            .as_array()
            .cloned()
            .unwrap_or_default())
    }

    /// Waits until the result of a query is not empty.
    async fn series(&self, query: &str) -> Vec<Value> {
        eventually(&format!("{query} to return series"), SOON, async || {
            let series = self.query(query).await?;
            if series.is_empty() {
                Err("nothing".to_owned())
            } else {
                Ok(series)
            }
        })
        .await
    }

    /// Sends a request with HTTP/1.0, whose answers end with the connection.
    async fn get(&self, path: &str) -> std::io::Result<Value> {
        let mut stream = TcpStream::connect(self.http).await?;
        let request = format!("GET {path} HTTP/1.0\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        serde_json::from_str(body).map_err(std::io::Error::other)
    }
}

fn escaped(query: &str) -> String {
    query.bytes().fold(String::new(), |mut text, byte| {
        if byte.is_ascii_alphanumeric() {
            text.push(byte.into());
        } else {
            write!(text, "%{byte:02X}").unwrap();
        }
        text
    })
}

/// Returns the queries of every panel for all nodes and pools.
fn queries_of_the_dashboard() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels
        .iter()
        .filter_map(|panel| panel["targets"].as_array());
    let queries = targets.flatten().map(|target| {
        let query = target["expr"].as_str().unwrap();
        let query = query.replace("$__rate_interval", "30s");
        query.replace("$node", ".*").replace("$pool", ".*")
    });
    queries.collect()
}

#[tokio::test]
async fn a_real_prometheus_reads_every_metric_runs_every_query_and_fires_an_alert() {
    let installed = Installed::shared().await;
    let prometheus = Prometheus::start(installed);

    let up = prometheus.series("sum(up == 1) == 3").await;
    assert_eq!(up.len(), 1);
    for (name, kind) in documented::kinds() {
        let series = match kind.as_str() {
            "histogram" => format!("{name}_bucket"),
            _ => name.clone(),
        };
        if !WITHOUT_SERIES.iter().any(|it| name.starts_with(it)) {
            prometheus.series(&format!("count({series})")).await;
        }
    }

    let queries = queries_of_the_dashboard();
    assert!(queries.len() > 30, "{queries:?}");
    for query in queries {
        if WITHOUT_SERIES.iter().any(|words| query.contains(words)) {
            prometheus.query(&query).await.unwrap();
        } else {
            prometheus.series(&query).await;
        }
    }

    for alert in rules::alerts() {
        prometheus.query(&alert.expr).await.unwrap();
    }

    // The alert for the pool without a device is pending first and fires when the problem lasts.
    let alert =
        format!("alertname=\"CisternPoolUnreachable\",node=\"{NODE}\",pool=\"{BROKEN_POOL}\"");
    let firing = format!("ALERTS{{{alert},alertstate=\"firing\"}}");
    prometheus.series(&firing).await;
    let waited = format!("count_over_time(ALERTS{{{alert},alertstate=\"pending\"}}[1h])");
    assert_eq!(prometheus.query(&waited).await.unwrap().len(), 1);
    // No other alert fires, except for a moment on a machine that is too busy to answer in time.
    eventually("no other alert to fire", SOON, async || {
        let all = prometheus.query("ALERTS{alertstate=\"firing\"}").await?;
        let names: BTreeSet<&str> = all
            .iter()
            .filter_map(|series| series["metric"]["alertname"].as_str())
            .collect();
        let is_alone = names == BTreeSet::from(["CisternPoolUnreachable"]);
        is_alone.then_some(()).ok_or_else(|| format!("{all:#?}"))
    })
    .await;
}
