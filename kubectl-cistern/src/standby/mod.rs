//! `standby`: keeps copies of volumes on another node, which are renewed at an interval, or removes them.
//!
//! ```text
//! claims ─▶ volumes ─▶ those that pods use together ─▶ refuse what cannot be copied ─▶ create VolumeMoves that are never
//!   cut over ─▶ print each change of their conditions ─▶ each copy is as new as its interval demands
//! ```
//!
//! *Invariant:* no VolumeMove is deleted that is not a standby copy, or whose copy has been promoted: that one keeps the
//! previous image.

pub mod promote;

use std::collections::BTreeSet;

use cistern_crds::{Cutover, Reason, VolumeMove, VolumeMoveSpec};
use kube::ResourceExt as _;
use serde_json::json;

use crate::{
    Connection, Printer, Verdict, arguments,
    changes::Changes,
    cluster::Cluster,
    moving::{
        Error, changed, complete,
        follow::{Followed, Goal, Printed, until_ended, waits},
        named_together, plan,
        promotion::was_promoted,
        requests, set,
    },
};

/// Keeps standby copies of the volumes of the claims, or removes them. Fails if one of them cannot have one, or if a request
/// fails.
pub async fn run(
    connection: &Connection,
    flags: &arguments::Standby,
    printer: Printer,
) -> Result<Verdict, crate::Error> {
    let cluster = complete(connection).await?;
    let together = named_together(connection, &cluster, &flags.claims, printer)?;
    if flags.remove {
        return remove(connection, flags, &cluster, &together, printer).await;
    }
    let standbys = Standbys::plan(&cluster, &together, flags).map_err(Error::Refused)?;
    standbys.write(connection, &cluster, printer).await?;
    if !flags.wait {
        return Ok(Verdict::Ok);
    }
    until_copied(connection, together, printer).await
}

/// What is written for standby copies.
#[derive(Debug, Default, PartialEq)]
struct Standbys {
    create: Vec<VolumeMoveSpec>,
    /// Those that exist with another interval, and the one that they get.
    change: Vec<(VolumeMove, u32)>,
    /// Names of volumes whose copies are kept as they are to be.
    existing: Vec<String>,
}

impl Standbys {
    /// Decides what is written. Fails with the reasons for which there can be no copies.
    fn plan(
        cluster: &Cluster,
        together: &BTreeSet<String>,
        flags: &arguments::Standby,
    ) -> Result<Self, Vec<String>> {
        let to_node = flags.to.as_deref();
        let found: Vec<&VolumeMove> = plan::existing(cluster, together).collect();
        let mut refused = plan::conflicts(cluster, together, to_node);
        refused.extend(found.iter().filter_map(|it| not_standby(it)));
        let planned = plan::plan(cluster, together, to_node);
        let planned = planned.unwrap_or_else(|reasons| {
            refused.extend(reasons);
            plan::Planned::default()
        });
        let there = planned.there.iter();
        refused.extend(there.map(|name| {
            let shown = set::shown(cluster, name);
            format!("{shown} is on that node: its copy has to be on another one")
        }));
        if !refused.is_empty() {
            return Err(refused);
        }
        let mut standbys = Self::default();
        for spec in planned.create {
            standbys.create.push(VolumeMoveSpec {
                cutover: Cutover::Never,
                standby_interval_seconds: flags.interval,
                ..spec
            });
        }
        for it in found {
            match flags.interval {
                Some(interval) if it.spec.standby_interval_seconds != Some(interval) => {
                    standbys.change.push((it.clone(), interval));
                }
                _ => standbys.existing.push(it.name_any()),
            }
        }
        Ok(standbys)
    }

    async fn write(
        &self,
        connection: &Connection,
        cluster: &Cluster,
        printer: Printer,
    ) -> Result<(), crate::Error> {
        let print = |name: &str, what: &str| {
            printer.write(&format!("{} {what}\n", set::shown(cluster, name)))
        };
        for spec in &self.create {
            let is_new = requests::create(connection, spec).await?;
            let what = if is_new {
                "gets a standby copy"
            } else {
                "moves already"
            };
            print(&spec.volume_name, what)?;
        }
        for (it, interval) in &self.change {
            let spec = json!({"standbyIntervalSeconds": interval});
            requests::change(connection, it, spec).await?;
            let how =
                format!("has a standby copy, which is renewed every {interval} s from now on");
            print(&it.name_any(), &how)?;
        }
        for name in &self.existing {
            print(name, "has a standby copy")?;
        }
        Ok(())
    }
}

/// Why a VolumeMove is not a standby copy.
fn not_standby(it: &VolumeMove) -> Option<String> {
    let name = it.name_any();
    if it.spec.takeover.is_some() {
        return None;
    }
    if it.is_promoted() {
        return Some(was_promoted(it));
    }
    (it.spec.cutover != Cutover::Never)
        .then(|| format!("volume {name} moves to another node: wait until it has moved"))
}

/// Why a copy is not removed: the operator keeps it until the volume is ready. None if it can be.
fn not_removed(cluster: &Cluster, it: &VolumeMove) -> Option<String> {
    let name = it.name_any();
    it.status.as_ref()?.prepared.as_ref()?;
    let volume = cluster.volume(&name)?;
    (!volume.is_ready() && !volume.spec.deletion_requested).then(|| {
        let shown = set::shown(cluster, &name);
        format!(
            "{shown} is not ready, and its copy may be the only data: wait until the volume is ready, or promote the copy"
        )
    })
}

/// Removes the standby copies. Fails if one of them may be the only data of its volume.
async fn remove(
    connection: &Connection,
    flags: &arguments::Standby,
    cluster: &Cluster,
    together: &BTreeSet<String>,
    printer: Printer,
) -> Result<Verdict, crate::Error> {
    let found: Vec<&VolumeMove> = plan::existing(cluster, together).collect();
    let refused = found.iter();
    let refused = refused.filter_map(|it| not_standby(it).or_else(|| not_removed(cluster, it)));
    let refused: Vec<String> = refused.collect();
    if !refused.is_empty() {
        return Err(Error::Refused(refused).into());
    }
    let mine = found.iter().filter(|it| it.spec.takeover.is_none());
    let mine: Vec<_> = mine.collect();
    if mine.is_empty() {
        printer.write("none of these volumes has a standby copy\n")?;
    }
    for it in &mine {
        requests::delete(connection, it).await?;
    }
    if !flags.wait {
        return Ok(Verdict::Ok);
    }
    let followed = mine.iter().map(|it| Followed::of(&it.name_any(), cluster));
    until_ended(connection, followed.collect(), Goal::Remove, printer).await
}

/// Waits until each copy is as new as its interval demands, and prints each change. Returns `Warnings` if one ends.
async fn until_copied(
    connection: &Connection,
    mut waiting: BTreeSet<String>,
    printer: Printer,
) -> Result<Verdict, crate::Error> {
    let mut changes = Changes::start(connection);
    let (mut lines, mut verdict) = (Printed::default(), Verdict::Ok);
    while !waiting.is_empty() {
        let cluster = changed(&mut changes).await?;
        for name in waiting.clone() {
            let it = Followed::of(&name, &cluster);
            if let Some(line) = lines.progress(&cluster, &it) {
                printer.write(&line)?;
            }
            let found = cluster.move_of(&name);
            let is_copied = found
                .and_then(waits)
                .is_some_and(|it| Reason::parse(&it.reason) == Some(Reason::Standby));
            if is_copied {
                waiting.remove(&name);
            } else if found.is_none() && connection.find::<VolumeMove>(&name).await?.is_none() {
                printer.write(&format!("{} has no standby copy\n", it.shown))?;
                verdict = Verdict::Warnings;
                waiting.remove(&name);
            }
        }
    }
    Ok(verdict)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{cluster, object};

    fn flags(interval: Option<u32>) -> arguments::Standby {
        arguments::Standby {
            claims: arguments::Claims {
                claims: vec!["pvc-1".to_owned()],
                namespace: None,
            },
            to: None,
            interval,
            remove: false,
            wait: true,
        }
    }

    fn planned(moves: Vec<VolumeMove>, interval: Option<u32>) -> Result<Standbys, Vec<String>> {
        let mut cluster = cluster();
        cluster.moves = moves;
        let together = BTreeSet::from(["pvc-1".to_owned()]);
        Standbys::plan(&cluster, &together, &flags(interval))
    }

    fn existing(spec: &serde_json::Value, status: &serde_json::Value) -> Vec<VolumeMove> {
        vec![object(
            json!({"metadata": {"name": "pvc-1", "uid": "m"}, "spec": spec, "status": status}),
        )]
    }

    #[test]
    fn a_volume_gets_one_standby_copy_whose_interval_can_be_changed() {
        let new = planned(Vec::new(), Some(30)).unwrap();
        assert_eq!(new.create[0].cutover, Cutover::Never);
        assert_eq!(new.create[0].standby_interval_seconds, Some(30));
        let spec = json!({"volumeName": "pvc-1", "cutover": "Never", "standbyIntervalSeconds": 30});
        let same = |interval| planned(existing(&spec, &json!({})), interval).unwrap();
        assert_eq!(same(None).existing, ["pvc-1"]);
        assert_eq!(same(Some(30)).existing, ["pvc-1"]);
        assert_eq!(same(Some(60)).change[0].1, 60);
    }

    #[test]
    fn a_copy_that_may_be_the_only_data_is_not_removed_before_its_volume_is_ready() {
        let mut cluster = cluster();
        let spec = json!({"volumeName": "pvc-1", "cutover": "Never"});
        let prepared = json!({"number": 1, "snapshotName": "s", "image": "i", "received": "2026-01-01T00:00:00Z"});
        let copied = existing(&spec, &json!({"prepared": prepared})).remove(0);
        assert_eq!(not_removed(&cluster, &copied), None);
        // Its node has not opened it again.
        cluster.volumes[0].spec.epoch = 1;
        let why = not_removed(&cluster, &copied).unwrap();
        assert!(
            why.starts_with("shop/data (volume pvc-1) is not ready"),
            "{why}"
        );
        let begun = existing(&spec, &json!({})).remove(0);
        assert_eq!(not_removed(&cluster, &begun), None, "nothing is copied");
        cluster.volumes[0].spec.deletion_requested = true;
        assert_eq!(not_removed(&cluster, &copied), None, "it is deleted");
        cluster.volumes.clear();
        assert_eq!(not_removed(&cluster, &copied), None, "there is no volume");
    }

    #[test]
    fn what_moves_or_was_promoted_gets_no_standby_copy() {
        let moves = json!({"volumeName": "pvc-1", "cutover": "Automatic"});
        let why = planned(existing(&moves, &json!({})), None).unwrap_err();
        assert!(why[0].contains("moves to another node"), "{why:?}");
        let never = json!({"volumeName": "pvc-1", "cutover": "Never"});
        let promoted = json!({"promoted": "2026-01-01T00:00:00Z"});
        let why = planned(existing(&never, &promoted), None).unwrap_err();
        assert!(why[0].contains("was promoted"), "{why:?}");
    }
}
