//! Overlays of the manifests, for tests that render or install a variant.

use serde_json::{Value, json};

use crate::{Folder, process::workspace};

/// Writes an overlay and returns its folder. The `resources` and `components` of the content are paths in `manifests`.
pub fn overlay(mut content: Value) -> Folder {
    let folder = Folder::new();
    // Kustomize does not accept absolute paths.
    let up = "../".repeat(folder.path().components().count() - 1);
    let manifests = workspace().join("manifests").canonicalize();
    let manifests = manifests.expect("the manifests are in the workspace");
    let manifests = manifests.to_str().expect("our own paths are text");
    for key in ["resources", "components"] {
        for path in content[key].as_array_mut().into_iter().flatten() {
            let below = path.as_str().expect("a path is text");
            *path = json!(format!("{up}{}/{below}", &manifests[1..]));
        }
    }
    content["apiVersion"] = json!("kustomize.config.k8s.io/v1beta1");
    content["kind"] = json!("Kustomization");
    std::fs::write(folder.join("kustomization.yaml"), content.to_string())
        .expect("the folder is ours");
    folder
}
