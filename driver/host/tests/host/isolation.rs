//! Operations on one image never change another, whatever extents they share.

use std::{collections::BTreeMap, fs, os::unix::fs::FileExt as _};

use cistern_host::{Image, ImageRequest, Pool};
use cistern_types::{Bytes, Consistency, FilesystemType, Provisioning};
use proptest::{
    prelude::*,
    sample::Index,
    test_runner::{Config, TestRunner},
};
use rustix::fs::{FallocateFlags, fallocate};

use crate::{
    harness::{Machine, image_path, must, open_new, request},
    scenario::Volumes as _,
    snapshot::{from, snapshot_of, take_snapshot},
};

/// The unit of writes: one block of the pool.
const BLOCK: usize = 4096;
/// Size of a new volume, in blocks.
const BLOCKS: usize = 256;

/// A step of a history. Each index selects an existing image, or a block of one.
#[derive(Clone, Debug)]
enum Step {
    Make {
        provisioning: Provisioning,
    },
    Write {
        image: Index,
        first: Index,
        count: usize,
        value: u8,
    },
    Punch {
        image: Index,
        first: Index,
        count: usize,
    },
    TakeSnapshot {
        image: Index,
    },
    Clone {
        image: Index,
        larger: bool,
        provisioning: Provisioning,
    },
    Grow {
        image: Index,
    },
    Remove {
        image: Index,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let provisioning = || prop_oneof![Just(Provisioning::Thin), Just(Provisioning::Thick)];
    let (image, first, count) = (any::<Index>, any::<Index>, || 1..64_usize);
    prop_oneof![
        1 => provisioning().prop_map(|provisioning| Step::Make { provisioning }),
        8 => (image(), first(), count(), 1..255_u8)
            .prop_map(|(image, first, count, value)| Step::Write { image, first, count, value }),
        3 => (image(), first(), count())
            .prop_map(|(image, first, count)| Step::Punch { image, first, count }),
        4 => image().prop_map(|image| Step::TakeSnapshot { image }),
        3 => (image(), any::<bool>(), provisioning())
            .prop_map(|(image, larger, provisioning)| Step::Clone { image, larger, provisioning }),
        1 => image().prop_map(|image| Step::Grow { image }),
        3 => image().prop_map(|image| Step::Remove { image }),
    ]
}

/// What every image should hold: the value of each block.
struct Model<'a> {
    machine: &'a Machine,
    pool: &'a Pool,
    images: BTreeMap<u32, (Image, Vec<u8>)>,
    made: u32,
}

impl Model<'_> {
    /// One of the images, or of the volumes alone.
    fn choose(&self, index: Index, volumes_only: bool) -> Option<u32> {
        let is_volume = |image: &Image| {
            let identity = image.identity.as_ref().unwrap();
            identity.owner.volume().is_some()
        };
        let fit = self.images.iter();
        let fit: Vec<u32> = fit
            .filter(|(_, (image, _))| !volumes_only || is_volume(image))
            .map(|(number, _)| *number)
            .collect();
        (!fit.is_empty()).then(|| *index.get(&fit))
    }

    fn wanted(&self, blocks: usize, provisioning: Provisioning) -> ImageRequest {
        let name = self.made.to_string();
        let size = Bytes((blocks * BLOCK) as u64);
        ImageRequest {
            filesystem: None,
            ..request(&name, size, FilesystemType::Ext4, provisioning)
        }
    }

    fn add(&mut self, image: Image, content: Vec<u8>) {
        self.images.insert(self.made, (image, content));
        self.made += 1;
    }

    fn open(&self, image: u32) -> fs::File {
        let path = image_path(self.machine, &self.images[&image].0.uid);
        fs::File::options().write(true).open(path).unwrap()
    }

    /// Up to `count` blocks of a volume from `first` on.
    fn part(&self, image: u32, first: Index, count: usize) -> std::ops::Range<usize> {
        let blocks = self.images[&image].1.len();
        let first = first.index(blocks);
        first..blocks.min(first + count)
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Make { provisioning } => {
                let wanted = self.wanted(BLOCKS, provisioning);
                let image = must(self.pool.new_image(&wanted));
                self.add(image, vec![0; BLOCKS]);
            }
            Step::Write {
                image,
                first,
                count,
                value,
            } => {
                let Some(image) = self.choose(image, true) else {
                    return;
                };
                let part = self.part(image, first, count);
                let bytes = vec![value; part.len() * BLOCK];
                let file = self.open(image);
                file.write_all_at(&bytes, (part.start * BLOCK) as u64)
                    .unwrap();
                self.images.get_mut(&image).unwrap().1[part].fill(value);
            }
            Step::Punch {
                image,
                first,
                count,
            } => {
                let Some(image) = self.choose(image, true) else {
                    return;
                };
                let part = self.part(image, first, count);
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let (offset, length) = (part.start * BLOCK, part.len() * BLOCK);
                fallocate(self.open(image), flags, offset as u64, length as u64).unwrap();
                self.images.get_mut(&image).unwrap().1[part].fill(0);
            }
            Step::TakeSnapshot { image } => {
                let Some(image) = self.choose(image, true) else {
                    return;
                };
                let (source, content) = self.images[&image].clone();
                let request = snapshot_of(&source, &self.made.to_string());
                let taken = take_snapshot(self.machine, self.pool, request, Consistency::Crash);
                self.add(must(taken), content);
            }
            Step::Clone {
                image,
                larger,
                provisioning,
            } => {
                let Some(image) = self.choose(image, false) else {
                    return;
                };
                let (source, mut content) = self.images[&image].clone();
                content.resize(content.len() + if larger { BLOCKS } else { 0 }, 0);
                let wanted = self.wanted(content.len(), provisioning);
                let clone = must(self.pool.new_image(&from(&source, wanted)));
                self.add(clone, content);
            }
            Step::Grow { image } => {
                let Some(image) = self.choose(image, true) else {
                    return;
                };
                let (source, mut content) = self.images[&image].clone();
                content.resize(content.len() + BLOCKS, 0);
                let size = Bytes((content.len() * BLOCK) as u64);
                let grown = must(self.pool.grow_image(&source.uid, size));
                self.images.insert(image, (grown, content));
            }
            Step::Remove { image } => {
                let Some(image) = self.choose(image, false) else {
                    return;
                };
                let (image, _) = self.images.remove(&image).unwrap();
                must(self.pool.remove_image(&image.uid));
            }
        }
    }

    fn holds(&self) -> Result<(), TestCaseError> {
        for (image, content) in self.images.values() {
            let found = fs::read(image_path(self.machine, &image.uid)).unwrap();
            prop_assert_eq!(found.len(), content.len() * BLOCK);
            let mut blocks = found.chunks_exact(BLOCK).zip(content);
            let is_same = blocks.all(|(found, value)| found == [*value; BLOCK]);
            prop_assert!(is_same, "{} differs", image.uid);
        }
        Ok(())
    }
}

#[test]
fn r10_no_write_to_one_image_changes_another_in_any_history() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let config = Config {
        cases: 24,
        failure_persistence: None,
        max_shrink_iters: 200,
        ..Config::default()
    };
    let history = proptest::collection::vec(step(), 1..40);
    let lived = TestRunner::new(config).run(&history, |steps| {
        let mut model = Model {
            machine: &machine,
            pool: &pool,
            images: BTreeMap::new(),
            made: 0,
        };
        let first = Step::Make {
            provisioning: Provisioning::Thin,
        };
        for step in [&first].into_iter().chain(&steps) {
            model.take(step);
        }
        let result = model.holds();
        for (image, _) in model.images.values() {
            must(pool.remove_image(&image.uid));
        }
        result
    });
    lived.unwrap();
    assert_eq!(must(pool.images()), []);
}
