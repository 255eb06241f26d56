//! Parses and checks ValidateVolumeCapabilities requests.

use std::collections::BTreeMap;

use cistern_crds::{
    AttributeChanges, Parameters, PoolVolume, PoolVolumeSpec,
    names::{self, RESERVED_PREFIX},
    parameters::ParametersError,
};
use cistern_proto::csi::v1;

use super::{Error, capabilities, map, required, volume_id};
use crate::csi::capability::Capability;
use crate::csi::request::FromRequest;

/// A query whether a volume supports capabilities. An unsupported capability is no error here (VVC-09).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidateVolumeCapabilities {
    /// The volume id.
    pub volume_id: String,
    /// The capabilities, or why Cistern supports them for no volume.
    pub ways: Result<Vec<Capability>, String>,
    /// The expected parameters of the volume, if given.
    pub parameters: Option<Parameters>,
    /// The expected attributes, where they differ from the parameters.
    pub changes: AttributeChanges,
    /// The expected image, from the `volume_context`, if given.
    pub image: Option<String>,
}

impl FromRequest<v1::ValidateVolumeCapabilitiesRequest> for ValidateVolumeCapabilities {
    type Error = Error;

    fn from_request(request: v1::ValidateVolumeCapabilitiesRequest) -> Result<Self, Error> {
        let volume_id = volume_id(request.volume_id)?;
        required(
            "volume_capabilities",
            request.volume_capabilities.is_empty(),
        )?;
        map("parameters", &request.parameters)?;
        map("volume_context", &request.volume_context)?;
        let mut ways = match capabilities(request.volume_capabilities) {
            Err(Error::Capability(error)) if !error.is_malformed() => Err(error.to_string()),
            capabilities => Ok(capabilities?),
        };
        map("mutable_parameters", &request.mutable_parameters)?;
        let changes =
            AttributeChanges::parse(&request.mutable_parameters).unwrap_or_else(|error| {
                ways = Err(error.to_string());
                AttributeChanges::default()
            });
        let parameters = match own_parameters(&request.parameters) {
            Ok(parameters) => parameters,
            Err(error) => {
                ways = Err(error.to_string());
                None
            }
        };
        Ok(Self {
            volume_id,
            ways,
            parameters,
            changes,
            image: request.volume_context.get(names::IMAGE_CONTEXT).cloned(),
        })
    }
}

impl ValidateVolumeCapabilities {
    /// Why the volume does not match the query; None if it does (VVC-05, VVC-10).
    pub fn contradiction(&self, volume: &PoolVolume) -> Option<String> {
        let spec = &volume.spec;
        let ways = match &self.ways {
            Ok(ways) => ways,
            Err(why) => return Some(why.clone()),
        };
        if let Some(parameters) = &self.parameters
            && (parameters.pool != spec.pool_name
                || parameters.filesystem.is_some() && parameters.filesystem != spec.filesystem
                || !made_with_options_of(parameters, spec))
        {
            return Some("the volume was made with other parameters".to_owned());
        }
        let parameters = self.parameters.as_ref();
        let made_with = parameters.map_or(spec.attributes, |parameters| parameters.attributes);
        if self.changes.apply(made_with) != spec.attributes {
            return Some(format!("the volume's attributes are {}", spec.attributes));
        }
        let image = volume
            .status
            .as_ref()
            .and_then(|status| status.image.as_ref());
        let image = image.map(|image| &image.uid);
        if self.image.is_some() && self.image.as_ref() != image {
            return Some("the volume has another image than its context says".to_owned());
        }
        ways.iter().find_map(|way| difference(way, spec))
    }
}

/// Why a volume does not support a capability; None if it does.
pub(super) fn difference(way: &Capability, spec: &PoolVolumeSpec) -> Option<String> {
    if way.access_type != spec.access_type {
        Some(format!(
            "the volume's access type is {:?}",
            spec.access_type
        ))
    } else if way.filesystem.is_some() && way.filesystem != spec.filesystem {
        Some("the volume has another filesystem".to_owned())
    } else if !spec.serves(way.access_mode) {
        Some(format!(
            "the volume's access modes are {:?}",
            spec.access_modes
        ))
    } else {
        None
    }
}

/// Whether a volume has the mkfs options of the parameters. They do not apply to a block device or a
/// copy, because a class may serve other volumes as well.
fn made_with_options_of(parameters: &Parameters, spec: &PoolVolumeSpec) -> bool {
    let made = spec.filesystem.filter(|_| spec.content_source.is_none());
    made.is_none_or(|filesystem| {
        let asked = parameters.mkfs_options(filesystem);
        asked.is_ok_and(|asked| asked.to_string() == spec.mkfs_options.as_deref().unwrap_or(""))
    })
}

/// The parameters, if there are any besides those that the sidecars add (K8S-01).
pub(super) fn own_parameters(
    map: &BTreeMap<String, String>,
) -> Result<Option<Parameters>, ParametersError> {
    if map.keys().all(|key| key.starts_with(RESERVED_PREFIX)) {
        return Ok(None);
    }
    Parameters::parse(map).map(Some)
}
