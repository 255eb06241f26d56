//! Files in a pool that are not Cistern's.
//!
//! They take blocks that nobody was promised. What a file takes is known; what is below a folder is
//! not, and nobody looks there.

use std::{
    collections::BTreeSet,
    io,
    os::fd::{AsFd as _, BorrowedFd},
    path::{Path, PathBuf},
};

use cistern_crds::Bytes;

use crate::{
    id::Uid,
    image::{Discarded, Image, trash},
    pool::{self, Pool},
    system::{FileKind, OFlags, Stat, System},
};

/// What every name at the root of a pool begins with that is a file of Cistern's own.
const OWN: &str = ".cistern-";

/// A file in a pool that is not Cistern's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stray {
    /// Where it is.
    pub path: PathBuf,
    /// Bytes of the pool that it takes, or may be written to without another name; none where that
    /// is not known.
    pub size: Option<Bytes>,
}

impl Pool {
    /// Every file in the pool that is not Cistern's, beside these images.
    pub fn strays(
        &self,
        images: &[Image],
        discarded: &[Discarded],
    ) -> Result<Vec<Stray>, pool::Error> {
        let (system, directory) = (&*self.system, self.directory());
        list(system, directory, &self.path(), images, discarded).map_err(pool::failed(format!(
            "look for strange files in pool {self}"
        )))
    }
}

/// Every file in a pool that is not Cistern's: at its root, among the images, and in the trash.
pub(crate) fn list(
    system: &dyn System,
    directory: BorrowedFd<'_>,
    path: &Path,
    images: &[Image],
    discarded: &[Discarded],
) -> io::Result<Vec<Stray>> {
    let images = images.iter().map(|image| image.uid.to_string()).collect();
    let since = |it: &Discarded| format!("{}.{}", it.image.uid, it.since.timestamp());
    let discarded = discarded.iter().map(since).collect();
    let is_image = |name: &str| name.parse::<Uid>().is_ok();
    let is_discarded = |name: &str| trash::parse(name).is_some();
    let mut all = at_root(system, directory, path)?;
    for (name, known, is_named) in [
        (pool::IMAGES, images, &is_image as &dyn Fn(&str) -> bool),
        (trash::TRASH, discarded, &is_discarded),
    ] {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        match system.open_beneath(directory, name.as_ref(), flags) {
            Ok(folder) => all.extend(others(
                system,
                folder.as_fd(),
                &path.join(name),
                |name, kind| {
                    // One that came a moment ago is not known yet.
                    is_named(name) && kind == FileKind::File
                },
                &known,
            )?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// Every file at the root of a pool that is not Cistern's.
pub(crate) fn at_root(
    system: &dyn System,
    directory: BorrowedFd<'_>,
    path: &Path,
) -> io::Result<Vec<Stray>> {
    let folders = [pool::IMAGES, pool::TEMPORARY, trash::TRASH];
    let is_ours = |name: &str, kind| match kind {
        FileKind::Directory => folders.contains(&name),
        _ => name.starts_with(OWN),
    };
    others(system, directory, path, is_ours, &BTreeSet::new())
}

/// What is in a folder and neither known nor expected there.
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
        // Nothing is opened but the name: a pipe would have us wait.
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
