//! [`Linux`]: the only implementation of [`System`].

mod devices;
mod files;
mod filesystems;

use std::{os::fd::BorrowedFd, path::PathBuf};

pub(crate) use self::filesystems::is_damage;
use super::System;
use crate::command::{self, Command};

/// The machine that this process runs on.
#[derive(Debug)]
pub struct Linux {
    nodes: PathBuf,
}

impl Linux {
    /// Creates the interface. Device nodes that `/dev` lacks (a container has a copy of it) are
    /// created in the directory `nodes`, which must not lie on a filesystem mounted with `nodev`.
    pub fn new(nodes: impl Into<PathBuf>) -> Self {
        Self {
            nodes: nodes.into(),
        }
    }
}

impl System for Linux {
    fn run_watched(
        &self,
        command: &Command,
        input: BorrowedFd<'_>,
        watch: &dyn Fn(&str) -> bool,
    ) -> Result<command::Output, command::Error> {
        command.run(Some(input), watch)
    }
}
