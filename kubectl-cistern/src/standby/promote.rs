//! `promote`: makes the standby copies of volumes the volumes, after their node is lost.
//!
//! ```text
//! claims ─▶ volumes ─▶ those that pods use together ─▶ refuse those without a copy that its node can use, those with copies
//!   of different moments, and those whose node may work ─▶ say what is lost ─▶ confirm by name ─▶ request it
//!   ─▶ the volumes are on their new node
//! ```
//!
//! *Invariant:* the request names the time of the copy that the user has seen. The operator promotes no older one, and looks
//! at the node by itself. The command can be repeated: a copy that is promoted already is only followed.

use std::{
    collections::BTreeSet,
    io::{self, BufRead, Write},
};

use chrono::{DateTime, SecondsFormat, Utc};
use cistern_crds::{
    Cutover, HasImage as _, MovePlan, VolumeMove,
    out_of_service::{self, is_out_of_service},
    time,
};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use serde_json::json;

use crate::{
    Connection, Printer, Verdict,
    age::age,
    arguments,
    cluster::Cluster,
    confirm::is_typed,
    moving::{
        Error, complete,
        follow::{Followed, Goal, until_ended},
        named_together, requests, set,
    },
    output::Terminal,
};

/// How messages show times that differ.
const EXACT: &str = "%Y-%m-%d %H:%M:%S%.3f UTC";

/// A copy that is to become the volume.
#[derive(Debug)]
struct Copy {
    object: VolumeMove,
    plan: MovePlan,
    /// The time that its data has.
    taken: DateTime<Utc>,
}

/// Promotes the standby copies of the volumes of the claims that are not promoted yet, after confirmation. Fails if one of
/// them has no copy that its node can use, if the copies of volumes that pods use together differ in their time and
/// the user has not allowed that, if the node of a volume may work, if the user does not confirm, or if a request
/// fails.
pub async fn run(
    connection: &Connection,
    flags: &arguments::Promote,
    printer: Printer,
) -> Result<Verdict, crate::Error> {
    let cluster = complete(connection).await?;
    let together = named_together(connection, &cluster, &flags.claims, printer)?;
    let copies = copies(&cluster, &together).map_err(Error::Refused)?;
    for name in together.iter().filter(|it| is_followed_only(&copies, it)) {
        let shown = set::shown(&cluster, name);
        printer.write(&format!("the copy of {shown} is promoted already\n"))?;
    }
    if !copies.is_empty() {
        let differing = different_moments(&cluster, &together);
        if !flags.different_moments && !differing.is_empty() {
            return Err(Error::Refused(differing).into());
        }
        refuse_working(connection, &copies).await?;
        let (question, name) = question(&cluster, &copies, Utc::now());
        confirm(
            (&question, &name),
            &mut io::stdin().lock(),
            &mut Terminal::stderr(),
        )?;
    }
    for copy in &copies {
        let time = copy.taken.to_rfc3339_opts(SecondsFormat::Nanos, true);
        let spec = json!({"promotion": {"dataAsOf": time}});
        requests::change(connection, &copy.object, spec).await?;
    }
    if !flags.wait {
        return Ok(Verdict::Ok);
    }
    let followed = together.iter().map(|it| Followed::of(it, &cluster));
    until_ended(connection, followed.collect(), Goal::Move, printer).await
}

/// Whether the copy of a volume is promoted already.
fn is_followed_only(copies: &[Copy], name: &str) -> bool {
    !copies.iter().any(|it| it.object.name_any() == name)
}

/// The copies of the volumes that are not promoted yet. Fails with the reasons for which they cannot be promoted.
fn copies(cluster: &Cluster, together: &BTreeSet<String>) -> Result<Vec<Copy>, Vec<String>> {
    let (mut found, mut refused) = (Vec::new(), Vec::new());
    for name in together {
        match copy_of(cluster, name) {
            Ok(copy) => found.extend(copy),
            Err(why) => refused.push(why),
        }
    }
    if refused.is_empty() {
        Ok(found)
    } else {
        Err(refused)
    }
}

/// The copy of a volume; None if it is promoted already.
fn copy_of(cluster: &Cluster, name: &str) -> Result<Option<Copy>, String> {
    let shown = set::shown(cluster, name);
    let Some(object) = cluster.move_of(name) else {
        return Err(format!("{shown} has no standby copy"));
    };
    if object.is_promoted() {
        return Ok(None);
    }
    let taken = object.copied_as_of();
    if object.spec.cutover != Cutover::Never {
        return Err(match taken {
            Some(taken) => format!(
                "the copy of {shown} as of {} belongs to a move: make it a standby copy first, with `kubectl patch \
                 volumemove {name} --type merge --patch '{{\"spec\":{{\"cutover\":\"Never\"}}}}'`",
                taken.format(time::FORMAT)
            ),
            None => format!("{shown} has no standby copy"),
        });
    }
    let (Some(plan), Some(taken)) = (object.plan(), taken) else {
        return Err(format!("the standby copy of {shown} is not complete"));
    };
    if let Some(why) = unusable(cluster, name, &plan.to_node) {
        let to = &plan.to_node;
        return Err(format!(
            "node {to} cannot use the copy of {shown} now: {why}"
        ));
    }
    Ok(Some(Copy {
        object: object.clone(),
        plan,
        taken,
    }))
}

/// Why the node with the copy of a volume cannot read it now.
fn unusable(cluster: &Cluster, volume: &str, node: &str) -> Option<String> {
    let pool = cluster.volume(volume)?.pool_name();
    let Some(found) = cluster.node(node) else {
        return Some(format!("there is no StorageNode {node}"));
    };
    found.can_read(pool).err().map(|why| why.message)
}

/// The volumes that belong together and whose copies have the data of different moments: each volume is copied by itself.
fn different_moments(cluster: &Cluster, together: &BTreeSet<String>) -> Vec<String> {
    let links = set::links(cluster, &set::by_claim(cluster));
    let mut found = Vec::new();
    for group in set::groups(together.clone(), &links) {
        let taken = group
            .iter()
            .filter_map(|it| Some((it, moment(cluster, it)?)));
        let taken: Vec<(&String, DateTime<Utc>)> = taken.collect();
        let moments: BTreeSet<DateTime<Utc>> = taken.iter().map(|(_, at)| *at).collect();
        if moments.len() > 1 {
            let each = taken.iter().map(|(name, at)| {
                format!("{} as of {}", set::shown(cluster, name), at.format(EXACT))
            });
            let each: Vec<String> = each.collect();
            found.push(format!(
                "pods use these volumes together, and their copies have different moments, so that a program may find them \
                 inconsistent: {}; to promote them nevertheless, set --different-moments",
                each.join(", ")
            ));
        }
    }
    found
}

/// The time that the data of a volume has, or had when its copy was promoted.
fn moment(cluster: &Cluster, volume: &str) -> Option<DateTime<Utc>> {
    let object = cluster.move_of(volume)?;
    let promoted = object.status.as_ref().and_then(|it| it.promoted);
    promoted.or_else(|| object.copied_as_of())
}

/// Fails if pods may run on a node that the volumes leave.
async fn refuse_working(connection: &Connection, copies: &[Copy]) -> Result<(), crate::Error> {
    let nodes: BTreeSet<&str> = copies.iter().map(|it| &*it.plan.from_node).collect();
    let mut refused = Vec::new();
    for name in nodes {
        let what = format!("cannot read Node {name}");
        let nodes = connection.everywhere::<Node>();
        let node = connection.ask(what, nodes.get_opt(name)).await?;
        if node.is_some_and(|node| !is_out_of_service(&node)) {
            refused.push(format!(
                "pods on node {name} may still write: make sure that the machine is off, and then run \
                 `kubectl taint node {name} {}=nodeshutdown:NoExecute`. While the node works, \
                 `kubectl cistern move --cutover automatic` moves the volume without a loss",
                out_of_service::TAINT
            ));
        }
    }
    if refused.is_empty() {
        Ok(())
    } else {
        Err(Error::Refused(refused).into())
    }
}

/// What the user is asked, and the name that confirms it: that of the first volume.
fn question(cluster: &Cluster, copies: &[Copy], now: DateTime<Utc>) -> (String, String) {
    let lines = copies.iter().map(|copy| {
        let (shown, plan) = (set::shown(cluster, &copy.object.name_any()), &copy.plan);
        let (from, to) = (&plan.from_node, &plan.to_node);
        let (taken, old) = (
            copy.taken.format(time::FORMAT),
            age(copy.taken, now),
        );
        format!(
            "{shown} becomes the copy on node {to}, as of {taken} ({old} ago).\n  What was written to it on node \
             {from} after that is lost.\n"
        )
    });
    let text = lines.collect();
    let name = copies.first().map(|it| it.object.name_any());
    (text, name.unwrap_or_default())
}

/// Asks the user to type the name. Fails if the answer is not that name, or if it cannot be read.
fn confirm(
    (question, name): (&str, &str),
    answers: &mut impl BufRead,
    questions: &mut impl Write,
) -> Result<(), Error> {
    let answer = is_typed(question, name, answers, questions);
    if answer.map_err(Error::Answer)? {
        Ok(())
    } else {
        Err(Error::NotConfirmed)
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;
    use cistern_crds::{
        Bytes,
        testing::{image_source, node_pool},
    };
    use serde_json::Value;

    use super::*;
    use crate::testing::{cluster, object};

    const TAKEN: &str = "2026-01-01T00:00:00.5Z";

    /// The volume has a VolumeMove, and the pool of its copy is ready.
    fn with(spec: &Value, status: &Value) -> Cluster {
        let mut cluster = cluster();
        cluster.nodes[1] = cluster.nodes[0].clone();
        cluster.nodes[1].metadata.name = Some("worker-2".to_owned());
        let entry = node_pool("fast", "uid-of-fast", image_source(Bytes::gib(11)));
        cluster.nodes[1].spec.pools = vec![entry];
        cluster.moves = vec![move_of("pvc-1", spec, status)];
        cluster
    }

    fn move_of(volume: &str, spec: &Value, status: &Value) -> VolumeMove {
        object(json!({"metadata": {"name": volume, "uid": "m"}, "spec": spec, "status": status}))
    }

    fn standby() -> (Value, Value) {
        let plan = json!({"fromNode": "worker-1", "toNode": "worker-2", "epoch": 1});
        let prepared = json!({"number": 1, "snapshotName": "s", "image": "i", "taken": TAKEN, "received": TAKEN});
        (
            json!({"volumeName": "pvc-1", "cutover": "Never"}),
            json!({"plan": plan, "prepared": prepared}),
        )
    }

    fn of(cluster: &Cluster) -> Result<Vec<Copy>, Vec<String>> {
        copies(cluster, &BTreeSet::from(["pvc-1".to_owned()]))
    }

    #[test]
    fn what_is_lost_is_said_and_only_the_name_of_the_volume_confirms() {
        let (spec, status) = standby();
        let cluster = with(&spec, &status);
        let copies = of(&cluster).unwrap();
        let (question, name) =
            question(&cluster, &copies, copies[0].taken + TimeDelta::seconds(35));
        assert!(question.contains("shop/data (volume pvc-1)"), "{question}");
        assert!(
            question.contains("2026-01-01 00:00:00 UTC (35s ago)"),
            "{question}"
        );
        assert!(
            question.contains("on node worker-1 after that is lost"),
            "{question}"
        );
        let answer =
            |text: &str| confirm((&question, &name), &mut text.as_bytes(), &mut Vec::new()).is_ok();
        assert!(answer("pvc-1\n"));
        for no in ["", "y\n", "yes\n", "pvc-2\n", "data\n"] {
            assert!(!answer(no), "{no:?}");
        }
    }

    #[test]
    fn nothing_is_promoted_without_a_complete_standby_copy() {
        let (spec, status) = standby();
        let why = |spec: &Value, status: &Value| of(&with(spec, status)).unwrap_err().remove(0);
        let moves = json!({"volumeName": "pvc-1", "cutover": "Manual"});
        assert!(why(&moves, &json!({})).contains("has no standby copy"));
        let of_move = why(&moves, &status);
        for part in [
            "as of 2026-01-01 00:00:00 UTC belongs to a move",
            r#"kubectl patch volumemove pvc-1 --type merge --patch '{"spec":{"cutover":"Never"}}'"#,
        ] {
            assert!(of_move.contains(part), "{of_move}");
        }
        assert!(why(&spec, &json!({})).contains("is not complete"));
        assert!(of(&cluster()).unwrap_err()[0].contains("has no standby copy"));
    }

    #[test]
    fn nothing_is_promoted_that_its_node_cannot_use() {
        let (spec, status) = standby();
        let mut cluster = with(&spec, &status);
        let pools = &mut cluster.nodes[1].status.as_mut().unwrap().pools;
        pools[0].conditions.clear();
        let why = of(&cluster).unwrap_err().remove(0);
        let says = "node worker-2 cannot use the copy of shop/data (volume pvc-1) now: pool fast";
        assert!(why.contains(says), "{why}");
        cluster.nodes.pop();
        let why = of(&cluster).unwrap_err().remove(0);
        assert!(why.contains("there is no StorageNode worker-2"), "{why}");
    }

    #[test]
    fn a_copy_in_a_pool_that_is_leaving_its_node_is_promoted_while_the_pool_is_ready() {
        let (spec, status) = standby();
        let mut cluster = with(&spec, &status);
        cluster.nodes[1].spec.pools[0].retiring = true;
        assert_eq!(of(&cluster).unwrap().len(), 1);
        let pools = &mut cluster.nodes[1].status.as_mut().unwrap().pools;
        pools[0].conditions.clear();
        assert!(of(&cluster).is_err());
    }

    #[test]
    fn copies_of_volumes_that_pods_use_together_have_one_moment_or_are_named() {
        let (spec, status) = standby();
        let mut cluster = with(&spec, &status);
        let both = BTreeSet::from(["pvc-1", "pvc-2"].map(str::to_owned));
        let differing = |cluster: &Cluster| different_moments(cluster, &both);
        let mut other = status.clone();
        other["prepared"]["taken"] = json!("2026-01-01T00:00:07Z");
        let alone = json!({"volumeName": "pvc-2", "cutover": "Never"});
        cluster.moves.push(move_of("pvc-2", &alone, &other));
        assert!(differing(&cluster).is_empty(), "no pod uses both");
        let mut linked = alone;
        linked["togetherWith"] = json!(["pvc-1"]);
        cluster.moves[1] = move_of("pvc-2", &linked, &other);
        let text = differing(&cluster).join("");
        for part in [
            "shop/data (volume pvc-1) as of 2026-01-01 00:00:00.500 UTC",
            "(volume pvc-2) as of 2026-01-01 00:00:07.000 UTC",
            "--different-moments",
        ] {
            assert!(text.contains(part), "{text}");
        }
        cluster.moves[1] = move_of("pvc-2", &linked, &status);
        assert!(differing(&cluster).is_empty(), "one moment");
    }

    #[test]
    fn a_copy_that_is_promoted_already_is_not_promoted_again_and_only_followed() {
        let (spec, mut status) = standby();
        assert!(!is_followed_only(
            &of(&with(&spec, &status)).unwrap(),
            "pvc-1"
        ));
        status["promoted"] = json!(TAKEN);
        let copies = of(&with(&spec, &status)).unwrap();
        assert!(copies.is_empty());
        assert!(is_followed_only(&copies, "pvc-1"));
    }
}
