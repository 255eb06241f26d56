//! Parses the supported options of the mkfs tools.
//!
//! *Invariant:* with every supported option mkfs makes a filesystem of the minimum size that can be
//! mounted (a test of `cistern-host` makes each). Size, block and sector size, UUID, label, journal and
//! checksums are not supported, because Cistern's guarantees depend on them.

use std::{collections::BTreeMap, fmt};

use crate::{filesystem::FilesystemType, shorten};

/// Maximum length of the options in a custom resource, in bytes.
pub const MAX_LENGTH: usize = 256;

/// A supported option: its flag, the prefix of its value, and the values after the prefix.
struct Known(&'static str, &'static str, Values);

enum Values {
    OneOf(&'static [&'static str]),
    Number { from: u32, to: u32 },
}

const SWITCH: Values = Values::OneOf(&["0", "1"]);
const BLOCKS: Values = Values::Number { from: 1, to: 65536 };

/// Options of mke2fs(8). Inodes of 128 bytes cannot hold a date after 2038.
const EXT4: [Known; 8] = [
    Known("-I", "", Values::OneOf(&["256", "512", "1024"])),
    // With more bytes per inode, the smallest volume would have too few inodes.
    Known(
        "-i",
        "",
        Values::Number {
            from: 4096,
            to: 1 << 20,
        },
    ),
    Known("-E", "stride=", BLOCKS),
    Known("-E", "stripe_width=", BLOCKS),
    Known("-E", "lazy_itable_init=", SWITCH),
    Known("-E", "lazy_journal_init=", SWITCH),
    Known("-O", "", Values::OneOf(&["large_dir"])),
    Known("-O", "", Values::OneOf(&["ea_inode"])),
];
/// Options of mkfs.xfs(8).
const XFS: [Known; 4] = [
    Known("-i", "size=", Values::OneOf(&["512", "1024", "2048"])),
    Known("-i", "maxpct=", Values::Number { from: 1, to: 100 }),
    Known("-m", "rmapbt=", SWITCH),
    Known("-n", "size=", SIZES),
];
/// Options of mkfs.btrfs(8).
const BTRFS: [Known; 3] = [
    Known("-n", "", SIZES),
    Known("-m", "", Values::OneOf(&["single", "dup"])),
    Known(
        "--csum",
        "",
        Values::OneOf(&["crc32c", "xxhash", "sha256", "blake2"]),
    ),
];
const SIZES: Values = Values::OneOf(&["4k", "8k", "16k", "32k", "64k"]);

/// The options of one filesystem, each at most once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MkfsOptions {
    /// By index in the list of supported options.
    chosen: BTreeMap<usize, Chosen>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Chosen {
    flag: &'static str,
    value: String,
}

/// Why options are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The option or its value is not supported.
    #[error("{option:?} is not supported for {filesystem}: use {}", known(*.filesystem))]
    Unsupported {
        /// The option, shortened.
        option: String,
        /// The filesystem.
        filesystem: FilesystemType,
    },
    /// The option is given twice.
    #[error("{option:?} is given twice")]
    Twice {
        /// The second occurrence, shortened.
        option: String,
    },
}

impl MkfsOptions {
    /// Parses options in the syntax of the mkfs tool: `-I 512 -E stride=4,stripe_width=16`.
    pub fn parse(filesystem: FilesystemType, text: &str) -> Result<Self, Error> {
        let mut read = Self::default();
        let mut words = text.split_whitespace();
        while let Some(flag) = words.next() {
            for value in words.next().unwrap_or_default().split(',') {
                read.add(filesystem, flag, value)?;
            }
        }
        Ok(read)
    }

    fn add(&mut self, filesystem: FilesystemType, flag: &str, value: &str) -> Result<(), Error> {
        let option = || shorten(&format!("{flag} {value}"));
        let is_it = |Known(name, prefix, values): &Known| {
            *name == flag
                && value
                    .strip_prefix(prefix)
                    .is_some_and(|rest| values.allow(rest))
        };
        let mut all = all_of(filesystem).iter().enumerate();
        let Some((place, Known(flag, ..))) = all.find(|(_, known)| is_it(known)) else {
            return Err(Error::Unsupported {
                option: option(),
                filesystem,
            });
        };
        let value = value.to_owned();
        match self.chosen.insert(place, Chosen { flag, value }) {
            None => Ok(()),
            Some(_) => Err(Error::Twice { option: option() }),
        }
    }

    /// Whether there are no options.
    pub fn is_empty(&self) -> bool {
        self.chosen.is_empty()
    }

    /// Flags with their values, each flag once, because some tools use only the last occurrence.
    pub fn arguments(&self) -> Vec<(&'static str, String)> {
        let mut all: Vec<(&'static str, String)> = Vec::new();
        for Chosen { flag, value } in self.chosen.values() {
            match all.last_mut() {
                Some((last, values)) if last == flag => {
                    values.push(',');
                    values.push_str(value);
                }
                _ => all.push((flag, value.clone())),
            }
        }
        all
    }
}

/// Writes the options in canonical form.
impl fmt::Display for MkfsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (flag, value)) in self.arguments().into_iter().enumerate() {
            let space = if index == 0 { "" } else { " " };
            write!(f, "{space}{flag} {value}")?;
        }
        Ok(())
    }
}

impl Values {
    fn allow(&self, value: &str) -> bool {
        match self {
            Self::OneOf(all) => all.contains(&value),
            Self::Number { from, to } => value
                .parse::<u32>()
                .is_ok_and(|number| (*from..=*to).contains(&number) && number.to_string() == value),
        }
    }

    fn examples(&self) -> Vec<String> {
        match self {
            Self::OneOf(all) => all.iter().map(|&value| value.to_owned()).collect(),
            Self::Number { from, to } => vec![from.to_string(), to.to_string()],
        }
    }
}

impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OneOf(all) => f.write_str(&all.join("|")),
            Self::Number { from, to } => write!(f, "{from}..{to}"),
        }
    }
}

const fn all_of(filesystem: FilesystemType) -> &'static [Known] {
    match filesystem {
        FilesystemType::Ext4 => &EXT4,
        FilesystemType::Xfs => &XFS,
        FilesystemType::Btrfs => &BTRFS,
    }
}

/// All options of a filesystem, for messages.
fn known(filesystem: FilesystemType) -> String {
    let all = all_of(filesystem).iter();
    let all = all.map(|Known(flag, prefix, values)| format!("{flag} {prefix}{values}"));
    all.collect::<Vec<_>>().join(", ")
}

/// Every option of a filesystem with its values, or with its minimum and maximum. For tests.
#[doc(hidden)]
pub fn every_option(filesystem: FilesystemType) -> Vec<Vec<String>> {
    let examples = |Known(flag, prefix, values): &Known| {
        let values = values.examples().into_iter();
        values
            .map(|value| format!("{flag} {prefix}{value}"))
            .collect()
    };
    all_of(filesystem).iter().map(examples).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ext4(text: &str) -> Result<MkfsOptions, Error> {
        MkfsOptions::parse(FilesystemType::Ext4, text)
    }

    #[test]
    fn equal_options_in_different_notations_are_equal() {
        let one = ext4("-E stride=4,stripe_width=16  -I 512").unwrap();
        let other = ext4(" -I 512 -E stripe_width=16 -E stride=4\n").unwrap();
        assert_eq!(one, other);
        assert_eq!(one.to_string(), "-I 512 -E stride=4,stripe_width=16");
        assert!(ext4("  ").unwrap().is_empty());
    }

    #[test]
    fn an_unsupported_option_is_named_with_the_supported_ones() {
        for (filesystem, bad) in [
            (FilesystemType::Ext4, "-b 1024"),
            (FilesystemType::Ext4, "-U clear"),
            (FilesystemType::Ext4, "-L name"),
            (FilesystemType::Ext4, "-I 128"),
            (FilesystemType::Ext4, "-I 0512"),
            (FilesystemType::Ext4, "-I"),
            (FilesystemType::Ext4, "-I512"),
            (FilesystemType::Ext4, "-O ^has_journal"),
            (FilesystemType::Ext4, "-E root_owner=1:1"),
            (FilesystemType::Ext4, "-E stride"),
            (FilesystemType::Ext4, "-F"),
            (FilesystemType::Ext4, "-- /dev/sda"),
            (FilesystemType::Xfs, "-s size=512"),
            (FilesystemType::Xfs, "-b size=1024"),
            (FilesystemType::Xfs, "-m reflink=0"),
            (FilesystemType::Xfs, "-m crc=0"),
            (FilesystemType::Xfs, "-m uuid=x"),
            (FilesystemType::Xfs, "-l logdev=/dev/sda"),
            (FilesystemType::Xfs, "-c options=/etc/passwd"),
            (FilesystemType::Btrfs, "-s 16k"),
            (FilesystemType::Btrfs, "-d raid0"),
            (FilesystemType::Btrfs, "-r /etc"),
            (FilesystemType::Btrfs, "-f"),
        ] {
            let error = MkfsOptions::parse(filesystem, bad).unwrap_err().to_string();
            assert!(
                error.contains(bad.split_once(' ').map_or(bad, |(flag, _)| flag)),
                "{error}"
            );
            assert!(error.contains("use -"), "{error}");
        }
    }

    #[test]
    fn an_option_is_given_once() {
        let twice = Error::Twice {
            option: "-I 512".to_owned(),
        };
        assert_eq!(ext4("-I 256 -I 512"), Err(twice));
        assert!(ext4("-E stride=1,stride=1").is_err());
    }

    #[test]
    fn the_documentation_lists_every_option() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/filesystems.md");
        let text = std::fs::read_to_string(path).unwrap();
        for filesystem in FilesystemType::ALL {
            let line = format!("\n{:<7}{}\n", filesystem.as_str(), known(filesystem));
            assert!(text.contains(&line), "{line}");
        }
    }

    #[test]
    fn all_options_together_fit_into_the_custom_resource() {
        for filesystem in FilesystemType::ALL {
            let all = every_option(filesystem);
            let longest = all
                .iter()
                .filter_map(|values| values.iter().max_by_key(|v| v.len()));
            let text = longest.cloned().collect::<Vec<_>>().join(" ");
            let read = MkfsOptions::parse(filesystem, &text).unwrap();
            assert_eq!(read.chosen.len(), all.len());
            assert!(read.to_string().len() <= MAX_LENGTH);
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic_and_what_is_read_is_read_back(
            text in prop_oneof!["\\PC{0,60}", "(-[IiEOmn] (stride=|size=|rmapbt=)?[0-9k,]{0,6} ?){0,3}"],
            kind in 0..3_usize,
        ) {
            let filesystem = FilesystemType::ALL[kind];
            if let Ok(read) = MkfsOptions::parse(filesystem, &text) {
                prop_assert_eq!(MkfsOptions::parse(filesystem, &read.to_string()), Ok(read));
            }
        }
    }
}
