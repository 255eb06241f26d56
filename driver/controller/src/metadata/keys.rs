//! Publishes the public key of this controller, so that the node plugins answer it.

use std::{collections::BTreeMap, time::Duration};

use chrono::{DateTime, Utc};
use cistern_client::Chain;
use cistern_crds::{controller_keys, names};
use cistern_transfer::PublicKey;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::time::sleep;

/// How often the entry is compared: somebody may have removed it.
const COMPARED: Duration = Duration::from_mins(1);
/// Pause after a failure.
const RETRIED: Duration = Duration::from_secs(5);

/// Publishes a key under the name of this pod, until dropped.
pub async fn publish(client: Client, pod: String, key: PublicKey, started: DateTime<Utc>) {
    let api = Api::<ConfigMap>::default_namespaced(client);
    let entry = controller_keys::entry(&key.to_string(), started);
    loop {
        let pause = match publish_once(&api, &pod, &entry).await {
            Ok(()) => COMPARED,
            Err(error) => {
                let config_map = controller_keys::CONFIG_MAP;
                tracing::warn!(config_map, error = %Chain(&error), "cannot publish the key of this controller");
                RETRIED
            }
        };
        sleep(pause).await;
    }
}

async fn publish_once(api: &Api<ConfigMap>, pod: &str, entry: &str) -> kube::Result<()> {
    let published = api.get(controller_keys::CONFIG_MAP).await?.data;
    let published = published.unwrap_or_default();
    let Some(change) = change(&published, pod, entry) else {
        return Ok(());
    };
    let parameters = PatchParams {
        field_manager: Some(names::CONTROLLER_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let change = Patch::Merge(json!({"data": change}));
    let changed = api.patch(controller_keys::CONFIG_MAP, &parameters, &change);
    changed.await.map(drop)
}

/// What has to be written; None if the entry is there and no old one is left.
fn change<'a>(
    data: &'a BTreeMap<String, String>,
    pod: &'a str,
    entry: &'a str,
) -> Option<BTreeMap<&'a str, Option<&'a str>>> {
    let outdated = controller_keys::outdated(data, pod).into_iter();
    let mut change: BTreeMap<_, _> = outdated.map(|name| (name, None)).collect();
    if data.get(pod).map(String::as_str) != Some(entry) {
        change.insert(pod, Some(entry));
    }
    (!change.is_empty()).then_some(change)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_written_once_and_old_ones_are_removed_with_it() {
        let mut data: BTreeMap<String, String> = (10..26)
            .map(|second| {
                (
                    format!("pod-{second}"),
                    format!("2026-01-01T00:00:{second}Z key"),
                )
            })
            .collect();
        let own = ("pod-99", "2026-01-01T00:01:00Z own");
        let written = change(&data, own.0, own.1).unwrap();
        assert_eq!(written, [("pod-10", None), ("pod-99", Some(own.1))].into());
        data.remove("pod-10");
        data.insert(own.0.to_owned(), own.1.to_owned());
        assert_eq!(change(&data, own.0, own.1), None);
    }
}
