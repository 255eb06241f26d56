//! Moves of encrypted volumes: their files are sent as they are on the disk, with their headers.

use cistern_crds::{Bytes, Encryption, FenceState, PoolVolume};
use kube::ResourceExt as _;
use tonic::Code;

use super::Moving;
use crate::{
    Fixture,
    encryption::{DATA, FIRST, SECOND, with_keys},
    node_service::{code, text},
    search::found_below,
    status,
};

const SIZE: Bytes = Bytes::mib(64);

impl Moving {
    async fn encrypted(name: &str) -> Self {
        Self::new(name, |volume| {
            volume.spec.encryption = Some(Encryption::Luks2);
            volume.spec.size = SIZE;
        })
        .await
    }

    /// Moves the volume, and checks that the file arrives as it was, and has room on both nodes.
    async fn arrives(&self) -> PoolVolume {
        let (source, target) = (&self.source, &self.target);
        let with_header = SIZE.saturating_add(Encryption::HEADER);
        self.reserves(source, with_header).await;
        let (retained, incoming) = self.declare().await;
        self.reserves(target, with_header).await;
        self.fenced(FenceState::Closed).await;
        self.copy(&incoming).await;
        let moved = self.end(target).await;
        assert_eq!(status(&moved).size, Some(SIZE));
        let sent = self.sum(source, "closed").await;
        assert_eq!(self.sum(target, "images").await, sent);
        let size = sent.split_whitespace().nth(1).unwrap();
        assert_eq!(size, with_header.0.to_string());
        self.hand_over(&incoming).await;
        self.reserves(target, with_header).await;
        self.remove(&retained).await;
        self.reserves(source, Bytes::ZERO).await;
        moved
    }

    /// Checksum and size of the only file in a folder of the pool on a node.
    async fn sum(&self, node: &Fixture, folder: &str) -> String {
        let folder = self.folder(node, folder);
        node.shell("cat $1/* | cksum", &[&text(&folder)]).await
    }
}

#[tokio::test]
async fn an_encrypted_volume_without_a_header_moves_with_room_for_it() {
    let moving = Moving::encrypted("moves-blank").await;
    let moved = moving.arrives().await;
    moving.target.remove(&moved.name_any()).await;
    moving.finish().await;
}

#[tokio::test]
#[ignore = "needs device-mapper, which the virtual machine has"]
async fn an_encrypted_volume_opens_with_its_key_on_the_node_to_which_it_has_moved() {
    let moving = Moving::encrypted("moves-encrypted").await;
    let (source, target) = (&moving.source, &moving.target);
    let before = with_keys(source, &moving.volume, "before", &[("key", FIRST)]);
    before.stage(&[]).await.unwrap();
    let file = text(&before.staging.join("file"));
    source.shell("echo $1 >$2 && sync $2", &[DATA, &file]).await;
    before.unstage().await.unwrap();

    let moved = moving.arrives().await;
    let other = with_keys(target, &moved, "after", &[("key", SECOND)]);
    assert_eq!(code(other.stage(&[]).await), Code::Unauthenticated);
    let after = with_keys(target, &moved, "after", &[("key", FIRST)]);
    after.stage(&[]).await.unwrap();
    let read = target.shell("cat $1/file", &[&text(&after.staging)]).await;
    assert_eq!(read.trim(), DATA);
    after.unstage().await.unwrap();
    for node in [source, target] {
        for secret in [FIRST, SECOND, DATA] {
            let folder = node.seen_on_node(&moving.folder(node, ""));
            let found = found_below(&folder, secret.as_bytes());
            assert!(found.is_empty(), "{secret}: {found:?}");
            node.has_nowhere(secret);
        }
        node.driver.fsck().await;
    }
    target.remove(&moved.name_any()).await;
    moving.finish().await;
}
