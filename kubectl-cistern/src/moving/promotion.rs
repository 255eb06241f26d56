//! Moves whose copy was promoted to the volume.

use cistern_crds::VolumeMove;

/// Whether the copy of a VolumeMove has become the volume, or is about to.
pub(crate) fn is_promoted(it: &VolumeMove) -> bool {
    it.status.as_ref().is_some_and(|it| it.promoted.is_some())
}

/// What to do with the VolumeMove of a volume that was promoted.
pub(crate) fn was_promoted(name: &str) -> String {
    format!(
        "the copy of volume {name} was promoted, and its former node keeps the image of before: \
         `kubectl delete volumemove {name}` removes that image"
    )
}
