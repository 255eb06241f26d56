//! `replace-disk`: lists the disk of a pool on a node in `spec.replacedDisks` of the StoragePool, so that the
//! node creates the pool on another disk.
//!
//! ```text
//! refuse if the pool works and holds something ─▶ list what is lost ─▶ confirm by name ─▶ refuse if that has
//!     changed ─▶ release each object ─▶ list the disk ─▶ the node creates the pool on another disk
//! ```
//!
//! *Invariant:* an object is released only if it was in the confirmed list, and only while the agent reports
//! that the pool is unusable. No disk is touched.

use std::{
    fmt,
    io::{self, BufRead, Write},
};

use cistern_crds::{
    NodePool, NodePoolStatus, StorageNode,
    pool::{ReplacedDisk, VolumeGroupSource},
};
use serde_json::json;

use crate::{
    Connection, Printer, Verdict, arguments,
    cluster::{Cluster, VolumeSnapshots},
    confirm::is_typed,
    forget_node::{self, is_unusable, loss::Loss, refuse_copied, release::release},
    output::Terminal,
    storage_pool,
};

/// Error of `replace-disk`.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The pool is not on a disk of its own.
    #[error(
        "pool {pool} is in a file of {node}, and not on a disk of its own: nothing was changed"
    )]
    InFile {
        /// Name of the pool.
        pool: String,
        /// Name of the node.
        node: String,
    },
    /// The pool is a volume group.
    #[error(
        "pool {pool} is volume group {group} of {node}, and not a disk of its own: nothing was changed; replace the \
        disks of a volume group with LVM (pvmove, vgreduce)"
    )]
    InVolumeGroup {
        /// Name of the pool.
        pool: String,
        /// Name of the volume group.
        group: String,
        /// Name of the node.
        node: String,
    },
    /// The pool is a volume group that the node has made of its disks.
    #[error(
        "pool {pool} is a volume group of disks of {node}, and not on one disk: nothing was changed; the volumes on a \
        dead disk are lost: delete their claims, run `vgreduce --removemissing` for the group on {node}, and then add a \
        blank disk that the pool lists or selects"
    )]
    OnSeveralDisks {
        /// Name of the pool.
        pool: String,
        /// Name of the node.
        node: String,
    },
    /// The pool has no disk on the node.
    #[error(
        "pool {pool} has no disk on {node} now, so there is none to replace: nothing was changed; \
        `kubectl describe storagenode {node}` says what it waits for"
    )]
    NoDisk {
        /// Name of the pool.
        pool: String,
        /// Name of the node.
        node: String,
    },
    /// The pool works, and has volumes or snapshots.
    #[error(
        "pool {pool} on {node} works, and has volumes or snapshots: nothing was changed; to replace a disk that works, \
        cordon the pool there, move its data, and delete them first"
    )]
    Usable {
        /// Name of the pool.
        pool: String,
        /// Name of the node.
        node: String,
    },
    /// The pool is on another disk than the one that was confirmed.
    #[error(
        "pool {pool} is on another disk of {node} now: nothing was changed; repeat the command"
    )]
    OtherDisk {
        /// Name of the pool.
        pool: String,
        /// Name of the node.
        node: String,
    },
}

/// Releases what is on the disk of the pool on the node, after confirmation, and lists the disk as replaced.
/// Fails if the pool works and holds something, if it has no disk of its own there, if the user does not
/// confirm, if another client changes an object, or if a request fails.
pub async fn run(
    connection: &Connection,
    flags: &arguments::ReplaceDisk,
    printer: Printer,
) -> Result<Verdict, crate::Error> {
    let (pool, node) = (flags.pool.as_str(), flags.node.as_str());
    let found = storage_pool::node_with(connection, pool, node).await?;
    let disk = Disk::of(&found, pool, node)?;
    let mut cluster = Cluster::with_users(connection).await?;
    cluster.require_all_data()?;
    cluster.read_replicas(connection).await?;
    let snapshots = VolumeSnapshots::read(connection, &mut cluster.unread).await?;
    crate::print_notes(&cluster.unread);
    let loss = Loss::of(&cluster, &snapshots, node, Some(pool));
    refuse_if_it_works(&found, pool, &loss)?;
    if !flags.give_up_copies {
        refuse_copied(&cluster, &loss)?;
    }
    confirm(
        &disk,
        &loss,
        &mut io::stdin().lock(),
        &mut Terminal::stderr(),
    )?;
    let now = storage_pool::node_with(connection, pool, node).await?;
    if Disk::of(&now, pool, node)? != disk {
        let (pool, node) = (pool.to_owned(), node.to_owned());
        return Err(Error::OtherDisk { pool, node }.into());
    }
    refuse_if_it_works(&now, pool, &loss)?;
    release(connection, &loss).await?;
    storage_pool::change(connection, pool, |spec| {
        let disks = with(&spec.replaced_disks, &disk.listed)?;
        Some(json!({"replacedDisks": disks}))
    })
    .await?;
    printer.write(&format!(
        "pool {pool} leaves {disk}; remove that disk from {node}. The pool is created on another blank disk that it \
         lists or selects: see `kubectl cistern pools --pool {pool}`\n"
    ))?;
    Ok(Verdict::Ok)
}

/// The disk of a pool on a node.
#[derive(Debug, PartialEq, Eq)]
struct Disk {
    device: Option<String>,
    listed: ReplacedDisk,
}

impl Disk {
    /// The disk that the node reports. Fails if it reports none.
    fn of(found: &StorageNode, pool: &str, node: &str) -> Result<Self, Error> {
        let entries = found.spec.pools.iter().filter(|entry| entry.name == pool);
        let (pool, node) = (pool.to_owned(), node.to_owned());
        for NodePool { source, .. } in entries {
            if let Some(VolumeGroupSource { name }) = &source.volume_group {
                let group = name.clone();
                return Err(Error::InVolumeGroup { pool, group, node });
            }
            if source.device.is_none() {
                return Err(Error::InFile { pool, node });
            }
            if !source.has_images() {
                return Err(Error::OnSeveralDisks { pool, node });
            }
        }
        let mut reported = found.status.iter().flat_map(|status| &status.pools);
        let Some(NodePoolStatus {
            filesystem_uuid: Some(filesystem_uuid),
            device,
            device_identity,
            ..
        }) = reported.find(|reported| reported.name == pool)
        else {
            return Err(Error::NoDisk { pool, node });
        };
        Ok(Self {
            device: device.clone(),
            listed: ReplacedDisk {
                node,
                filesystem_uuid: filesystem_uuid.clone(),
                device_identity: device_identity.clone(),
            },
        })
    }
}

impl fmt::Display for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.device.as_deref().unwrap_or("its disk");
        let identity = self.listed.device_identity.as_deref();
        let identity = identity.map(|text| format!("{text}, ")).unwrap_or_default();
        let filesystem = &self.listed.filesystem_uuid;
        write!(f, "{device} ({identity}filesystem {filesystem})")
    }
}

/// Fails if the pool holds something, unless the agent reports that it is unusable.
fn refuse_if_it_works(node: &StorageNode, pool: &str, loss: &Loss) -> Result<(), Error> {
    if loss.is_empty() || is_unusable(node, pool) {
        return Ok(());
    }
    let node = node.metadata.name.clone().unwrap_or_default();
    let pool = pool.to_owned();
    Err(Error::Usable { pool, node })
}

/// Prints the disk and what is lost with it, and asks the user to type `NODE/POOL`. Fails if the answer is
/// another, or if it cannot be read.
fn confirm(
    disk: &Disk,
    loss: &Loss,
    answers: &mut impl BufRead,
    questions: &mut impl Write,
) -> Result<(), forget_node::Error> {
    let question = format!("The disk {disk} is replaced.\n{loss}");
    let answer = is_typed(&question, &loss.name(), answers, questions);
    if answer.map_err(forget_node::Error::Answer)? {
        Ok(())
    } else {
        Err(forget_node::Error::NotConfirmed)
    }
}

/// Returns the replaced disks with one more; `None` if it is listed already.
fn with(disks: &[ReplacedDisk], disk: &ReplacedDisk) -> Option<Vec<ReplacedDisk>> {
    let is_it = |it: &ReplacedDisk| it.filesystem_uuid == disk.filesystem_uuid;
    if disks.iter().any(is_it) {
        return None;
    }
    Some(disks.iter().chain([disk]).cloned().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{cluster, object};

    const UUID: &str = "11111111-1111-4111-8111-111111111111";

    /// A node of the small cluster, with its pool on a disk.
    fn node(name: &str) -> StorageNode {
        let mut nodes = cluster().nodes.into_iter();
        let mut node = nodes
            .find(|it| it.metadata.name.as_deref() == Some(name))
            .unwrap();
        node.spec.pools = vec![object(json!({"name": "fast", "uid": "uid-of-fast",
            "source": {"device": {"paths": ["/dev/a"]}}, "overcommitPercent": 100, "reservedPercent": 5}))];
        let status = &mut node.status.as_mut().unwrap().pools[0];
        status.filesystem_uuid = Some(UUID.to_owned());
        status.device_identity = Some("serial:S1".to_owned());
        node
    }

    #[test]
    fn only_a_pool_that_works_and_holds_something_is_refused() {
        let loss = |node| Loss::of(&cluster(), &VolumeSnapshots::default(), node, Some("fast"));
        let (works, broken) = (node("worker-1"), node("worker-2"));
        assert!(refuse_if_it_works(&works, "fast", &loss("worker-1")).is_err());
        assert!(refuse_if_it_works(&works, "fast", &loss("worker-2")).is_ok());
        assert!(refuse_if_it_works(&broken, "fast", &loss("worker-1")).is_ok());
    }

    #[test]
    fn a_volume_group_of_several_disks_is_refused_with_what_to_do_instead() {
        let mut node = node("worker-2");
        node.spec.pools[0].source =
            object(json!({"device": {"paths": ["/dev/a"], "engine": "LogicalVolume"}}));
        let refused = Disk::of(&node, "fast", "worker-2").unwrap_err();
        assert!(matches!(refused, Error::OnSeveralDisks { .. }));
        let text = refused.to_string();
        for part in [
            "nothing was changed",
            "delete their claims",
            "vgreduce --removemissing",
            "add a blank disk",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn the_disk_is_that_of_the_status_and_a_pool_in_a_file_has_none() {
        let mut node = node("worker-2");
        let disk = Disk::of(&node, "fast", "worker-2").unwrap();
        let text = format!("its disk (serial:S1, filesystem {UUID})");
        assert_eq!(disk.to_string(), text);
        let listed = with(&[], &disk.listed).unwrap();
        assert_eq!(listed, std::slice::from_ref(&disk.listed));
        assert_eq!(with(&listed, &disk.listed), None);

        node.status.as_mut().unwrap().pools[0].filesystem_uuid = None;
        let refused = Disk::of(&node, "fast", "worker-2");
        assert!(matches!(refused, Err(Error::NoDisk { .. })));
        node.spec.pools[0].source = object(json!({"image": {"size": "1Gi"}}));
        let in_file = Disk::of(&node, "fast", "worker-2");
        assert!(matches!(in_file, Err(Error::InFile { .. })));
        node.spec.pools[0].source = object(json!({"volumeGroup": {"name": "vg-data"}}));
        let in_group = Disk::of(&node, "fast", "worker-2").unwrap_err();
        assert!(
            in_group.to_string().contains("volume group vg-data"),
            "{in_group}"
        );
    }

    #[test]
    fn only_the_names_of_node_and_pool_confirm() {
        let disk = Disk::of(&node("worker-1"), "fast", "worker-1").unwrap();
        let contents = VolumeSnapshots::default();
        let loss = Loss::of(&cluster(), &contents, "worker-1", Some("fast"));
        let answer = |text: &str| {
            let mut asked = Vec::new();
            let said = confirm(&disk, &loss, &mut text.as_bytes(), &mut asked);
            let asked = String::from_utf8(asked).unwrap();
            assert!(
                asked.contains(UUID) && asked.contains("shop/data"),
                "{asked}"
            );
            said.is_ok()
        };
        assert!(answer("worker-1/fast\n"));
        assert!(!answer("worker-1\n") && !answer("y\n") && !answer(""));
    }
}
