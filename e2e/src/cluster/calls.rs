//! Counts the calls of CreateVolume for each claim in the controllers' logs.
//!
//! More than two calls for a claim mean that it was rescheduled between nodes because the published capacity or
//! an answer was wrong. A call that ran out of time does not count: it is repeated for the same node.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, LogParams},
};

use super::{Cluster, NAMESPACE};

/// A call that fails after this many milliseconds ran out of time. The sidecars give each call a minute.
const OUT_OF_TIME: u64 = 40_000;

impl Cluster {
    /// Counts, by volume id, the CreateVolume calls that ended since then and named a pool with this name prefix.
    pub async fn create_volume_calls(
        &self,
        since: Timestamp,
        pools: &str,
    ) -> BTreeMap<String, usize> {
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
            // The log of a controller that was just replaced is lost.
            let Ok(log) = pods.logs(&name, &parameters).await else {
                continue;
            };
            for volume in log.lines().filter_map(|line| ended_call(line, pools)) {
                *calls.entry(volume.to_owned()).or_default() += 1;
            }
        }
        calls
    }
}

/// Returns the volume of a line that ends a call of CreateVolume in a pool with this name prefix, unless it ran out of time:
/// `… rpc{rpc="CreateVolume" volume="pvc-1" pool="p"}: the call succeeded code="Ok" elapsed_ms=3`.
fn ended_call<'a>(line: &'a str, pools: &str) -> Option<&'a str> {
    if !line.contains(r#"rpc="CreateVolume""#) {
        return None;
    }
    let (_, elapsed) = line.split_once(" elapsed_ms=")?;
    let elapsed = elapsed.split(' ').next()?.parse::<u64>();
    if !line.contains(r#" code="Ok""#) && elapsed.is_ok_and(|elapsed| elapsed >= OUT_OF_TIME) {
        return None;
    }
    let field = |name: &str| {
        let (_, rest) = line.split_once(name)?;
        Some(rest.split_once('"')?.0)
    };
    let pool = field(r#" pool=""#)?;
    pool.starts_with(pools).then_some(field(r#"volume=""#)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_counted_when_it_ends_in_a_pool_of_the_test_and_only_then() {
        let span = r#"INFO rpc{rpc="CreateVolume" volume="pvc-1" pool="mine-p"}:"#;
        let line = |rest: &str| format!("2026-11-21T00:00:00Z  {span} {rest}");
        let ended = |line: &str| ended_call(line, "mine-").map(str::to_owned);
        let done = line(r#"the call succeeded code="Ok" elapsed_ms=3"#);
        let failed = line(r#"the call failed code="Aborted" elapsed_ms=3 error="…""#);
        let volume = Some("pvc-1".to_owned());
        assert_eq!(ended(&done), volume);
        assert_eq!(ended(&failed), volume);
        assert_eq!(ended(&done.replace("=3", "=50000")), volume);
        assert_eq!(ended(&failed.replace("=3", "=50000")), None);
        assert_eq!(ended(&line("the pool has no room")), None);
        assert_eq!(ended(&done.replace("Create", "Delete")), None);
        assert_eq!(ended(&done.replace("mine-p", "other-p")), None);
    }
}
