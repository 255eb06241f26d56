//! What the operator's writes do, if the API server accepts them.

use crate::{
    guard::Guard,
    operator::Decision,
    protocol::Protocol,
    schema::{self, Change},
    state::{
        Epoch, Kind, Movement, Node, Pending, PersistentVolume, Plan, Purpose, Replica, State,
        Target, Volume,
    },
};

impl Protocol {
    /// Writes what was decided. A write that the API server refuses changes nothing.
    pub(crate) fn write(&self, state: &mut State, pending: Pending) -> Option<()> {
        let fresh = !pending.stale;
        match pending.decision {
            Decision::Commit(change) => {
                if schema::allows_commit(self, &state.volume?, &change) {
                    commit(state, &change)?;
                }
            }
            Decision::Undo(change) => {
                if schema::allows_undo(&state.volume?, &change) {
                    let raise = u8::from(self.holds(Guard::UndoRaisesTheEpoch));
                    let volume = state.volume.as_mut()?;
                    (volume.epoch, volume.target) = (volume.epoch + raise, None);
                }
            }
            Decision::HandOver(node, epoch) if fresh => {
                state.replicas.of_mut(node).put(epoch, None);
            }
            Decision::DeleteReplica(node, epoch) => {
                let replicas = state.replicas.of_mut(node);
                if let Some(mut replica) = replicas.at(epoch).filter(|_| fresh) {
                    replica.deletion = true;
                    replicas.put(epoch, Some(replica));
                }
            }
            Decision::FollowDisk => {
                if let (None, Some(volume)) = (state.movement, state.volume) {
                    start(state, &volume, Kind::Takeover);
                }
            }
            Decision::Evict | Decision::DeletePodLeft if fresh => {
                state.pod.as_mut()?.terminating = true;
            }
            Decision::Save if fresh => {
                state.movement.as_mut()?.saved = state.persistent_volume.is_some();
            }
            Decision::Block if fresh => state.movement.as_mut()?.blocked = true,
            Decision::End if fresh => state.movement = None,
            decision => carry_out(state, pending.plan?, decision, fresh)?,
        }
        Some(())
    }
}

/// Creates a VolumeMove of the volume as it is.
pub(crate) const fn start(state: &mut State, volume: &Volume, kind: Kind) {
    state.moves += 1;
    let plan = Plan {
        uid: state.moves,
        from: volume.node,
        base: volume.epoch,
        kind,
    };
    state.movement = Some(Movement {
        plan,
        undo: false,
        blocked: false,
        saved: false,
    });
}

fn commit(state: &mut State, change: &Change) -> Option<()> {
    let volume = state.volume.as_mut()?;
    let (from, kind) = (volume.node, volume.target.map(|it| it.kind));
    let epoch = change.from_epoch + 1;
    (volume.node, volume.epoch, volume.target) = (change.node, epoch, None);
    if kind == Some(Kind::Promotion) {
        let machine = state.machines.of_mut(from);
        machine.left_over = machine.staged.is_some();
    }
    Some(())
}

/// Writes that belong to a move and name it.
fn carry_out(state: &mut State, plan: Plan, decision: Decision, fresh: bool) -> Option<()> {
    match decision {
        Decision::CreateRetained => create(state, plan, plan.from, plan.base, Purpose::Retained),
        Decision::CreateIncoming => {
            create(state, plan, plan.to(), plan.base + 1, Purpose::Incoming);
        }
        Decision::Declare if fresh => {
            // The operator reads it in the status of the StorageNode.
            let takeovers = state.disk(plan.to()).map_or(0, |disk| disk.takeovers);
            state.volume.as_mut()?.target = Some(Target {
                uid: plan.uid,
                node: plan.to(),
                kind: plan.kind,
                takeovers,
            });
        }
        Decision::Cancel => {
            let cancelled = &mut state.volume.as_mut()?.cancelled;
            *cancelled = plan.uid.max(*cancelled);
        }
        Decision::Patch if fresh => {
            let found = state.persistent_volume.as_mut()?;
            (found.retain, found.annotation) = (true, Some(plan.uid));
        }
        Decision::Restore if fresh => {
            let found = state.persistent_volume.as_mut()?;
            (found.retain, found.annotation) = (false, None);
        }
        // The UID is the precondition of the next two.
        Decision::Delete if fresh => state.persistent_volume.as_mut()?.terminating = true,
        Decision::Strip if fresh => state.persistent_volume = None,
        // A name that exists is accepted as ours by its annotation only, and changes nothing.
        Decision::Create if state.persistent_volume.is_none() => {
            state.persistent_volume = Some(PersistentVolume {
                uid: plan.base + 1,
                node: plan.to(),
                terminating: false,
                retain: true,
                annotation: Some(plan.uid),
            });
        }
        _ => {}
    }
    Some(())
}

fn create(state: &mut State, plan: Plan, node: Node, epoch: Epoch, purpose: Purpose) {
    let replicas = state.replicas.of_mut(node);
    if replicas.at(epoch).is_none() {
        let replica = Replica {
            purpose,
            uid: plan.uid,
            reserved: false,
            complete: false,
            deletion: false,
        };
        replicas.put(epoch, Some(replica));
    }
}
