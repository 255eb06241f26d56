//! Overlays of the manifests, for tests that render or install a variant.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::{Folder, process::workspace};

/// Writes an overlay and returns its folder. The `resources` and `components` of the content are paths in `manifests`.
pub fn overlay(content: Value) -> Folder {
    let folder = Folder::new();
    write(folder.path(), &workspace().join("manifests"), content);
    folder
}

/// Writes an overlay into an existing folder. The `resources` and `components` are paths in these manifests.
pub fn write(folder: &Path, manifests: &Path, mut content: Value) {
    // Kustomize does not accept absolute paths.
    let up = "../".repeat(folder.components().count() - 1);
    let manifests = manifests.canonicalize();
    let manifests = manifests.expect("the manifests exist");
    let manifests = manifests.to_str().expect("our own paths are text");
    for key in ["resources", "components"] {
        for path in content[key].as_array_mut().into_iter().flatten() {
            let below = path.as_str().expect("a path is text");
            *path = json!(format!("{up}{}/{below}", &manifests[1..]));
        }
    }
    content["apiVersion"] = json!("kustomize.config.k8s.io/v1beta1");
    content["kind"] = json!("Kustomization");
    fs::write(folder.join("kustomization.yaml"), content.to_string()).expect("the folder is ours");
}
