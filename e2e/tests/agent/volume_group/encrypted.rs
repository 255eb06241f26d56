//! What the disks of a group show of its encrypted volumes: nothing that a pod has written.

use std::{fs::File, os::unix::fs::FileExt as _, path::Path};

use cistern_crds::Encryption;

use super::{
    Group,
    life::{SMALL, block},
};
use crate::{
    Fixture,
    encryption::{FIRST, with_keys},
    search::file_has,
};

/// What pods write, again and again.
const SECRET: &[u8; 16] = b"marker-encrypted";
const PLAIN: &[u8; 16] = b"marker-of-plain!";

impl Group {
    /// Whether one of its disks has these bytes anywhere.
    fn has(&self, bytes: &[u8]) -> bool {
        (0..self.disks.len()).any(|index| {
            let disk = File::open(self.folder.join(format!("disk-{index}"))).unwrap();
            file_has(&disk, bytes).unwrap()
        })
    }
}

/// Writes a mebibyte of a marker, as a pod does.
fn write(node: &Fixture, path: &Path, marker: &[u8]) {
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(node.seen_on_node(path))
        .unwrap();
    let bytes = marker.repeat((1 << 20) / marker.len());
    file.write_all_at(&bytes, 0).unwrap();
    file.sync_all().unwrap();
}

#[tokio::test]
#[ignore = "needs device-mapper, which the virtual machine has"]
async fn what_a_pod_writes_to_an_encrypted_volume_is_not_on_the_disks_of_its_group() {
    let (node, group) = Fixture::on_group("agent-group-canary").await;
    let mut used = Vec::new();
    for (name, is_block, marker) in [
        ("plain", true, PLAIN),
        ("device", true, SECRET),
        ("files", false, SECRET),
    ] {
        let mut desired = node.thick_volume(name, SMALL);
        if is_block {
            desired = block(desired);
        }
        let is_encrypted = marker == SECRET;
        desired.spec.encryption = is_encrypted.then_some(Encryption::Luks2);
        let object = node.create_ready(&desired).await;
        let keys = [("key", FIRST)];
        let keys = if is_encrypted { &keys[..] } else { &[] };
        let kubelet = with_keys(&node, &object, &format!("staging-{name}"), keys);
        kubelet.stage(&[]).await.unwrap();
        kubelet.publish(name, &[], false).await.unwrap();
        let target = kubelet.target(name);
        let file = if is_block {
            target
        } else {
            target.join("file")
        };
        write(&node, &file, marker);
        used.push((name, object, kubelet));
    }
    assert!(group.has(PLAIN), "the search finds what is there");
    assert!(!group.has(SECRET), "while they are used");
    for (name, object, kubelet) in used {
        kubelet.unpublish(name).await.unwrap();
        kubelet.unstage().await.unwrap();
        assert!(!group.has(SECRET), "after {name} was unstaged");
        node.remove_from(&group, &object).await;
    }
    assert!(!group.has(SECRET), "after they were removed");
    node.finish().await;
}
