//! The node: its loop devices, and what on it does not belong together.

use std::fmt;

use cistern_client::metrics::{Gauges, tally};

use super::Agent;
use crate::agent::desired::readable;

pub(super) fn write(agent: &Agent, gauges: &mut Gauges<'_>) -> fmt::Result {
    // Of a table that cannot be read nothing is told.
    let loops = agent.root.count_loops().ok();
    let states = loops.map(|loops| [("in_use", loops.in_use), ("leaked", loops.leaked)]);
    gauges.write(
        "cistern_loop_devices",
        "Loop devices over images and pool files: in use, or bound and used by nobody.",
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
        "Things on the node that do not belong together, by kind.",
        kinds
            .into_iter()
            .map(|(kind, count)| ([("kind", kind)], count)),
    )
}
