//! The invariant of the ledger on disk: admitted data can be written.

use std::{fs, os::unix::fs::FileExt as _};

use cistern_host::{Expectation, ImageRequest};
use cistern_types::{Bytes, Consistency, FilesystemType, Provisioning, size::MIB};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::{
    harness::{Machine, image_path, image_pool, must, request},
    scenario::Volumes as _,
    snapshot::{snapshot_of, take_snapshot},
};

/// The default of a StoragePool.
const RESERVED_PERCENT: u32 = 5;
const BLOCK: u64 = 4096;

/// A pseudorandom sequence that visits every number below a power of two once.
fn scattered(count: u64) -> impl Iterator<Item = u64> {
    let modulus = count.next_power_of_two();
    // Full period: the multiplier minus one is a multiple of four, and the increment is odd (Knuth).
    (0..modulus)
        .scan(modulus / 3, move |state, _| {
            *state = state.wrapping_mul(0x5851_f42d).wrapping_add(0x1405_7b7f) % modulus;
            Some(*state)
        })
        .filter(move |index| *index < count)
}

#[test]
fn a_pool_filled_to_its_last_admitted_byte_accepts_an_overwrite_of_every_block() {
    let machine = Machine::new();
    let declaration = image_pool(Bytes::mib(512));
    let pool = must(machine.root().open_pool(&declaration, Expectation::New));
    let empty = must(pool.statistics()).empty;
    let usable = empty.saturating_sub(empty.percent(RESERVED_PERCENT));

    // One volume, a snapshot of all of it, and a second volume that takes the remaining space.
    let block = ImageRequest {
        filesystem: None,
        ..request(
            "a",
            Bytes(usable.0 / 2).round_down_to_mib(),
            FilesystemType::Ext4,
            Provisioning::Thick,
        )
    };
    let image = must(pool.new_image(&block));
    let path = image_path(&machine, &image.uid);
    let source = fs::OpenOptions::new()
        .write(true)
        .read(true)
        .open(&path)
        .unwrap();
    // All blocks are written once, so that the next writes copy them.
    let bytes = vec![0xaa; usize::try_from(MIB).unwrap()];
    for offset in (0..image.size.0).step_by(bytes.len()) {
        source.write_all_at(&bytes, offset).unwrap();
    }
    let request_of = snapshot_of(&image, "s");
    let snapshot = must(take_snapshot(
        &machine,
        &pool,
        request_of,
        Consistency::Crash,
    ));
    assert!(snapshot.allocated >= image.size, "{}", snapshot.allocated);
    let promised = Bytes(image.size.0 + snapshot.allocated.0);
    let rest = usable.saturating_sub(promised).round_down_to_mib();
    let filler = ImageRequest {
        filesystem: None,
        ..request("b", rest, FilesystemType::Ext4, Provisioning::Thick)
    };
    if rest > Bytes::ZERO {
        must(pool.new_image(&filler));
    }
    assert!(usable.saturating_sub(promised).saturating_sub(rest) < Bytes::mib(1));

    // As a loop device writes: 4 KiB each, past the page cache.
    fcntl_setfl(&source, fcntl_getfl(&source).unwrap() | OFlags::DIRECT).unwrap();
    let mut buffer = vec![0x55_u8; 2 * usize::try_from(BLOCK).unwrap()];
    let start = buffer
        .as_ptr()
        .align_offset(usize::try_from(BLOCK).unwrap());
    let aligned = &mut buffer[start..start + usize::try_from(BLOCK).unwrap()];
    for (count, index) in scattered(image.size.0 / BLOCK).enumerate() {
        source
            .write_all_at(aligned, index * BLOCK)
            .unwrap_or_else(|error| panic!("write {count} failed: {error}"));
    }
    let mut copy = vec![0; bytes.len()];
    let snapshot = fs::File::open(image_path(&machine, &snapshot.uid)).unwrap();
    for offset in (0..image.size.0).step_by(bytes.len()) {
        snapshot.read_exact_at(&mut copy, offset).unwrap();
        assert!(copy == bytes, "the snapshot changed at {offset}");
    }
}
