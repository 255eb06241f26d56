//! Requests of the Controller service as types: read once, and right from then on.
//!
//! *Invariant:* what is missing is found before what is wrong, and both before anything is done
//! (GEN-04, GEN-05, GEN-13). No typed request holds secrets.

pub mod capacity_range;
mod create;
mod deadline;
mod field;
pub mod page;
pub mod snapshot;
mod source;
pub mod topology;
mod validate;

use cistern_controller::{
    objects::listing::PageQuery,
    volumes::{CapacityQuery, SizeRange},
};
use cistern_crds::{FilesystemType, PoolVolume, parameters::ParametersError, snapshot_parameters};
use cistern_proto::csi::v1;

pub(super) use self::field::{map, name, required, string};
use self::{
    create::{access_type, or_default},
    field::volume_id,
    validate::{difference, own_parameters},
};
pub use self::{deadline::deadline, field::MAX_STRING, validate::ValidateVolumeCapabilities};
use super::capability::{self, Capability};

/// What a message asks for, verified.
pub(super) trait FromRequest<M>: Sized {
    /// Why a message is refused.
    type Error;

    /// Reads a message. Fails where the message lacks what CSI requires, or asks for something that
    /// Cistern does not have.
    fn from_request(message: M) -> Result<Self, Self::Error>;
}

/// Why a request is refused as it stands.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// GEN-04.
    #[error("{field} is required")]
    Missing {
        /// The field.
        field: &'static str,
    },
    /// FLD-14.
    #[error("{field} is longer than {limit} bytes")]
    TooLong {
        /// The field.
        field: &'static str,
        /// Most bytes of it.
        limit: usize,
    },
    /// FLD-12.
    #[error("name contains the control character U+{code:04X}")]
    ControlCharacter {
        /// The character.
        code: u32,
    },
    /// A part of the protocol that is not announced (VCS-04, CV-27).
    #[error("{field} is not supported")]
    Unsupported {
        /// The field.
        field: &'static str,
    },
    /// CV-04: one volume cannot be used in all of the ways that are asked for.
    #[error("the volume capabilities ask for filesystem {one} and for {other} in one volume")]
    Contradiction {
        /// One filesystem.
        one: FilesystemType,
        /// Another one.
        other: FilesystemType,
    },
    /// CV-04.
    #[error("the volume capabilities ask for a filesystem and for a block device in one volume")]
    TwoAccessTypes,
    /// CEV-05, NEV-05: the volume is not of the kind that the request takes it for.
    #[error("volume_capability does not fit the volume: {why}")]
    OtherWay {
        /// What differs.
        why: String,
    },
    /// A volume capability that Cistern does not have.
    #[error(transparent)]
    Capability(#[from] capability::Error),
    /// CV-17, CV-22.
    #[error(transparent)]
    Parameters(#[from] ParametersError),
    /// CS-17.
    #[error(transparent)]
    SnapshotParameters(#[from] snapshot_parameters::Error),
    /// A place that is none.
    #[error(transparent)]
    Topology(#[from] topology::Error),
    /// A size that cannot be.
    #[error(transparent)]
    CapacityRange(#[from] capacity_range::Error),
    /// A page that nobody can be given.
    #[error(transparent)]
    Page(#[from] page::Error),
}

/// The volume id of a request to delete (DV-02).
pub fn delete_volume(request: v1::DeleteVolumeRequest) -> Result<String, Error> {
    volume_id(request.volume_id)
}

/// The volume id of a request to read one (CGV-02).
pub fn get_volume(request: v1::ControllerGetVolumeRequest) -> Result<String, Error> {
    volume_id(request.volume_id)
}

/// Which volumes are to be listed.
pub fn list_volumes(request: &v1::ListVolumesRequest) -> Result<PageQuery, Error> {
    Ok(page::parse(request.max_entries, &request.starting_token)?)
}

/// The id of the volume whose health is asked for.
pub fn get_volume_health(request: v1::ControllerGetVolumeHealthRequest) -> Result<String, Error> {
    volume_id(request.volume_id)
}

/// Which volumes that something is wrong with are to be listed.
pub fn list_volume_health(
    request: &v1::ControllerListVolumeHealthRequest,
) -> Result<PageQuery, Error> {
    Ok(page::parse(request.max_entries, &request.starting_token)?)
}

/// A volume that is to be larger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpandVolume {
    /// Its id.
    pub volume_id: String,
    /// How large it is to be.
    pub size: SizeRange,
    /// How it is used, where that is said.
    way: Option<Capability>,
}

impl FromRequest<v1::ControllerExpandVolumeRequest> for ExpandVolume {
    type Error = Error;

    fn from_request(request: v1::ControllerExpandVolumeRequest) -> Result<Self, Error> {
        let volume_id = volume_id(request.volume_id)?;
        let range = request.capacity_range.unwrap_or_default();
        // Zero is not given, and one of them must be (CEV-03, GAP-12).
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
    /// Fails where the volume is not of the kind that the caller takes it for (CEV-05).
    pub fn check(&self, volume: &PoolVolume) -> Result<(), Error> {
        let way = self.way.as_ref();
        match way.and_then(|way| difference(way, &volume.spec)) {
            Some(why) => Err(Error::OtherWay { why }),
            None => Ok(()),
        }
    }
}

/// Which room is asked for; none where no volume could serve the request, so that there is none
/// (GC-03).
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
            Err(Error::Contradiction { .. } | Error::TwoAccessTypes) => return Ok(None),
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
            .map(|p| p.provisioning)
            .unwrap_or_default(),
        pool: parameters.map(|parameters| parameters.pool),
        filesystem,
        places,
    }))
}

fn capabilities(capabilities: Vec<v1::VolumeCapability>) -> Result<Vec<Capability>, Error> {
    let read = capabilities.into_iter().map(Capability::try_from);
    Ok(read.collect::<Result<_, capability::Error>>()?)
}

#[cfg(test)]
mod tests;
