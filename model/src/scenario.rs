//! What can happen in a check: one scenario for each part of the protocol, small enough to look at all of it.

use crate::{cluster::Fault, goal::Goal, property::Name, state::Budget};

/// A kind of fault that a scenario has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// [`Fault::CrashAgent`].
    CrashAgent,
    /// [`Fault::PowerFailure`].
    PowerFailure,
    /// [`Fault::CutOff`].
    CutOff,
    /// [`Fault::Overlap`].
    Overlap,
    /// [`Fault::LoseDisk`].
    LoseDisk,
}

impl FaultKind {
    /// Every kind.
    pub const ALL: [Self; 5] = [
        Self::CrashAgent,
        Self::PowerFailure,
        Self::CutOff,
        Self::Overlap,
        Self::LoseDisk,
    ];

    pub(crate) const fn matches(self, fault: Fault) -> bool {
        matches!(
            (self, fault),
            (Self::CrashAgent, Fault::CrashAgent(_))
                | (Self::PowerFailure, Fault::PowerFailure(_))
                | (Self::CutOff, Fault::CutOff(_))
                | (Self::Overlap, Fault::Overlap(_))
                | (Self::LoseDisk, Fault::LoseDisk(_))
        )
    }
}

/// What can happen in a check.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a part of the protocol that a scenario has or has not"
)]
pub struct Scenario {
    /// Its name in reports.
    pub name: &'static str,
    /// How often what can happen.
    pub budget: Budget,
    /// The faults that there are.
    pub faults: &'static [FaultKind],
    /// Two replicas of the operator act, instead of one.
    pub two_operators: bool,
    /// Pools remove orphans.
    pub orphans: bool,
    /// The volume has a standby copy on the other node.
    pub standby: bool,
    /// The other node has no disk of its own.
    pub one_disk: bool,
    /// Any client may try to commit at any time.
    pub any_client: bool,
    /// A workload uses the volume.
    pub workload: bool,
    /// The ends that are reached in it.
    pub goals: &'static [Goal],
    /// Properties that do not apply, each for a reason that the scenario states.
    pub without: &'static [Name],
}

const NOTHING: Budget = Budget {
    faults: 0,
    moves: 0,
    undos: 0,
    deletions: 0,
    writes: 0,
    disk_moves: 0,
    promotions: 0,
};

const QUIET: Scenario = Scenario {
    name: "",
    budget: NOTHING,
    faults: &[],
    two_operators: false,
    orphans: false,
    standby: false,
    one_disk: false,
    any_client: false,
    workload: false,
    goals: &[],
    without: &[],
};

impl Scenario {
    /// What every check of the project looks at, in seconds: each part of the protocol by itself.
    pub const QUICK: [Self; 10] = [
        Self::UNUSED,
        Self::FAILING,
        Self::USED,
        Self::DELETED,
        Self::LOST,
        Self::TWICE,
        Self::TWO_OPERATORS,
        Self::DISK,
        Self::STANDBY,
        Self::ANY_CLIENT,
    ];

    /// The parts together, and more than one fault: millions of states.
    pub const THOROUGH: [Self; 6] = [
        Self::USED_AND_FAILING,
        Self::FAILING_TWICE,
        Self::TWO_OPERATORS_AND_A_POD,
        Self::TWO_OPERATORS_TWICE,
        Self::DISK_AND_BACK,
        Self::STANDBY_AND_FAILING,
    ];

    /// A volume that no pod uses is moved. The administrator may undo it, the user may delete the claim.
    pub const UNUSED: Self = Self {
        name: "a volume that is not used",
        budget: Budget {
            moves: 1,
            undos: 1,
            deletions: 1,
            ..NOTHING
        },
        orphans: true,
        goals: &[Goal::Moved, Goal::Undone, Goal::Deleted],
        ..QUIET
    };

    /// The agents crash, lose power or are cut off meanwhile.
    pub const FAILING: Self = Self {
        name: "nodes that fail",
        budget: Budget {
            faults: 1,
            moves: 1,
            undos: 1,
            ..NOTHING
        },
        faults: &[
            FaultKind::CrashAgent,
            FaultKind::PowerFailure,
            FaultKind::CutOff,
        ],
        orphans: true,
        goals: &[Goal::Moved, Goal::Undone],
        ..QUIET
    };

    /// A volume that a pod writes to is moved, while an agent is replaced.
    pub const USED: Self = Self {
        name: "a volume that is used",
        budget: Budget {
            faults: 1,
            moves: 1,
            writes: 1,
            ..NOTHING
        },
        faults: &[FaultKind::Overlap],
        workload: true,
        goals: &[Goal::Moved],
        ..QUIET
    };

    /// The claim of a volume that is used is deleted in the middle.
    pub const DELETED: Self = Self {
        name: "a claim that is deleted",
        budget: Budget {
            moves: 1,
            deletions: 1,
            ..NOTHING
        },
        workload: true,
        goals: &[Goal::Moved, Goal::Deleted, Goal::Kept],
        ..QUIET
    };

    /// A disk is lost during a move.
    pub const LOST: Self = Self {
        name: "a disk that is lost",
        budget: Budget {
            faults: 1,
            moves: 1,
            undos: 1,
            ..NOTHING
        },
        faults: &[FaultKind::LoseDisk],
        goals: &[Goal::Moved, Goal::Undone, Goal::Blocked],
        ..QUIET
    };

    /// The volume is moved there and back, or again after an undo.
    pub const TWICE: Self = Self {
        name: "a volume that moves twice",
        budget: Budget {
            moves: 2,
            undos: 1,
            ..NOTHING
        },
        orphans: true,
        goals: &[Goal::Moved, Goal::Undone, Goal::Returned],
        ..QUIET
    };

    /// Two replicas of the operator both believe that they lead.
    pub const TWO_OPERATORS: Self = Self {
        name: "two operators",
        budget: Budget {
            moves: 1,
            undos: 1,
            ..NOTHING
        },
        two_operators: true,
        goals: &[Goal::Moved, Goal::Undone],
        ..QUIET
    };

    /// The disk of the volume is put into the other machine.
    pub const DISK: Self = Self {
        name: "a disk that moves",
        budget: Budget {
            disk_moves: 1,
            writes: 1,
            ..NOTHING
        },
        one_disk: true,
        workload: true,
        goals: &[Goal::Moved],
        ..QUIET
    };

    /// The standby copy of a node that is cut off is promoted.
    pub const STANDBY: Self = Self {
        name: "a standby copy",
        budget: Budget {
            faults: 1,
            writes: 1,
            promotions: 1,
            ..NOTHING
        },
        faults: &[FaultKind::CutOff],
        standby: true,
        workload: true,
        goals: &[Goal::Moved],
        ..QUIET
    };

    /// Clients other than the operator try to commit. No end is promised, because they act against the protocol.
    pub const ANY_CLIENT: Self = Self {
        name: "any client",
        budget: Budget {
            moves: 1,
            undos: 1,
            ..NOTHING
        },
        any_client: true,
        workload: true,
        without: &[Name::End],
        goals: &[Goal::Moved, Goal::Undone],
        ..QUIET
    };

    /// A used volume, with every fault, an undo, a deletion and orphans that are removed.
    pub const USED_AND_FAILING: Self = Self {
        name: "a volume that is used, and everything that fails",
        budget: Budget {
            faults: 1,
            moves: 1,
            undos: 1,
            deletions: 1,
            writes: 1,
            ..NOTHING
        },
        faults: &FaultKind::ALL,
        orphans: true,
        workload: true,
        goals: &[Goal::Moved, Goal::Undone, Goal::Deleted, Goal::Blocked],
        ..QUIET
    };

    /// Two moves and two faults.
    pub const FAILING_TWICE: Self = Self {
        name: "two moves and two faults",
        budget: Budget {
            faults: 2,
            moves: 2,
            undos: 1,
            ..NOTHING
        },
        faults: &FaultKind::ALL,
        orphans: true,
        goals: &[Goal::Moved, Goal::Undone, Goal::Returned, Goal::Blocked],
        ..QUIET
    };

    /// Two operators move a volume that is used.
    pub const TWO_OPERATORS_AND_A_POD: Self = Self {
        name: "two operators and a pod",
        budget: Budget {
            moves: 1,
            undos: 1,
            ..NOTHING
        },
        two_operators: true,
        workload: true,
        goals: &[Goal::Moved, Goal::Undone],
        ..QUIET
    };

    /// A write of the first move arrives during the second.
    pub const TWO_OPERATORS_TWICE: Self = Self {
        name: "two operators and two moves",
        budget: Budget {
            moves: 2,
            undos: 1,
            ..NOTHING
        },
        two_operators: true,
        goals: &[Goal::Moved, Goal::Undone, Goal::Returned],
        ..QUIET
    };

    /// The disk is put into the other machine and back.
    pub const DISK_AND_BACK: Self = Self {
        name: "a disk that moves and returns",
        budget: Budget {
            disk_moves: 2,
            writes: 1,
            ..NOTHING
        },
        one_disk: true,
        workload: true,
        goals: &[Goal::Moved, Goal::Returned],
        ..QUIET
    };

    /// A promotion among several faults.
    pub const STANDBY_AND_FAILING: Self = Self {
        name: "a standby copy and two faults",
        budget: Budget {
            faults: 2,
            writes: 1,
            promotions: 1,
            ..NOTHING
        },
        faults: &[
            FaultKind::CutOff,
            FaultKind::CrashAgent,
            FaultKind::Overlap,
            FaultKind::PowerFailure,
        ],
        standby: true,
        workload: true,
        goals: &[Goal::Moved],
        ..QUIET
    };
}
