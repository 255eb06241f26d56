//! The Helm chart: the same objects as kustomize's for the same choices, its life in a cluster, and its values.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod objects;
mod release;
mod values;

use std::{path::PathBuf, process::Command, time::Duration};

use cistern_e2e::process::{command, tool, workspace};

const SOON: Duration = Duration::from_mins(5);

/// The values that the chart requires: the names of the images, which are here those of the manifests.
const REQUIRED: [&str; 2] = [
    "--set=image.driver.repository=cistern.invalid/driver",
    "--set=image.operator.repository=cistern.invalid/operator",
];

/// Returns a command that renders the chart with the values that it requires.
async fn template() -> Command {
    let mut helm = template_without_values().await;
    helm.args(REQUIRED);
    helm
}

async fn template_without_values() -> Command {
    let mut helm = command(tool("helm").await);
    helm.args(["template", "cistern"]).arg(chart());
    helm
}

fn chart() -> PathBuf {
    workspace().join("charts/cistern")
}
