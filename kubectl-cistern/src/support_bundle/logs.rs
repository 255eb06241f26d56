//! Logs of Cistern's pods: of each container, and of its previous instance if it was restarted.

use cistern_client::Chain;
use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::LogParams};
use serde_json::Value;

use super::contents::Contents;
use crate::{Connection, Error};

/// Maximum number of lines of a log, the last ones.
const LINES: i64 = 5_000;
/// Maximum size of a log in bytes.
const BYTES: i64 = 4 << 20;
/// Maximum number of logs that are read at the same time.
const AT_ONCE: usize = 8;

/// One log to read.
#[derive(Debug, PartialEq, Eq)]
struct Log {
    pod: String,
    container: String,
    previous: bool,
}

impl Log {
    fn path(&self) -> String {
        let Self { pod, container, .. } = self;
        let which = if self.previous { "previous.log" } else { "log" };
        format!("logs/{pod}/{container}.{which}")
    }
}

/// Reads the logs of these pods. A log that cannot be read is missing in the contents.
pub(super) async fn collect(connection: &Connection, pods: &[Value], contents: &mut Contents) {
    let logs = pods.iter().flat_map(of_pod).collect::<Vec<_>>();
    let mut answers = stream::iter(logs)
        .map(|log| async move {
            let text = read(connection, &log).await;
            (log.path(), text)
        })
        .buffered(AT_ONCE);
    while let Some((path, text)) = answers.next().await {
        match text {
            Ok(text) => contents.add(&path, text.into_bytes()),
            Err(error) => contents.miss(&path, Chain(&error).to_string()),
        }
    }
}

async fn read(connection: &Connection, log: &Log) -> Result<String, Error> {
    let pods: Api<Pod> = connection.in_system();
    let parameters = LogParams {
        container: Some(log.container.clone()),
        previous: log.previous,
        tail_lines: Some(LINES),
        limit_bytes: Some(BYTES),
        ..LogParams::default()
    };
    let what = format!("cannot read the log of pod {}", log.pod);
    connection.ask(what, pods.logs(&log.pod, &parameters)).await
}

/// The logs of a pod: of all its containers in the order of its spec.
fn of_pod(pod: &Value) -> Vec<Log> {
    let list = |field| {
        pod.pointer(field)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
    };
    let name = pod.pointer("/metadata/name").and_then(Value::as_str);
    let containers = list("/spec/initContainers").chain(list("/spec/containers"));
    let containers = containers.filter_map(|it| it.get("name")?.as_str());
    let was_restarted = |container: &str| {
        let mut states =
            list("/status/initContainerStatuses").chain(list("/status/containerStatuses"));
        let state = states.find(|it| it.get("name").and_then(Value::as_str) == Some(container));
        let count = state.and_then(|it| it.get("restartCount")?.as_u64());
        count.is_some_and(|count| count > 0)
    };
    let mut logs = Vec::new();
    for container in containers {
        let log = |previous| Log {
            pod: name.unwrap_or_default().to_owned(),
            container: container.to_owned(),
            previous,
        };
        logs.push(log(false));
        if was_restarted(container) {
            logs.push(log(true));
        }
    }
    logs
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_container_that_was_restarted_has_two_logs() {
        let pod = json!({
            "metadata": {"name": "agent"},
            "spec": {"containers": [{"name": "driver"}, {"name": "sidecar"}]},
            "status": {"containerStatuses": [
                {"name": "driver", "restartCount": 2}, {"name": "sidecar", "restartCount": 0},
            ]},
        });
        let paths: Vec<String> = of_pod(&pod).iter().map(Log::path).collect();
        let wanted = ["driver.log", "driver.previous.log", "sidecar.log"];
        assert_eq!(paths, wanted.map(|name| format!("logs/agent/{name}")));
    }
}
