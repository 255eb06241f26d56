//! The capabilities of the controller, and the volume capability of a request as a type.
//!
//! *Invariant:* Cistern supports every [`Capability`]. All others are errors that distinguish a malformed
//! request from an unsupported one.

use std::fmt;

use cistern_crds::{AccessMode, AccessType, FilesystemType, parameters::ParametersError};
use cistern_proto::csi::v1::{
    VolumeCapability, controller_service_capability::rpc, volume_capability as proto,
};

/// The capabilities of the Controller service. A test compares them with the implementation.
pub const CONTROLLER: [rpc::Type; 14] = [
    rpc::Type::CreateDeleteVolume,
    rpc::Type::ListVolumes,
    rpc::Type::GetCapacity,
    rpc::Type::CreateDeleteSnapshot,
    rpc::Type::ListSnapshots,
    rpc::Type::CloneVolume,
    rpc::Type::ExpandVolume,
    rpc::Type::ModifyVolume,
    rpc::Type::GetVolume,
    rpc::Type::SingleNodeMultiWriter,
    rpc::Type::GetSnapshot,
    // Health in both forms: the volume condition, and the entries of CSI 1.13.
    rpc::Type::VolumeCondition,
    rpc::Type::GetVolumeHealth,
    rpc::Type::ListVolumeHealth,
];

/// Maximum total length of all mount flags in bytes (FLD-05).
const MAX_MOUNT_FLAGS: usize = 4096;

/// A supported use of a volume: access type, access mode, filesystem and mount flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    /// Filesystem or raw block device.
    pub access_type: AccessType,
    /// How many pods use the volume, and whether they write.
    pub access_mode: AccessMode,
    /// The filesystem; None if the driver chooses (VCP-12).
    pub filesystem: Option<FilesystemType>,
    /// Mount options.
    pub mount_flags: MountFlags,
}

/// Mount flags of a request. They may contain secrets (SEC-05), so `Debug` does not show them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct MountFlags(pub Vec<String>);

impl fmt::Debug for MountFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MountFlags({} hidden)", self.0.len())
    }
}

/// Why a volume capability is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A required part is missing (VCP-01, FLD-13, FLD-15).
    #[error("a volume capability lacks its {part}")]
    Missing {
        /// Name of the field in the CSI message.
        part: &'static str,
    },
    /// The mount flags are too long (FLD-05).
    #[error("the mount flags of a volume capability are longer than {MAX_MOUNT_FLAGS} bytes")]
    MountFlagsTooLong,
    /// A mode that spans nodes, or an unknown one.
    #[error(
        "access mode {mode} is not supported: a volume lives on one node; use ReadWriteOnce or \
         ReadWriteOncePod (SINGLE_NODE_*)"
    )]
    AccessMode {
        /// Name or number of the mode in the protocol.
        mode: String,
    },
    /// An unknown filesystem (VCP-12).
    #[error(transparent)]
    Filesystem(#[from] ParametersError),
    /// The capability has a `volume_mount_group`. The driver does not announce
    /// `VOLUME_MOUNT_GROUP`, because kubelet applies fsGroup itself (VCP-11).
    #[error("volume_mount_group is not supported: the group is set by kubelet (fsGroup)")]
    MountGroup,
}

impl Error {
    /// Whether the request breaks the protocol. If not, the capability is unsupported.
    pub fn is_malformed(&self) -> bool {
        match self {
            Self::Missing { .. } | Self::MountFlagsTooLong => true,
            Self::AccessMode { .. } | Self::Filesystem(_) | Self::MountGroup => false,
        }
    }
}

impl TryFrom<VolumeCapability> for Capability {
    type Error = Error;

    fn try_from(capability: VolumeCapability) -> Result<Self, Error> {
        let access_type = capability.access_type.ok_or(Error::Missing {
            part: "access type",
        })?;
        let access_mode = access_mode(capability.access_mode)?;
        match access_type {
            proto::AccessType::Block(_) => Ok(Self {
                access_type: AccessType::Block,
                access_mode,
                filesystem: None,
                mount_flags: MountFlags::default(),
            }),
            proto::AccessType::Mount(mount) => Self::mounted(access_mode, mount),
        }
    }
}

impl Capability {
    fn mounted(access_mode: AccessMode, mount: proto::MountVolume) -> Result<Self, Error> {
        if mount.mount_flags.iter().map(String::len).sum::<usize>() > MAX_MOUNT_FLAGS {
            return Err(Error::MountFlagsTooLong);
        }
        if !mount.volume_mount_group.is_empty() {
            return Err(Error::MountGroup);
        }
        let filesystem = match mount.fs_type.as_str() {
            "" => None,
            name => Some(name.parse().map_err(ParametersError::from)?),
        };
        Ok(Self {
            access_type: AccessType::Filesystem,
            access_mode,
            filesystem,
            mount_flags: MountFlags(mount.mount_flags),
        })
    }
}

fn access_mode(mode: Option<proto::AccessMode>) -> Result<AccessMode, Error> {
    use proto::access_mode::Mode;

    let number = mode.map_or(0, |mode| mode.mode);
    let unsupported = |mode: String| Err(Error::AccessMode { mode });
    match Mode::try_from(number) {
        Ok(Mode::Unknown) => Err(Error::Missing {
            part: "access mode",
        }),
        Ok(Mode::SingleNodeWriter) => Ok(AccessMode::SingleNodeWriter),
        Ok(Mode::SingleNodeReaderOnly) => Ok(AccessMode::SingleNodeReaderOnly),
        Ok(Mode::SingleNodeSingleWriter) => Ok(AccessMode::SingleNodeSingleWriter),
        Ok(Mode::SingleNodeMultiWriter) => Ok(AccessMode::SingleNodeMultiWriter),
        Ok(
            mode @ (Mode::MultiNodeReaderOnly
            | Mode::MultiNodeSingleWriter
            | Mode::MultiNodeMultiWriter),
        ) => unsupported(mode.as_str_name().to_owned()),
        Err(_) => unsupported(number.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use proto::access_mode::Mode;

    use super::*;

    fn mount(fs_type: &str, flags: &[&str], group: &str, mode: i32) -> VolumeCapability {
        VolumeCapability {
            access_type: Some(proto::AccessType::Mount(proto::MountVolume {
                fs_type: fs_type.to_owned(),
                mount_flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
                volume_mount_group: group.to_owned(),
            })),
            access_mode: Some(proto::AccessMode { mode }),
        }
    }

    const WRITER: i32 = Mode::SingleNodeWriter as i32;

    #[test]
    fn vcp_01_fld_15_a_capability_without_type_or_mode_is_malformed() {
        let no_type = VolumeCapability {
            access_type: None,
            ..mount("", &[], "", WRITER)
        };
        let no_mode = VolumeCapability {
            access_mode: None,
            ..mount("", &[], "", WRITER)
        };
        for bad in [no_type, no_mode, mount("", &[], "", 0)] {
            assert!(Capability::try_from(bad).unwrap_err().is_malformed());
        }
    }

    #[test]
    fn vcp_04_vcp_05_vcp_06_modes_that_span_nodes_are_unsupported() {
        // `ReadOnlyMany` is the first of them to external-provisioner, `ReadWriteMany` the last.
        for mode in [
            Mode::MultiNodeReaderOnly,
            Mode::MultiNodeSingleWriter,
            Mode::MultiNodeMultiWriter,
        ] {
            let error = Capability::try_from(mount("", &[], "", mode.into())).unwrap_err();
            assert!(
                !error.is_malformed() && error.to_string().contains(mode.as_str_name()),
                "{error}"
            );
        }
        let error = Capability::try_from(mount("", &[], "", 99)).unwrap_err();
        assert!(error.to_string().contains("99"), "{error}");
    }

    #[test]
    fn cap_15_vcp_09_every_mode_of_one_node_is_served() {
        for (mode, expected) in [
            (Mode::SingleNodeWriter, AccessMode::SingleNodeWriter),
            (Mode::SingleNodeReaderOnly, AccessMode::SingleNodeReaderOnly),
            (
                Mode::SingleNodeSingleWriter,
                AccessMode::SingleNodeSingleWriter,
            ),
            (
                Mode::SingleNodeMultiWriter,
                AccessMode::SingleNodeMultiWriter,
            ),
        ] {
            let read = Capability::try_from(mount("", &[], "", mode.into())).unwrap();
            assert_eq!(read.access_mode, expected);
        }
    }

    #[test]
    fn vcp_12_an_empty_filesystem_is_left_to_the_driver_and_an_unknown_one_is_refused() {
        let read = |fs_type| Capability::try_from(mount(fs_type, &[], "", WRITER));
        assert_eq!(read("").unwrap().filesystem, None);
        assert_eq!(read("xfs").unwrap().filesystem, Some(FilesystemType::Xfs));
        assert!(!read("nosuchfs").unwrap_err().is_malformed());
    }

    #[test]
    fn vcp_11_a_mount_group_is_refused() {
        let error = Capability::try_from(mount("", &[], "3001", WRITER)).unwrap_err();
        assert_eq!(error, Error::MountGroup);
    }

    #[test]
    fn fld_05_mount_flags_have_4096_bytes_together() {
        let half = "x".repeat(2048);
        let fits = mount("", &[&half, &half], "", WRITER);
        assert!(Capability::try_from(fits).is_ok());
        let too_long = mount("", &[&half, &half, "x"], "", WRITER);
        let error = Capability::try_from(too_long).unwrap_err();
        assert_eq!(error, Error::MountFlagsTooLong);
    }

    #[test]
    fn sec_05_mount_flags_are_not_shown() {
        let capability = Capability::try_from(mount("", &["MARKER"], "", WRITER)).unwrap();
        assert!(!format!("{capability:?}").contains("MARKER"));
    }
}
