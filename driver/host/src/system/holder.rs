//! [`Holder`]: a block device that is built on another one, and so holds it.

use std::fmt;

/// How the UUID of every mapping of LVM begins.
pub(crate) const LOGICAL_VOLUME: &str = "LVM-";
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
    fn of_many_holders_the_first_are_named() {
        let all: Vec<Holder> = (0..6).map(|i| device(&format!("md{i}"))).collect();
        assert_eq!(named(&all[..2]), "the array md0, the array md1");
        assert!(named(&all[..4]).ends_with("the array md3"));
        assert!(named(&all).ends_with("the array md3, 2 more"));
    }
}
