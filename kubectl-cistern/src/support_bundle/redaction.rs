//! Removes what does not help to understand a problem, and what may be confidential. Pure.

use serde_json::Value;

/// Environment variables whose values stay: those of Cistern's images and manifests, which hold no credentials.
const KNOWN_VARIABLES: [&str; 18] = [
    "CSI_ENDPOINT",
    "DRIFT_INTERVAL",
    "HEALTH_INTERVAL",
    "HTTP_ADDRESS",
    "KEEP_FREE_PERCENT",
    "KUBELET_ROOT",
    "LOG_FORMAT",
    "LOG_LEVEL",
    "MAX_VOLUMES",
    "NAMESPACE",
    "NODE_NAME",
    "PATH",
    "POD_NAME",
    "POOL_DIRECTORIES",
    "STORAGE_ROOT",
    "TRANSFER_ADDRESS",
    "TRANSFER_BYTES_PER_SECOND",
    "UNCLAIMED_AFTER_SECONDS",
];
/// Replaces the value of another environment variable.
const REMOVED: &str = "(removed)";
/// Part of the keys of annotations that stay: those of Kubernetes and of Cistern.
const KNOWN_ANNOTATIONS: [&str; 2] = ["kubernetes.io/", "cistern.storage/"];
/// The annotation of `kubectl apply`, a copy of the object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Removes managed fields, annotations of others, and values of environment variables that
/// Cistern's images and manifests do not set, wherever they are in the object.
pub fn redact(object: &mut Value) {
    match object {
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                match name.as_str() {
                    "annotations" => annotations(value),
                    "env" => variables(value),
                    _ => {}
                }
                redact(value);
            }
            fields.remove("managedFields");
        }
        Value::Array(items) => items.iter_mut().for_each(redact),
        _ => {}
    }
}

fn annotations(value: &mut Value) {
    if let Value::Object(annotations) = value {
        annotations.retain(|key, _| {
            key != LAST_APPLIED && KNOWN_ANNOTATIONS.iter().any(|known| key.contains(known))
        });
    }
}

fn variables(value: &mut Value) {
    for variable in value.as_array_mut().into_iter().flatten() {
        let name = variable.get("name").and_then(Value::as_str);
        let is_known = name.is_some_and(|name| KNOWN_VARIABLES.contains(&name));
        if let Some(value) = variable.get_mut("value")
            && !is_known
        {
            *value = REMOVED.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The names of the variables that the images set.
    fn variables_of_images() -> Vec<&'static str> {
        let (mut names, mut is_setting) = (Vec::new(), false);
        for line in include_str!("../../../Dockerfile").lines() {
            is_setting |= line.starts_with("ENV ");
            if is_setting {
                let words = line.split_whitespace();
                let settings = words.filter_map(|word| word.split_once('='));
                names.extend(settings.map(|(name, _)| name));
                is_setting = line.ends_with('\\');
            }
        }
        names
    }

    #[test]
    fn the_variables_of_the_images_are_kept() {
        let names = variables_of_images();
        assert!(names.contains(&"TRANSFER_BYTES_PER_SECOND"), "{names:?}");
        for name in names {
            let env = json!({"env": [{"name": name, "value": "given"}]});
            let mut kept = env.clone();
            redact(&mut kept);
            assert_eq!(kept, env);
        }
    }

    #[test]
    fn values_that_cistern_did_not_set_are_removed_at_any_depth() {
        let env = json!([
            {"name": "CSI_ENDPOINT", "value": "unix:///csi/csi.sock"},
            {"name": "HTTPS_PROXY", "value": "http://me:hunter2@proxy"},
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ]);
        let mut pod = json!({
            "metadata": {
                "managedFields": [{"manager": "x"}],
                "annotations": {
                    LAST_APPLIED: "{}", "example.com/token": "hunter2",
                    "cistern.storage/image": "x", "pv.kubernetes.io/bound-by-controller": "yes",
                },
            },
            "spec": {"template": {"spec": {"containers": [{"env": env}]}}},
        });
        redact(&mut pod);
        assert!(!pod.to_string().contains("hunter2"));
        let env = json!([
            {"name": "CSI_ENDPOINT", "value": "unix:///csi/csi.sock"},
            {"name": "HTTPS_PROXY", "value": REMOVED},
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ]);
        let annotations =
            json!({"cistern.storage/image": "x", "pv.kubernetes.io/bound-by-controller": "yes"});
        assert_eq!(
            pod,
            json!({
                "metadata": {"annotations": annotations},
                "spec": {"template": {"spec": {"containers": [{"env": env}]}}},
            })
        );
    }
}
