//! The manifests of both versions, as an administrator has them: with the images of each.

use std::{
    panic::AssertUnwindSafe,
    path::{Path, PathBuf},
    time::Duration,
};

use cistern_e2e::{
    Cluster, Folder, kustomize,
    process::{command, output, workspace},
};
use futures::FutureExt as _;
use serde_json::json;

/// The previous version is compiled if the harness has not done it yet.
const COMPILE: Duration = Duration::from_hours(1);
/// The registry in the names of the images that the harness loads.
const REGISTRY: &str = "cistern.invalid";

/// Cistern's manifests, with the settings for kind. The folders are those that the documents name.
pub(crate) struct Manifests(Folder);

impl Manifests {
    /// Those of this checkout, with the images `dev`.
    pub(crate) fn of_this_version() -> Self {
        Self::new(&workspace().join("manifests"), REGISTRY, "dev")
    }

    /// Those of the previous version, which name another registry, with the images `previous`.
    pub(crate) async fn of_the_previous_version() -> Self {
        let previous = command(workspace().join("e2e/cluster/previous"));
        let previous = PathBuf::from(output(previous, COMPILE).await.trim_end());
        Self::new(&previous.join("source/manifests"), "cistern", "previous")
    }

    fn new(manifests: &Path, registry: &str, tag: &str) -> Self {
        let folder = Folder::new();
        let write = |name: &str, content| {
            std::fs::create_dir(folder.join(name)).unwrap();
            kustomize::write(&folder.join(name), manifests, content);
        };
        write("crds", json!({"resources": ["crds"]}));
        // The nodes of kind share one disk, which is not reserved for them.
        let agents = json!({
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "cistern-node", "namespace": "cistern-system"},
            "spec": {"template": {"spec": {"containers": [
                {"name": "driver", "env": [{"name": "KEEP_FREE_PERCENT", "value": "1"}]},
            ]}}},
        });
        let image = |name: &str| {
            let (name, loaded) = (format!("{registry}/{name}"), format!("{REGISTRY}/{name}"));
            json!({"name": name, "newName": loaded, "newTag": tag})
        };
        let everything = json!({
            "resources": ["snapshots"],
            "images": [image("driver"), image("operator")],
            "patches": [{"patch": agents.to_string()}],
        });
        write("snapshots", everything);
        Self(folder)
    }

    /// The folder, for a variable of a document.
    pub(crate) fn path(&self) -> &str {
        self.0.path().to_str().unwrap()
    }

    /// Applies the definitions.
    pub(crate) async fn define(&self, cluster: &Cluster) {
        let definitions = format!("{}/crds", self.path());
        let apply = ["apply", "--server-side", "--force-conflicts", "-k"];
        cluster
            .kubectl(apply.into_iter().chain([definitions.as_str()]))
            .await;
    }
}

/// Runs `body`, and afterwards installs the present version whether or not `body` succeeds.
pub(crate) async fn and_then_install(cluster: &Cluster, body: impl AsyncFnOnce()) {
    let ended = AssertUnwindSafe(body()).catch_unwind().await;
    cluster.install().await;
    if let Err(panic) = ended {
        std::panic::resume_unwind(panic);
    }
}
