//! Compares `docs/metrics.md` with the metrics that the processes serve, in both directions.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use cistern_e2e::eventually;

use crate::{
    exposition::{Metric, metrics},
    installed::{Installed, NODE, POOL, VOLUME},
};

const DOCUMENT: &str = include_str!("../../../docs/metrics.md");

/// A row of the table of metrics.
#[derive(Debug)]
struct Row {
    kind: String,
    labels: BTreeSet<String>,
    processes: Vec<&'static str>,
}

fn documented() -> BTreeMap<String, Row> {
    let rows = DOCUMENT.lines().filter(|line| line.starts_with("| `"));
    let cells = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    let all = cells.map(|cells| {
        let row = Row {
            kind: cells[2].to_owned(),
            labels: words(cells[3]).map(str::to_owned).collect(),
            processes: words(cells[5]).flat_map(processes).copied().collect(),
        };
        (cells[1].trim_matches('`').to_owned(), row)
    });
    all.collect()
}

/// Returns name and type of each documented metric.
pub(crate) fn kinds() -> Vec<(String, String)> {
    let rows = documented().into_iter();
    rows.map(|(name, row)| (name, row.kind)).collect()
}

fn words(cell: &str) -> impl Iterator<Item = &str> {
    cell.split(", ").filter(|word| !word.is_empty())
}

fn processes(word: &str) -> &'static [&'static str] {
    match word {
        "all" => &["operator", "controller", "node"],
        "operator" => &["operator"],
        "controller" => &["controller"],
        "node" => &["node"],
        other => panic!("there is no process {other}"),
    }
}

#[tokio::test]
async fn every_metric_is_documented_and_every_documented_metric_is_served() {
    let installed = Installed::shared().await;
    let documented = documented();
    assert!(documented.len() > 30, "the table was not found");
    for (name, service) in installed.processes() {
        let what = format!("{name} to serve exactly the documented metrics");
        eventually(&what, Duration::from_mins(2), async || {
            let answer = service.get("/metrics").await;
            let served = metrics(&answer.map_err(|error| error.to_string())?);
            match differences(name, &documented, &served).as_slice() {
                [] => Ok(()),
                some => Err(some.join("\n")),
            }
        })
        .await;
    }
}

fn differences(
    process: &str,
    documented: &BTreeMap<String, Row>,
    served: &BTreeMap<String, Metric>,
) -> Vec<String> {
    let mut all = Vec::new();
    for (name, metric) in served {
        match documented.get(name) {
            None => all.push(format!("{name} is not documented")),
            Some(row) if row.kind != metric.kind => {
                all.push(format!("{name} is a {}", metric.kind));
            }
            Some(row) if metric.series > 0 && row.labels != metric.labels => {
                all.push(format!("{name} has the labels {:?}", metric.labels));
            }
            Some(row) if !row.processes.contains(&process) => {
                all.push(format!("{name} is not documented for this process"));
            }
            Some(_) => {}
        }
    }
    let expected = documented
        .iter()
        .filter(|(_, row)| row.processes.contains(&process));
    let missing = expected.filter(|(name, _)| !served.contains_key(*name));
    all.extend(missing.map(|(name, _)| format!("{name} is not served")));
    all
}

#[tokio::test]
async fn the_numbers_of_a_pool_and_its_volume_are_those_of_the_node() {
    let installed = Installed::shared().await;
    let node = installed.driver.node();
    let of_pool = format!("node=\"{NODE}\",pool=\"{POOL}\"");
    let of_volume = format!("node=\"{NODE}\",volume=\"{VOLUME}\",pool=\"{POOL}\"");
    for line in [
        format!("cistern_pool_ready{{{of_pool}}} 1"),
        format!("cistern_pool_volumes{{{of_pool}}} 1"),
        format!("cistern_pool_size_bytes{{{of_pool}}} {}", 1 << 30),
        format!("cistern_pool_reserved_bytes{{{of_pool}}} {}", 16 << 20),
        format!("cistern_pool_snapshots{{{of_pool}}} 0"),
        format!("cistern_pool_orphans{{{of_pool}}} 0"),
        format!("cistern_loop_devices{{node=\"{NODE}\",state=\"in_use\"}} 1"),
        format!("cistern_loop_devices{{node=\"{NODE}\",state=\"leaked\"}} 0"),
        format!("cistern_pool_extents_limit{{{of_pool}}} 500000"),
        format!("cistern_volume_info{{{of_volume},claim_namespace=\"shop\",claim=\"data\"}} 1"),
        format!("cistern_volume_health{{{of_volume},state=\"healthy\"}} 1"),
        format!("cistern_volume_health{{{of_volume},state=\"data_loss\"}} 0"),
    ] {
        node.shows(&line).await;
    }
}
