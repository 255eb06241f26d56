//! Parses and checks ValidateVolumeCapabilities requests.

use std::collections::BTreeMap;

use cistern_crds::{
    AccessMode, AccessType, AttributeChanges, Parameters, PoolVolume, PoolVolumeSpec,
    VolumeAttributes,
    names::{self, RESERVED_PREFIX},
    parameters::ParametersError,
};
use cistern_proto::csi::v1;

use super::{Error, capabilities, check_mount_flags, map, required, volume_id};
use crate::csi::capability::Capability;
use crate::csi::request::FromRequest;

/// A query whether a volume supports capabilities. An unsupported capability is no error here (VVC-09).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidateVolumeCapabilities {
    /// The id of the volume that the capabilities are compared with.
    pub volume_id: String,
    /// The capabilities, or why no volume of Cistern supports them.
    pub capabilities: Result<Vec<Capability>, Error>,
    /// The expected parameters of the volume, if given.
    pub parameters: Option<Parameters>,
    /// The expected attributes, where they differ from the parameters.
    pub changes: AttributeChanges,
    /// The expected image, from the `volume_context`, if given.
    pub image: Option<String>,
}

/// Why a volume does not match a query.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// Cistern does not support the query for any volume.
    #[error(transparent)]
    Unsupported(#[from] Error),
    /// The volume does not support a capability.
    #[error(transparent)]
    Capability(#[from] Difference),
    /// It was made with other parameters.
    #[error("the volume was made with other parameters")]
    Parameters,
    /// The volume has these attributes, and others are expected.
    #[error("the volume's attributes are {0}")]
    Attributes(Box<VolumeAttributes>),
    /// The volume context is that of another image.
    #[error("the volume has another image than its context says")]
    Image,
}

/// Why a volume does not support a capability.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Difference {
    /// The volume has another access type, this one.
    #[error("the volume's access type is {0:?}")]
    AccessType(AccessType),
    /// The volume has another filesystem.
    #[error("the volume has another filesystem")]
    Filesystem,
    /// The volume has only these access modes.
    #[error("the volume's access modes are {0:?}")]
    AccessModes(Vec<AccessMode>),
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
        let mut capabilities = match capabilities(request.volume_capabilities) {
            Err(Error::Capability(error)) if !error.is_malformed() => Err(error.into()),
            capabilities => Ok(capabilities?),
        };
        map("mutable_parameters", &request.mutable_parameters)?;
        let changes =
            AttributeChanges::parse(&request.mutable_parameters).unwrap_or_else(|error| {
                capabilities = Err(error.into());
                AttributeChanges::default()
            });
        let parameters = match own_parameters(&request.parameters) {
            Ok(parameters) => parameters,
            Err(error) => {
                capabilities = Err(error.into());
                None
            }
        };
        Ok(Self {
            volume_id,
            capabilities,
            parameters,
            changes,
            image: request.volume_context.get(names::IMAGE_CONTEXT).cloned(),
        })
    }
}

impl ValidateVolumeCapabilities {
    /// Why the volume does not match the query; None if it does (VVC-05, VVC-10).
    pub fn mismatch(&self, volume: &PoolVolume) -> Option<Mismatch> {
        let spec = &volume.spec;
        let capabilities = match &self.capabilities {
            Ok(capabilities) => capabilities,
            Err(error) => return Some(error.clone().into()),
        };
        if let Some(parameters) = &self.parameters
            && !made_with(parameters, spec)
        {
            return Some(Mismatch::Parameters);
        }
        let parameters = self.parameters.as_ref();
        let attributes = parameters.map_or(spec.attributes, |parameters| parameters.attributes);
        if self.changes.apply(attributes) != spec.attributes {
            return Some(Mismatch::Attributes(spec.attributes.into()));
        }
        let image = volume
            .status
            .as_ref()
            .and_then(|status| status.image.as_ref());
        let image = image.map(|image| &image.uid);
        if self.image.is_some() && self.image.as_ref() != image {
            return Some(Mismatch::Image);
        }
        let mut differences = capabilities
            .iter()
            .filter_map(|way| difference(way, volume));
        if let Some(difference) = differences.next() {
            return Some(difference.into());
        }
        let filesystem = volume.filesystem_type()?;
        let unsupported = check_mount_flags(capabilities, filesystem).err();
        unsupported.map(Mismatch::Unsupported)
    }
}

/// Why a volume does not support a capability; None if it does.
pub(super) fn difference(way: &Capability, volume: &PoolVolume) -> Option<Difference> {
    let (spec, access_type) = (&volume.spec, volume.access_type());
    if way.access_type != access_type {
        Some(Difference::AccessType(access_type))
    } else if way.filesystem.is_some() && way.filesystem != volume.filesystem_type() {
        Some(Difference::Filesystem)
    } else if !spec.serves(way.access_mode) {
        Some(Difference::AccessModes(spec.access_modes.clone()))
    } else {
        None
    }
}

/// Whether a volume was made with these parameters. The filesystem is not compared for a block device, and adoption only for
/// one, because a class may serve claims of both kinds.
fn made_with(parameters: &Parameters, spec: &PoolVolumeSpec) -> bool {
    let is_of_its_kind = match spec.access_type {
        AccessType::Filesystem => {
            parameters.filesystem.is_none() || parameters.filesystem == spec.filesystem
        }
        AccessType::Block => parameters.adopt_filesystem == spec.adopt_filesystem,
    };
    is_of_its_kind
        && parameters.pools.contains(&spec.pool_name)
        && parameters.extent_size == spec.extent_size
        && parameters.encryption == spec.encryption
        && parameters.encryption_discards == spec.encryption_discards
        && made_with_options_of(parameters, spec)
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

/// The parameters; None if there are only those that the sidecars add (K8S-01). Fails if a
/// parameter is unknown or invalid.
pub(super) fn own_parameters(
    map: &BTreeMap<String, String>,
) -> Result<Option<Parameters>, ParametersError> {
    if map.keys().all(|key| key.starts_with(RESERVED_PREFIX)) {
        return Ok(None);
    }
    Parameters::parse(map).map(Some)
}
