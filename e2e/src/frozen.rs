//! What a test has frozen: a filesystem, or processes.
//!
//! *Invariant:* it is thawed when its test ends, also when the test panics. What stays frozen cannot be unmounted, and processes
//! that wait for it cannot be killed.

use std::process::Command;

/// Thaws what a test has frozen, when it is dropped.
#[derive(Debug)]
#[must_use = "it thaws when it is dropped"]
pub struct Frozen {
    thaw: Command,
}

impl Frozen {
    /// Thaws with this command. A test calls this before it freezes, so that nothing can fail between the two.
    pub fn until_dropped(thaw: Command) -> Self {
        Self { thaw }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let ended = self.thaw.output();
        // It fails if something else has thawed it already, and a panic here would hide that of the test.
        if !ended.as_ref().is_ok_and(|output| output.status.success()) {
            eprintln!("the guard has thawed nothing: {:?}: {ended:?}", self.thaw);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;
    use crate::{Folder, process::command};

    #[test]
    fn what_is_frozen_is_thawed_when_its_test_panics() {
        let folder = Folder::new();
        let thawed = folder.join("thawed");
        let mut thaw = command("touch");
        thaw.arg(&thawed);
        let test = || {
            let _frozen = Frozen::until_dropped(thaw);
            assert!(thawed.exists(), "nothing is thawed yet");
        };
        assert!(catch_unwind(std::panic::AssertUnwindSafe(test)).is_err());
        assert!(thawed.exists());
    }
}
