//! What is reached in some interleaving: a check in which nothing happens proves nothing.

use stateright::Property;

use crate::{
    ending,
    protocol::Protocol,
    scenario::Scenario,
    state::{Node, State},
};

/// An end that a scenario has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// The volume is on the other node, and nothing is left to do.
    Moved,
    /// It is where it was, an undo later.
    Undone,
    /// It is on its first node again, after two commits.
    Returned,
    /// Its data was removed, as requested.
    Deleted,
    /// Its claim was deleted while its PersistentVolume was replaced, and its data stays.
    Kept,
    /// The move says why it cannot go on.
    Blocked,
}

impl Goal {
    /// The sentence that is true somewhere.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Moved => "a volume has moved",
            Self::Undone => "a move is undone",
            Self::Returned => "a volume has moved there and back",
            Self::Deleted => "a volume is deleted after its move began",
            Self::Kept => {
                "a volume stays whose claim is deleted while its PersistentVolume is replaced"
            }
            Self::Blocked => "a move is blocked and says so",
        }
    }

    const fn condition(self) -> fn(&Protocol, &State) -> bool {
        match self {
            Self::Moved => |_, state| is_on(state, Node::B, 1),
            Self::Undone => |_, state| is_on(state, Node::A, 1),
            Self::Returned => |_, state| is_on(state, Node::A, 2) && state.moves == 2,
            Self::Deleted => {
                |_, state| ending::is_end(state) && state.volume.is_none() && state.moves > 0
            }
            Self::Kept => |_, state| {
                let is_kept = |volume| ending::is_kept(state, &volume);
                ending::is_end(state) && state.volume.is_some_and(is_kept)
            },
            Self::Blocked => |_, state| {
                let is_blocked = state.movement.is_some_and(|movement| movement.blocked);
                ending::is_end(state) && is_blocked
            },
        }
    }
}

fn is_on(state: &State, node: Node, epoch: u8) -> bool {
    let is_there = |volume: crate::state::Volume| (volume.node, volume.epoch) == (node, epoch);
    ending::is_end(state) && state.movement.is_none() && state.volume.is_some_and(is_there)
}

/// The ends of a scenario.
pub(crate) fn of(scenario: &Scenario) -> Vec<Property<Protocol>> {
    let goals = scenario.goals.iter();
    goals
        .map(|goal| Property::sometimes(goal.text(), goal.condition()))
        .collect()
}
