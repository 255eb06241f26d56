//! Runs one lifecycle step of a volume or pool in a process that a fault may kill, for
//! `host/faults.rs`.
//!
//! `step <step> <folder> <expectation> <n>`: dies at the n-th system call, or exits with 0
//! if the step makes fewer.

#![expect(
    clippy::expect_used,
    reason = "a part of a test, which fails by panicking"
)]

mod scenario;

use std::{path::Path, sync::Arc};

use cistern_host::{
    Expectation,
    system::{FailAt, Fault},
};

use crate::scenario::Step;

const STEPS: [Step; 60] = [
    Step::MakeDevicePool,
    Step::MakePool,
    Step::GrowPool,
    Step::Create,
    Step::Stage,
    Step::Publish,
    Step::Unpublish,
    Step::Unstage,
    Step::Grow,
    Step::MakeThin,
    Step::MakeThick,
    Step::StageGrown,
    Step::Prepare,
    Step::Expand,
    Step::Dismiss,
    Step::CreateDevice,
    Step::StageDevice,
    Step::PublishDevice,
    Step::RemoveDevice,
    Step::Open,
    Step::SnapshotFrozen,
    Step::PrepareGroup,
    Step::SnapshotGroup,
    Step::RemoveSnapshots,
    Step::DismissGroup,
    Step::PrepareSource,
    Step::Restore,
    Step::Receive,
    Step::RemoveRestored,
    Step::RemoveSource,
    Step::AdoptUsed,
    Step::AdoptPool,
    Step::AdoptDevicePool,
    Step::Discard,
    Step::TakeBack,
    Step::RemoveDiscarded,
    Step::BeginClosing,
    Step::Close,
    Step::Reopen,
    Step::RemoveClosed,
    Step::PrepareCopy,
    Step::OpenCopy,
    Step::PreparePass,
    Step::Pass,
    Step::Promote,
    Step::DismissPass,
    Step::PrepareRaw,
    Step::AdoptFilesystem,
    Step::DismissRaw,
    Step::PrepareEncrypted,
    Step::StageEncrypted,
    Step::DismissEncrypted,
    Step::PrepareEncryptedSource,
    Step::CloneEncrypted,
    Step::StageClone,
    Step::DismissClone,
    Step::StageEach,
    Step::DismissEncryptedSource,
    Step::Remove,
    Step::RemovePool,
];

fn main() {
    let mut args = std::env::args().skip(1);
    let mut next = || args.next().expect("four arguments");
    let (step, folder, expectation, at) = (next(), next(), next(), next());
    let step = STEPS
        .into_iter()
        .find(|known| format!("{known:?}") == step)
        .expect("a known step");
    let folder = Path::new(&folder);
    let at = at.parse().expect("a number");
    let system = Arc::new(FailAt::new(scenario::linux(folder), Fault::Kill, at));
    let expectation = parse(&expectation);
    scenario::run(step, folder, system, expectation).expect("no fault, no error");
}

fn parse(expectation: &str) -> Expectation {
    expectation
        .parse()
        .map_or(Expectation::New, |filesystem_uuid| Expectation::Known {
            filesystem_uuid,
        })
}
