//! The StoragePools of a StorageClass: where its volumes may come from on a node.
//!
//! *Invariant:* at least one name, at most [`MAXIMUM`], each the possible name of a StoragePool, and none
//! twice. A volume comes from one of them and stays there.

use std::{collections::BTreeSet, fmt, str::FromStr};

use cistern_types::shorten;

use crate::names;

/// Maximum number of pools that a class names.
pub const MAXIMUM: usize = 16;
/// What separates two names.
const SEPARATOR: char = ',';

/// The names of the pools of a class, in the order of the class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolNames(Vec<String>);

/// Why a list of pools is invalid. Each message follows the name of the parameter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPoolNames {
    /// No pool can have this name, shortened.
    #[error(
        "{0:?} cannot be the name of a StoragePool: use the name of one, \
        or of up to {MAXIMUM} that are separated by commas without spaces"
    )]
    Name(String),
    /// A name is there twice.
    #[error("StoragePool {0} is named twice: name each pool once")]
    Twice(String),
    /// There are too many names.
    #[error("{0} StoragePools are named, and a class can have at most {MAXIMUM}")]
    TooMany(usize),
}

impl PoolNames {
    /// A single pool. The name is that of an existing object.
    pub fn only(name: &str) -> Self {
        Self(vec![name.to_owned()])
    }

    /// Whether a volume may come from this pool.
    pub fn contains(&self, pool: &str) -> bool {
        self.iter().any(|name| name == pool)
    }

    /// The names, in the order of the class.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Whether there are several, so that a message must say which one it means.
    pub fn are_several(&self) -> bool {
        self.count() > 1
    }
}

impl FromStr for PoolNames {
    type Err = InvalidPoolNames;

    fn from_str(text: &str) -> Result<Self, InvalidPoolNames> {
        let count = text.split(SEPARATOR).count();
        if count > MAXIMUM {
            return Err(InvalidPoolNames::TooMany(count));
        }
        let names: Vec<&str> = text.split(SEPARATOR).collect();
        if let Some(wrong) = names.iter().find(|name| !names::is_pool_name(name)) {
            return Err(InvalidPoolNames::Name(shorten(wrong)));
        }
        let mut seen = BTreeSet::new();
        if let Some(twice) = names.iter().find(|name| !seen.insert(**name)) {
            return Err(InvalidPoolNames::Twice((*twice).to_owned()));
        }
        Ok(Self(names.into_iter().map(str::to_owned).collect()))
    }
}

impl fmt::Display for PoolNames {
    /// Writes `pool a`, or `any of the pools a, b`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let noun = if self.are_several() {
            "any of the pools"
        } else {
            "pool"
        };
        write!(f, "{noun} {}", self.0.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<String>, String> {
        let names: Result<PoolNames, _> = text.parse();
        let names = names.map_err(|error| error.to_string())?;
        Ok(names.iter().map(str::to_owned).collect())
    }

    #[test]
    fn one_pool_or_several_are_read_in_the_order_of_the_class() {
        assert_eq!(read("fast").unwrap(), ["fast"]);
        assert_eq!(read("nvme-1,nvme-0").unwrap(), ["nvme-1", "nvme-0"]);
        assert_eq!(read("a.b-1").unwrap(), ["a.b-1"]);
        let sixteen: Vec<String> = (0..16).map(|n| format!("p{n}")).collect();
        assert_eq!(read(&sixteen.join(",")).unwrap(), sixteen);
    }

    #[test]
    fn what_cannot_be_the_name_of_a_pool_is_quoted() {
        let long = "p".repeat(64);
        for text in [
            "", ",", "a,", ",a", "a,,b", "a, b", " a", "Fast", "a/b", "..", "a..b", "a.-b", "-a",
            "a-", "ä", "a\0", &long,
        ] {
            let error = read(text).unwrap_err();
            assert!(
                error.contains("cannot be the name of a StoragePool"),
                "{error}"
            );
        }
        assert!(read("a, b").unwrap_err().starts_with("\" b\" "));
    }

    #[test]
    fn a_pool_is_named_once_and_a_class_names_at_most_sixteen() {
        assert_eq!(
            read("a,b,a").unwrap_err(),
            "StoragePool a is named twice: name each pool once"
        );
        let seventeen: Vec<String> = (0..17).map(|n| format!("p{n}")).collect();
        assert_eq!(
            read(&seventeen.join(",")).unwrap_err(),
            "17 StoragePools are named, and a class can have at most 16"
        );
    }

    #[test]
    fn messages_name_one_pool_or_all() {
        let shown = |text: &str| text.parse::<PoolNames>().unwrap().to_string();
        assert_eq!(shown("fast"), "pool fast");
        assert_eq!(shown("nvme-0,nvme-1"), "any of the pools nvme-0, nvme-1");
    }
}
