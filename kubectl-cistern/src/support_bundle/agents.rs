//! Metrics of the agents.

use cistern_client::Chain;
use futures::{StreamExt as _, stream};

use super::contents::Contents;
use crate::{
    Connection,
    agents::{self, AT_ONCE},
};

/// Reads the metrics of all running agents. Those that cannot be read are missing in the contents.
pub(super) async fn collect(connection: &Connection, contents: &mut Contents) {
    let running = match agents::running(connection).await {
        Ok(running) => running,
        Err(error) => return contents.miss("metrics", Chain(&error).to_string()),
    };
    let mut answers = stream::iter(running)
        .map(|(node, address)| async move {
            let text = agents::metrics(connection, &node, &address).await;
            (format!("metrics/{node}.txt"), text)
        })
        .buffered(AT_ONCE);
    while let Some((path, text)) = answers.next().await {
        match text {
            Ok(text) => contents.add(&path, text.into_bytes()),
            Err(error) => contents.miss(&path, Chain(&error).to_string()),
        }
    }
}
