//! Encrypted volumes: each is formatted once.

use std::os::unix::fs::FileExt as _;

use cistern_host::{
    EncryptionState, Expectation, UNSTOPPED, encryption::HeaderConflict, image::Error,
    logical::VolumeGroup,
};

use super::{Group, encrypted, open};
use crate::{
    encryption::{keys, unlock},
    harness::{Machine, must, sampled},
};

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn r02_an_error_at_any_call_of_a_first_stage_formats_nothing_twice() {
    let machine = Machine::new();
    let group = Group::blank(&machine, 1);
    let pool = group.pool(&machine);
    let (request, keys) = (encrypted(&machine, "secret"), keys(b'k'));
    let (system, faulty) = machine.faulty();
    let faulty = must(group.open_by(&faulty, Expectation::Made));
    let complete =
        |by: &VolumeGroup| by.complete_encrypted(&request.uid, &request.volume, unlock(&keys));
    let header = || {
        let mut bytes = vec![0; 1 << 20];
        open(&pool, &request).read_exact_at(&mut bytes, 0).unwrap();
        bytes
    };
    let made = must(pool.create(&request, UNSTOPPED));
    assert_eq!(made.encryption(), Some(EncryptionState::Unformatted));
    assert_eq!(made.size, request.size);
    for at in sampled(4, 200) {
        system.fail_in(at);
        let completed = complete(&faulty);
        let is_over = !system.has_failed();
        assert!(!is_over || completed.is_ok(), "{completed:?}");
        let found = must(pool.volume(&request.uid)).unwrap();
        let was_complete = found.encryption() == Some(EncryptionState::Complete);
        let before = header();
        must(complete(&pool));
        let after = header();
        assert!(after.starts_with(b"LUKS"));
        assert!(!was_complete || before == after, "formatted again at {at}");
        if is_over {
            must(complete(&pool));
            assert_eq!(header(), after);
            assert!(at > 10, "{at} calls");
            return;
        }
        // As it was when it was made.
        open(&pool, &request)
            .write_all_at(&vec![0; 16 << 20], 0)
            .unwrap();
        let tag = |state| format!("cistern.state={state}");
        let (complete, unformatted) = (tag("Complete"), tag("Unformatted"));
        let name = format!("{}/cistern-{}", group.name, request.uid);
        group.lvm(
            "lvchange",
            &["--deltag", &complete, "--addtag", &unformatted, &name],
        );
    }
    panic!("too many calls");
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn an_encrypted_volume_that_was_written_to_before_its_first_stage_is_not_formatted() {
    let machine = Machine::new();
    let group = Group::blank(&machine, 1);
    let pool = group.pool(&machine);
    let (request, keys) = (encrypted(&machine, "secret"), keys(b'k'));
    must(pool.create(&request, UNSTOPPED));
    let device = open(&pool, &request);
    device.write_all_at(b"data", 8 << 20).unwrap();
    device.sync_all().unwrap();
    drop(device);
    let error = pool
        .complete_encrypted(&request.uid, &request.volume, unlock(&keys))
        .unwrap_err();
    let is_not_blank = matches!(
        error,
        Error::EncryptionConflict {
            why: HeaderConflict::NotBlank,
            ..
        }
    );
    assert!(is_not_blank, "{error}");
    let mut found = [0; 4];
    open(&pool, &request)
        .read_exact_at(&mut found, 8 << 20)
        .unwrap();
    assert_eq!(&found, b"data");
}
