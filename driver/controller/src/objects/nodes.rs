//! The controller's view of the StorageNodes: which node can take a volume of a pool.
//!
//! *Invariant:* the view may be old. The controller only proposes a node; the agent of the node
//! decides.

use std::{collections::BTreeMap, sync::Arc};

use cistern_client::http::Readiness;
use cistern_crds::{
    Bytes, Explanation, PoolVolume, Provisioning, StorageNode, availability::available_pool,
};
use futures::{FutureExt as _, future::BoxFuture};
use kube::{Client, ResourceExt as _, runtime::watcher::Event};
use parking_lot::RwLock;
use tokio::sync::watch;

/// Every StorageNode, as last seen in the watch.
#[derive(Debug)]
pub struct Nodes {
    known: RwLock<Option<Known>>,
    changes: watch::Sender<()>,
}

type Known = BTreeMap<String, Arc<StorageNode>>;

impl Nodes {
    /// Creates the nodes of a cluster, and the future of their watch. Poll the future as long as
    /// the process serves. `readiness` waits for the first list.
    pub fn watched(client: Client, readiness: Readiness) -> (Arc<Self>, BoxFuture<'static, ()>) {
        let nodes = Arc::new(Self::new());
        let (watching, mut unfinished) = (Arc::clone(&nodes), Known::new());
        let part = "watch of StorageNodes";
        let watch = super::watch::watch(client, readiness, part, move |event| {
            watching.apply_event(event, &mut unfinished);
        });
        (nodes, watch.boxed())
    }

    fn new() -> Self {
        Self {
            known: RwLock::default(),
            changes: watch::Sender::new(()),
        }
    }

    /// All nodes; None before the first list is complete.
    pub fn all(&self) -> Option<Vec<Arc<StorageNode>>> {
        let known = self.known.read();
        known
            .as_ref()
            .map(|known| known.values().cloned().collect())
    }

    /// All nodes by name; None before the first list is complete.
    pub fn by_name(&self) -> Option<BTreeMap<String, Arc<StorageNode>>> {
        let known = self.known.read();
        known.clone()
    }

    /// Why the pool cannot be used on the node; None if it can, and before the first list is
    /// complete.
    pub fn unavailable(&self, node: &str, pool: &str) -> Option<Explanation> {
        self.inspect(node, |node| match node {
            Some(node) => node.available_pool(pool).err(),
            None => available_pool(pool, None, &[]).err(),
        })?
    }

    /// The size that a volume gets in a pool on a node for which this size is requested. The same before the first list is
    /// complete: the agent decides.
    pub fn size_of_volume(&self, volume: &PoolVolume, requested: Bytes) -> Bytes {
        let spec = &volume.spec;
        let rounded = self.inspect(&spec.node_name, |node| {
            let pool = node?.status_of(&spec.pool_name)?;
            Some(pool.size_of_volume(requested, volume.header()))
        });
        rounded.flatten().unwrap_or(requested)
    }

    /// Whether volumes of a pool on a node can be snapshotted and cloned. Fails with the reason. Succeeds before the first
    /// list is complete: the agent decides.
    pub fn copies(&self, node: &str, pool: &str) -> Result<(), Explanation> {
        let copies = |node: Option<&StorageNode>| node.map_or(Ok(()), |it| it.copies(pool));
        self.inspect(node, copies).unwrap_or(Ok(()))
    }

    /// Whether a pool on a node holds such volumes. Fails with the reason. Succeeds before the first list is complete:
    /// the agent decides.
    pub fn holds(
        &self,
        node: &str,
        pool: &str,
        provisioning: Provisioning,
    ) -> Result<(), Explanation> {
        let holds =
            |node: Option<&StorageNode>| node.map_or(Ok(()), |it| it.holds(pool, provisioning));
        self.inspect(node, holds).unwrap_or(Ok(()))
    }

    /// Runs `look` on a node, or on None if it does not exist. Returns None before the first list
    /// is complete.
    pub fn inspect<T>(
        &self,
        node: &str,
        look: impl FnOnce(Option<&StorageNode>) -> T,
    ) -> Option<T> {
        let known = self.known.read();
        let found = known.as_ref()?.get(node);
        Some(look(found.map(Arc::as_ref)))
    }

    /// Subscribes to all changes from now on.
    pub fn subscribe(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Applies one watch event. `listing` holds a list that is not complete yet.
    fn apply_event(&self, event: Event<StorageNode>, listing: &mut Known) {
        match event {
            Event::Init => listing.clear(),
            Event::InitApply(node) => {
                listing.insert(node.name_any(), Arc::new(node));
            }
            Event::InitDone => self.change(|known| *known = Some(std::mem::take(listing))),
            Event::Apply(node) => self.change(|known| {
                let known = known.get_or_insert_default();
                known.insert(node.name_any(), Arc::new(node));
            }),
            Event::Delete(node) => self.change(|known| {
                known.get_or_insert_default().remove(&node.name_any());
            }),
        }
    }

    fn change(&self, change: impl FnOnce(&mut Option<Known>)) {
        change(&mut self.known.write());
        self.changes.send_replace(());
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use chrono::DateTime;
    use cistern_crds::{
        Bytes, ConditionType, NodePoolStatus, Reason, StorageNodeSpec, StorageNodeStatus,
        availability::Needs,
        condition::{self, ConditionUpdate},
        testing::{image_source, node_pool, volume_group_source},
    };

    use super::*;

    /// A node that carries pool `fast` with this much room and this much usable space.
    pub(crate) fn node(name: &str, room: Bytes, usable: Bytes) -> StorageNode {
        let mut node = StorageNode::new(name, StorageNodeSpec::default());
        let source = image_source(Bytes::gib(100));
        node.spec.pools.push(node_pool("fast", "uid-fast", source));
        let mut pool = NodePoolStatus {
            name: "fast".to_owned(),
            uid: "uid-fast".to_owned(),
            usable,
            thin_room: room,
            thick_room: room,
            ..NodePoolStatus::default()
        };
        set(&mut pool.conditions, ConditionType::Ready, true);
        node.status = Some(StorageNodeStatus {
            pools: vec![pool],
            ..StorageNodeStatus::default()
        });
        node
    }

    /// A node whose pool `fast` is a volume group with this much room, and nothing else takes.
    pub(crate) fn node_of_volume_group(name: &str, room: Bytes) -> StorageNode {
        let mut node = node(name, room, room);
        node.spec.pools[0].source = volume_group_source("vg");
        node.status.as_mut().unwrap().pools[0].thin_room = Bytes::ZERO;
        node
    }

    /// The view of these nodes.
    pub(crate) fn view(nodes: Vec<StorageNode>) -> Nodes {
        let view = Nodes::new();
        for node in nodes {
            show(&view, node);
        }
        view
    }

    /// Shows a node as the watch does.
    pub(crate) fn show(view: &Nodes, node: StorageNode) {
        view.apply_event(Event::Apply(node), &mut Known::new());
    }

    pub(crate) fn set(
        conditions: &mut Vec<cistern_crds::Condition>,
        kind: ConditionType,
        status: bool,
    ) {
        let finding = ConditionUpdate::new(kind, status, Reason::Reconciled, "as the test says");
        condition::set(conditions, &finding, None, DateTime::default());
    }

    fn status(node: &mut StorageNode) -> &mut StorageNodeStatus {
        node.status.as_mut().unwrap()
    }

    #[test]
    fn a_node_is_fit_only_while_its_agent_reports_the_same_pool_as_ready() {
        let reason = |node: &StorageNode, pool: &str| node.available_pool(pool).unwrap_err().reason;
        let fit = node("n1", Bytes::gib(1), Bytes::gib(1));
        assert!(fit.available_pool("fast").is_ok());
        assert_eq!(reason(&fit, "slow"), Reason::PoolUnknown);

        let mut retiring = fit.clone();
        retiring.spec.pools[0].retiring = true;
        assert_eq!(reason(&retiring, "fast"), Reason::Retiring);
        let mut cordoned = fit.clone();
        cordoned.spec.pools[0].cordoned = true;
        // Its volumes can be used.
        assert!(cordoned.available_pool("fast").is_ok());
        let refused = cordoned.takes("fast", Needs::default()).unwrap_err();
        assert_eq!(refused.reason, Reason::Cordoned);

        let mut silent = fit.clone();
        set(
            &mut status(&mut silent).conditions,
            ConditionType::AgentReporting,
            false,
        );
        assert_eq!(reason(&silent, "fast"), Reason::Reconciled);

        let mut broken = fit.clone();
        set(
            &mut status(&mut broken).pools[0].conditions,
            ConditionType::Ready,
            false,
        );
        assert_eq!(reason(&broken, "fast"), Reason::Reconciled);

        let mut recreated = fit.clone();
        recreated.spec.pools[0].uid = "another".to_owned();
        assert_eq!(reason(&recreated, "fast"), Reason::Pending);

        let mut fresh = fit;
        fresh.status = None;
        assert_eq!(reason(&fresh, "fast"), Reason::Pending);
    }

    #[test]
    fn what_a_volume_group_cannot_have_is_known_with_the_first_list() {
        let nodes = Nodes::new();
        let refusals = || {
            [
                nodes.copies("a", "fast"),
                nodes.holds("a", "fast", Provisioning::Thin),
            ]
            .map(|it| it.map_err(|why| why.reason))
        };
        assert_eq!(refusals(), [Ok(()); 2]);
        let group = node_of_volume_group("a", Bytes::gib(1));
        nodes.apply_event(Event::Apply(group), &mut Known::new());
        assert_eq!(refusals(), [Err(Reason::NotInVolumeGroup); 2]);
        let thick = nodes.holds("a", "fast", Provisioning::Thick);
        assert_eq!(thick, Ok(()));
        assert_eq!(nodes.copies("gone", "fast"), Ok(()));
    }

    #[test]
    fn r04_a_list_replaces_what_was_known_at_once_and_only_when_it_is_complete() {
        let nodes = Nodes::new();
        let named = |name| node(name, Bytes::ZERO, Bytes::ZERO);
        let known = || -> Option<Vec<String>> {
            Some(nodes.all()?.iter().map(|node| node.name_any()).collect())
        };
        let mut listing = Known::new();
        nodes.apply_event(Event::Init, &mut listing);
        nodes.apply_event(Event::InitApply(named("a")), &mut listing);
        assert_eq!(known(), None);
        nodes.apply_event(Event::InitDone, &mut listing);
        nodes.apply_event(Event::Apply(named("b")), &mut listing);
        assert_eq!(known().unwrap(), ["a", "b"]);
        nodes.apply_event(Event::Delete(named("a")), &mut listing);
        assert_eq!(known().unwrap(), ["b"]);
        for event in [Event::Init, Event::InitApply(named("c")), Event::InitDone] {
            nodes.apply_event(event, &mut listing);
        }
        assert_eq!(known().unwrap(), ["c"]);
    }
}
