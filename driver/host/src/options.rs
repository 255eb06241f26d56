//! The mount options that Cistern supports, as a type.
//!
//! *Invariant:* the kernel shows every supported option in mountinfo exactly as it was given (a
//! test mounts with each), so that a later call can compare a mount with a request by mountinfo
//! alone. Options that could open other devices, crash the host or undo decisions of Cistern are
//! rejected.

use std::{collections::BTreeMap, fmt};

use cistern_types::{FilesystemType, Provisioning};

use crate::system::{Mount, MountAttrFlags, Parameter};

/// Attributes of every mount, because the host does not trust the content of a volume.
const ALWAYS: MountAttrFlags =
    MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV);

/// Options of one mount of a filesystem.
const ATTRIBUTES: [(&str, MountAttrFlags); 5] = [
    ("ro", MountAttrFlags::MOUNT_ATTR_RDONLY),
    ("nosuid", MountAttrFlags::MOUNT_ATTR_NOSUID),
    ("nodev", MountAttrFlags::MOUNT_ATTR_NODEV),
    ("noexec", MountAttrFlags::MOUNT_ATTR_NOEXEC),
    ("nodiratime", MountAttrFlags::MOUNT_ATTR_NODIRATIME),
];
/// Options that decide whether reading a file updates its access time. The last given one counts.
/// The first is the default: a read then causes no write, takes no space in a pool with snapshots,
/// and causes no wear.
const ACCESS_TIMES: [(&str, MountAttrFlags); 3] = [
    ("noatime", MountAttrFlags::MOUNT_ATTR_NOATIME),
    ("relatime", MountAttrFlags::MOUNT_ATTR_RELATIME),
    ("strictatime", MountAttrFlags::MOUNT_ATTR_STRICTATIME),
];
/// Options that are defaults, and are ignored.
const DEFAULTS: [&str; 4] = ["defaults", "rw", "exec", "async"];
/// Options of every filesystem.
const COMMON: [Known; 3] = [
    Known("sync", Values::None),
    Known("dirsync", Values::None),
    Known("lazytime", Values::None),
];
const EXT4: [Known; 3] = [
    // 5 is the default, which the kernel does not show.
    Known("commit", Values::Number { from: 6, to: 3600 }),
    Known("noauto_da_alloc", Values::None),
    Known("nodelalloc", Values::None),
];
const XFS: [Known; 3] = [
    Known(
        "allocsize",
        Values::OneOf(&["64k", "256k", "1024k", "4096k"]),
    ),
    Known("logbsize", Values::OneOf(&["64k", "128k", "256k"])),
    Known("swalloc", Values::None),
];
const BTRFS: [Known; 8] = [
    Known("autodefrag", Values::None),
    // 30 is the default, which the kernel does not show.
    Known("commit", Values::Number { from: 1, to: 29 }),
    Known("compress", COMPRESSIONS),
    Known("compress-force", COMPRESSIONS),
    Known("flushoncommit", Values::None),
    Known("max_inline", Values::OneOf(&["0"])),
    Known("nodatacow", Values::None),
    Known("user_subvol_rm_allowed", Values::None),
];
/// Algorithms and levels. A level is required where the kernel adds one if none is given.
const COMPRESSIONS: Values = Values::OneOf(&["lzo", "zlib:3", "zstd:1", "zstd:3", "zstd:9"]);
/// btrfs options of which the last one given counts: each undoes the others.
const EXCLUSIVE: [&str; 3] = ["compress", "compress-force", "nodatacow"];
/// SELinux labels. kubelet passes each as one quoted option, because its value contains commas.
const LABELS: [&str; 4] = ["context", "defcontext", "fscontext", "rootcontext"];
/// Added for thin volumes, so that deleted files free their space in the pool. For btrfs this is
/// the synchronous discard: its default, the asynchronous one, is lost at an unmount.
const DISCARD: &str = "discard";

/// A supported option of a filesystem.
struct Known(&'static str, Values);

enum Values {
    None,
    OneOf(&'static [&'static str]),
    Number { from: u32, to: u32 },
}

/// The options of one volume, as a StorageClass lists them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountOptions {
    attributes: Vec<&'static str>,
    /// One of [`ACCESS_TIMES`]; none when not given.
    access_time: Option<MountAttrFlags>,
    /// Keys with optional values.
    parameters: BTreeMap<String, Option<String>>,
}

/// An unsupported option. The message does not repeat the option, which may be sensitive.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a mount option is not supported for {filesystem}: use {}", known(*.filesystem))]
pub struct Unsupported {
    /// The option, truncated at 64 characters.
    pub option: String,
    /// The filesystem of the volume.
    pub filesystem: FilesystemType,
}

impl MountOptions {
    /// Parses the options. Each string may hold several, separated by commas, or one label. Fails
    /// with the first option that is not supported.
    pub fn parse<'a>(
        filesystem: FilesystemType,
        options: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, Unsupported> {
        let mut read = Self::default();
        let mut rest = Vec::new();
        for option in options {
            match label(option) {
                Some((key, value)) => {
                    read.parameters
                        .insert(key.to_owned(), Some(value.to_owned()));
                }
                None => rest.push(option),
            }
        }
        let words = rest.into_iter().flat_map(|option| option.split(','));
        for word in words.map(str::trim).filter(|word| !word.is_empty()) {
            if DEFAULTS.contains(&word) {
                continue;
            }
            if let Some((name, _)) = ATTRIBUTES.iter().find(|(name, _)| *name == word) {
                if !read.attributes.contains(name) {
                    read.attributes.push(name);
                }
            } else if let Some((_, flag)) = ACCESS_TIMES.iter().find(|(name, _)| *name == word) {
                read.access_time = Some(*flag);
            } else if is_known(filesystem, split(word)) {
                read.set(split(word));
            } else {
                return Err(Unsupported {
                    option: word.chars().take(64).collect(),
                    filesystem,
                });
            }
        }
        Ok(read)
    }

    /// Sets a parameter; the last one counts.
    fn set(&mut self, (key, value): (&str, Option<&str>)) {
        if EXCLUSIVE.contains(&key) {
            self.parameters
                .retain(|key, _| !EXCLUSIVE.contains(&key.as_str()));
        }
        self.parameters
            .insert(key.to_owned(), value.map(str::to_owned));
    }

    /// Whether the options request a read-only mount.
    pub fn is_read_only(&self) -> bool {
        self.attributes.contains(&"ro")
    }

    /// Returns the attributes of a mount with these options.
    pub(crate) fn attributes(&self, read_only: bool) -> MountAttrFlags {
        let chosen = ATTRIBUTES
            .iter()
            .filter(|(name, _)| self.attributes.contains(name))
            .fold(ALWAYS, |all, (_, flag)| all.union(*flag));
        let access_time = self.access_time;
        let chosen = chosen | access_time.unwrap_or(MountAttrFlags::MOUNT_ATTR_NOATIME);
        if read_only {
            chosen | MountAttrFlags::MOUNT_ATTR_RDONLY
        } else {
            chosen
        }
    }

    /// Returns the parameters of a filesystem with these options.
    pub(crate) fn parameters(
        &self,
        filesystem: FilesystemType,
        provisioning: Provisioning,
        read_only: bool,
    ) -> Vec<Parameter<'_>> {
        let mut all: Vec<Parameter<'_>> = self.given().collect();
        match (provisioning, filesystem) {
            (Provisioning::Thin, _) => all.push((DISCARD, None)),
            // btrfs discards by default.
            (Provisioning::Thick, FilesystemType::Btrfs) => all.push(("nodiscard", None)),
            (Provisioning::Thick, FilesystemType::Ext4 | FilesystemType::Xfs) => {}
        }
        match filesystem {
            // Mounts the top-level subvolume, even if a pod has set another default.
            FilesystemType::Btrfs => all.push(("subvolid", Some("5"))),
            FilesystemType::Ext4 | FilesystemType::Xfs => {}
        }
        if read_only || self.is_read_only() {
            all.push(("ro", None));
        }
        all
    }

    /// Whether a mounted filesystem has exactly these supported parameters.
    ///
    /// Ignores `discard`: it is chosen when the volume is staged, and the volume may have become thin
    /// or thick since.
    pub(crate) fn match_filesystem(&self, filesystem: FilesystemType, mount: &Mount) -> bool {
        let shown: BTreeMap<&str, Option<&str>> = mount
            .filesystem_options
            .iter()
            .map(|option| split(option))
            .filter(|option| is_known(filesystem, *option))
            .collect();
        let asked: BTreeMap<&str, Option<&str>> = self
            .given()
            // The kernel shows labels in its own format, and never changes them.
            .filter(|(key, _)| !LABELS.contains(key))
            .collect();
        shown == asked
    }

    fn given(&self) -> impl Iterator<Item = Parameter<'_>> {
        let all = self.parameters.iter();
        all.map(|(key, value)| (key.as_str(), value.as_deref()))
    }
}

/// Reads the attributes of a mount from mountinfo.
pub(crate) fn attributes_of(mount: &Mount) -> MountAttrFlags {
    let shown = ATTRIBUTES
        .iter()
        .filter(|(name, _)| mount.has(name))
        .fold(MountAttrFlags::empty(), |all, (_, flag)| all.union(*flag));
    let access_time = ACCESS_TIMES.iter().find(|(name, _)| mount.has(name));
    // For strictatime the kernel shows neither of the others.
    let strict = MountAttrFlags::MOUNT_ATTR_STRICTATIME;
    shown | access_time.map_or(strict, |(_, flag)| *flag)
}

/// Splits a label into its key and unquoted value; none for any other option.
fn label(option: &str) -> Option<(&str, &str)> {
    let (key, value) = option.split_once('=')?;
    let value = value
        .strip_prefix('"')
        .map_or(Some(value), |value| value.strip_suffix('"'))?;
    let legal = |c: char| c.is_ascii_alphanumeric() || "_.:,-".contains(c);
    let is_label = LABELS.contains(&key) && (1..=255).contains(&value.len());
    (is_label && value.chars().all(legal)).then_some((key, value))
}

/// Splits an option into key and value.
fn split(option: &str) -> (&str, Option<&str>) {
    match option.split_once('=') {
        Some((key, value)) => (key, Some(value)),
        None => (option, None),
    }
}

fn is_known(filesystem: FilesystemType, (key, value): (&str, Option<&str>)) -> bool {
    COMMON
        .iter()
        .chain(specific(filesystem))
        .any(|Known(name, values)| *name == key && values.allow(value))
}

const fn specific(filesystem: FilesystemType) -> &'static [Known] {
    match filesystem {
        FilesystemType::Ext4 => &EXT4,
        FilesystemType::Xfs => &XFS,
        FilesystemType::Btrfs => &BTRFS,
    }
}

/// Lists all options of a filesystem, as the documentation writes them.
fn known(filesystem: FilesystemType) -> String {
    let all = [common(), written(specific(filesystem))];
    all.join(", ")
}

/// Lists the options of every filesystem.
fn common() -> String {
    let attributes = ATTRIBUTES.iter().chain(&ACCESS_TIMES);
    let attributes: Vec<&str> = attributes.map(|(name, _)| *name).collect();
    [attributes.join(", "), written(&COMMON)].join(", ")
}

fn written(options: &[Known]) -> String {
    let options = options.iter();
    let options = options.map(|Known(name, values)| format!("{name}{values}"));
    options.collect::<Vec<_>>().join(", ")
}

impl Values {
    fn allow(&self, value: Option<&str>) -> bool {
        match (self, value) {
            (Self::None, None) => true,
            (Self::OneOf(all), Some(value)) => all.contains(&value),
            (Self::Number { from, to }, Some(value)) => {
                let number = value.parse::<u32>();
                number.is_ok_and(|number| {
                    (*from..=*to).contains(&number) && number.to_string() == value
                })
            }
            (Self::None, Some(_)) | (Self::OneOf(_) | Self::Number { .. }, None) => false,
        }
    }

    fn examples(&self, name: &str) -> Vec<String> {
        match self {
            Self::None => vec![name.to_owned()],
            Self::OneOf(all) => all.iter().map(|value| format!("{name}={value}")).collect(),
            Self::Number { from, to } => vec![format!("{name}={from}"), format!("{name}={to}")],
        }
    }
}

impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::OneOf(all) => write!(f, "={}", all.join("|")),
            Self::Number { from, to } => write!(f, "={from}..{to}"),
        }
    }
}

/// Returns every option of a filesystem that is not an attribute of a mount, for tests.
#[doc(hidden)]
pub fn every_parameter(filesystem: FilesystemType) -> Vec<String> {
    COMMON
        .iter()
        .chain(specific(filesystem))
        .flat_map(|Known(name, values)| values.examples(name))
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(options: &[&str]) -> Result<MountOptions, Unsupported> {
        MountOptions::parse(FilesystemType::Ext4, options.iter().copied())
    }

    #[test]
    fn options_are_read_with_commas_or_without_in_any_order() {
        let one = parse(&["relatime,commit=30", "ro"]).unwrap();
        let other = parse(&["commit=30", "rw", "relatime", " ro ", ""]).unwrap();
        assert_eq!(one.parameters, other.parameters);
        assert_eq!(one.attributes(false), other.attributes(false));
        assert!(one.is_read_only());
    }

    #[test]
    fn the_last_of_mutually_exclusive_options_counts() {
        let read = parse(&["commit=30", "commit=60"]).unwrap();
        assert_eq!(read.given().collect::<Vec<_>>(), [("commit", Some("60"))]);
        let options = ["compress=lzo", "nodatacow", "compress=zstd:1"];
        let read = MountOptions::parse(FilesystemType::Btrfs, options).unwrap();
        let given = read.given().collect::<Vec<_>>();
        assert_eq!(given, [("compress", Some("zstd:1"))]);
    }

    #[test]
    fn the_documentation_lists_every_option() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/filesystems.md");
        let text = std::fs::read_to_string(path).unwrap();
        let listed = |name: &str, options: &str| {
            assert!(
                text.contains(&format!("\n{name:<7}{options}\n")),
                "{options}"
            );
        };
        listed("all", &common());
        for filesystem in FilesystemType::ALL {
            listed(filesystem.as_str(), &written(specific(filesystem)));
        }
    }

    #[test]
    fn harmful_options_are_rejected_by_name() {
        for bad in [
            "errors=panic",
            "journal_dev=8",
            "logdev=/dev/sda",
            "suid",
            "dev",
            "discard",
            "commit=05",
            "commit=5",
            "commit=",
            "noatime=1",
            "remount",
            "bind",
            "nouuid",
        ] {
            let error = parse(&[bad]).unwrap_err();
            assert_eq!(error.option, bad);
        }
    }

    #[test]
    fn a_label_of_selinux_stays_whole_and_loses_its_quotes() {
        let read = parse(&["context=\"system_u:object_r:file_t:s0:c1,c2\"", "noatime"]).unwrap();
        let value = Some("system_u:object_r:file_t:s0:c1,c2");
        let parameters = read.parameters(FilesystemType::Ext4, Provisioning::Thick, false);
        assert_eq!(parameters, [("context", value)]);
        for bad in ["context=", "context=\"a", "context=a b", "context=a=b"] {
            assert!(parse(&[bad]).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn sec_05_an_error_does_not_repeat_the_option() {
        let error = parse(&["noatime", "MARKER"]).unwrap_err();
        assert!(!error.to_string().contains("MARKER"), "{error}");
    }

    #[test]
    fn a_volume_is_always_nosuid_and_nodev_and_noatime_by_default() {
        let of = |options: &[&str]| parse(options).unwrap().attributes(false);
        assert_eq!(of(&[]), ALWAYS | MountAttrFlags::MOUNT_ATTR_NOATIME);
        assert_eq!(of(&["noatime"]), of(&[]));
        assert_eq!(of(&["noatime", "relatime"]), ALWAYS);
        let strict = ALWAYS | MountAttrFlags::MOUNT_ATTR_STRICTATIME;
        assert_eq!(of(&["relatime,strictatime"]), strict);
    }

    proptest! {
        #[test]
        fn parsing_never_panics_and_never_accepts_unknown_options(text in "\\PC{0,40}") {
            if let Ok(read) = parse(&[&text]) {
                for (key, value) in read.given() {
                    prop_assert!(is_known(FilesystemType::Ext4, (key, value)) || LABELS.contains(&key));
                }
            }
        }
    }
}
