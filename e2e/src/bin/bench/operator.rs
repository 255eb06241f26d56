//! The operator's process, and the objects that represent the rest of the cluster: a Node with a registered
//! driver and a ready agent pod, a pool, and a class.

use cistern_crds::StoragePool;
use cistern_e2e::{ControlPlane, Operator, objects};
use kube::Api;
use serde_json::json;

use crate::{NODE, POOL, POOL_SIZE};

/// Starts the operator and creates the bench's pool on the bench's node.
pub(crate) async fn start(control_plane: &ControlPlane) -> Operator {
    let client = control_plane.client();
    objects::create_namespace(&client).await;
    objects::create_node(&client, NODE, "agent", None).await;
    objects::create_class(&client, "bench", POOL).await;
    let operator = Operator::start(control_plane).await;
    let pools: Api<StoragePool> = Api::all(client);
    let spec = json!({
        "nodeSelector": {},
        "source": {"image": {"size": POOL_SIZE}},
        // Enough for the volumes of a whole run on a machine with a small disk, because they stay empty.
        "overcommitPercent": 1000,
    });
    objects::create(&pools, json!({"metadata": {"name": POOL}, "spec": spec})).await;
    operator
}
