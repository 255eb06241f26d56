//! Checks of fields that requests of all services have.

use std::collections::BTreeMap;

use super::Error;

/// Maximum length of a string of the protocol in bytes (FLD-01, FLD-14).
pub const MAX_STRING: usize = 128;
/// Maximum total length of the keys and values of a map in bytes (FLD-02, FLD-14).
const MAX_MAP: usize = 4096;

/// Checks a name, which may have any characters except most control characters (FLD-12). Fails if
/// it is missing, too long, or has a control character other than tab, line feed and carriage
/// return.
pub(in crate::csi) fn name(name: String) -> Result<String, Error> {
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

/// Checks a volume id. Fails if it is missing or too long.
pub(in crate::csi) fn volume_id(id: String) -> Result<String, Error> {
    required("volume_id", id.is_empty())?;
    string("volume_id", &id)?;
    Ok(id)
}

/// Fails if a required field is missing.
pub(in crate::csi) fn required(field: &'static str, missing: bool) -> Result<(), Error> {
    if missing {
        Err(Error::Missing { field })
    } else {
        Ok(())
    }
}

/// Fails if a string is longer than [`MAX_STRING`].
pub(in crate::csi) fn string(field: &'static str, value: &str) -> Result<(), Error> {
    if value.len() > MAX_STRING {
        return Err(Error::TooLong {
            field,
            limit: MAX_STRING,
        });
    }
    Ok(())
}

/// Fails if the keys and values of a map are together longer than [`MAX_MAP`].
pub(in crate::csi) fn map(
    field: &'static str,
    map: &BTreeMap<String, String>,
) -> Result<(), Error> {
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
