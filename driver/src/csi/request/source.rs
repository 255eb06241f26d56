//! Parses the content source of a new volume.

use cistern_controller::volumes::SourceReference;
use cistern_crds::SourceKind;
use cistern_proto::csi::v1::{self, volume_content_source::Type};

use super::{Error, required, string};

/// Parses the source of a new volume (VCS-01, VCS-02). Fails if the kind or the id is missing, or
/// if the id is too long.
pub(super) fn parse(source: v1::VolumeContentSource) -> Result<SourceReference, Error> {
    let (kind, field, id) = match source.r#type {
        None => {
            return Err(Error::Missing {
                field: "volume_content_source.type",
            });
        }
        Some(Type::Snapshot(snapshot)) => (
            SourceKind::Snapshot,
            "volume_content_source.snapshot.snapshot_id",
            snapshot.snapshot_id,
        ),
        Some(Type::Volume(volume)) => (
            SourceKind::Volume,
            "volume_content_source.volume.volume_id",
            volume.volume_id,
        ),
    };
    required(field, id.is_empty())?;
    string(field, &id)?;
    let id = id.into();
    Ok(SourceReference { kind, id })
}
