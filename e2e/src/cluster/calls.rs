//! How often CreateVolume was called for a claim, as the controllers' logs say.
//!
//! A claim that needs more than two calls has been bounced between nodes: the published capacity or
//! an answer was wrong.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, LogParams},
};

use super::{Cluster, NAMESPACE};

impl Cluster {
    /// Calls of CreateVolume that ended since then, by volume id.
    pub async fn create_volume_calls(&self, since: Timestamp) -> BTreeMap<String, usize> {
        let pods: Api<Pod> = Api::namespaced(self.client(), NAMESPACE);
        let selector = format!("{}=controller", cistern_crds::names::COMPONENT_LABEL);
        let list = pods
            .list(&ListParams::default().labels(&selector))
            .await
            .expect("pods can be listed");
        let parameters = LogParams {
            container: Some("driver".to_owned()),
            since_time: Some(since),
            ..LogParams::default()
        };
        let mut calls = BTreeMap::new();
        for pod in list {
            let name = pod.name_any();
            // A controller that has just been replaced takes its log along.
            let Ok(log) = pods.logs(&name, &parameters).await else {
                continue;
            };
            for volume in log.lines().filter_map(ended_call) {
                *calls.entry(volume.to_owned()).or_default() += 1;
            }
        }
        calls
    }
}

/// The volume of a line that ends a call of CreateVolume:
/// `… rpc{rpc="CreateVolume" volume="pvc-1" pool="p"}: done code="Ok" elapsed_ms=3`.
fn ended_call(line: &str) -> Option<&str> {
    if !line.contains(r#"rpc="CreateVolume""#) || !line.contains(" elapsed_ms=") {
        return None;
    }
    let (_, rest) = line.split_once(r#"volume=""#)?;
    Some(rest.split_once('"')?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_counted_when_it_ends_and_only_then() {
        let span = r#"INFO rpc{rpc="CreateVolume" volume="pvc-1" pool="p"}:"#;
        let line = |rest: &str| format!("2026-11-21T00:00:00Z  {span} {rest}");
        let done = line(r#"done code="Ok" elapsed_ms=3"#);
        let failed = line(r#"failed code="Aborted" elapsed_ms=3 error="…""#);
        assert_eq!(ended_call(&done), Some("pvc-1"));
        assert_eq!(ended_call(&failed), Some("pvc-1"));
        assert_eq!(ended_call(&line("the pool has no room")), None);
        assert_eq!(ended_call(&done.replace("Create", "Delete")), None);
    }
}
