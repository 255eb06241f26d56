//! Moves whose copy was promoted to the volume.

use cistern_crds::{Reason, VolumeMove};
use kube::ResourceExt as _;

use super::follow::waits;

/// What to do with the VolumeMove of a volume that was promoted.
pub(crate) fn was_promoted(it: &VolumeMove) -> String {
    let name = it.name_any();
    let reason = waits(it).and_then(|it| Reason::parse(&it.reason));
    if reason != Some(Reason::Superseded) {
        return format!(
            "the copy of volume {name} was promoted: wait until VolumeMove {name} has the reason Superseded, or is gone"
        );
    }
    format!(
        "the standby copy of volume {name} is the volume now, and its former node keeps the previous image, which no \
         pod can mount: copy what you need from it, then remove it with `kubectl delete volumemove {name}`"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{condition, object};

    #[test]
    fn the_removal_of_the_former_image_is_suggested_only_once_it_is_superseded() {
        let advice = |reason: &str| {
            let conditions = [condition("Ready", "False", reason, "")];
            was_promoted(&object(
                json!({"metadata": {"name": "pvc-1"}, "spec": {"volumeName": "pvc-1"},
                "status": {"promoted": "2026-01-01T00:00:00Z", "conditions": conditions}}),
            ))
        };
        assert!(advice("Superseded").contains("`kubectl delete volumemove pvc-1`"));
        for reason in ["Moving", "Standby", "PersistentVolumeConflict"] {
            let text = advice(reason);
            assert!(!text.contains("delete"), "{text}");
            assert!(text.contains("wait until VolumeMove pvc-1"), "{text}");
        }
    }
}
