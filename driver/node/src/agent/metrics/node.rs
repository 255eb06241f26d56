//! Gauges of the node: its loop devices and its drift.

use std::fmt;

use cistern_client::metrics::{Gauges, tally};

use crate::agent::{Agent, desired::readable};

pub(super) fn write(agent: &Agent, gauges: &mut Gauges<'_>) -> fmt::Result {
    // If the loop devices cannot be listed, the gauge has no samples.
    let loops = agent.node.root.count_loops().ok();
    let states = loops.map(|loops| [("in_use", loops.in_use), ("leaked", loops.leaked)]);
    gauges.write(
        "cistern_loop_devices",
        "Loop devices over images and pool files: in use, or bound and unused.",
        states
            .into_iter()
            .flatten()
            .map(|(state, count)| ([("state", state)], count)),
    )?;
    let node = agent.desired.node();
    let node = node.as_ref().and_then(|node| readable(node));
    let findings = node.and_then(|node| node.status.as_ref());
    let findings = findings.map_or(&[][..], |status| &status.drift);
    let kinds = tally(findings.iter().map(|finding| finding.kind.as_str()));
    gauges.write(
        "cistern_drift",
        "Findings of drift between the node and the API, by kind.",
        kinds
            .into_iter()
            .map(|(kind, count)| ([("kind", kind)], count)),
    )
}
