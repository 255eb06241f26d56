//! Which replicas the operator removes, and when their images go with them.

use crate::{
    guard::Guard,
    operator::Decision,
    protocol::Protocol,
    state::{Epoch, MoveUid, Node, Purpose, Replica, State},
};

impl Protocol {
    /// The replicas that are handed over to the volume, and those that are not needed.
    pub(crate) fn decide_replicas(&self, state: &State, all: &mut Vec<Decision>) {
        for node in Node::ALL {
            for (epoch, replica) in state.replicas.of(node).iter() {
                if replica.deletion {
                    continue;
                }
                if self.is_handed_over(state, node, epoch, &replica) {
                    all.push(if self.holds(Guard::HandOverKeepsTheImage) {
                        Decision::HandOver(node, epoch)
                    } else {
                        Decision::DeleteReplica(node, epoch)
                    });
                } else if self.is_over(state, node, epoch, &replica) {
                    all.push(Decision::DeleteReplica(node, epoch));
                }
            }
        }
    }

    /// Whether the image of a replica is the volume's own by now, and counted as such.
    fn is_handed_over(&self, state: &State, node: Node, epoch: Epoch, replica: &Replica) -> bool {
        let Some(volume) = state.volume.filter(|volume| volume.node == node) else {
            return false;
        };
        let is_counted = self.is_ready(&volume) || !self.holds(Guard::HandOverNeedsReady);
        match replica.purpose {
            Purpose::Incoming | Purpose::Standby => volume.epoch == epoch && is_counted,
            Purpose::Retained if volume.epoch == epoch => {
                volume.target.is_none() && self.is_cancelled(state, replica.uid)
            }
            Purpose::Retained => volume.epoch == epoch + 1 && is_counted,
        }
    }

    /// Whether a move has been given up, so that it cannot declare its target any more.
    pub(crate) fn is_cancelled(&self, state: &State, uid: MoveUid) -> bool {
        let is_given_up = state.movement.is_none_or(|movement| {
            let volume = state.volume.filter(|_| movement.plan.uid == uid);
            volume.is_none_or(|volume| self.is_given_up(state, &movement, &volume))
        });
        let is_cancelled = state.volume.is_none_or(|volume| volume.cancelled >= uid);
        is_cancelled || is_given_up && !self.holds(Guard::CancelIsWrittenFirst)
    }

    /// Whether the image of a replica is no longer needed.
    fn is_over(&self, state: &State, node: Node, epoch: Epoch, replica: &Replica) -> bool {
        if !self.holds(Guard::ReplicasAreCollected) {
            return false;
        }
        let Some(volume) = state.volume else {
            return true;
        };
        match replica.purpose {
            Purpose::Standby => volume.epoch >= epoch && volume.node != node,
            Purpose::Incoming if volume.epoch >= epoch => {
                let is_spare = !replica.complete || self.is_ready(&volume) || volume.deletion;
                (volume.node != node || volume.epoch > epoch) && is_spare
            }
            Purpose::Incoming => volume.target.is_none() && self.is_cancelled(state, replica.uid),
            Purpose::Retained => {
                let is_left =
                    volume.epoch > epoch && volume.node != node || volume.epoch > epoch + 1;
                let follows = state
                    .persistent_volume
                    .is_some_and(|it| it.node == volume.node);
                let serves = self.is_ready(&volume) && (follows || volume.deletion);
                is_left && (serves || !self.holds(Guard::ReleaseNeedsReady))
            }
        }
    }
}
