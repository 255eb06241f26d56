//! The extent size hint of images: XFS allocates in larger units, so random writes make fewer extents.

use std::{fs, os::fd::AsFd as _};

use cistern_host::{
    Image, ImageRequest, Pool,
    system::{Block, OFlags},
};
use cistern_types::{Bytes, ExtentSize, FilesystemType, Provisioning};

use crate::{
    harness::{Machine, image_path, linux, must, open_new, request, run},
    scenario::Volumes as _,
    snapshot::from,
};

const SIZE: Bytes = Bytes::mib(4);
/// Number of blocks of the volume.
const BLOCKS: u64 = SIZE.0 / Block::SIZE as u64;

fn volume(name: &str, extent_size: Option<ExtentSize>) -> ImageRequest {
    ImageRequest {
        filesystem: None,
        extent_size,
        ..request(name, SIZE, FilesystemType::Ext4, Provisioning::Thin)
    }
}

/// Writes every block once, in an order in which no block follows its neighbour.
fn write_scattered(machine: &Machine, image: &Image) {
    let path = image_path(machine, &image.uid);
    let linux = linux(&machine.folder);
    let file = linux.open(&path, OFlags::WRONLY | OFlags::DIRECT).unwrap();
    let block = Box::new(Block([7; Block::SIZE]));
    for turn in 0..BLOCKS {
        let number = turn * 389 % BLOCKS;
        let offset = number * Block::SIZE as u64;
        linux.write_block(file.as_fd(), offset, &block).unwrap();
    }
}

/// The hint in bytes, as the tool of XFS reports it.
fn hint(machine: &Machine, image: &Image) -> String {
    let path = image_path(machine, &image.uid);
    let line = run("xfs_io", &["-r", "-c", "extsize", path.to_str().unwrap()]);
    let hint = line.trim().strip_prefix('[').unwrap();
    hint.split(']').next().unwrap().to_owned()
}

fn extents(pool: &Pool, image: &Image) -> u64 {
    must(pool.extent_count(&image.uid))
}

#[test]
fn scattered_writes_to_an_image_with_an_extent_size_make_few_extents() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let plain = must(pool.new_image(&volume("a", None)));
    let hinted = must(pool.new_image(&volume("b", Some(ExtentSize::Mib1))));
    for image in [&plain, &hinted] {
        write_scattered(&machine, image);
    }
    let (without, with) = (extents(&pool, &plain), extents(&pool, &hinted));
    assert!(with * 8 < without, "{with} extents with, {without} without");
    // A hint allocates no more than the volume's size.
    let all = must(pool.image(&hinted.uid)).unwrap().allocated;
    assert!(all <= SIZE, "{all}");
}

#[test]
fn an_extent_size_holds_for_new_images_clones_and_after_growth() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    for (number, size) in ExtentSize::ALL.into_iter().enumerate() {
        let image = must(pool.new_image(&volume(&format!("{number}"), Some(size))));
        assert_eq!(hint(&machine, &image), size.bytes().0.to_string());
    }
    let source = must(pool.new_image(&volume("source", None)));
    write_scattered(&machine, &source);
    let wanted = from(&source, volume("clone", Some(ExtentSize::Kib256)));
    let clone = must(pool.new_image(&wanted));
    assert_eq!(hint(&machine, &clone), "262144");
    assert_eq!(hint(&machine, &source), "0");
    let (original, copy) = (
        image_path(&machine, &source.uid),
        image_path(&machine, &clone.uid),
    );
    assert_eq!(fs::read(original).unwrap(), fs::read(copy).unwrap());

    must(pool.grow_image(&clone.uid, Bytes::mib(8)));
    assert_eq!(hint(&machine, &clone), "262144");
}
