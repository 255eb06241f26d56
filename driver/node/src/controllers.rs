//! The keys of the controllers, which ask this node where its snapshots hold data.

use std::{collections::HashSet, pin::pin, sync::Arc};

use cistern_client::Chain;
use cistern_crds::controller_keys;
use cistern_transfer::PublicKey;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    runtime::{WatchStreamExt as _, watcher::watch_object},
};
use parking_lot::RwLock;

/// The keys that controllers have published.
#[derive(Debug, Default)]
pub struct Controllers(RwLock<HashSet<PublicKey>>);

impl Controllers {
    /// Whether a controller has published this key. Answers from memory.
    pub fn have(&self, key: &PublicKey) -> bool {
        self.0.read().contains(key)
    }

    /// Replaces all keys. What is no key is ignored.
    fn replace(&self, published: Option<&ConfigMap>) {
        let data = published.and_then(|it| it.data.as_ref());
        let keys = data.into_iter().flat_map(controller_keys::keys);
        *self.0.write() = keys.filter_map(|key| key.parse().ok()).collect();
    }
}

/// Keeps the keys up to date until dropped. While the API server does not answer, the known ones remain.
pub async fn watch(client: Client, controllers: Arc<Controllers>) {
    let api = Api::<ConfigMap>::default_namespaced(client);
    let found = watch_object(api, controller_keys::CONFIG_MAP).default_backoff();
    let mut found = pin!(found);
    while let Some(found) = found.next().await {
        match found {
            Ok(published) => controllers.replace(published.as_ref()),
            Err(error) => {
                let config_map = controller_keys::CONFIG_MAP;
                tracing::warn!(config_map, error = %Chain(&error), "cannot read the keys of the controllers");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use chrono::Utc;
    use cistern_transfer::KeyPair;

    use super::*;

    #[test]
    fn keys_are_known_as_long_as_they_are_published() {
        let key = || KeyPair::generate().unwrap().public();
        let (one, other) = (key(), key());
        let publish = |texts: &[&str]| ConfigMap {
            data: Some(
                texts
                    .iter()
                    .map(|text| ((*text).to_owned(), controller_keys::entry(text, Utc::now())))
                    .collect(),
            ),
            ..ConfigMap::default()
        };
        let controllers = Controllers::default();
        assert!(!controllers.have(&one));
        controllers.replace(Some(&publish(&[&one.to_string(), "no key"])));
        assert!(controllers.have(&one) && !controllers.have(&other));
        controllers.replace(Some(&publish(&[&other.to_string()])));
        assert!(!controllers.have(&one) && controllers.have(&other));
        controllers.replace(None);
        assert!(!controllers.have(&other));
    }
}
