//! Searches files for bytes that must not be there: the keys and the data of tenants.
//!
//! The virtual machine has no other search for this: its grep ends a line at a byte that is zero, and looks no further.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, BufRead as _, ErrorKind},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{SeekFrom, seek},
    io::Errno,
};

use crate::Fixture;

/// Bytes that are read at once.
const CHUNK: usize = 1 << 20;

impl Fixture {
    /// A path of the node as this process can open it. What is mounted on the node is seen there.
    pub(crate) fn seen_on_node(&self, path: &Path) -> PathBuf {
        let process = self.driver.node().process().id();
        format!("/proc/{process}/root{}", path.display()).into()
    }
}

/// Whether bytes contain others, of which there are at least two.
pub(crate) fn has(mut bytes: &[u8], wanted: &[u8]) -> bool {
    let (first, others) = wanted.split_first().unwrap();
    while !bytes.is_empty() {
        // Finds the byte with the speed of the C library, also in a build without optimisation.
        bytes.skip_until(*first).unwrap();
        if bytes.starts_with(others) {
            return true;
        }
    }
    false
}

/// Whether a file contains bytes. Holes are not read.
pub(crate) fn file_has(file: &File, wanted: &[u8]) -> io::Result<bool> {
    let mut bytes = vec![0; CHUNK];
    let mut at = 0;
    loop {
        at = match seek(file, SeekFrom::Data(at)) {
            Ok(data) => data,
            // There is no more data.
            Err(Errno::NXIO) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let end = seek(file, SeekFrom::Hole(at))?;
        while at < end {
            let left = usize::try_from(end - at).unwrap();
            let chunk = &mut bytes[..left.min(CHUNK)];
            file.read_exact_at(chunk, at)?;
            if has(chunk, wanted) {
                return Ok(true);
            }
            // What is wanted may begin in this chunk and end in the next one.
            let overlap = if left > CHUNK { wanted.len() - 1 } else { 0 };
            at += u64::try_from(chunk.len() - overlap).unwrap();
        }
    }
}

/// The files below a folder that contain bytes. Links and devices are not followed.
pub(crate) fn found_below(folder: &Path, wanted: &[u8]) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in unless_gone(fs::read_dir(folder)).into_iter().flatten() {
            let entry = entry.unwrap();
            let Some(kind) = unless_gone(entry.file_type()) else {
                continue;
            };
            let path = entry.path();
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() {
                let searched = File::open(&path).and_then(|file| file_has(&file, wanted));
                if unless_gone(searched) == Some(true) {
                    found.insert(path);
                }
            }
        }
    }
    found
}

/// What has been read; nothing if the driver has removed it meanwhile, or cut it off.
fn unless_gone<T>(read: io::Result<T>) -> Option<T> {
    match read {
        Ok(read) => Some(read),
        Err(error) => {
            let kinds = [ErrorKind::NotFound, ErrorKind::UnexpectedEof];
            assert!(kinds.contains(&error.kind()), "{error}");
            None
        }
    }
}

#[test]
fn bytes_are_found_behind_holes_and_zeros_and_across_the_chunks_that_are_read() {
    let folder = cistern_e2e::Folder::new();
    let path = folder.join("below/file");
    fs::create_dir(folder.join("below")).unwrap();
    let wanted = b"wwanted";
    for at in [0, 10 << 20, (11 << 20) - 3] {
        let file = File::create(&path).unwrap();
        file.write_all_at(&vec![1; 3 * CHUNK], 10 << 20).unwrap();
        file.write_all_at(b"\0w\0wwante\0", 5 << 20).unwrap();
        assert!(found_below(folder.path(), wanted).is_empty(), "{at}");
        file.write_all_at(b"\0", at).unwrap();
        file.write_all_at(wanted, at + 1).unwrap();
        let found = found_below(folder.path(), wanted);
        assert_eq!(found, [path.clone()].into(), "{at}");
    }
}
