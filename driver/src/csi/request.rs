//! Requests of the Controller service as types: read once, and right from then on.
//!
//! *Invariant:* what is missing is found before what is wrong, and both before anything is done
//! (GEN-04, GEN-05, GEN-13). No typed request holds secrets.

pub mod capacity_range;
pub mod page;
pub mod snapshot;
mod source;
pub mod topology;

use std::{collections::BTreeMap, time::Duration};

use cistern_crds::{
    AccessMode, AccessType, FilesystemType, MkfsOptions, Parameters, PoolVolume, PoolVolumeSpec,
    names::RESERVED_PREFIX,
    parameters::{MKFS_OPTIONS, ParametersError},
    snapshot_parameters,
    volume::ClaimReference,
};
use cistern_proto::csi::v1;
use tokio::time::Instant;
use tonic::metadata::MetadataMap;

use super::capability::{self, Capability};
use crate::{
    objects::listing::PageQuery,
    volumes::{CapacityQuery, NewVolume, SizeRange},
};

/// Most bytes of a string of the protocol (FLD-01, FLD-14).
pub const MAX_STRING: usize = 128;
/// Most bytes of a map of the protocol, keys and values together (FLD-02, FLD-14).
pub const MAX_MAP: usize = 4096;

/// How long an operation may take whose caller says nothing of it: less than the minute that our
/// manifests give the sidecars.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(50);
/// Kept back for the answer, where the caller's time is long enough.
const MARGIN: Duration = Duration::from_secs(2);

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

impl TryFrom<v1::CreateVolumeRequest> for NewVolume {
    type Error = Error;

    fn try_from(request: v1::CreateVolumeRequest) -> Result<Self, Error> {
        let name = name(request.name)?;
        required(
            "volume_capabilities",
            request.volume_capabilities.is_empty(),
        )?;
        map("parameters", &request.parameters)?;
        let source = request
            .volume_content_source
            .map(source::parse)
            .transpose()?;
        if !request.mutable_parameters.is_empty() {
            return Err(Error::Unsupported {
                field: "mutable_parameters",
            });
        }
        let capabilities = capabilities(request.volume_capabilities)?;
        let requirement = topology::parse(request.accessibility_requirements)?;
        let parameters = Parameters::parse(&request.parameters)?;
        let (access_type, asked) = access_type(&capabilities, parameters.filesystem)?;
        let (size, filesystem, mkfs_options) = if source.is_some() {
            // Size and filesystem are the source's, and it was made with options of its own.
            let size = capacity_range::parse_growth(request.capacity_range.unwrap_or_default())?;
            (size, asked, MkfsOptions::default())
        } else {
            let filesystem = or_default(access_type, asked);
            let size = capacity_range::parse(request.capacity_range, access_type, filesystem)?;
            let options = mkfs_options(&parameters, &request.parameters, filesystem)?;
            (size, filesystem, options)
        };
        Ok(Self {
            name,
            size,
            access_type,
            filesystem,
            mkfs_options,
            access_modes: access_modes(&capabilities),
            pool: parameters.pool,
            provisioning: parameters.provisioning,
            source,
            claim: claim(&request.parameters),
            requirement,
        })
    }
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

/// Whether a volume can be used in some ways. What cannot be served is no error here (VVC-09).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidateVolumeCapabilities {
    /// Its id.
    pub volume_id: String,
    /// The ways; or why Cistern has no such volume at all.
    pub ways: Result<Vec<Capability>, String>,
    /// The parameters that it is to have been made with, where any are given.
    pub parameters: Option<Parameters>,
}

impl TryFrom<v1::ValidateVolumeCapabilitiesRequest> for ValidateVolumeCapabilities {
    type Error = Error;

    fn try_from(request: v1::ValidateVolumeCapabilitiesRequest) -> Result<Self, Error> {
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
        if !request.mutable_parameters.is_empty() {
            ways = Err("mutable_parameters are not supported".to_owned());
        }
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
        })
    }
}

impl ValidateVolumeCapabilities {
    /// Why the volume is not what is asked about; none where it is (VVC-05, VVC-10).
    pub fn contradiction(&self, volume: &PoolVolume) -> Option<String> {
        let spec = &volume.spec;
        let ways = match &self.ways {
            Ok(ways) => ways,
            Err(why) => return Some(why.clone()),
        };
        if let Some(parameters) = &self.parameters
            && ((&parameters.pool, parameters.provisioning) != (&spec.pool_name, spec.provisioning)
                || parameters.filesystem.is_some() && parameters.filesystem != spec.filesystem
                || !made_with_options_of(parameters, spec))
        {
            return Some("the volume was made with other parameters".to_owned());
        }
        ways.iter().find_map(|way| difference(way, spec))
    }
}

/// Why a volume cannot be used in a way; none where it can.
fn difference(way: &Capability, spec: &PoolVolumeSpec) -> Option<String> {
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

impl TryFrom<v1::ControllerExpandVolumeRequest> for ExpandVolume {
    type Error = Error;

    fn try_from(request: v1::ControllerExpandVolumeRequest) -> Result<Self, Error> {
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

/// Whether a volume has the filesystem options that parameters ask for. Those of a block device, or
/// of a copy, are for the other volumes of its class.
fn made_with_options_of(parameters: &Parameters, spec: &PoolVolumeSpec) -> bool {
    let made = spec.filesystem.filter(|_| spec.content_source.is_none());
    made.is_none_or(|filesystem| {
        let asked = parameters.mkfs_options(filesystem);
        asked.is_ok_and(|asked| asked.to_string() == spec.mkfs_options.as_deref().unwrap_or(""))
    })
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

/// When to give up and say what is still missing, so that the answer arrives before the caller has
/// gone: from the caller's `grpc-timeout`.
pub fn deadline(metadata: &MetadataMap) -> Instant {
    let now = Instant::now();
    now.checked_add(allowance(metadata))
        .unwrap_or(now + DEFAULT_TIMEOUT)
}

fn allowance(metadata: &MetadataMap) -> Duration {
    let header = metadata
        .get("grpc-timeout")
        .and_then(|value| value.to_str().ok());
    let timeout = header.and_then(timeout).unwrap_or(DEFAULT_TIMEOUT);
    timeout.saturating_sub(MARGIN.min(timeout / 5))
}

/// At most eight digits and a unit, as gRPC writes it.
fn timeout(header: &str) -> Option<Duration> {
    let (number, unit) = header.split_at_checked(header.len().checked_sub(1)?)?;
    if number.len() > 8 || !number.bytes().all(|c| c.is_ascii_digit()) {
        return None;
    }
    let number: u64 = number.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

/// FLD-12: any Unicode but most control characters.
pub(super) fn name(name: String) -> Result<String, Error> {
    required("name", name.is_empty())?;
    string("name", &name)?;
    let control = name
        .chars()
        .find(|&c| c.is_control() && !matches!(c, '\t' | '\n' | '\r'));
    match control {
        Some(control) => Err(Error::ControlCharacter {
            code: control.into(),
        }),
        None => Ok(name),
    }
}

fn volume_id(id: String) -> Result<String, Error> {
    required("volume_id", id.is_empty())?;
    string("volume_id", &id)?;
    Ok(id)
}

pub(super) fn required(field: &'static str, missing: bool) -> Result<(), Error> {
    if missing {
        Err(Error::Missing { field })
    } else {
        Ok(())
    }
}

pub(super) fn string(field: &'static str, value: &str) -> Result<(), Error> {
    if value.len() > MAX_STRING {
        return Err(Error::TooLong {
            field,
            limit: MAX_STRING,
        });
    }
    Ok(())
}

pub(super) fn map(field: &'static str, map: &BTreeMap<String, String>) -> Result<(), Error> {
    if map
        .iter()
        .map(|(key, value)| key.len() + value.len())
        .sum::<usize>()
        > MAX_MAP
    {
        return Err(Error::TooLong {
            field,
            limit: MAX_MAP,
        });
    }
    Ok(())
}

fn capabilities(capabilities: Vec<v1::VolumeCapability>) -> Result<Vec<Capability>, Error> {
    let read = capabilities.into_iter().map(Capability::try_from);
    Ok(read.collect::<Result<_, capability::Error>>()?)
}

/// The one access type and filesystem that serve all capabilities (CV-04); no filesystem where none
/// is named. One that only the parameters name means filesystem volumes; a class may serve claims of
/// both kinds.
fn access_type(
    capabilities: &[Capability],
    mut chosen: Option<FilesystemType>,
) -> Result<(AccessType, Option<FilesystemType>), Error> {
    let is_block = |capability: &Capability| capability.access_type == AccessType::Block;
    if capabilities.iter().any(is_block) {
        let only_block = capabilities.iter().all(is_block);
        return only_block
            .then_some((AccessType::Block, None))
            .ok_or(Error::TwoAccessTypes);
    }
    for other in capabilities
        .iter()
        .filter_map(|capability| capability.filesystem)
    {
        match chosen.replace(other) {
            Some(one) if one != other => return Err(Error::Contradiction { one, other }),
            Some(_) | None => {}
        }
    }
    Ok((AccessType::Filesystem, chosen))
}

/// The filesystem of a volume that is made empty.
fn or_default(access_type: AccessType, asked: Option<FilesystemType>) -> Option<FilesystemType> {
    match access_type {
        AccessType::Filesystem => Some(asked.unwrap_or_default()),
        AccessType::Block => None,
    }
}

/// Options for the filesystem of a volume that is made empty. A block device has none.
fn mkfs_options(
    parameters: &Parameters,
    map: &BTreeMap<String, String>,
    filesystem: Option<FilesystemType>,
) -> Result<MkfsOptions, Error> {
    let Some(filesystem) = filesystem else {
        let named = map.get(MKFS_OPTIONS).is_some_and(|named| !named.is_empty());
        return if named {
            Err(Error::Unsupported {
                field: "parameter \"mkfsOptions\" for a raw block volume",
            })
        } else {
            Ok(MkfsOptions::default())
        };
    };
    Ok(parameters.mkfs_options(filesystem)?)
}

/// In order and each once, so that equal requests make equal volumes.
fn access_modes(capabilities: &[Capability]) -> Vec<AccessMode> {
    let modes = capabilities.iter().map(|capability| capability.access_mode);
    modes
        .collect::<std::collections::BTreeSet<_>>()
        .into_iter()
        .collect()
}

/// The parameters, where there are any besides the orchestrator's own (K8S-01).
fn own_parameters(map: &BTreeMap<String, String>) -> Result<Option<Parameters>, ParametersError> {
    if map.keys().all(|key| key.starts_with(RESERVED_PREFIX)) {
        return Ok(None);
    }
    Parameters::parse(map).map(Some)
}

/// The claim, as external-provisioner names it with `--extra-create-metadata`. Only a note for
/// people and for the scheduler's choice: what cannot be a claim's name is no claim.
fn claim(parameters: &BTreeMap<String, String>) -> Option<ClaimReference> {
    let name = |key: &str, limit: usize| {
        let inner =
            |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, b'-' | b'.');
        parameters
            .get(&format!("{RESERVED_PREFIX}pvc/{key}"))
            .filter(|name| (1..=limit).contains(&name.len()) && name.bytes().all(inner))
            .filter(|name| !name.starts_with(['-', '.']) && !name.ends_with(['-', '.']))
            .cloned()
    };
    Some(ClaimReference {
        namespace: name("namespace", 63)?,
        name: name("name", 253)?,
    })
}

#[cfg(test)]
mod tests;
