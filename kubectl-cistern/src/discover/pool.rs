//! The StoragePool that uses the blank disks of a list, and a note about those that it does not use. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use cistern_crds::{StoragePool, pool::DeviceEngine};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Expression, Selector};
use serde::Serialize;
use serde_json::{Value, json};

use super::{Disks, HOSTNAME};
use crate::{Error, output::counted};

/// Maximum number of paths of a pool, as in the schema of a StoragePool.
const PATHS: usize = 16;
/// Maximum number of values of a requirement, as in the schema of a StoragePool.
const NODES: usize = 256;

/// Why no StoragePool can use the disks.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoDeclaration {
    /// No disk is blank.
    #[error("none of the listed disks is usable: `kubectl cistern discover` says why")]
    NoDisk,
    /// A StoragePool has room for fewer paths.
    #[error(
        "{paths} disks are usable, and a pool lists {PATHS} paths at most: select fewer nodes with --node or --selector, \
        and declare a pool for each of them"
    )]
    TooManyPaths {
        /// Number of different paths.
        paths: usize,
    },
    /// A StoragePool has room for fewer nodes.
    #[error(
        "{nodes} nodes have a usable disk, and a requirement lists {NODES} names at most: select them by a label \
        with --selector"
    )]
    TooManyNodes {
        /// Number of nodes.
        nodes: usize,
    },
}

/// A StoragePool to apply.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Declaration(Value);

impl Declaration {
    /// The StoragePool of this name that uses the usable disks by this engine. It selects nodes by `selector`, or
    /// else by their host names. Fails if there is none, or too many for one StoragePool.
    pub(super) fn of(
        name: &str,
        engine: DeviceEngine,
        disks: &Disks,
        selector: Option<&Selector>,
        hostnames: &BTreeMap<String, String>,
    ) -> Result<Self, NoDeclaration> {
        let paths: BTreeSet<&str> = disks
            .usable()
            .filter_map(|disk| disk.path.as_deref())
            .collect();
        match paths.len() {
            0 => return Err(NoDeclaration::NoDisk),
            1..=PATHS => {}
            paths => return Err(NoDeclaration::TooManyPaths { paths }),
        }
        let nodes = disks.usable_nodes();
        let hostname = |node: &str| {
            hostnames
                .get(node)
                .cloned()
                .unwrap_or_else(|| node.to_owned())
        };
        let selector = match selector {
            Some(selector) => selector.clone(),
            None if nodes.len() > NODES => {
                let nodes = nodes.len();
                return Err(NoDeclaration::TooManyNodes { nodes });
            }
            None => {
                let names = nodes.into_iter().map(hostname).collect();
                Expression::In(HOSTNAME.to_owned(), names).into()
            }
        };
        let device = match engine {
            DeviceEngine::Image => json!({"paths": paths}),
            DeviceEngine::LogicalVolume => json!({"engine": engine, "paths": paths}),
        };
        Ok(Self(json!({
            "apiVersion": <StoragePool as kube::Resource>::api_version(&()),
            "kind": <StoragePool as kube::Resource>::kind(&()),
            "metadata": {"name": name},
            "spec": {
                "nodeSelector": LabelSelector::from(selector),
                "source": {"device": device},
            },
        })))
    }

    /// The manifest as YAML or JSON. Fails if it cannot be serialized.
    pub(super) fn render(&self, as_json: bool) -> Result<String, Error> {
        let rendered = if as_json {
            let text = serde_json::to_string_pretty(&self.0).map_err(io::Error::from);
            text.map(|text| text + "\n")
        } else {
            serde_saphyr::to_string(&self.0).map_err(io::Error::other)
        };
        rendered.map_err(Error::Rendering)
    }
}

/// A note that nodes with several usable disks use one of them; None if there are none, or if the engine uses all
/// disks.
pub(super) fn unused(engine: DeviceEngine, disks: &Disks) -> Option<String> {
    if engine == DeviceEngine::LogicalVolume {
        return None;
    }
    let mut nodes: BTreeMap<&str, usize> = BTreeMap::new();
    for disk in disks.usable() {
        *nodes.entry(disk.node.as_str()).or_default() += 1;
    }
    nodes.retain(|_, count| *count > 1);
    let (first, _) = nodes.pop_first()?;
    let others = match nodes.len() {
        0 => String::new(),
        others => format!(" and {}", counted(others, "other node")),
    };
    Some(format!(
        "a node uses only the first blank disk of the list; there are several on {first}{others}: declare a pool for \
         each of them, or use --engine logical-volume"
    ))
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{node, nodes},
        *,
    };

    const IMAGE: DeviceEngine = DeviceEngine::Image;

    #[test]
    fn the_pool_states_its_engine_only_if_it_is_another_than_the_default() {
        let disks = Disks::of(&nodes());
        let device = |engine| {
            let pool = Declaration::of("fast", engine, &disks, None, &BTreeMap::new()).unwrap();
            pool.0["spec"]["source"]["device"].clone()
        };
        assert_eq!(device(IMAGE).get("engine"), None);
        let group = device(DeviceEngine::LogicalVolume);
        assert_eq!(group["engine"], json!("LogicalVolume"));
        assert_eq!(group["paths"], device(IMAGE)["paths"]);
    }

    #[test]
    fn the_pool_lists_each_usable_disk_once_and_selects_its_nodes_by_host_name() {
        let disks = Disks::of(&nodes());
        let hostnames = [("worker-2".to_owned(), "host-2".to_owned())].into();
        let pool = Declaration::of("fast", IMAGE, &disks, None, &hostnames).unwrap();
        let parsed: StoragePool = serde_json::from_value(pool.0.clone()).unwrap();
        let paths =
            ["nvme-eui.1", "nvme-eui.2", "wwn-3"].map(|name| format!("/dev/disk/by-id/{name}"));
        assert_eq!(parsed.spec.source.device.unwrap().paths, paths);
        let requirements = parsed.spec.node_selector.match_expressions.unwrap();
        assert_eq!(requirements[0].key, HOSTNAME);
        let values = requirements[0].values.clone().unwrap();
        assert_eq!(values, ["host-2", "worker-1"]);
        let yaml: Value = serde_saphyr::from_str(&pool.render(false).unwrap()).unwrap();
        let json: Value = serde_json::from_str(&pool.render(true).unwrap()).unwrap();
        assert_eq!((&yaml, &json), (&pool.0, &pool.0));
    }

    #[test]
    fn a_note_names_a_node_that_does_not_use_all_of_its_disks() {
        let disks = Disks::of(&nodes());
        let note = unused(IMAGE, &disks).unwrap();
        assert!(note.contains("several on worker-1: declare"), "{note}");
        assert_eq!(unused(DeviceEngine::LogicalVolume, &disks), None);
        let mut twice = nodes();
        twice[0] = twice[1].clone();
        twice[0].metadata.name = Some("worker-2".to_owned());
        let note = unused(IMAGE, &Disks::of(&twice)).unwrap();
        assert!(note.contains("worker-1 and 1 other node: "), "{note}");
        let disks = Disks::of(&nodes()[..1]);
        assert_eq!(unused(IMAGE, &disks), None);
    }

    #[test]
    fn the_callers_label_selects_the_nodes() {
        let disks = Disks::of(&nodes());
        let selector = crate::selector::parse("storage=local").unwrap();
        let pool =
            Declaration::of("fast", IMAGE, &disks, Some(&selector), &BTreeMap::new()).unwrap();
        let selector = &pool.0["spec"]["nodeSelector"];
        assert_eq!(selector["matchLabels"], json!({"storage": "local"}));
    }

    #[test]
    fn a_pool_that_the_schema_would_refuse_is_not_printed() {
        let of = |disks: &Disks| Declaration::of("fast", IMAGE, disks, None, &BTreeMap::new());
        let nothing = Disks::of(&[node("n", &json!([]))]);
        assert_eq!(of(&nothing), Err(NoDeclaration::NoDisk));
        let disk = |number: usize| {
            json!({"name": "sda", "path": format!("/dev/disk/by-id/wwn-{number}"), "size": "1Gi",
                "rotational": false})
        };
        let many: Vec<Value> = (0..17).map(disk).collect();
        let many = Disks::of(&[node("n", &json!(many))]);
        assert_eq!(of(&many), Err(NoDeclaration::TooManyPaths { paths: 17 }));
        let same = (0..257).map(|number| node(&format!("n{number}"), &json!([disk(1)])));
        let same: Vec<_> = same.collect();
        let same = Disks::of(&same);
        assert_eq!(of(&same), Err(NoDeclaration::TooManyNodes { nodes: 257 }));
    }
}
