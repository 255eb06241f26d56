//! Parser of `/proc/<pid>/mountinfo` (proc(5)).
//!
//! *Invariant:* no line makes it panic; a line that it cannot read is an error and never skipped,
//! because a caller may use a device that does not appear to be mounted.

use std::{
    ffi::OsString,
    os::unix::ffi::OsStringExt as _,
    path::{Path, PathBuf},
};

use super::{DeviceNumber, devices::node_number};

/// One mount in the kernel's mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// ID of the mount, unique while it exists.
    pub id: u64,
    /// ID of the mount that it is attached to.
    pub parent: u64,
    /// Device number of the filesystem. For a btrfs on a device of Cistern, that of the device, because
    /// btrfs has an anonymous device number. For a filesystem on a mapping of Cistern, that of the device
    /// under it, which identifies the image.
    pub device: DeviceNumber,
    /// The directory within the filesystem that is mounted.
    pub root: PathBuf,
    /// Its mount point, relative to this process's root.
    pub mount_point: PathBuf,
    /// Options of the mount: `rw`, `nosuid`, `noatime` …
    pub mount_options: Vec<String>,
    /// Type of the filesystem.
    pub filesystem: String,
    /// Its source, as the process that mounted it passed it.
    pub source: PathBuf,
    /// Options of the filesystem: `rw`, `discard`, `data=journal` …
    pub filesystem_options: Vec<String>,
}

impl Mount {
    /// Whether it is the whole filesystem on a device. kubelet also mounts parts of a volume (subPath).
    pub(crate) fn is_whole(&self, device: DeviceNumber) -> bool {
        self.device == device && self.root == Path::new("/")
    }

    /// Whether an option of the mount itself is set.
    pub fn has(&self, option: &str) -> bool {
        self.mount_options.iter().any(|o| o == option)
    }

    /// Whether nothing can be written through this mount. (Since Linux 6.15, an ext4 that became
    /// read-only after an error has an option of its own.)
    pub fn is_read_only(&self) -> bool {
        let mut options = self.filesystem_options.iter();
        self.has("ro") || options.any(|option| option == "ro" || option == "emergency_ro")
    }

    /// Whether its filesystem reports that it has shut down. ext4 does since Linux 6.15; XFS never
    /// does.
    pub fn has_shut_down(&self) -> bool {
        let mut options = self.filesystem_options.iter();
        options.any(|option| option == "shutdown")
    }
}

/// A line that does not have the format of proc(5).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of mountinfo cannot be read: {text:?}")]
pub(crate) struct ParseError {
    line: usize,
    text: String,
}

/// Parses all mounts of a mountinfo file, in its order: of two at one mount point, the later is on top.
pub(crate) fn parse(text: &[u8]) -> Result<Vec<Mount>, ParseError> {
    text.split(|byte| *byte == b'\n')
        .enumerate()
        .filter(|(_, line)| !line.is_empty())
        .map(|(index, line)| {
            parse_line(line).ok_or_else(|| ParseError {
                line: index + 1,
                text: String::from_utf8_lossy(line).chars().take(256).collect(),
            })
        })
        .collect()
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let mut next = || fields.next();
    let id = number(next()?)?;
    let parent = number(next()?)?;
    let device = device(next()?)?;
    let root = path(next()?)?;
    let mount_point = path(next()?)?;
    let mount_options = options(next()?);
    // Optional fields (propagation) end with a single hyphen.
    while next()? != b"-" {}
    let filesystem = String::from_utf8_lossy(next()?).into_owned();
    let source = path(next()?)?;
    let filesystem_options = options(next()?);
    let beneath = if filesystem == "btrfs" {
        node(&source).filter(|device| device.as_loop().is_some())
    } else {
        None
    };
    Some(Mount {
        id,
        parent,
        device: beneath.unwrap_or(device),
        root,
        mount_point,
        mount_options,
        filesystem,
        source,
        filesystem_options,
    })
}

fn number<T: std::str::FromStr>(field: &[u8]) -> Option<T> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

fn device(field: &[u8]) -> Option<DeviceNumber> {
    let colon = field.iter().position(|byte| *byte == b':')?;
    Some(DeviceNumber {
        major: number(field.get(..colon)?)?,
        minor: number(field.get(colon + 1..)?)?,
    })
}

/// The device whose node is at a path, judged by its name. For a btrfs, the kernel writes the path of its device,
/// and not the source that a process passed.
pub(super) fn node(source: &Path) -> Option<DeviceNumber> {
    node_number(source.file_name()?.to_str()?)
}

fn options(field: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(field)
        .split(',')
        .map(str::to_owned)
        .collect()
}

/// Undoes the kernel's escapes: a backslash and three octal digits.
fn path(field: &[u8]) -> Option<PathBuf> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        if *first == b'\\' {
            let digits = tail.get(..3)?;
            let value = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()?;
            bytes.push(value);
            rest = tail.get(3..)?;
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    Some(OsString::from_vec(bytes).into())
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_line_of_proc_5_is_read_whole() {
        let line = b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 shared:7 - ext3 /dev/root rw,errors=continue\n";
        let mount = parse(line).unwrap().remove(0);
        assert_eq!((mount.id, mount.parent), (36, 35));
        assert_eq!(mount.device.to_string(), "98:0");
        assert_eq!(mount.mount_point, PathBuf::from("/mnt2"));
        assert_eq!(mount.filesystem, "ext3");
        assert!(mount.has("noatime") && !mount.is_read_only());
        assert_eq!(mount.filesystem_options, ["rw", "errors=continue"]);
    }

    #[test]
    fn a_line_cut_short_is_an_error_and_not_a_mount_less() {
        let error =
            parse(b"36 35 98:0 / /a rw - ext4 /dev/a rw\n36 35 98:0 / /b rw\n").unwrap_err();
        assert_eq!(error.line, 2);
        assert!(parse(b"1 2 3:4 / /bad\\0 rw - a b c").is_err());
    }

    fn escape(bytes: &[u8]) -> String {
        let mut text = String::new();
        for byte in bytes {
            match byte {
                b' ' | b'\t' | b'\n' | b'\\' | b'#' => write!(text, "\\{byte:03o}").unwrap(),
                _ => text.push(char::from(*byte)),
            }
        }
        text
    }

    #[test]
    fn a_btrfs_on_a_loop_device_has_the_number_of_the_loop_device() {
        let of = |filesystem: &str, source: &str| {
            let line = format!("65 43 0:39 / /mnt rw - {filesystem} {source} rw,discard\n");
            parse(line.as_bytes()).unwrap().remove(0).device.to_string()
        };
        assert_eq!(of("btrfs", "/dev/loop12"), "7:12");
        assert_eq!(of("btrfs", "/var/lib/cistern/dev/7-12"), "7:12");
        for other in ["/dev/loop12p1", "/dev/sda", "/dev/17-12", "loop", "none"] {
            assert_eq!(of("btrfs", other), "0:39", "{other}");
        }
        assert_eq!(of("tmpfs", "/dev/loop12"), "0:39");
    }

    proptest! {
        #[test]
        fn any_mount_point_is_read_back(path in "/[ -~\\t\\n]{0,60}", id: u64, minor: u32, tags in 0..4_usize) {
            let line = format!(
                "{id} 1 7:{minor} / {} rw {}- xfs /dev/x rw\n",
                escape(path.as_bytes()),
                "shared:1 ".repeat(tags),
            );
            let mount = parse(line.as_bytes()).unwrap().remove(0);
            prop_assert_eq!((mount.id, mount.device.minor), (id, minor));
            prop_assert_eq!(mount.mount_point, PathBuf::from(path));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }
    }
}
