//! Volumes that are created from snapshots and from volumes.

use cistern_crds::{Bytes, FilesystemType, HasImage as _, Provisioning};
use kube::ResourceExt as _;

use super::{stage, sums, unstage, write};
use crate::{Fixture, status};

#[tokio::test]
async fn a_copy_has_the_data_its_own_size_and_its_own_provisioning_beside_its_source() {
    let node = Fixture::start("agent-copies").await;
    for filesystem in [FilesystemType::Ext4, FilesystemType::Xfs] {
        // The smallest xfs has 300 MiB.
        let (size, larger) = match filesystem {
            FilesystemType::Ext4 => (Bytes::mib(64), Bytes::mib(96)),
            FilesystemType::Xfs | FilesystemType::Btrfs => (Bytes::mib(300), Bytes::mib(320)),
        };
        let mut desired = node.desired_volume("source", size);
        desired.spec.filesystem = Some(filesystem);
        let source = node.create_ready(&desired).await;
        let mounted = stage(&node, &source, "source").await;
        write(&node, &mounted, "data", 2).await;
        let checksums = sums(&node, &mounted).await;
        // A clone of a volume that a pod writes to.
        let clone = node
            .volume_from("clone", larger, &source, |desired| {
                desired.spec.filesystem = Some(filesystem);
                desired.spec.attributes.provisioning = Provisioning::Thick;
            })
            .await;
        write(&node, &mounted, "later", 1).await;
        let beside = stage(&node, &clone, "clone").await;
        assert_eq!(sums(&node, &beside).await, checksums);
        let clone_status = status(&clone);
        assert_eq!(
            (clone_status.reserved, clone_status.size),
            (Some(larger), Some(larger))
        );
        let script = "test $(($(stat -c '%b * %B' $0/$1))) -ge $2";
        let (image, bytes) = (clone.uid().unwrap(), larger.0.to_string());
        node.shell(script, &[&image, &bytes]).await;
        // The filesystem grows before its first use.
        let script = "test $(($(stat -f -c '%b * %S' $1) - $(stat -f -c '%b * %S' $2))) -ge $3";
        let [beside_path, mounted_path] = [&beside, &mounted].map(|path| path.to_str().unwrap());
        let least = Bytes::mib(15).0.to_string();
        node.shell(script, &[beside_path, mounted_path, &least])
            .await;
        let uuid = |volume| status(volume).filesystem.unwrap().uuid;
        let is_same = uuid(&clone) == uuid(&source);
        assert_eq!(is_same, filesystem == FilesystemType::Ext4);
        unstage(&node, &clone, "clone").await;
        unstage(&node, &source, "source").await;
        assert_eq!(source.image().unwrap().uid, source.uid().unwrap());
        node.remove(&source.name_any()).await;
        let beside = stage(&node, &clone, "clone").await;
        node.shell("test -s $1/data", &[beside.to_str().unwrap()])
            .await;
        unstage(&node, &clone, "clone").await;
        node.remove(&clone.name_any()).await;
    }
    node.finish().await;
}

#[tokio::test]
async fn source_snapshot_and_copies_are_deleted_in_any_order_and_the_survivors_are_intact() {
    let node = Fixture::start("agent-order").await;
    for (number, order) in ["vsc", "vcs", "svc", "scv", "cvs", "csv"]
        .into_iter()
        .enumerate()
    {
        let volume = node.volume(&format!("v{number}"), Bytes::mib(64)).await;
        let mounted = stage(&node, &volume, "v").await;
        write(&node, &mounted, "data", 2).await;
        let checksums = sums(&node, &mounted).await;
        unstage(&node, &volume, "v").await;
        let snapshot = node.snapshot(&format!("s{number}"), &volume).await;
        let copy = node
            .volume_from(&format!("c{number}"), Bytes::mib(64), &snapshot, |_| {})
            .await;
        let mut left = [Some(&volume), Some(&copy)];
        for gone in order.chars() {
            match gone {
                's' => node.remove_snapshot(&snapshot.name_any()).await,
                'v' => node.remove(&left[0].take().unwrap().name_any()).await,
                _ => node.remove(&left[1].take().unwrap().name_any()).await,
            }
            for volume in left.iter().flatten() {
                let mounted = stage(&node, volume, "left").await;
                assert_eq!(sums(&node, &mounted).await, checksums, "{order}: {gone}");
                unstage(&node, volume, "left").await;
            }
        }
    }
    node.finish().await;
}
