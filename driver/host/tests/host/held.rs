//! Raw block volumes whose device something on the node holds: it has found there what a pod has written.

use std::{
    fs,
    path::{Path, PathBuf},
};

use cistern_host::{Image, ImageRequest, Pool, image, mounting::Error};

use crate::{
    candidates::Attributes,
    encryption::{keys, raw, stage_block},
    harness::{Machine, chain, has_loops, must, open_new, run},
    scenario::Volumes as _,
};

/// A raw block volume that is staged.
struct Staged<'a> {
    machine: &'a Machine,
    pool: &'a Pool,
    image: Image,
    staging: PathBuf,
}

impl<'a> Staged<'a> {
    fn new(machine: &'a Machine, pool: &'a Pool, is_encrypted: bool) -> Self {
        let request = raw(machine);
        let encryption = request.encryption.filter(|_| is_encrypted);
        let request = ImageRequest {
            encryption,
            ..request
        };
        let image = must(pool.new_image(&request));
        let staging = machine.staging("raw");
        let keys = is_encrypted.then(|| keys(b'a'));
        must(stage_block(pool, &image, keys.as_ref(), &staging));
        Self {
            machine,
            pool,
            image,
            staging,
        }
    }

    fn device(&self) -> PathBuf {
        self.staging.join(self.image.uid.as_str())
    }

    /// Every call that needs the device to be free names the holder, and changes nothing.
    #[track_caller]
    fn is_held_by(&self, holder: &str) {
        for _ in 0..2 {
            let error = self.machine.root().unstage(&self.staging).unwrap_err();
            assert!(matches!(error, Error::Held { .. }), "{error}");
            assert!(error.to_string().contains(holder), "{error}");
            let error = self.pool.remove_image(&self.image.uid).unwrap_err();
            assert!(matches!(error, image::Error::InUse { .. }), "{error}");
            assert!(chain(&error).contains(holder), "{error}");
        }
        let root = self.machine.root();
        assert!(must(root.is_block_staged(&self.image.uid, &self.staging)));
    }

    fn remove(self) {
        must(self.machine.root().unstage(&self.staging));
        assert_eq!(fs::read_dir(&self.staging).unwrap().count(), 0);
        has_loops(self.machine, 1);
        must(self.pool.remove_image(&self.image.uid));
    }
}

#[test]
fn a_volume_is_not_unstaged_while_an_array_holds_its_device_and_the_error_names_the_array() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let volume = Staged::new(&machine, &pool, false);
    let loops = machine.inventory().loops;
    let is_it = |file: &Path| file.ends_with(volume.image.uid.as_str());
    let bound = loops.iter().find(|bound| is_it(&bound.backing_file));
    let path = format!("/dev/loop{}", bound.unwrap().number);
    let holder = Attributes::of(Path::new(&path), "none", Some("md117"));
    volume.is_held_by("the array md117");
    drop(holder);
    volume.remove();
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn a_volume_is_not_unstaged_while_a_mapping_holds_its_device_and_the_error_names_the_mapping() {
    for is_encrypted in [false, true] {
        let machine = Machine::new();
        let pool = open_new(&machine);
        let volume = Staged::new(&machine, &pool, is_encrypted);
        let name = format!("by-hand-{}", volume.image.uid);
        let table = format!("0 2048 linear {} 0", volume.device().display());
        run("dmsetup", &["create", &name, "--table", &table]);
        volume.is_held_by(&format!("the mapping {name} (dm-"));
        run("dmsetup", &["remove", &name]);
        volume.remove();
    }
}
