//! The model: all steps of all parties, and how they change the state.

use parking_lot::Mutex;
use stateright::{Model, Property};
use std::collections::HashMap;

use crate::{
    agent::AgentStep,
    cluster::{ClusterStep, Fault, Request},
    collection::EPOCHS,
    goal,
    guard::Guard,
    kubelet::KubeletStep,
    operator::Decision,
    property,
    scenario::Scenario,
    schema::{self, Change},
    state::{Node, Pending, State, Volume},
};

/// A step of one party. Everything else can happen between two of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// A replica of the operator decides on a write.
    Decide(Node, Decision),
    /// It writes what it decided.
    Write(Node),
    /// It crashes, or gives up what it decided.
    Forget(Node),
    /// An agent acts.
    Agent(Node, AgentStep),
    /// kubelet acts.
    Kubelet(Node, KubeletStep),
    /// Kubernetes' controllers act.
    Cluster(ClusterStep),
    /// The administrator or the user asks for something.
    Request(Request),
    /// Something breaks.
    Fault(Fault),
    /// Some client tries to commit.
    Client(Change),
}

/// The protocol in a scenario, perhaps without some of its guards.
#[derive(Debug)]
pub struct Protocol {
    /// What can happen.
    pub scenario: Scenario,
    /// The guards that are removed.
    pub removed: Vec<Guard>,
    /// By the hash of a state: whether an end can be reached from it.
    pub(crate) known: Mutex<HashMap<u64, bool>>,
}

impl Protocol {
    /// The protocol as it is to be built.
    pub fn new(scenario: Scenario) -> Self {
        Self::without(scenario, &[])
    }

    /// The protocol without some guards.
    pub fn without(scenario: Scenario, removed: &[Guard]) -> Self {
        Self {
            scenario,
            removed: removed.to_vec(),
            known: Mutex::default(),
        }
    }

    /// Whether the protocol has a guard.
    pub(crate) fn holds(&self, guard: Guard) -> bool {
        !self.removed.contains(&guard)
    }

    /// Whether the status says that the volume is ready where the spec places it.
    pub(crate) fn is_ready(&self, volume: &Volume) -> bool {
        let is_current = volume.status.epoch == volume.epoch;
        volume.status.ready && (is_current || !self.holds(Guard::StatusOfAnotherEpochIsEmpty))
    }

    /// The steps that the parties take by themselves once nothing fails and no user requests more.
    pub(crate) fn own_steps(&self, state: &State, steps: &mut Vec<Step>) {
        let second = self.scenario.two_operators.then_some(Node::B);
        for operator in [Some(Node::A), second].into_iter().flatten() {
            if state.operators.of(operator).is_some() {
                steps.extend([Step::Write(operator), Step::Forget(operator)]);
            } else {
                let decisions = self.decisions(state).into_iter();
                steps.extend(decisions.map(|decision| Step::Decide(operator, decision)));
            }
        }
        for node in Node::ALL {
            let agent = AGENT.iter().map(|step| Step::Agent(node, *step));
            steps.extend(agent);
            for epoch in 0..EPOCHS {
                let agent = agent_of(epoch);
                steps.extend(agent.map(|step| Step::Agent(node, step)));
            }
            let kubelet = KUBELET.iter().map(|step| Step::Kubelet(node, *step));
            steps.extend(kubelet);
            let cluster = [
                ClusterStep::ForceDelete(node),
                ClusterStep::SwitchOn(node),
                ClusterStep::Reconnect(node),
                ClusterStep::EndFormer(node),
            ];
            steps.extend(cluster.map(Step::Cluster));
        }
        steps.extend(CLUSTER.map(Step::Cluster));
    }

    fn other_steps(&self, steps: &mut Vec<Step>) {
        for request in [
            Request::Move,
            Request::Undo,
            Request::DeleteClaim,
            Request::Promote,
        ] {
            steps.push(Step::Request(request));
        }
        for node in Node::ALL {
            steps.push(Step::Kubelet(node, KubeletStep::Write));
            let faults = [
                Fault::CrashAgent(node),
                Fault::PowerFailure(node),
                Fault::CutOff(node),
                Fault::Overlap(node),
                Fault::LoseDisk(node),
                Fault::MoveDisk(node),
            ];
            steps.extend(faults.map(Step::Fault));
            if self.scenario.any_client {
                let uid = 0;
                let changes = [0, 1].map(|from_epoch| Change {
                    from_epoch,
                    node,
                    uid,
                });
                steps.extend(changes.map(Step::Client));
            }
        }
    }

    /// Whether a step is among those of a state.
    pub(crate) fn offers(&self, state: &State, step: Step) -> bool {
        let mut steps = Vec::new();
        self.actions(state, &mut steps);
        steps.contains(&step)
    }

    /// The state after a step, if it can be taken and changes anything.
    pub(crate) fn after(&self, state: &State, step: Step) -> Option<State> {
        let mut next = *state;
        match step {
            Step::Decide(operator, decision) => {
                let plan = state.movement.map(|movement| movement.plan);
                let pending = Pending {
                    decision,
                    plan: plan.filter(|_| decision.names_the_move()),
                    stale: false,
                };
                *next.operators.of_mut(operator) = Some(pending);
            }
            Step::Write(operator) => {
                let pending = next.operators.of_mut(operator).take()?;
                // What the API server refuses changes nothing but that the operator decides again.
                let mut written = next;
                if self.write(&mut written, pending).is_some() {
                    next = written;
                }
            }
            Step::Forget(operator) => *next.operators.of_mut(operator) = None,
            Step::Agent(node, step) => self.agent(&mut next, node, step)?,
            Step::Kubelet(node, step) => self.kubelet(&mut next, node, step)?,
            Step::Cluster(step) => self.cluster(&mut next, step)?,
            Step::Request(request) => self.request(&mut next, request)?,
            Step::Fault(fault) => self.fault(&mut next, fault)?,
            Step::Client(change) => {
                let volume = next.volume.as_mut()?;
                if !schema::allows_commit(self, volume, &change) {
                    return None;
                }
                (volume.node, volume.epoch) = (change.node, change.from_epoch + 1);
                volume.target = None;
            }
        }
        let written = next;
        for operator in Node::ALL {
            let was_pending = state.operators.of(operator).is_some();
            if let Some(pending) = next
                .operators
                .of_mut(operator)
                .as_mut()
                .filter(|_| was_pending)
            {
                pending.stale |= pending.decision.is_outdated(state, &written);
            }
        }
        (next != *state).then_some(next)
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![self.scenario.initial()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Step>) {
        self.own_steps(state, actions);
        self.other_steps(actions);
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        self.after(state, step)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all = property::of(&self.scenario);
        all.extend(goal::of(&self.scenario));
        all
    }
}

const AGENT: [AgentStep; 15] = [
    AgentStep::List,
    AgentStep::WatchVolume,
    AgentStep::WatchReplicas,
    AgentStep::BeginClosing,
    AgentStep::ReportClosing,
    AgentStep::Close,
    AgentStep::ReportClosed,
    AgentStep::TakeUp,
    AgentStep::OpenCopy,
    AgentStep::ReportReady,
    AgentStep::ReportTakeover,
    AgentStep::CommitDeletion,
    AgentStep::Reclaim,
    AgentStep::ReportReclaimed,
    AgentStep::WriteMarker,
];

const fn agent_of(epoch: u8) -> [AgentStep; 7] {
    [
        AgentStep::Sync(epoch),
        AgentStep::Reserve(epoch),
        AgentStep::Pass(epoch),
        AgentStep::ReportComplete(epoch),
        AgentStep::RemoveCopy(epoch),
        AgentStep::ReportRemoved(epoch),
        AgentStep::ReclaimOrphan(epoch),
    ]
}

const KUBELET: [KubeletStep; 7] = [
    KubeletStep::Admit,
    KubeletStep::Stage,
    KubeletStep::StageByFormer,
    KubeletStep::Start,
    KubeletStep::Stop,
    KubeletStep::Unstage,
    KubeletStep::ReportStopped,
];

const CLUSTER: [ClusterStep; 7] = [
    ClusterStep::CreatePod,
    ClusterStep::Schedule,
    ClusterStep::LoseClaim,
    ClusterStep::BindClaim,
    ClusterStep::RemoveClaim,
    ClusterStep::DeleteVolume,
    ClusterStep::RemovePersistentVolume,
];
