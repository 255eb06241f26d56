//! Metrics of the agents.

use std::pin::pin;

use cistern_client::Chain;
use futures::StreamExt as _;

use super::contents::Contents;
use crate::{Connection, agents};

/// Reads the metrics of all running agents. Those that cannot be read are missing in the contents.
pub(super) async fn collect(connection: &Connection, contents: &mut Contents) {
    let running = match agents::running(connection).await {
        Ok(running) => running,
        Err(error) => return contents.miss("metrics", Chain(&error).to_string()),
    };
    let mut answers = pin!(agents::metrics_of_all(connection, running));
    while let Some((node, text)) = answers.next().await {
        let path = format!("metrics/{node}.txt");
        match text {
            Ok(text) => contents.add(&path, text.into_bytes()),
            Err(error) => contents.miss(&path, Chain(&error).to_string()),
        }
    }
}
