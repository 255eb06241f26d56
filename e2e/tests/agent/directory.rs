//! Image pools in a directory of a data disk that the node allows.

use std::{fs, path::Path};

use cistern_crds::{
    Bytes, ConditionType, NodePool, NodePoolStatus, condition,
    pool::{ImageSource, PoolSource},
    testing::{image_source, node_pool},
};
use cistern_e2e::{ControlPlane, Driver, eventually, process::output};
use kube::{Api, ResourceExt as _};

use crate::{Fixture, SCRIPT, SOON, has_condition, pools::is_not_ready};

/// Starts a node without pools.
async fn node(name: &str) -> Fixture {
    let control_plane = ControlPlane::shared().await;
    Fixture {
        driver: Driver::start(control_plane, name).await,
        volumes: Api::all(control_plane.client()),
        name: name.to_owned(),
    }
}

/// Runs a script on the node, with the allowed directory as `$0`.
async fn on_node(node: &Fixture, script: &str) {
    let mut command = node.driver.command_on_node("sh");
    command.args(["-euc", script]);
    command.arg(node.driver.pool_directory());
    output(command, SCRIPT).await;
}

/// Makes a data disk for the node, and mounts it.
async fn make_disk(node: &Fixture) {
    fs::create_dir(node.driver.pool_directory()).unwrap();
    on_node(node, "truncate --size 4G $0.disk; mkfs.ext4 -q -F $0.disk").await;
    mount(node).await;
}

/// Mounts the data disk of the node, as its fstab does.
async fn mount(node: &Fixture) {
    on_node(node, "mount -o loop $0.disk $0").await;
}

/// Declares the pool of the node in a directory, as its only pool.
async fn declare(node: &Fixture, directory: &Path) {
    node.driver.set_pools(vec![pool(node, directory)]).await;
}

fn pool(node: &Fixture, directory: &Path) -> NodePool {
    let image = ImageSource {
        size: Bytes::gib(1),
        directory: Some(directory.to_str().unwrap().to_owned()),
    };
    let source = PoolSource {
        image: Some(image),
        ..image_source(Bytes::gib(1))
    };
    node_pool(&node.name, &format!("uid-of-{}", node.name), source)
}

/// Waits until the pool is refused with this reason, and returns the message of its condition.
async fn refusal(node: &Fixture, reason: &'static str) -> String {
    let pool = node
        .pool_until(&format!("to report {reason}"), |pool| {
            let mut problems = pool.problems.iter();
            is_not_ready(reason)(pool) && problems.any(|it| it.reason == reason)
        })
        .await;
    let ready = condition::find(&pool.conditions, ConditionType::Ready).unwrap();
    ready.message.clone()
}

/// Takes the pool from the node, and waits until the node no longer has it.
async fn retire(node: &Fixture, pool: NodePool) {
    let retiring = NodePool {
        retiring: true,
        ..pool
    };
    node.driver.set_pools(vec![retiring]).await;
    eventually("the pool to leave", SOON, async || {
        match node.pool().await {
            None => Ok(()),
            left => Err(format!("{left:#?}")),
        }
    })
    .await;
}

#[tokio::test]
async fn a_pool_on_a_data_disk_waits_for_its_disk_after_a_reboot_and_leaves_it_when_it_is_removed()
{
    let mut node = node("agent-data-disk").await;
    let data = node.driver.pool_directory();
    make_disk(&node).await;
    on_node(&node, "mkdir $0/cistern").await;
    let directory = data.join("cistern");
    declare(&node, &directory).await;
    let before = node.driver.ready_pool(&node.name).await;
    on_node(&node, "test -f $0/cistern/uid-of-agent-data-disk.img").await;
    let object = node.volume("one", Bytes::mib(64)).await;
    node.driver.fsck().await;
    node.driver.restart_node().await;
    node.volume("two", Bytes::mib(64)).await;

    // The disk is not mounted after a reboot: the pool is not made on the disk of the system.
    node.driver.reboot_node().await;
    let message = refusal(&node, "BackingMissing").await;
    assert!(message.contains(directory.to_str().unwrap()), "{message}");
    let left = fs::read_dir(&data).unwrap().count();
    assert_eq!(left, 0, "the mount point was written");
    mount(&node).await;
    let pool = node
        .pool_until("to be ready again", NodePoolStatus::is_ready)
        .await;
    assert_eq!(pool.filesystem_uuid, before.filesystem_uuid);
    let ready = has_condition(ConditionType::Ready, "True", "Reconciled");
    node.until(&object.name_any(), "to be ready again", ready)
        .await;

    for volume in ["one", "two"] {
        node.remove(&format!("{}-{volume}", node.name)).await;
    }
    retire(&node, self::pool(&node, &directory)).await;
    on_node(&node, "test -z \"$(ls -A $0/cistern)\"").await;
    node.driver.set_pools(Vec::new()).await;
    node.driver.finish().await;
}

#[tokio::test]
async fn a_directory_that_the_node_does_not_allow_is_refused_with_what_to_set() {
    let node = node("agent-not-allowed").await;
    let beside = node.driver.storage_root();
    let data = node.driver.pool_directory();
    declare(&node, &beside).await;
    let message = refusal(&node, "DirectoryNotAllowed").await;
    let said = ["node agent-not-allowed", "POOL_DIRECTORIES"];
    let paths = [&beside, &data].map(|path| path.to_str().unwrap());
    for part in said.into_iter().chain(paths) {
        assert!(message.contains(part), "{part}: {message}");
    }
    // The pool was never made, so it leaves without further ado.
    retire(&node, pool(&node, &beside)).await;
    node.driver.set_pools(Vec::new()).await;
    node.driver.finish().await;
}

#[tokio::test]
async fn a_link_out_of_the_allowed_directory_is_refused_and_a_missing_directory_is_awaited() {
    let node = node("agent-link-out").await;
    let data = node.driver.pool_directory();
    let outside = data.with_file_name("outside");
    fs::create_dir(&outside).unwrap();
    make_disk(&node).await;
    on_node(&node, "ln -s ../outside $0/link").await;
    declare(&node, &data.join("link")).await;
    let message = refusal(&node, "DirectoryUnusable").await;
    assert!(message.contains("symbolic link"), "{message}");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);

    declare(&node, &data.join("later")).await;
    eventually("the missing directory", SOON, async || {
        let message = refusal(&node, "DirectoryUnusable").await;
        message
            .contains("does not exist")
            .then_some(())
            .ok_or(message)
    })
    .await;
    on_node(&node, "mkdir $0/later").await;
    node.driver.ready_pool(&node.name).await;
    on_node(&node, "test -f $0/later/uid-of-agent-link-out.img").await;
    node.finish().await;
}
