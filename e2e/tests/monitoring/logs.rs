//! `docs/logs.md`: each finished operation logs one line that names its objects.

use std::time::Duration;

use cistern_e2e::{eventually, service::Service};
use serde_json::Value;

use crate::installed::{Installed, NODE, POOL, VOLUME};

/// Waits for a line that contains all of these parts.
async fn logs_line(service: &Service, parts: &[&str]) -> String {
    eventually(
        &format!("a line with {parts:?}"),
        Duration::from_mins(2),
        async || {
            let log = service.process().log();
            let mut lines = log.lines();
            let found = lines.find(|line| parts.iter().all(|part| line.contains(part)));
            found
                .map(str::to_owned)
                .ok_or_else(|| service.process().tail())
        },
    )
    .await
}

#[tokio::test]
async fn each_finished_operation_logs_a_line_with_volume_pool_node_and_duration() {
    let installed = Installed::shared().await;
    let (volume, pool) = (format!("volume=\"{VOLUME}\""), format!("pool=\"{POOL}\""));
    let node = format!("node=\"{NODE}\"");
    let call = [
        "rpc=\"CreateVolume\"",
        "the call succeeded",
        "code=\"Ok\"",
        "elapsed_ms=",
    ];
    let of_controller = [&call[..], &[&pool, &node, VOLUME]].concat();
    logs_line(installed.driver.controller(), &of_controller).await;
    for condition in ["condition=Admitted", "condition=Ready"] {
        let made = [
            "condition became true",
            "kind=\"volume\"",
            condition,
            "elapsed_ms=",
        ];
        let of_agent = [&made[..], &[&volume, &pool, &node]].concat();
        logs_line(installed.driver.node(), &of_agent).await;
    }
}

#[tokio::test]
async fn in_json_every_line_is_an_object_with_time_level_and_message() {
    let installed = Installed::shared().await;
    logs_line(&installed.operator, &["the operator starts"]).await;
    let log = installed.operator.process().log();
    // The last line may be half written.
    let complete = log.rsplit_once('\n').map_or("", |(complete, _)| complete);
    for line in complete.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        for field in ["timestamp", "level", "message"] {
            assert!(line[field].is_string(), "{line}");
        }
    }
}
