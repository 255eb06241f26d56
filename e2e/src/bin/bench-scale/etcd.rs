//! How much etcd stores.

use cistern_crds::PoolVolume;
use cistern_e2e::{ControlPlane, measure::metric, service};
use kube::{Api, api::ListParams};
use serde_json::json;

/// Sizes of etcd's database in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Database {
    /// The file, which the quota limits: with free pages and old versions of objects.
    pub(crate) file: f64,
    /// The pages in use.
    pub(crate) used: f64,
}

impl Database {
    /// Removes old versions of all objects and reads the sizes.
    pub(crate) async fn compacted(control_plane: &ControlPlane) -> Self {
        let api: Api<PoolVolume> = Api::all(control_plane.client());
        let list = api.list_metadata(&ListParams::default().limit(1)).await;
        let revision = list.expect("it answers").metadata.resource_version;
        let body = json!({"revision": revision, "physical": true}).to_string();
        let address = control_plane.etcd_address();
        // It refuses a revision that the API server has compacted by itself meanwhile.
        let answer = service::post(address, "/v3/kv/compaction", &body).await;
        answer.expect("etcd answers");
        Self::now(control_plane).await
    }

    /// Reads the sizes.
    pub(crate) async fn now(control_plane: &ControlPlane) -> Self {
        let metrics = service::get(control_plane.etcd_address(), "/metrics").await;
        let metrics = metrics.expect("etcd has metrics");
        Self {
            file: metric(&metrics, "etcd_mvcc_db_total_size_in_bytes", &[]),
            used: metric(&metrics, "etcd_mvcc_db_total_size_in_use_in_bytes", &[]),
        }
    }
}
