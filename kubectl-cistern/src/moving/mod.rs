//! `move`: moves volumes to another node, with the volumes that pods use together with them.
//!
//! ```text
//! claims ─▶ volumes ─▶ those that pods use together ─▶ refuse what cannot move ─▶ create VolumeMoves
//!   ─▶ print each change of their conditions ─▶ the volumes have moved
//! ```
//!
//! *Invariant:* only VolumeMoves are written, and none before it is known that each volume can have one.

pub(crate) mod follow;
pub(crate) mod plan;
pub(crate) mod promotion;
pub(crate) mod requests;
pub(crate) mod set;

use std::collections::BTreeSet;

use cistern_crds::{Cutover, VolumeMove};
use kube::ResourceExt as _;

use self::{
    follow::{Followed, Goal},
    plan::Planned,
};
use crate::{
    Connection, Printer, Verdict, arguments,
    changes::Changes,
    cluster::{Cluster, notes_about},
};

/// Kinds that decide which volumes move together, and whether they have moved.
const DECISIVE: [&str; 6] = [
    "volumemoves",
    "poolvolumes",
    "storagenodes",
    "persistentvolumeclaims",
    "persistentvolumes",
    "pods",
];

/// Error of `move` and `drain`.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something cannot move.
    #[error("{}: nothing was changed", .0.join("; "))]
    Refused(Vec<String>),
    /// The user did not type the name.
    #[error("not confirmed: nothing was changed")]
    NotConfirmed,
    /// Reading from standard input failed.
    #[error("the answer cannot be read: nothing was changed")]
    Answer(#[source] std::io::Error),
    /// The moves cannot be followed any more.
    #[error("{}: the moves go on without this command", .0.join("; "))]
    Blind(Vec<String>),
    /// The API server denied the request.
    #[error("{what}: not allowed; only cluster administrators move volumes: use another --context")]
    Denied {
        /// Description of the request.
        what: String,
        /// Error of the API server.
        #[source]
        source: Box<kube::Error>,
    },
}

/// Moves the volumes of the claims, or undoes their moves. Fails if one of them cannot move, or if a request fails.
pub async fn run(
    connection: &Connection,
    flags: &arguments::Move,
    printer: Printer,
) -> Result<Verdict, crate::Error> {
    let cluster = complete(connection).await?;
    let together = named_together(connection, &cluster, &flags.claims, printer)?;
    if flags.undo {
        return undo(connection, flags, &cluster, &together, printer).await;
    }
    let to_node = flags.to.as_deref();
    let conflicts = plan::conflicts(&cluster, &together, to_node);
    if !conflicts.is_empty() {
        return Err(Error::Refused(conflicts).into());
    }
    let planned = plan::plan(&cluster, &together, to_node).map_err(Error::Refused)?;
    let planned = planned.with_cutover(&cluster, flags.cutover.map(Cutover::from));
    create(connection, &cluster, &planned, printer).await?;
    if !flags.wait {
        return Ok(Verdict::Ok);
    }
    let followed = planned.followed(&cluster);
    follow::until_ended(connection, followed, Goal::Move, printer).await
}

/// The volumes of the claims, and those that belong together with them, which are printed. Fails if there is none of a name.
pub(crate) fn named_together(
    connection: &Connection,
    cluster: &Cluster,
    claims: &arguments::Claims,
    printer: Printer,
) -> Result<BTreeSet<String>, crate::Error> {
    let namespace = claims.namespace.clone();
    let namespace = namespace.unwrap_or_else(|| connection.client().default_namespace().to_owned());
    let named = set::named(cluster, &namespace, &claims.claims).map_err(Error::Refused)?;
    let links = set::links(cluster, &set::by_claim(cluster));
    let mut together = BTreeSet::new();
    for name in &named {
        together.extend(set::group_of(name, &links));
    }
    for name in together.difference(&named) {
        let shown = set::shown(cluster, name);
        printer.write(&format!("{shown} is used or moves together with them\n"))?;
    }
    Ok(together)
}

/// Lists the cluster. Fails if a kind that decides what moves together cannot be read completely.
pub(crate) async fn complete(connection: &Connection) -> Result<Cluster, crate::Error> {
    let cluster = Cluster::with_users(connection).await?;
    let notes = cluster.unread.clone();
    readable(cluster, &notes, Error::Refused)
}

/// Waits for the next change of the cluster. Fails if one of these kinds is not followed any more.
pub(crate) async fn changed(changes: &mut Changes) -> Result<Cluster, crate::Error> {
    let (cluster, notes) = changes.next().await;
    readable(cluster, &notes, Error::Blind)
}

/// The cluster, if all objects that decide were read.
fn readable(
    cluster: Cluster,
    notes: &[String],
    refused: fn(Vec<String>) -> Error,
) -> Result<Cluster, crate::Error> {
    cluster.require_all_data()?;
    let missing = notes_about(notes, &DECISIVE);
    if missing.is_empty() {
        Ok(cluster)
    } else {
        Err(refused(missing).into())
    }
}

/// Creates the VolumeMoves that do not exist, and prints what is done for each volume.
async fn create(
    connection: &Connection,
    cluster: &Cluster,
    planned: &Planned,
    printer: Printer,
) -> Result<(), crate::Error> {
    let print =
        |name: &str, what: &str| printer.write(&format!("{} {what}\n", set::shown(cluster, name)));
    for name in &planned.there {
        print(name, "is on that node already")?;
    }
    for spec in &planned.create {
        let is_new = requests::create(connection, spec).await?;
        let what = if is_new {
            "is to move"
        } else {
            "moves already"
        };
        print(&spec.volume_name, what)?;
    }
    for (existing, cutover) in &planned.change {
        requests::set_cutover(connection, existing, *cutover).await?;
        let how = match cutover {
            Cutover::WhenUnused => "moves once no pod uses it",
            Cutover::Automatic => "is cut over automatically from now on",
            Cutover::Manual => "is copied, and waits to be cut over",
            Cutover::Never => "keeps a standby copy",
        };
        print(&existing.name_any(), how)?;
    }
    for name in &planned.existing {
        print(name, "moves already")?;
    }
    Ok(())
}

async fn undo(
    connection: &Connection,
    flags: &arguments::Move,
    cluster: &Cluster,
    together: &BTreeSet<String>,
    printer: Printer,
) -> Result<Verdict, crate::Error> {
    let moves: Vec<_> = plan::existing(cluster, together).collect();
    let refused: Vec<String> = moves.iter().filter_map(|it| not_undone(it)).collect();
    if !refused.is_empty() {
        return Err(Error::Refused(refused).into());
    }
    if moves.is_empty() {
        printer.write("none of these volumes moves\n")?;
    }
    for it in &moves {
        requests::delete(connection, it).await?;
    }
    if !flags.wait {
        return Ok(Verdict::Ok);
    }
    let followed = moves.iter().map(|it| Followed::of(&it.name_any(), cluster));
    follow::until_ended(connection, followed.collect(), Goal::Undo, printer).await
}

/// Why a move is not undone.
fn not_undone(it: &VolumeMove) -> Option<String> {
    let name = it.name_any();
    if it.spec.takeover.is_some() {
        return Some(format!(
            "volume {name} follows its disk, which cannot be undone"
        ));
    }
    if it.is_promoted() {
        return Some(promotion::was_promoted(it));
    }
    (it.spec.cutover == Cutover::Never).then(|| {
        format!(
            "volume {name} has a standby copy, which `kubectl cistern standby --remove` removes"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_are_followed_without_the_kinds_that_decide_nothing_about_them() {
        let notes = ["pods", "events", "volumemoves", "imagetransfers"]
            .map(|kind| format!("{kind} are not live: you may not watch them"));
        assert_eq!(
            notes_about(&notes, &DECISIVE),
            [notes[0].clone(), notes[2].clone()]
        );
    }
}
