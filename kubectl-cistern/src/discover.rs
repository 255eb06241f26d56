//! `discover`: the disks of the nodes, and a StoragePool that uses the blank ones. Changes nothing.
//!
//! ```text
//! StorageNodes (status.disks), labels of Nodes ─▶ list of disks (pure) ─▶ StoragePool to apply (pure)
//! ```

mod pool;

use std::collections::{BTreeMap, BTreeSet};

use cistern_crds::{Bytes, Disk, StorageNode};
use k8s_openapi::api::core::v1::Node;
use kube::{ResourceExt as _, api::ListParams};
use serde::Serialize;

use self::pool::Declaration;
pub use self::pool::NoDeclaration;
use crate::{
    Connection, Error, Printer, Verdict,
    arguments::{self, ListOutput},
    output::{Cell, Format, Paint, Style, Table, View, human},
    unreadable::UnreadableObjects,
};

/// Label of a Node with its host name.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// Prints the disks of the selected nodes, or a StoragePool that uses them. Fails if the objects
/// cannot be listed, or if no StoragePool can use the disks.
pub async fn run(
    connection: &Connection,
    flags: &arguments::Discover,
    printer: Printer,
) -> Result<Verdict, Error> {
    let mut unreadable = UnreadableObjects::default();
    let mut nodes: Vec<StorageNode> = unreadable.sort_out(connection.own().await?);
    unreadable.refuse::<StorageNode>(flags.node.as_deref())?;
    unreadable.warn(&UnreadableObjects::default());
    let labelled = labelled(connection, flags).await?;
    let is_selected = |node: &StorageNode| match (&flags.node, &labelled) {
        (Some(only), _) => *only == node.name_any(),
        (None, Some(nodes)) if flags.selector.is_some() => nodes.contains_key(&node.name_any()),
        (None, _) => true,
    };
    nodes.retain(is_selected);
    crate::print_notes(&nodes.iter().filter_map(silence).collect::<Vec<_>>());
    let disks = Disks::of(&nodes);
    let Some(name) = &flags.pool else {
        let output = ListOutput {
            output: flags.output,
            no_headers: flags.no_headers,
            watch: false,
        };
        printer.screen(output).show(&disks)?;
        return Ok(Verdict::Ok);
    };
    let hostnames = labelled.unwrap_or_default();
    let engine = flags.engine.into();
    let declaration = Declaration::of(name, engine, &disks, flags.selector.as_ref(), &hostnames)?;
    crate::print_notes(pool::unused(engine, &disks).as_slice());
    printer.write(&declaration.render(flags.output.format == Format::Json)?)?;
    Ok(Verdict::Ok)
}

/// The host names of the Nodes that the label selector selects, by name of the Node. They are read only
/// if they are needed. None if they are not, or if the user may not list Nodes and has given no selector.
async fn labelled(
    connection: &Connection,
    flags: &arguments::Discover,
) -> Result<Option<BTreeMap<String, String>>, Error> {
    if flags.selector.is_none() && flags.pool.is_none() {
        return Ok(None);
    }
    let parameters = match &flags.selector {
        Some(selector) => ListParams::default().labels_from(selector),
        None => ListParams::default(),
    };
    let listed = connection.list(connection.everywhere::<Node>(), parameters);
    let nodes = match listed.await {
        Err(error) if flags.selector.is_none() && matches!(error, Error::Denied { .. }) => {
            return Ok(None);
        }
        nodes => nodes?,
    };
    let hostname = |node: Node| {
        let hostname = node.labels().get(HOSTNAME).cloned();
        let name = node.name_any();
        (name.clone(), hostname.unwrap_or(name))
    };
    Ok(Some(nodes.into_iter().map(hostname).collect()))
}

/// Why the list of disks of a node is not complete; None if it is.
fn silence(node: &StorageNode) -> Option<String> {
    let (name, status) = (node.name_any(), node.status.clone().unwrap_or_default());
    if let Some((_, condition)) = status.unknown_state() {
        let message = &condition.message;
        return Some(format!("the disks of {name} may be others now: {message}"));
    }
    if status.disks.is_empty() {
        return Some(format!(
            "{name} reports no disks: it has none, or its agent has not read them yet, or is older"
        ));
    }
    let count = status.unlisted_disks;
    (count > 0).then(|| format!("{name} has {count} more disks, for which its status has no room"))
}

/// List of disks.
#[derive(Clone, Debug, Serialize)]
pub struct Disks {
    /// Disks, by node; of each node those on which a pool can be created first.
    pub items: Vec<DiskView>,
}

/// A disk of a node.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DiskView {
    /// Name of the node.
    pub node: String,
    /// Name that the kernel gave the disk.
    pub name: String,
    /// Path that stays the same, in `/dev/disk/by-id`; absent if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Model; absent if the disk states none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Serial number; absent if the disk states none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Whether the kernel takes it for a disk that rotates.
    pub rotational: bool,
    /// Whether a pool can be created on it.
    pub usable: bool,
    /// Why none can; absent if one can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Name of the pool that uses it; absent if none does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
}

impl Disks {
    /// The disks of the nodes.
    pub fn of(nodes: &[StorageNode]) -> Self {
        let mut by_node: Vec<(String, &[Disk])> = nodes
            .iter()
            .map(|node| {
                let status = node.status.as_ref();
                let disks = status.map_or(&[][..], |status| &status.disks);
                (node.name_any(), disks)
            })
            .collect();
        by_node.sort_by(|a, b| a.0.cmp(&b.0));
        let items = by_node.iter().flat_map(|(node, disks)| {
            let view = |disk: &Disk| DiskView::of(node, disk.clone());
            disks.iter().map(view)
        });
        Self {
            items: items.collect(),
        }
    }

    /// The disks on which a pool can be created.
    pub fn usable(&self) -> impl Iterator<Item = &DiskView> {
        self.items.iter().filter(|disk| disk.usable)
    }

    /// The nodes that have such a disk.
    pub fn usable_nodes(&self) -> BTreeSet<&str> {
        self.usable().map(|disk| disk.node.as_str()).collect()
    }
}

impl DiskView {
    fn of(node: &str, disk: Disk) -> Self {
        Self {
            node: node.to_owned(),
            usable: disk.is_usable(),
            name: disk.name,
            path: disk.path,
            size_bytes: disk.size.0,
            model: disk.model,
            serial: disk.serial,
            rotational: disk.rotational,
            reason: disk.unusable,
            pool: disk.pool,
        }
    }
}

const HEADINGS: [&str; 7] = [
    "NODE",
    "PATH",
    "SIZE",
    "MODEL",
    "SERIAL",
    "ROTATIONAL",
    "USABLE",
];

impl View for Disks {
    const KIND: &'static str = "DiskList";

    fn text(&self, _wide: bool, paint: Paint) -> String {
        if self.items.is_empty() {
            return "No node reports a disk.\n".to_owned();
        }
        let mut table = Table::new(&HEADINGS);
        for disk in &self.items {
            let kernel_name = format!("/dev/{}", disk.name);
            let usable = match &disk.reason {
                None if disk.usable => Cell::new("yes", Style::Good),
                None => Cell::new("no", Style::Faint),
                Some(reason) => Cell::new(format!("no: {reason}"), Style::Faint),
            };
            table.row(vec![
                Cell::new(&disk.node, Style::Strong),
                disk.path.clone().unwrap_or(kernel_name).into(),
                human(Bytes(disk.size_bytes)).into(),
                disk.model.clone().unwrap_or_default().into(),
                disk.serial.clone().unwrap_or_default().into(),
                if disk.rotational { "yes" } else { "no" }.into(),
                usable,
            ]);
        }
        table.render(paint)
    }

    fn has_headings(&self) -> bool {
        !self.items.is_empty()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::object;

    pub(crate) fn node(name: &str, disks: &Value) -> StorageNode {
        object(json!({
            "metadata": {"name": name},
            "spec": {"topology": {}, "pools": []},
            "status": {"disks": disks},
        }))
    }

    pub(crate) fn nodes() -> Vec<StorageNode> {
        let blank = |name: &str, path: &str| {
            json!({"name": name, "path": format!("/dev/disk/by-id/{path}"), "model": "Fast 980",
                "serial": "S1", "size": "1Ti", "rotational": false})
        };
        vec![
            node("worker-2", &json!([blank("sda", "wwn-3")])),
            node(
                "worker-1",
                &json!([
                    blank("nvme0n1", "nvme-eui.1"),
                    blank("nvme1n1", "nvme-eui.2"),
                    {"name": "sda", "size": "4Ti", "rotational": true, "unusable": "it has partitions"},
                ]),
            ),
            node("worker-3", &json!([])),
        ]
    }

    #[test]
    fn disks_are_listed_by_node_with_the_reason_why_one_is_not_usable() {
        let disks = Disks::of(&nodes());
        let expected = "\
NODE       PATH                         SIZE   MODEL      SERIAL   ROTATIONAL   USABLE
worker-1   /dev/disk/by-id/nvme-eui.1   1Ti    Fast 980   S1       no           yes
worker-1   /dev/disk/by-id/nvme-eui.2   1Ti    Fast 980   S1       no           yes
worker-1   /dev/sda                     4Ti    -          -        yes          no: it has partitions
worker-2   /dev/disk/by-id/wwn-3        1Ti    Fast 980   S1       no           yes
";
        assert_eq!(disks.text(false, Paint::plain()), expected);
        assert!(include_str!("../../docs/disks.md").contains(expected));
        let value = serde_json::to_value(&disks).unwrap();
        assert_eq!(value["items"][2]["reason"], "it has partitions");
        assert_eq!(value["items"][0]["sizeBytes"], 1_u64 << 40);
        assert_eq!(disks.usable_nodes(), ["worker-1", "worker-2"].into());
    }

    #[test]
    fn a_node_whose_disks_are_not_known_is_named() {
        let notes: Vec<String> = nodes().iter().filter_map(silence).collect();
        assert_eq!(notes.len(), 1);
        assert!(notes[0].starts_with("worker-3 reports no disks"));
    }
}
