//! Requests of the Controller service, by call.

mod arbitrary;
mod capabilities;
mod capacity;
mod copies;
mod create;
mod modify;
mod validate;

use std::collections::BTreeMap;

use cistern_controller::volumes::NewVolume;
use v1::volume_capability::{
    AccessMode as ProtoMode, AccessType as ProtoType, BlockVolume, MountVolume, access_mode::Mode,
};

use super::*;

fn mount(fs_type: &str, mode: Mode) -> v1::VolumeCapability {
    v1::VolumeCapability {
        access_type: Some(ProtoType::Mount(MountVolume {
            fs_type: fs_type.to_owned(),
            ..MountVolume::default()
        })),
        access_mode: Some(ProtoMode { mode: mode.into() }),
    }
}

fn block() -> v1::VolumeCapability {
    v1::VolumeCapability {
        access_type: Some(ProtoType::Block(BlockVolume {})),
        ..mount("", Mode::SingleNodeWriter)
    }
}

fn pairs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|&(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

fn request() -> v1::CreateVolumeRequest {
    v1::CreateVolumeRequest {
        name: "pvc-1".to_owned(),
        volume_capabilities: vec![mount("", Mode::SingleNodeWriter)],
        parameters: pairs(&[("pool", "fast")]),
        ..v1::CreateVolumeRequest::default()
    }
}

fn read(change: impl FnOnce(&mut v1::CreateVolumeRequest)) -> Result<NewVolume, Error> {
    let mut request = request();
    change(&mut request);
    NewVolume::from_request(request)
}
