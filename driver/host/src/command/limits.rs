//! How much memory and processor time a tool that reads a tenant's data may take.

use std::time::Duration;

use cistern_types::Bytes;

/// Stack size of each thread of a limited tool, which counts against its address space; e2fsprogs
/// starts one thread per processor.
const STACK: Bytes = Bytes(512 << 10);
/// Processor time after SIGXCPU until the kernel kills a limited tool.
const CPU_GRACE: Duration = Duration::from_secs(5);

/// Resource limits of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResourceLimits {
    /// Address space of its process in bytes.
    pub address_space: Bytes,
    /// Processor time of its process, in whole seconds.
    pub cpu: Duration,
}

impl ResourceLimits {
    /// Options of prlimit(1), which sets the limits before it executes the tool.
    pub(super) fn options(self) -> [String; 4] {
        let cpu = self.cpu.as_secs();
        [
            format!("--as={}", self.address_space.0),
            format!("--cpu={cpu}:{}", cpu + CPU_GRACE.as_secs()),
            format!("--stack={}", STACK.0),
            // A program that takes core dumps would get one at a limit of 0.
            "--core=1".to_owned(),
        ]
    }
}
