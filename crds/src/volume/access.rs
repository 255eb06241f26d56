//! How pods get a volume, and how many of them at a time.
//!
//! *Invariant:* every access mode is one of a single node, because the data is only there.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// How a pod gets a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum AccessType {
    /// A mounted filesystem.
    Filesystem,
    /// A raw block device.
    Block,
}

/// Access mode of a volume. All modes are on one node, because the data is only there.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum AccessMode {
    /// Read and write on one node, by one pod at a time.
    SingleNodeWriter,
    /// Read on one node, by one pod at a time.
    SingleNodeReaderOnly,
    /// Read and write on one node, by one pod in the whole cluster: `ReadWriteOncePod`.
    SingleNodeSingleWriter,
    /// Read and write on one node, by any number of its pods: `ReadWriteOnce`.
    SingleNodeMultiWriter,
}

impl AccessMode {
    /// Whether the mode forbids writes.
    pub const fn is_read_only(self) -> bool {
        match self {
            Self::SingleNodeReaderOnly => true,
            Self::SingleNodeWriter | Self::SingleNodeSingleWriter | Self::SingleNodeMultiWriter => {
                false
            }
        }
    }

    /// Whether several pods of the node may use the volume at the same time (VCP-07, VCP-08).
    pub const fn is_shared(self) -> bool {
        match self {
            Self::SingleNodeMultiWriter => true,
            Self::SingleNodeWriter | Self::SingleNodeReaderOnly | Self::SingleNodeSingleWriter => {
                false
            }
        }
    }

    /// Whether a volume created for this mode can be used in another.
    ///
    /// How many pods share a volume belongs to each publication, not to the volume: an orchestrator
    /// without the newer modes uses `SINGLE_NODE_WRITER` for the same claim, and an administrator
    /// may change the access mode of a PersistentVolume. A mode that allows writes also allows
    /// reads.
    pub const fn serves(self, other: Self) -> bool {
        !self.is_read_only() || other.is_read_only()
    }
}

pub(super) fn access_modes_schema(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "minItems": 1,
        "maxItems": 8,
        "x-kubernetes-list-type": "set",
        "items": AccessMode::json_schema(generator),
    })
}

#[cfg(test)]
mod tests {
    use super::AccessMode::{
        self, SingleNodeMultiWriter, SingleNodeReaderOnly, SingleNodeSingleWriter, SingleNodeWriter,
    };

    #[test]
    fn vcp_09_vcp_15_every_writer_serves_every_mode_and_a_reader_only_readers() {
        let writers = [
            SingleNodeWriter,
            SingleNodeSingleWriter,
            SingleNodeMultiWriter,
        ];
        for made in writers {
            for asked in writers.into_iter().chain([SingleNodeReaderOnly]) {
                assert!(made.serves(asked), "{made:?} for {asked:?}");
            }
            assert!(!SingleNodeReaderOnly.serves(made), "{made:?}");
        }
        assert!(SingleNodeReaderOnly.serves(SingleNodeReaderOnly));
    }

    #[test]
    fn an_access_mode_of_an_older_version_is_read() {
        let read = serde_json::from_str::<AccessMode>("\"SingleNodeWriter\"");
        assert_eq!(read.unwrap(), SingleNodeWriter);
    }
}
