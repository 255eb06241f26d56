//! Waits for moves, and prints what changes.

use std::collections::BTreeMap;

use cistern_crds::{Condition, ConditionType, PoolVolume, Reason, VolumeMove, condition};

use super::set;
use crate::{
    Connection, Error, Printer, Verdict, changes::Changes, cluster::Cluster, output::one_line,
};

/// A volume whose move is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Followed {
    pub(crate) name: String,
    /// Name of the node that it leaves.
    pub(crate) from: String,
    /// The volume as messages name it.
    pub(crate) shown: String,
}

/// What has become of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It goes on.
    Moving,
    /// The volume, and its PersistentVolume, name the new node.
    Moved,
    /// The volume is where it was.
    Undone,
    /// The volume is deleted.
    Gone,
}

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// The volumes are on the new node.
    Move,
    /// The volumes stay where they are.
    Undo,
    /// The standby copies of the volumes are gone.
    Remove,
}

impl Followed {
    pub(crate) fn of(name: &str, cluster: &Cluster) -> Self {
        let planned = cluster.move_of(name).and_then(VolumeMove::plan);
        let now = || cluster.volume(name).map(|it| it.spec.node_name.clone());
        Self {
            name: name.to_owned(),
            from: planned
                .map(|it| it.from_node)
                .or_else(now)
                .unwrap_or_default(),
            shown: set::shown(cluster, name),
        }
    }

    /// Whether the volume is on another node than the one that it leaves.
    fn has_left(&self, volume: Option<&PoolVolume>) -> bool {
        volume.is_some_and(|it| it.spec.node_name != self.from)
    }

    /// What has become of the move. The volume was read after the move.
    pub(crate) fn outcome(
        &self,
        its_move: Option<&VolumeMove>,
        volume: Option<&PoolVolume>,
    ) -> Outcome {
        let is_there = self.has_left(volume);
        match (its_move, volume) {
            (Some(its_move), _) if is_there && has_followed(its_move) => Outcome::Moved,
            (Some(_), _) => Outcome::Moving,
            (None, None) => Outcome::Gone,
            (None, Some(_)) if is_there => Outcome::Moved,
            (None, Some(_)) => Outcome::Undone,
        }
    }

    /// What has become of the move in a watched cluster. The watches of the two kinds do not keep step, so the end of
    /// a move is read from the API server. Fails if a request fails.
    pub(crate) async fn settled(
        &self,
        connection: &Connection,
        cluster: &Cluster,
    ) -> Result<Outcome, Error> {
        let (name, its_move) = (&self.name, cluster.move_of(&self.name));
        if self.outcome(its_move, cluster.volume(name)) == Outcome::Moving {
            return Ok(Outcome::Moving);
        }
        let its_move = connection.find::<VolumeMove>(name).await?;
        let volume = connection.find::<PoolVolume>(name).await?;
        Ok(self.outcome(its_move.as_ref(), volume.as_ref()))
    }
}

impl Goal {
    /// The line for the end of a move.
    pub(crate) fn line(self, followed: &Followed, outcome: Outcome) -> String {
        let shown = &followed.shown;
        match (self, outcome) {
            (Self::Move, Outcome::Moved) => format!("{shown} has moved\n"),
            (Self::Move, _) if outcome != Outcome::Gone => {
                format!("{shown} has not moved: the move was undone\n")
            }
            (Self::Undo, Outcome::Moved) => {
                format!("{shown} is on the new node: it is too late to undo its move\n")
            }
            (Self::Undo, _) if outcome != Outcome::Gone => {
                format!("{shown} has not moved: the move is undone\n")
            }
            (Self::Remove, Outcome::Moved) => {
                format!("{shown} is on the new node: it is too late to remove its copy\n")
            }
            (Self::Remove, _) if outcome != Outcome::Gone => {
                format!("{shown} has no standby copy any more\n")
            }
            _ => format!("{shown} is deleted\n"),
        }
    }

    fn is_reached(self, outcome: Outcome) -> bool {
        match self {
            Self::Move => outcome == Outcome::Moved,
            Self::Undo | Self::Remove => outcome != Outcome::Moved,
        }
    }
}

/// Whether only the old image is left to remove.
fn has_followed(its_move: &VolumeMove) -> bool {
    let reason = waits(its_move).and_then(|it| Reason::parse(&it.reason));
    matches!(
        reason,
        Some(Reason::OldImageKept | Reason::RemovingImage | Reason::Superseded)
    )
}

/// Why the move waits; `None` until it has been reported.
pub(crate) fn waits(its_move: &VolumeMove) -> Option<&Condition> {
    let conditions = &its_move.status.as_ref()?.conditions;
    condition::find(conditions, ConditionType::Ready)
}

/// What was printed last about each volume.
#[derive(Debug, Default)]
pub(crate) struct Printed(BTreeMap<String, String>);

impl Printed {
    /// Returns the line about a volume if it is not the one of the last call.
    pub(crate) fn change(&mut self, name: &str, line: String) -> Option<String> {
        let before = self.0.insert(name.to_owned(), line.clone());
        (before.as_ref() != Some(&line)).then_some(line)
    }

    /// Returns the line about a move that waits, if it is new.
    pub(crate) fn progress(&mut self, cluster: &Cluster, followed: &Followed) -> Option<String> {
        let found = cluster.move_of(&followed.name).and_then(waits)?;
        let (reason, message) = (&found.reason, one_line(&found.message));
        self.change(
            &followed.name,
            format!("{}: {reason}: {message}\n", followed.shown),
        )
    }
}

/// Waits until all moves have ended, and prints each change. Fails if a request fails.
pub(crate) async fn until_ended(
    connection: &Connection,
    mut waiting: Vec<Followed>,
    goal: Goal,
    printer: Printer,
) -> Result<Verdict, Error> {
    let mut changes = Changes::start(connection);
    let (mut lines, mut verdict) = (Printed::default(), Verdict::Ok);
    while !waiting.is_empty() {
        let cluster = super::changed(&mut changes).await?;
        for it in std::mem::take(&mut waiting) {
            if let Some(line) = lines.progress(&cluster, &it) {
                printer.write(&line)?;
            }
            let outcome = it.settled(connection, &cluster).await?;
            // Once the volume is on the new node, its move goes on to the end.
            let is_there = it.has_left(cluster.volume(&it.name));
            let outcome = match outcome {
                Outcome::Moving if is_there && goal == Goal::Undo => Outcome::Moved,
                Outcome::Moving => {
                    waiting.push(it);
                    continue;
                }
                outcome => outcome,
            };
            printer.write(&goal.line(&it, outcome))?;
            if !goal.is_reached(outcome) {
                verdict = Verdict::Warnings;
            }
        }
    }
    Ok(verdict)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{cluster, condition, object};

    fn moving(reason: &str, message: &str) -> VolumeMove {
        object(
            json!({"metadata": {"name": "pvc-1", "uid": "m"}, "spec": {"volumeName": "pvc-1"},
            "status": {"conditions": [condition("Ready", "False", reason, message)]}}),
        )
    }

    #[test]
    fn a_move_has_ended_once_only_the_old_image_is_left() {
        let cluster = cluster();
        let followed = Followed::of("pvc-1", &cluster);
        assert_eq!(followed.from, "worker-1");
        let here = cluster.volumes[0].clone();
        let mut there = here.clone();
        there.spec.node_name = "worker-2".to_owned();
        let outcome =
            |it: Option<&VolumeMove>, volume: Option<&PoolVolume>| followed.outcome(it, volume);
        let (copying, kept) = (moving("Copying", ""), moving("OldImageKept", ""));
        let removing = moving("RemovingImage", "");
        assert_eq!(outcome(Some(&copying), Some(&here)), Outcome::Moving);
        assert_eq!(outcome(Some(&removing), Some(&here)), Outcome::Moving);
        assert_eq!(
            outcome(Some(&moving("Moving", "")), Some(&there)),
            Outcome::Moving
        );
        assert_eq!(outcome(Some(&kept), Some(&there)), Outcome::Moved);
        assert_eq!(outcome(None, Some(&there)), Outcome::Moved);
        assert_eq!(outcome(None, Some(&here)), Outcome::Undone);
        assert_eq!(outcome(None, None), Outcome::Gone);
    }

    #[test]
    fn a_line_is_printed_when_reason_or_message_change() {
        let mut cluster = cluster();
        let (mut printed, followed) = (Printed::default(), Followed::of("pvc-1", &cluster));
        let mut line = |message: &str| {
            cluster.moves = vec![moving("Copying", message)];
            printed.progress(&cluster, &followed)
        };
        let first = line("1 %").unwrap();
        assert_eq!(first, "shop/data (volume pvc-1): Copying: 1 %\n");
        assert_eq!(line("1 %"), None);
        assert!(line("2 %").is_some());
        // A node cannot write a line of its own.
        let forged = line("3 %\nshop/data (volume pvc-1) has moved").unwrap();
        assert_eq!(forged.lines().count(), 1, "{forged}");
    }

    #[test]
    fn the_line_at_the_end_of_a_move_depends_on_the_goal() {
        let followed = Followed::of("pvc-1", &cluster());
        let line = |goal: Goal, outcome| goal.line(&followed, outcome);
        assert!(line(Goal::Move, Outcome::Moved).ends_with("has moved\n"));
        assert!(line(Goal::Move, Outcome::Undone).contains("the move was undone"));
        assert!(line(Goal::Undo, Outcome::Moved).contains("too late to undo"));
        assert!(line(Goal::Undo, Outcome::Undone).contains("the move is undone"));
        assert!(line(Goal::Undo, Outcome::Gone).ends_with("is deleted\n"));
        assert!(Goal::Undo.is_reached(Outcome::Gone) && !Goal::Move.is_reached(Outcome::Gone));
    }
}
