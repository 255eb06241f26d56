//! Parses requests of the Controller service into valid types.
//!
//! *Invariant:* missing fields are reported before invalid ones, and both before anything is done
//! (GEN-04, GEN-05, GEN-13). No typed request contains secrets.

pub mod capacity_range;
mod create;
mod deadline;
mod field;
pub mod page;
pub mod snapshot;
mod source;
pub mod topology;
mod validate;

use std::collections::BTreeMap;

use cistern_controller::{
    objects::listing::PageQuery,
    volumes::{CapacityQuery, SizeRange},
};
use cistern_crds::{
    AttributeChanges, FilesystemType, PoolVolume, attributes, parameters::ParametersError,
    snapshot_parameters,
};
use cistern_host::MountOptions;
use cistern_proto::csi::v1;

pub(super) use self::field::{map, name, required, string};
use self::{
    create::{access_type, or_default},
    field::volume_id,
    validate::{difference, own_parameters},
};
pub use self::{
    deadline::deadline,
    field::MAX_STRING,
    validate::{Difference, Mismatch, ValidateVolumeCapabilities},
};
use super::capability::{self, Capability};

/// A typed request that is parsed from a CSI message.
pub(super) trait FromRequest<M>: Sized {
    /// Why a message is refused.
    type Error;

    /// Parses a message. Fails if a required field is missing, or if the request is invalid or
    /// unsupported.
    fn from_request(message: M) -> Result<Self, Self::Error>;
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A required field is missing (GEN-04).
    #[error("{field} is required")]
    Missing {
        /// Name of the field in the CSI message.
        field: &'static str,
    },
    /// A field is too long (FLD-14).
    #[error("{field} is longer than {limit} bytes")]
    TooLong {
        /// Name of the field in the CSI message.
        field: &'static str,
        /// Its maximum length in bytes.
        limit: usize,
    },
    /// A control character in a name (FLD-12).
    #[error("name contains the control character U+{code:04X}")]
    ControlCharacter {
        /// The Unicode code point of the character.
        code: u32,
    },
    /// An optional part of the protocol that the driver does not announce (VCS-04, CV-27).
    #[error("{field} is not supported")]
    Unsupported {
        /// Name of the field in the CSI message.
        field: &'static str,
    },
    /// Two filesystems for one volume (CV-04).
    #[error("the volume capabilities ask for filesystem {one} and for {other} in one volume")]
    Contradiction {
        /// The filesystem of a capability.
        one: FilesystemType,
        /// The different filesystem of a later capability.
        other: FilesystemType,
    },
    /// A filesystem in the parameters and another in a capability (CV-04).
    #[error(
        "parameter \"csi.storage.k8s.io/fstype\" of the class asks for filesystem {class}, and a volume \
         capability for {capability}"
    )]
    ContradictsClass {
        /// The filesystem of the parameters.
        class: FilesystemType,
        /// The different filesystem of the capability.
        capability: FilesystemType,
    },
    /// A filesystem and a block device for one volume (CV-04).
    #[error("the volume capabilities ask for a filesystem and for a block device in one volume")]
    TwoAccessTypes,
    /// The volume does not support the capability of the request (CEV-05, NEV-05).
    #[error("volume_capability does not fit the volume: {difference}")]
    OtherWay {
        /// What differs.
        difference: Difference,
    },
    /// A mount flag is not supported for the filesystem of the volume.
    #[error("{problem}")]
    MountFlags {
        /// The message alone: it does not name the flag, which may be sensitive (SEC-05).
        problem: String,
    },
    /// An invalid or unsupported volume capability.
    #[error(transparent)]
    Capability(#[from] capability::Error),
    /// Invalid parameters of a volume (CV-17, CV-22).
    #[error(transparent)]
    Parameters(#[from] ParametersError),
    /// Invalid mutable parameters of a volume (CV-27, CMV-05).
    #[error(transparent)]
    Attributes(#[from] attributes::Error),
    /// Invalid parameters of a snapshot (CS-17).
    #[error(transparent)]
    SnapshotParameters(#[from] snapshot_parameters::Error),
    /// An invalid topology.
    #[error(transparent)]
    Topology(#[from] topology::Error),
    /// An invalid or impossible size.
    #[error(transparent)]
    CapacityRange(#[from] capacity_range::Error),
    /// Invalid pagination fields.
    #[error(transparent)]
    Page(#[from] page::Error),
}

/// Parses a request to delete a volume, and returns the volume id (DV-02). Fails if the id is
/// missing or too long.
pub fn delete_volume(request: v1::DeleteVolumeRequest) -> Result<String, Error> {
    volume_id(request.volume_id)
}

/// Parses a request to read a volume, and returns the volume id (CGV-02). Fails if the id is
/// missing or too long.
pub fn get_volume(request: v1::ControllerGetVolumeRequest) -> Result<String, Error> {
    volume_id(request.volume_id)
}

/// Parses the pagination fields of a list of volumes. Fails if the limit is negative or the token
/// is unknown.
pub fn list_volumes(request: &v1::ListVolumesRequest) -> Result<PageQuery, Error> {
    Ok(page::parse(request.max_entries, &request.starting_token)?)
}

/// Parses a request for the health of a volume, and returns the volume id. Fails if the id is
/// missing or too long.
pub fn get_volume_health(request: v1::ControllerGetVolumeHealthRequest) -> Result<String, Error> {
    volume_id(request.volume_id)
}

/// Parses the pagination fields of a list of unhealthy volumes. Fails if the limit is negative or
/// the token is unknown.
pub fn list_volume_health(
    request: &v1::ControllerListVolumeHealthRequest,
) -> Result<PageQuery, Error> {
    Ok(page::parse(request.max_entries, &request.starting_token)?)
}

/// A request to expand a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpandVolume {
    /// The id of the volume to change.
    pub volume_id: String,
    /// The sizes that serve the request.
    pub size: SizeRange,
    /// The capability of the request, if given.
    way: Option<Capability>,
}

impl FromRequest<v1::ControllerExpandVolumeRequest> for ExpandVolume {
    type Error = Error;

    fn from_request(request: v1::ControllerExpandVolumeRequest) -> Result<Self, Error> {
        let volume_id = volume_id(request.volume_id)?;
        let range = request.capacity_range.unwrap_or_default();
        // Zero means not given, and one of the two is required (CEV-03, GAP-12).
        required("capacity_range", range == v1::CapacityRange::default())?;
        Ok(Self {
            volume_id,
            size: capacity_range::parse_growth(range)?,
            way: request
                .volume_capability
                .map(TryFrom::try_from)
                .transpose()?,
        })
    }
}

impl ExpandVolume {
    /// Fails if the volume does not support the capability of the request (CEV-05).
    pub fn check(&self, volume: &PoolVolume) -> Result<(), Error> {
        let way = self.way.as_ref();
        match way.and_then(|way| difference(way, volume)) {
            Some(difference) => Err(Error::OtherWay { difference }),
            None => Ok(()),
        }
    }
}

/// A request to change the attributes of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModifyVolume {
    /// The id of the volume to change.
    pub volume_id: String,
    mutable_parameters: BTreeMap<String, String>,
}

impl FromRequest<v1::ControllerModifyVolumeRequest> for ModifyVolume {
    type Error = Error;

    fn from_request(request: v1::ControllerModifyVolumeRequest) -> Result<Self, Error> {
        map("mutable_parameters", &request.mutable_parameters)?;
        Ok(Self {
            volume_id: volume_id(request.volume_id)?,
            mutable_parameters: request.mutable_parameters,
        })
    }
}

impl ModifyVolume {
    /// The requested changes. Fails if there are none, or if one is invalid (CMV-03, CMV-05).
    ///
    /// This is a separate step, because an unknown volume is reported before missing parameters
    /// (SAN-08).
    pub fn changes(&self) -> Result<AttributeChanges, Error> {
        required("mutable_parameters", self.mutable_parameters.is_empty())?;
        Ok(AttributeChanges::parse(&self.mutable_parameters)?)
    }
}

/// Parses a capacity request. Returns None if no volume can serve it, so that the capacity is zero
/// (GC-03). Fails if a field is malformed, too long or has an invalid value.
pub fn get_capacity(request: v1::GetCapacityRequest) -> Result<Option<CapacityQuery>, Error> {
    map("parameters", &request.parameters)?;
    let place = request.accessible_topology.map(topology::parse_one);
    let places = place.transpose()?.map(|place| place.into_iter().collect());
    let parameters = own_parameters(&request.parameters)?;
    let named = parameters
        .as_ref()
        .and_then(|parameters| parameters.filesystem);
    let filesystem = if request.volume_capabilities.is_empty() {
        // The smallest size depends on a filesystem that is not known yet (GC-11).
        named
    } else {
        match capabilities(request.volume_capabilities).and_then(|c| access_type(&c, named)) {
            Err(Error::Capability(error)) if !error.is_malformed() => return Ok(None),
            Err(
                Error::Contradiction { .. }
                | Error::ContradictsClass { .. }
                | Error::TwoAccessTypes,
            ) => return Ok(None),
            chosen => {
                let (access_type, asked) = chosen?;
                or_default(access_type, asked)
            }
        }
    };
    if let (Some(parameters), Some(filesystem)) = (&parameters, filesystem) {
        parameters.mkfs_options(filesystem)?;
    }
    Ok(Some(CapacityQuery {
        provisioning: parameters
            .as_ref()
            .map(|p| p.attributes.provisioning)
            .unwrap_or_default(),
        encryption: parameters.as_ref().and_then(|p| p.encryption),
        pools: parameters.map(|parameters| parameters.pools),
        filesystem,
        places,
    }))
}

/// Fails if a capability has a mount flag that is not supported for the filesystem: every stage would fail.
fn check_mount_flags(capabilities: &[Capability], filesystem: FilesystemType) -> Result<(), Error> {
    for Capability { mount_flags, .. } in capabilities {
        let flags = mount_flags.0.iter().map(String::as_str);
        MountOptions::parse(filesystem, flags).map_err(|error| Error::MountFlags {
            problem: error.to_string(),
        })?;
    }
    Ok(())
}

fn capabilities(capabilities: Vec<v1::VolumeCapability>) -> Result<Vec<Capability>, Error> {
    let read = capabilities.into_iter().map(Capability::try_from);
    Ok(read.collect::<Result<_, capability::Error>>()?)
}

#[cfg(test)]
mod tests;
