//! What a tool is started with.

use std::{ffi::OsString, fmt, time::Duration};

use cistern_types::Bytes;

use super::{ResourceLimits, output::OUTPUT_LIMIT};

/// A tool with its arguments, deadline and limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    pub(super) program: &'static str,
    pub(super) args: Vec<OsString>,
    pub(super) operands: Vec<OsString>,
    pub(super) deadline: Duration,
    pub(super) limits: Option<ResourceLimits>,
    /// Under which name the tool is left to itself when its deadline passes; none if it is killed then.
    pub(super) left_as: Option<String>,
    /// Bytes of its standard output that are kept.
    pub(super) output_limit: u64,
}

impl Command {
    /// Creates a command with a deadline.
    pub fn new(program: &'static str, deadline: Duration) -> Self {
        Self {
            program,
            args: Vec::new(),
            operands: Vec::new(),
            deadline,
            limits: None,
            left_as: None,
            output_limit: OUTPUT_LIMIT,
        }
    }

    /// Leaves the tool to itself when its deadline passes, instead of killing it. Until it has ended, no other tool of
    /// this name is started: it would wait for the same.
    #[must_use]
    pub(crate) fn never_killed(mut self, name: &str) -> Self {
        self.left_as = Some(name.to_owned());
        self
    }

    /// Sets how much of the standard output is kept.
    #[must_use]
    pub(crate) fn keeping(mut self, output: Bytes) -> Self {
        self.output_limit = output.0;
        self
    }

    /// Sets resource limits.
    #[must_use]
    pub(crate) fn limited(mut self, limits: ResourceLimits) -> Self {
        self.limits = Some(limits);
        self
    }

    /// Adds an option.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds an option and its value.
    #[must_use]
    pub fn option(self, option: &str, value: impl Into<OsString>) -> Self {
        self.arg(option).arg(value)
    }

    /// Adds an operand. It follows `--`, so that it is never parsed as an option.
    #[must_use]
    pub fn operand(mut self, operand: impl Into<OsString>) -> Self {
        self.operands.push(operand.into());
        self
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.program)?;
        for arg in self.args.iter().chain(&self.operands) {
            write!(f, " {}", arg.display())?;
        }
        Ok(())
    }
}
