//! Parses CreateVolume requests.

use std::collections::BTreeMap;

use cistern_controller::volumes::NewVolume;
use cistern_crds::{
    AccessMode, AccessType, AttributeChanges, FilesystemType, MkfsOptions, Parameters,
    names::RESERVED_PREFIX, parameters::MKFS_OPTIONS, volume::ClaimReference,
};
use cistern_proto::csi::v1;

use super::{
    Error, capabilities, capacity_range, check_mount_flags, map, name, required, source, topology,
};
use crate::csi::capability::Capability;
use crate::csi::request::FromRequest;

impl FromRequest<v1::CreateVolumeRequest> for NewVolume {
    type Error = Error;

    fn from_request(request: v1::CreateVolumeRequest) -> Result<Self, Error> {
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
        map("mutable_parameters", &request.mutable_parameters)?;
        let changes = AttributeChanges::parse(&request.mutable_parameters)?;
        let capabilities = capabilities(request.volume_capabilities)?;
        let requirement = topology::parse(request.accessibility_requirements)?;
        let parameters = Parameters::parse(&request.parameters)?;
        let attributes = changes.apply(parameters.attributes);
        let (access_type, asked) = access_type(&capabilities, parameters.filesystem)?;
        let (size, filesystem, mkfs_options) = if source.is_some() {
            // A copy has the size, filesystem and mkfs options of its source.
            let size = capacity_range::parse_growth(request.capacity_range.unwrap_or_default())?;
            (size, asked, MkfsOptions::default())
        } else {
            let filesystem = or_default(access_type, asked);
            let size = capacity_range::parse(request.capacity_range, access_type, filesystem)?;
            let options = mkfs_options(&parameters, &request.parameters, filesystem)?;
            (size, filesystem, options)
        };
        if let Some(filesystem) = filesystem {
            check_mount_flags(&capabilities, filesystem)?;
        }
        Ok(Self {
            name,
            size,
            access_type,
            filesystem,
            mkfs_options,
            extent_size: parameters.extent_size,
            adopt_filesystem: parameters.adopt_filesystem && access_type == AccessType::Block,
            encryption: parameters.encryption,
            encryption_discards: parameters.encryption_discards,
            access_modes: access_modes(&capabilities),
            pools: parameters.pools,
            attributes,
            source,
            placement: parameters.placement,
            claim: claim(&request.parameters),
            requirement,
        })
    }
}

/// The access type and filesystem that serve all capabilities (CV-04). The filesystem is None if
/// neither a capability nor `chosen`, the filesystem of the parameters, names one. `chosen` does
/// not apply to block volumes, because a class may serve claims of both kinds.
///
/// Fails if the capabilities have two access types, or if they and `chosen` name two filesystems.
pub(super) fn access_type(
    capabilities: &[Capability],
    chosen: Option<FilesystemType>,
) -> Result<(AccessType, Option<FilesystemType>), Error> {
    let is_block = |capability: &Capability| capability.access_type == AccessType::Block;
    if capabilities.iter().any(is_block) {
        let only_block = capabilities.iter().all(is_block);
        return only_block
            .then_some((AccessType::Block, None))
            .ok_or(Error::TwoAccessTypes);
    }
    let mut named = capabilities.iter().filter_map(|it| it.filesystem);
    let first = named.next();
    if let Some((one, other)) = first.and_then(|one| Some((one, named.find(|it| *it != one)?))) {
        return Err(Error::Contradiction { one, other });
    }
    match (chosen, first) {
        (Some(class), Some(capability)) if class != capability => {
            Err(Error::ContradictsClass { class, capability })
        }
        _ => Ok((AccessType::Filesystem, first.or(chosen))),
    }
}

/// The filesystem of an empty volume.
pub(super) fn or_default(
    access_type: AccessType,
    asked: Option<FilesystemType>,
) -> Option<FilesystemType> {
    match access_type {
        AccessType::Filesystem => Some(asked.unwrap_or_default()),
        AccessType::Block => None,
    }
}

/// The mkfs options of an empty volume. A raw block volume has none.
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

/// The access modes in order and without duplicates, so that equal requests make equal volumes.
fn access_modes(capabilities: &[Capability]) -> Vec<AccessMode> {
    let modes = capabilities.iter().map(|capability| capability.access_mode);
    modes
        .collect::<std::collections::BTreeSet<_>>()
        .into_iter()
        .collect()
}

/// The claim, as external-provisioner names it with `--extra-create-metadata`. It informs users and the
/// scheduling of checks only, so an invalid name is ignored.
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
