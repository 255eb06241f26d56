//! Files in a folder of a pool that are not Cistern's.
//!
//! They occupy blocks that are reserved for no object. The size of a file is known; the size of a
//! folder's contents is not, and the folder is not read.

use std::{
    collections::BTreeSet,
    io,
    os::fd::{AsFd as _, BorrowedFd},
    path::{Path, PathBuf},
};

use cistern_types::Bytes;

use crate::{
    id::Uid,
    layout::{CLOSED, IMAGES, INCOMING, TEMPORARY, TRASH, parse_copy},
    system::{FileKind, OFlags, Stat, System, if_there},
};

/// Prefix of the names of Cistern's own files at the root of a pool.
const OWN: &str = ".cistern-";

/// A file in a pool that is not Cistern's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stray {
    /// Path of the file.
    pub path: PathBuf,
    /// Bytes of the pool that it occupies or can grow to; None if unknown.
    pub size: Option<Bytes>,
}

/// Every file at the root of a pool that is not Cistern's.
fn at_root(system: &dyn System, directory: BorrowedFd<'_>, path: &Path) -> io::Result<Vec<Stray>> {
    let folders = [CLOSED, IMAGES, INCOMING, TEMPORARY, TRASH];
    let is_ours = |name: &str, kind| match kind {
        FileKind::Directory => folders.contains(&name),
        _ => name.starts_with(OWN),
    };
    others(system, directory, path, is_ours, &BTreeSet::new())
}

/// Those at the root of a pool, among the unfinished images, and among the copies.
pub(crate) fn outside_of_images(
    system: &dyn System,
    directory: BorrowedFd<'_>,
    path: &Path,
) -> io::Result<Vec<Stray>> {
    let mut all = at_root(system, directory, path)?;
    let is_copy = |name: &str| parse_copy(name).is_some();
    for folder in [
        (TEMPORARY, &is_image as &dyn Fn(&str) -> bool),
        (INCOMING, &is_copy),
    ] {
        all.extend(in_folder(
            system,
            directory,
            path,
            folder,
            &BTreeSet::new(),
        )?);
    }
    Ok(all)
}

/// Whether a file is named as an image is.
pub(crate) fn is_image(name: &str) -> bool {
    name.parse::<Uid>().is_ok()
}

/// Those in a folder of a pool whose files have such names; none if it does not exist.
pub(crate) fn in_folder(
    system: &dyn System,
    directory: BorrowedFd<'_>,
    path: &Path,
    (name, is_named): (&str, &dyn Fn(&str) -> bool),
    known: &BTreeSet<String>,
) -> io::Result<Vec<Stray>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let Some(folder) = if_there(system.open_beneath(directory, name.as_ref(), flags))? else {
        return Ok(Vec::new());
    };
    let path = path.join(name);
    // The lists may lack what was created after they were read.
    let is_expected = |name: &str, kind: FileKind| is_named(name) && kind == FileKind::File;
    others(system, folder.as_fd(), &path, is_expected, known)
}

/// Files in a folder that are neither known nor expected there.
fn others(
    system: &dyn System,
    folder: BorrowedFd<'_>,
    path: &Path,
    is_expected: impl Fn(&str, FileKind) -> bool,
    known: &BTreeSet<String>,
) -> io::Result<Vec<Stray>> {
    let mut all = Vec::new();
    for name in system.list(folder)? {
        let text = name.to_str().unwrap_or_default();
        if known.contains(text) {
            continue;
        }
        // With O_PATH, because opening a pipe blocks.
        let file = match system.open_beneath(folder, name.as_ref(), OFlags::PATH | OFlags::NOFOLLOW)
        {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let stat = system.stat(file.as_fd())?;
        if !is_expected(text, stat.kind) {
            let (path, size) = (path.join(&name), size_of(&stat));
            all.push(Stray { path, size });
        }
    }
    Ok(all)
}

fn size_of(stat: &Stat) -> Option<Bytes> {
    match stat.kind {
        FileKind::File => Some(Bytes(stat.size.max(stat.allocated))),
        FileKind::Directory => None,
        FileKind::SymbolicLink | FileKind::BlockDevice | FileKind::Other => Some(Bytes::ZERO),
    }
}
