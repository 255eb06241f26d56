//! Block devices of volumes, from the metrics of the agents. No API object records them.

use std::collections::BTreeSet;

use cistern_client::Chain;
use futures::StreamExt as _;

use crate::{Connection, Error, agents, top::exposition::Exposition, volumes::Devices};

/// A metric of each attached volume, with its device.
const METRIC: &str = "cistern_volume_reads_completed_total";

/// Reads the devices of the attached volumes of these nodes. Nodes that cannot be read are reported in `unread`. Fails
/// if the pods of the node plugin cannot be listed, or if the user may not read their metrics.
pub async fn read(
    connection: &Connection,
    nodes: &BTreeSet<String>,
    unread: &mut Vec<String>,
) -> Result<Devices, Error> {
    let mut agents = agents::running(connection).await?;
    agents.retain(|node, _| nodes.contains(node));
    let silent = nodes.iter().filter(|node| !agents.contains_key(*node));
    unread.extend(silent.map(|node| {
        let namespace = &connection.system_namespace;
        format!(
            "devices of node {node} are not shown: no agent runs there in namespace {namespace}"
        )
    }));
    let answers: Vec<_> = agents::metrics_of_all(connection, agents).collect().await;
    let mut devices = Devices::new();
    for (node, metrics) in answers {
        match metrics {
            Ok(metrics) => devices.extend(parse(&node, &metrics)),
            // Requests to the other agents are denied as well.
            Err(error @ Error::Denied { .. }) => return Err(error),
            Err(error) => unread.push(Chain(&error).to_string()),
        }
    }
    Ok(devices)
}

/// Returns the devices in the metrics of a node.
fn parse(node: &str, metrics: &str) -> Devices {
    let metrics = Exposition::parse(metrics);
    let samples = metrics.of(METRIC).iter();
    let device = samples.map(|sample| {
        let key = (node.to_owned(), sample.label("volume").to_owned());
        (key, format!("/dev/{}", sample.label("device")))
    });
    device.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_those_of_the_metrics_of_attached_volumes() {
        let printed = "\
# TYPE cistern_volume_reads_completed counter
cistern_volume_reads_completed_total{node=\"n\",volume=\"pvc-1\",pool=\"fast\",device=\"loop3\"} 5
cistern_volume_reads_completed_total{node=\"n\",volume=\"pvc-2\",pool=\"group\",device=\"dm-12\"} 0
cistern_volume_size_bytes{node=\"n\",volume=\"pvc-3\",pool=\"fast\"} 1
";
        let devices = parse("n", printed);
        let of = |volume: &str| devices.get(&("n".to_owned(), volume.to_owned())).cloned();
        assert_eq!(of("pvc-1").as_deref(), Some("/dev/loop3"));
        assert_eq!(of("pvc-2").as_deref(), Some("/dev/dm-12"));
        assert_eq!(devices.len(), 2);
    }
}
