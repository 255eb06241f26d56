//! [`Holder`]: a block device that is built on another one, and so holds it.

use std::{fmt, mem};

/// How the UUID of every mapping of LVM begins.
pub(crate) const LOGICAL_VOLUME: &str = "LVM-";
/// Letters of the UUIDs of group and volume in the UUID of a logical volume. More follow for a part of one.
const LOGICAL_UUID: usize = 64;
/// Holders that are named: a user of a volume can make many.
const NAMED: usize = 4;

/// A block device that is built on another one: a mapping, an array, a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Name that the kernel gave it.
    pub name: String,
    /// What device-mapper calls it; none if it is no mapping, or one that is being removed.
    pub mapping: Option<MappingName>,
}

/// What device-mapper calls a mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingName {
    /// Name of the mapping.
    pub name: String,
    /// Its UUID, which begins with the program that has made it; none if that gave it none.
    pub uuid: Option<String>,
}

impl MappingName {
    /// Returns the name of the logical volume in its group; none for another mapping, and for a part of a logical volume,
    /// such as the copy of a snapshot.
    pub(crate) fn logical_volume(&self) -> Option<String> {
        let uuid = self.uuid.as_deref()?.strip_prefix(LOGICAL_VOLUME)?;
        if uuid.len() != LOGICAL_UUID {
            return None;
        }
        // LVM writes GROUP-VOLUME, and each hyphen of a name twice.
        let (mut parts, mut letters) = (vec![String::new()], self.name.chars().peekable());
        while let Some(letter) = letters.next() {
            if letter == '-' && letters.next_if_eq(&'-').is_none() {
                parts.push(String::new());
            } else {
                parts.last_mut()?.push(letter);
            }
        }
        match parts.as_mut_slice() {
            [_, volume] => Some(mem::take(volume)),
            _ => None,
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = &self.name;
        match &self.mapping {
            Some(MappingName { name, uuid }) => match uuid {
                Some(uuid) if uuid.starts_with(LOGICAL_VOLUME) => {
                    write!(f, "the logical volume {name} ({device})")
                }
                Some(uuid) => write!(f, "the mapping {name} ({device}, {uuid})"),
                None => write!(f, "the mapping {name} ({device})"),
            },
            None if device.starts_with("md") => write!(f, "the array {device}"),
            None => write!(f, "the device {device}"),
        }
    }
}

/// Names holders in one line.
pub(crate) fn named(holders: &[Holder]) -> String {
    let mut names = holders
        .iter()
        .take(NAMED)
        .map(Holder::to_string)
        .collect::<Vec<_>>();
    if holders.len() > NAMED {
        names.push(format!("{} more", holders.len() - NAMED));
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(name: &str, uuid: Option<&str>) -> Holder {
        Holder {
            name: "dm-3".to_owned(),
            mapping: Some(MappingName {
                name: name.to_owned(),
                uuid: uuid.map(str::to_owned),
            }),
        }
    }

    fn device(name: &str) -> Holder {
        Holder {
            name: name.to_owned(),
            mapping: None,
        }
    }

    #[test]
    fn a_holder_is_called_what_its_administrator_calls_it() {
        for (holder, expected) in [
            (
                mapping("vg0-data", Some("LVM-XSd6PpqWq3cF")),
                "the logical volume vg0-data (dm-3)",
            ),
            (
                mapping("secret", Some("CRYPT-LUKS2-85b6-secret")),
                "the mapping secret (dm-3, CRYPT-LUKS2-85b6-secret)",
            ),
            (mapping("by-hand", None), "the mapping by-hand (dm-3)"),
            (device("md127"), "the array md127"),
            (device("bcache0"), "the device bcache0"),
            // It is being removed.
            (device("dm-3"), "the device dm-3"),
        ] {
            assert_eq!(holder.to_string(), expected);
        }
    }

    #[test]
    fn a_logical_volume_is_called_what_it_is_in_its_group() {
        let uuid = format!("LVM-{}", "x".repeat(LOGICAL_UUID));
        let name = |name: &str, uuid: &str| {
            let (name, uuid) = (name.to_owned(), Some(uuid.to_owned()));
            MappingName { name, uuid }.logical_volume()
        };
        for (mapping, expected) in [
            ("vg0-data", "data"),
            ("vg--a-cistern--0f--1", "cistern-0f-1"),
            ("vg----a-b", "b"),
        ] {
            assert_eq!(name(mapping, &uuid).as_deref(), Some(expected), "{mapping}");
        }
        // A part of a logical volume, and what is none.
        assert_eq!(name("vg0-data-cow", &format!("{uuid}-cow")), None);
        assert_eq!(name("vg0-data", &format!("{uuid}-real")), None);
        assert_eq!(name("vg0-data", "CRYPT-LUKS2-85b6-vg0-data"), None);
        assert_eq!(name("data", &uuid), None);
    }

    #[test]
    fn of_many_holders_the_first_are_named() {
        let all: Vec<Holder> = (0..6).map(|i| device(&format!("md{i}"))).collect();
        assert_eq!(named(&all[..2]), "the array md0, the array md1");
        assert!(named(&all[..4]).ends_with("the array md3"));
        assert!(named(&all).ends_with("the array md3, 2 more"));
    }
}
