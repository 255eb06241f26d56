//! Finds the files in a pool that are not Cistern's.

use std::{collections::BTreeSet, io, os::fd::BorrowedFd, path::Path};

use crate::{
    image::{Discarded, Image, trash},
    layout::{CLOSED, IMAGES, TRASH},
    pool::{self, Pool},
    stray::{Stray, in_folder, is_image, outside_of_images},
    system::System,
};

impl Pool {
    /// Lists the files in the pool that are not Cistern's: everything besides these images. Fails
    /// if the pool cannot be read.
    pub fn strays(
        &self,
        images: &[Image],
        discarded: &[Discarded],
    ) -> Result<Vec<Stray>, pool::Error> {
        let (system, directory) = (&*self.system, self.directory());
        list(system, directory, &self.path(), images, discarded)
            .map_err(pool::failed(format!("find foreign files in pool {self}")))
    }
}

/// Every file in a pool that is not Cistern's: outside of the images, among them and the closed ones, and in the trash.
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
    let is_discarded = |name: &str| trash::parse(name).is_some();
    let mut all = outside_of_images(system, directory, path)?;
    for (name, known, is_named) in [
        (IMAGES, images, &is_image as &dyn Fn(&str) -> bool),
        (CLOSED, BTreeSet::new(), &is_image),
        (TRASH, discarded, &is_discarded),
    ] {
        all.extend(in_folder(
            system,
            directory,
            path,
            (name, is_named),
            &known,
        )?);
    }
    Ok(all)
}
