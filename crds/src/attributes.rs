//! The attributes of a volume that can change while the volume is in use: the parameters of a
//! VolumeAttributesClass.

use std::{collections::BTreeMap, fmt};

use cistern_types::{Provisioning, shorten};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::parameters::{PROVISIONING, ParametersError};

/// Attributes of a volume that can change while the volume is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeAttributes {
    /// Whether the volume's space is allocated in full (`Thick`) or when it is written (`Thin`).
    pub provisioning: Provisioning,
}

impl fmt::Display for VolumeAttributes {
    /// Writes the attributes as parameters of a VolumeAttributesClass.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PROVISIONING}: {}", self.provisioning)
    }
}

/// The attributes that a request names. It leaves the others unchanged (CMV-06).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttributeChanges {
    /// The new provisioning; None to keep it.
    pub provisioning: Option<Provisioning>,
}

impl AttributeChanges {
    /// Parses the parameters of a VolumeAttributesClass: the `mutable_parameters` of CSI. Fails with
    /// the first parameter that is unknown or has an invalid value (CMV-05, CV-27).
    pub fn parse(parameters: &BTreeMap<String, String>) -> Result<Self, ParametersError> {
        let mut changes = Self::default();
        for (key, value) in parameters {
            match key.as_str() {
                PROVISIONING => changes.provisioning = Some(parse_provisioning(value)?),
                _ => return Err(ParametersError::UnknownMutable { key: shorten(key) }),
            }
        }
        Ok(changes)
    }

    /// Returns the attributes with the changes applied.
    #[must_use]
    pub fn apply(&self, attributes: VolumeAttributes) -> VolumeAttributes {
        VolumeAttributes {
            provisioning: self.provisioning.unwrap_or(attributes.provisioning),
        }
    }
}

/// Parses the value of the parameter `provisioning`.
pub(crate) fn parse_provisioning(value: &str) -> Result<Provisioning, ParametersError> {
    value.parse().map_err(|()| ParametersError::Provisioning {
        value: shorten(value),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> Result<AttributeChanges, ParametersError> {
        let pairs = pairs.iter();
        AttributeChanges::parse(
            &pairs
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
        )
    }

    #[test]
    fn cmv_06_attributes_that_a_request_does_not_name_stay_unchanged() {
        let thick = VolumeAttributes {
            provisioning: Provisioning::Thick,
        };
        assert_eq!(parse(&[]).unwrap().apply(thick), thick);
        let thin = parse(&[(PROVISIONING, "thin")]).unwrap().apply(thick);
        assert_eq!(thin.provisioning, Provisioning::Thin);
    }

    #[test]
    fn cmv_05_cv_27_an_unknown_parameter_and_an_invalid_value_are_named() {
        let unknown = parse(&[(PROVISIONING, "thick"), ("xxInvalidParameterKey", "x")]);
        let message = unknown.unwrap_err().to_string();
        assert!(message.contains("\"xxInvalidParameterKey\""), "{message}");
        let invalid = parse(&[(PROVISIONING, "Thick")]).unwrap_err().to_string();
        assert!(invalid.contains("\"Thick\""), "{invalid}");
        assert!(
            parse(&[("pool", "fast")]).is_err(),
            "a volume stays in its pool"
        );
    }
}
