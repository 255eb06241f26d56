//! The rounds of a drain: one for each change of the cluster.

use std::collections::{BTreeMap, BTreeSet};

use cistern_crds::PoolVolume;
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::ResourceExt as _;

use super::{
    cannot_move,
    groups::{self, is_standby, to_begin, users},
    shown,
};
use crate::{
    Connection, Error, Printer, Verdict, arguments,
    changes::Changes,
    cluster::Cluster,
    moving::{
        self,
        follow::{Followed, Goal, Outcome, Printed},
        plan, promotion, requests, set,
    },
};

/// A drain.
pub(super) struct Drain<'a> {
    connection: &'a Connection,
    flags: &'a arguments::Drain,
    printer: Printer,
    sets: Vec<StatefulSet>,
    /// What pods have used together since the drain began.
    used: Vec<set::Link>,
    /// The volumes whose moves are waited for.
    followed: Vec<Followed>,
    /// The volumes that stay, and why.
    staying: BTreeMap<String, String>,
    printed: Printed,
}

impl<'a> Drain<'a> {
    pub(super) fn new(
        connection: &'a Connection,
        flags: &'a arguments::Drain,
        sets: Vec<StatefulSet>,
        printer: Printer,
    ) -> Self {
        Self {
            connection,
            flags,
            printer,
            sets,
            used: Vec::new(),
            followed: Vec::new(),
            staying: BTreeMap::new(),
            printed: Printed::default(),
        }
    }

    /// Waits until the node has no volumes but those that stay. Fails if a request fails.
    pub(super) async fn until_empty(mut self) -> Result<Verdict, Error> {
        let mut changes = Changes::start(self.connection);
        loop {
            let cluster = moving::changed(&mut changes).await?;
            self.keep_promoted(&cluster);
            self.follow_moves(&cluster)?;
            self.end_moves(&cluster).await?;
            let groups = self.begin(&cluster).await?;
            self.print(&cluster, &groups)?;
            let is_empty = groups.is_empty() && self.removed(&cluster).next().is_none();
            if is_empty && self.followed.is_empty() {
                return self.finish(&cluster);
            }
        }
    }

    /// A volume whose copy was promoted here stays.
    fn keep_promoted(&mut self, cluster: &Cluster) {
        let promoted = cluster.moves.iter();
        for its_move in promoted.filter(|it| it.is_promoted()) {
            let name = its_move.name_any();
            let volume = cluster.volume(&name);
            if volume.is_some_and(|it| it.spec.node_name == self.flags.node) {
                let why = || promotion::was_promoted(its_move);
                self.staying.entry(name).or_insert_with(why);
            }
        }
    }

    /// Follows all moves from the node, also those that others created, to any node.
    fn follow_moves(&mut self, cluster: &Cluster) -> Result<(), Error> {
        for its_move in cluster.moves.iter().filter(|it| !is_standby(it)) {
            let it = Followed::of(&its_move.name_any(), cluster);
            let volume = cluster.volume(&it.name);
            let is_new = !self.is_followed(&it.name) && !self.staying.contains_key(&it.name);
            if is_new
                && it.from == self.flags.node
                && it.outcome(Some(its_move), volume) == Outcome::Moving
            {
                let to = plan::destination(its_move).map(|node| format!(" to {node}"));
                let to = to.unwrap_or_default();
                self.printer
                    .write(&format!("{} moves{to} already\n", it.shown))?;
                self.followed.push(it);
            }
        }
        Ok(())
    }

    /// Prints the moves that have ended, and forgets them.
    async fn end_moves(&mut self, cluster: &Cluster) -> Result<(), Error> {
        for it in std::mem::take(&mut self.followed) {
            let outcome = it.settled(self.connection, cluster).await?;
            if outcome == Outcome::Moving {
                self.followed.push(it);
                continue;
            }
            self.printer.write(&Goal::Move.line(&it, outcome))?;
            if outcome == Outcome::Undone {
                let why = "its move was undone";
                self.staying.insert(it.name, why.to_owned());
            }
        }
        Ok(())
    }

    /// Gives up what moves together with a volume that stays: it never begins to move. The operator undoes it if it
    /// has begun.
    fn give_up(&mut self, cluster: &Cluster, groups: &[BTreeSet<String>]) {
        for group in groups {
            let Some(stays) = group.iter().find(|it| self.staying.contains_key(*it)) else {
                continue;
            };
            let why = format!("{} stays", set::shown(cluster, stays));
            for name in group {
                let volume = cluster.volume(name);
                if volume.is_none_or(|it| it.spec.target.is_none()) {
                    self.followed.retain(|it| it.name != *name);
                    let its_move = cluster.move_of(name).filter(|it| !is_standby(it));
                    let why = match its_move {
                        Some(_) => {
                            format!(
                                "{why}; undo its move with `kubectl cistern move {name} --undo`"
                            )
                        }
                        None => why.clone(),
                    };
                    self.staying.entry(name.clone()).or_insert(why);
                }
            }
        }
    }

    /// Creates the VolumeMoves of the groups that begin to move now, or lets them move to the standby copies that
    /// they have. Returns the groups that are to move.
    async fn begin(&mut self, cluster: &Cluster) -> Result<Vec<BTreeSet<String>>, Error> {
        groups::remember(&mut self.used, cluster);
        let mut groups = groups::groups(cluster, &self.sets, &self.used, &self.flags.node);
        loop {
            self.give_up(cluster, &groups);
            groups.retain(|group| !group.iter().any(|it| self.staying.contains_key(it)));
            let mut begun = groups::begun(cluster);
            begun.extend(self.followed.iter().map(|it| it.name.clone()));
            let stayed = self.staying.len();
            // Groups that pods use are checked as well, before an administrator ends pods of a group that cannot move.
            for group in groups.iter().filter(|it| it.is_disjoint(&begun)) {
                self.planned(cluster, group, &begun)?;
            }
            if self.staying.len() > stayed {
                continue;
            }
            let (at_once, cutover) = (self.flags.at_once, self.flags.cutover.into());
            for group in to_begin(cluster, &groups, &begun, (at_once, cutover)) {
                self.begin_group(cluster, group, &begun).await?;
            }
            // A group that cannot move leaves its place to the next one.
            if self.staying.len() == stayed {
                return Ok(groups);
            }
        }
    }

    /// Plans the moves of a group. If it cannot move, prints why, gives it up, and returns `None`. Fails if standard output
    /// cannot be written.
    fn planned(
        &mut self,
        cluster: &Cluster,
        group: &BTreeSet<String>,
        begun: &BTreeSet<String>,
    ) -> Result<Option<plan::Planned>, Error> {
        match plan::plan(cluster, group, self.flags.to.as_deref()) {
            Ok(planned) => Ok(Some(planned)),
            Err(reasons) => {
                let why = reasons.join("; ");
                self.printer.write(&cannot_move(cluster, group, &why))?;
                let left = group.difference(begun);
                self.staying
                    .extend(left.map(|it| (it.clone(), why.clone())));
                Ok(None)
            }
        }
    }

    /// Creates the VolumeMoves of a group but those that it has, and cuts over its standby copies, or gives it up.
    async fn begin_group(
        &mut self,
        cluster: &Cluster,
        group: &BTreeSet<String>,
        begun: &BTreeSet<String>,
    ) -> Result<(), Error> {
        let Some(planned) = self.planned(cluster, group, begun)? else {
            return Ok(());
        };
        let planned = planned.with_cutover(cluster, Some(self.flags.cutover.into()));
        let to_create = planned.create.iter();
        for spec in to_create.filter(|it| !begun.contains(&it.volume_name)) {
            if self.is_still_here(&spec.volume_name).await? {
                requests::create(self.connection, spec).await?;
                let it = Followed::of(&spec.volume_name, cluster);
                self.printer.write(&format!("{} is to move\n", it.shown))?;
                self.followed.push(it);
            }
        }
        for (its_move, cutover) in &planned.change {
            let name = its_move.name_any();
            if begun.contains(&name) || !self.is_still_here(&name).await? {
                continue;
            }
            requests::set_cutover(self.connection, its_move, *cutover).await?;
            let it = Followed::of(&name, cluster);
            let on = plan::destination(its_move).map(|node| format!(" on {node}"));
            self.printer.write(&format!(
                "{} is to move to its standby copy{}, and has no standby copy any more\n",
                it.shown,
                on.unwrap_or_default()
            ))?;
            self.followed.push(it);
        }
        Ok(())
    }

    /// Whether the volume is on the node. The watches do not keep step: the VolumeMove of a volume that has moved can
    /// be gone before the volume is seen on its new node.
    async fn is_still_here(&self, name: &str) -> Result<bool, Error> {
        let volume = self.connection.find::<PoolVolume>(name).await?;
        Ok(volume.is_some_and(|it| it.spec.node_name == self.flags.node))
    }

    fn print(&mut self, cluster: &Cluster, groups: &[BTreeSet<String>]) -> Result<(), Error> {
        let mut lines = Vec::new();
        for it in &self.followed {
            lines.extend(self.printed.progress(cluster, it));
        }
        for group in groups {
            if group.iter().any(|it| self.is_followed(it)) {
                continue;
            }
            let pods = Vec::from_iter(users(cluster, group)).join(", ");
            if let Some(first) = group.first().filter(|_| !pods.is_empty()) {
                let line = format!("{} waits for pods: {pods}\n", shown(cluster, group));
                lines.extend(self.printed.change(first, line));
            }
        }
        let removed: Vec<String> = self.removed(cluster).collect();
        for name in removed {
            let line = format!("{} is being deleted\n", set::shown(cluster, &name));
            lines.extend(self.printed.change(&name, line));
        }
        self.printer.write(&lines.concat())
    }

    fn finish(&self, cluster: &Cluster) -> Result<Verdict, Error> {
        let node = &self.flags.node;
        let mut lines = Vec::new();
        for (name, why) in &self.staying {
            if cluster
                .volume(name)
                .is_some_and(|it| it.spec.node_name == *node)
            {
                lines.push(format!(
                    "{} stays on {node}: {why}\n",
                    set::shown(cluster, name)
                ));
            }
        }
        if lines.is_empty() {
            self.printer
                .write(&format!("{node} has no volumes any more\n"))?;
            return Ok(Verdict::Ok);
        }
        self.printer.write(&lines.concat())?;
        Ok(Verdict::Warnings)
    }

    fn is_followed(&self, name: &str) -> bool {
        self.followed.iter().any(|it| it.name == name)
    }

    /// The volumes on the node that are being deleted, and so need not move.
    fn removed(&self, cluster: &Cluster) -> impl Iterator<Item = String> {
        let here = cluster.volumes.iter();
        let here = here.filter(|it| it.spec.node_name == self.flags.node);
        here.filter(|it| it.spec.deletion_requested)
            .map(PoolVolume::name_any)
    }
}
