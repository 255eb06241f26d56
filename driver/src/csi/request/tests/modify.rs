//! ControllerModifyVolume.

use cistern_crds::{Provisioning, VolumeAttributes};

use super::*;

#[test]
fn cmv_02_cmv_03_cmv_05_a_modification_names_a_volume_and_valid_parameters() {
    let request = |id: &str, parameters: &[(&str, &str)]| {
        ModifyVolume::from_request(v1::ControllerModifyVolumeRequest {
            volume_id: id.to_owned(),
            mutable_parameters: pairs(parameters),
            ..v1::ControllerModifyVolumeRequest::default()
        })
    };
    assert_eq!(request("", &[]), Err(Error::Missing { field: "volume_id" }));
    let missing = Error::Missing {
        field: "mutable_parameters",
    };
    assert_eq!(request("pvc-1", &[]).unwrap().changes(), Err(missing));
    let bogus = request("pvc-1", &[("provisioning", "thick"), ("bogus", "x")]);
    assert!(bogus.unwrap().changes().is_err());
    let thick = request("pvc-1", &[("provisioning", "thick")]).unwrap();
    let thick = thick.changes().unwrap().apply(VolumeAttributes::default());
    assert_eq!(thick.provisioning, Provisioning::Thick);
}
