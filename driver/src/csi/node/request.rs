//! Requests of the Node service as types.
//!
//! *Invariant:* required fields are checked before anything else (SAN-03). Typed requests contain no
//! secrets but keys, which print nothing, and their paths are absolute.

use std::{
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use cistern_crds::names;
use cistern_node::{
    mounting::{Publish, Stage, expand::Expand, health::VolumePaths},
    usage::Usage,
};
use cistern_proto::csi::v1;

use super::keys;
use crate::csi::request::FromRequest;
use crate::csi::{
    capability::{self, Capability},
    request::{self, capacity_range, required, string},
};

/// Maximum length of a path in bytes: the kernel's `PATH_MAX` without its NUL (FLD-16).
const MAX_PATH: usize = 4095;

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A field is missing or too long (GEN-04, FLD-14).
    #[error(transparent)]
    Field(#[from] request::Error),
    /// The staging path is missing. This error has its own gRPC code (NPV-05).
    #[error("staging_target_path is required: the volume must be staged before it is published")]
    NotStaged,
    /// An invalid path (NSV-12, NPV-18, FLD-16).
    #[error("{field} must be an absolute path of at most {MAX_PATH} bytes without .. in it")]
    Path {
        /// Name of the field in the CSI message.
        field: &'static str,
    },
    /// An invalid or unsupported volume capability.
    #[error(transparent)]
    Capability(#[from] capability::Error),
    /// Secrets that are no keys.
    #[error(transparent)]
    Keys(#[from] keys::Error),
}

/// A valid `NodeUnstageVolume` request.
#[derive(Clone, Debug)]
pub struct Unstage {
    /// The volume id.
    pub volume: String,
    /// `staging_target_path`: where the volume is mounted for the node.
    pub staging: PathBuf,
}

/// A valid `NodeUnpublishVolume` request.
#[derive(Clone, Debug)]
pub struct Unpublish {
    /// The volume id.
    pub volume: String,
    /// `target_path`: where the volume is mounted for one pod.
    pub target: PathBuf,
}

/// A valid `NodeGetVolumeStats` request.
#[derive(Clone, Debug)]
pub struct Statistics {
    /// The volume id.
    pub volume: String,
    /// Path at which the volume is staged or published. Its syntax is not checked, because an
    /// unknown volume is NOT_FOUND with any path (SAN-04).
    pub path: PathBuf,
}

/// A valid `NodeGetVolumeHealth` request.
#[derive(Clone, Debug)]
pub struct VolumeHealth {
    /// The volume id.
    pub volume: String,
    /// The paths of the volume that the request gives; each is optional (NVH-06).
    pub paths: VolumePaths,
}

impl FromRequest<v1::NodeGetVolumeHealthRequest> for VolumeHealth {
    type Error = Error;

    fn from_request(request: v1::NodeGetVolumeHealthRequest) -> Result<Self, Error> {
        required("volume_id", request.volume_id.is_empty())?;
        let optional = |field, text: String| {
            let given = Some(text).filter(|text| !text.is_empty());
            given.map(|text| path(field, text)).transpose()
        };
        Ok(Self {
            volume: id(request.volume_id)?,
            paths: VolumePaths {
                staging: optional("staging_target_path", request.staging_target_path)?,
                published: optional("volume_publish_path", request.volume_publish_path)?,
            },
        })
    }
}

impl FromRequest<v1::NodeStageVolumeRequest> for Stage {
    type Error = Error;

    fn from_request(request: v1::NodeStageVolumeRequest) -> Result<Self, Error> {
        required("volume_id", request.volume_id.is_empty())?;
        required(
            "staging_target_path",
            request.staging_target_path.is_empty(),
        )?;
        required("volume_capability", request.volume_capability.is_none())?;
        Ok(Self {
            volume: id(request.volume_id)?,
            staging: path("staging_target_path", request.staging_target_path)?,
            usage: usage(request.volume_capability)?,
            image: request.volume_context.get(names::IMAGE_CONTEXT).cloned(),
            keys: keys::take(request.secrets)?.map(Arc::new),
        })
    }
}

impl FromRequest<v1::NodeUnstageVolumeRequest> for Unstage {
    type Error = Error;

    fn from_request(request: v1::NodeUnstageVolumeRequest) -> Result<Self, Error> {
        required("volume_id", request.volume_id.is_empty())?;
        required(
            "staging_target_path",
            request.staging_target_path.is_empty(),
        )?;
        Ok(Self {
            volume: id(request.volume_id)?,
            staging: path("staging_target_path", request.staging_target_path)?,
        })
    }
}

impl FromRequest<v1::NodePublishVolumeRequest> for Publish {
    type Error = Error;

    fn from_request(request: v1::NodePublishVolumeRequest) -> Result<Self, Error> {
        required("volume_id", request.volume_id.is_empty())?;
        required("target_path", request.target_path.is_empty())?;
        required("volume_capability", request.volume_capability.is_none())?;
        let volume = id(request.volume_id)?;
        let target = path("target_path", request.target_path)?;
        let usage = usage(request.volume_capability)?;
        // Checked after everything that is INVALID_ARGUMENT.
        if request.staging_target_path.is_empty() {
            return Err(Error::NotStaged);
        }
        Ok(Self {
            volume,
            staging: path("staging_target_path", request.staging_target_path)?,
            target,
            usage,
            read_only: request.readonly,
            image: request.volume_context.get(names::IMAGE_CONTEXT).cloned(),
        })
    }
}

impl FromRequest<v1::NodeUnpublishVolumeRequest> for Unpublish {
    type Error = Error;

    fn from_request(request: v1::NodeUnpublishVolumeRequest) -> Result<Self, Error> {
        required("volume_id", request.volume_id.is_empty())?;
        required("target_path", request.target_path.is_empty())?;
        Ok(Self {
            volume: id(request.volume_id)?,
            target: path("target_path", request.target_path)?,
        })
    }
}

impl FromRequest<v1::NodeGetVolumeStatsRequest> for Statistics {
    type Error = Error;

    fn from_request(request: v1::NodeGetVolumeStatsRequest) -> Result<Self, Error> {
        required("volume_id", request.volume_id.is_empty())?;
        required("volume_path", request.volume_path.is_empty())?;
        Ok(Self {
            volume: id(request.volume_id)?,
            path: request.volume_path.into(),
        })
    }
}

impl FromRequest<v1::NodeExpandVolumeRequest> for Expand {
    type Error = Error;

    fn from_request(request: v1::NodeExpandVolumeRequest) -> Result<Self, Error> {
        required("volume_id", request.volume_id.is_empty())?;
        required("volume_path", request.volume_path.is_empty())?;
        let bounds = capacity_range::bounds(request.capacity_range);
        let (required, limit) = bounds.map_err(request::Error::from)?;
        // All errors of the capability have one code here (NEV-05).
        let way: Option<Capability> = request
            .volume_capability
            .map(|way| way.try_into().map_err(request::Error::Capability))
            .transpose()?;
        Ok(Self {
            volume: id(request.volume_id)?,
            // An unknown volume is NOT_FOUND with any path.
            path: path("volume_path", request.volume_path).ok(),
            required,
            limit,
            usage: way.map(Usage::from),
            keys: keys::take(request.secrets)?.map(Arc::new),
        })
    }
}

fn usage(capability: Option<v1::VolumeCapability>) -> Result<Usage, Error> {
    let capability: Capability = capability.unwrap_or_default().try_into()?;
    Ok(capability.into())
}

impl From<Capability> for Usage {
    fn from(capability: Capability) -> Self {
        Self {
            access_type: capability.access_type,
            access_mode: capability.access_mode,
            filesystem: capability.filesystem,
            mount_flags: capability.mount_flags.0,
        }
    }
}

fn id(id: String) -> Result<String, Error> {
    string("volume_id", &id)?;
    Ok(id)
}

fn path(field: &'static str, text: String) -> Result<PathBuf, Error> {
    let path = Path::new(&text);
    let mut parts = path.components();
    let plain = parts.all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
        && path.file_name().is_some();
    if !text.starts_with('/') || !plain || text.contains('\0') || text.len() > MAX_PATH {
        return Err(Error::Path { field });
    }
    Ok(text.into())
}

#[cfg(test)]
mod tests {
    use cistern_proto::csi::v1::volume_capability::{
        AccessMode, AccessType, MountVolume, access_mode::Mode,
    };

    use super::*;

    fn capability() -> v1::VolumeCapability {
        v1::VolumeCapability {
            access_type: Some(AccessType::Mount(MountVolume::default())),
            access_mode: Some(AccessMode {
                mode: Mode::SingleNodeWriter.into(),
            }),
        }
    }

    fn publish() -> v1::NodePublishVolumeRequest {
        v1::NodePublishVolumeRequest {
            volume_id: "v".into(),
            staging_target_path: "/staging".into(),
            target_path: "/target".into(),
            volume_capability: Some(capability()),
            ..Default::default()
        }
    }

    fn stage() -> v1::NodeStageVolumeRequest {
        v1::NodeStageVolumeRequest {
            volume_id: "v".into(),
            staging_target_path: "/staging".into(),
            volume_capability: Some(capability()),
            ..Default::default()
        }
    }

    #[test]
    fn nsv_02_nsv_03_nsv_04_every_required_field_of_stage_is_missed_by_name() {
        let error = |request: v1::NodeStageVolumeRequest| {
            Stage::from_request(request).unwrap_err().to_string()
        };
        let mut request = stage();
        request.volume_id.clear();
        assert!(error(request).contains("volume_id"));
        let mut request = stage();
        request.staging_target_path.clear();
        assert!(error(request).contains("staging_target_path"));
        let mut request = stage();
        request.volume_capability = None;
        assert!(error(request).contains("volume_capability"));
    }

    #[test]
    fn san_03_npv_05_the_staging_path_of_publish_is_checked_last() {
        let bare = v1::NodePublishVolumeRequest {
            volume_id: "v".into(),
            ..Default::default()
        };
        let error = Publish::from_request(bare).unwrap_err();
        assert!(error.to_string().contains("target_path"), "{error}");
        let mut unstaged = publish();
        unstaged.staging_target_path.clear();
        assert!(matches!(
            Publish::from_request(unstaged.clone()),
            Err(Error::NotStaged)
        ));
        unstaged.volume_capability = None;
        assert!(matches!(
            Publish::from_request(unstaged),
            Err(Error::Field(_))
        ));
    }

    #[test]
    fn nsv_12_npv_18_paths_are_absolute_and_plain() {
        for bad in ["relative", "/", "/a/../b", "/a/./../b", "/nul\0"] {
            let mut request = publish();
            request.target_path = bad.into();
            let error = Publish::from_request(request).unwrap_err();
            assert!(
                matches!(
                    error,
                    Error::Path {
                        field: "target_path"
                    }
                ),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn fld_04_fld_16_paths_may_be_as_long_as_the_kernel_takes() {
        let mut request = publish();
        request.target_path = format!("/{}", "x/".repeat(2000));
        assert!(Publish::from_request(request.clone()).is_ok());
        request.target_path = format!("/{}", "x".repeat(MAX_PATH));
        assert!(Publish::from_request(request).is_err());
    }

    #[test]
    fn fld_14_an_id_longer_than_the_protocol_allows_is_refused() {
        let mut request = publish();
        request.volume_id = "v".repeat(129);
        assert!(matches!(
            Publish::from_request(request),
            Err(Error::Field(_))
        ));
    }

    #[test]
    fn nev_02_nev_03_nev_17_nev_18_only_volume_and_path_are_required_to_expand() {
        let bare = v1::NodeExpandVolumeRequest {
            volume_id: "v".into(),
            volume_path: "/path".into(),
            ..Default::default()
        };
        let read = Expand::from_request(bare.clone()).unwrap();
        assert_eq!((read.required.0, read.limit), (0, None));
        assert!(read.usage.is_none() && read.path.is_some());
        let change = |change: fn(&mut v1::NodeExpandVolumeRequest)| {
            let mut request = bare.clone();
            change(&mut request);
            Expand::from_request(request)
        };
        assert!(change(|request| request.volume_id.clear()).is_err());
        assert!(change(|request| request.volume_path.clear()).is_err());
        let negative = |request: &mut v1::NodeExpandVolumeRequest| {
            request.capacity_range.get_or_insert_default().limit_bytes = -1;
        };
        assert!(change(negative).is_err());
        let bad_way = |request: &mut v1::NodeExpandVolumeRequest| {
            request.volume_capability = Some(v1::VolumeCapability::default());
        };
        assert!(change(bad_way).is_err());
        // An unknown volume takes precedence over an invalid path.
        let relative = change(|request| request.volume_path = "some/path".into());
        assert_eq!(relative.unwrap().path, None);
    }

    #[test]
    fn nvh_02_nvh_06_paths_of_a_health_request_are_optional_and_absolute() {
        let bare = v1::NodeGetVolumeHealthRequest {
            volume_id: "v".into(),
            ..Default::default()
        };
        let read = VolumeHealth::from_request(bare.clone()).unwrap();
        assert_eq!(read.paths, VolumePaths::default());
        let change = |change: fn(&mut v1::NodeGetVolumeHealthRequest)| {
            let mut request = bare.clone();
            change(&mut request);
            VolumeHealth::from_request(request)
        };
        assert!(change(|request| request.volume_id.clear()).is_err());
        assert!(change(|request| request.staging_target_path = "relative".into()).is_err());
        assert!(change(|request| request.volume_publish_path = "/a/../b".into()).is_err());
        let long = change(|request| request.volume_publish_path = format!("/{}", "x".repeat(200)));
        assert!(long.unwrap().paths.published.is_some());
    }

    #[test]
    fn san_04_a_relative_path_is_no_reason_to_refuse_statistics() {
        let request = v1::NodeGetVolumeStatsRequest {
            volume_id: "unknown".into(),
            volume_path: "some/path".into(),
            ..Default::default()
        };
        assert!(Statistics::from_request(request).is_ok());
    }
}
