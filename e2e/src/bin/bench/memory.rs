//! Resident memory of the three processes, idle and with volumes.

use cistern_e2e::{ControlPlane, Driver, service::Service};

use crate::{Figure, VOLUMES};

/// The resident memory of the idle processes and of an API server in the same run.
pub(crate) struct Memory {
    node: u32,
    controller: u32,
    apiserver: u32,
    idle: Vec<f64>,
}

impl Memory {
    pub(crate) fn new(control_plane: &ControlPlane, driver: &Driver) -> Self {
        Self {
            node: driver.node().process().id(),
            controller: driver.controller().process().id(),
            apiserver: control_plane.apiserver().id(),
            idle: Vec::new(),
        }
    }

    /// Stores the idle figures.
    pub(crate) fn idle(&mut self, operator: &Service) {
        self.idle = self
            .processes(operator)
            .map(|(_, process)| resident(process))
            .to_vec();
    }

    /// Returns the current figures beside the idle ones.
    pub(crate) fn with_volumes(&self, operator: &Service) -> Vec<Figure> {
        let apiserver = resident(self.apiserver);
        self.processes(operator)
            .iter()
            .zip(&self.idle)
            .map(|((name, process), idle)| {
                let now = resident(*process);
                Figure {
                    what: format!("resident: {name}, idle -> {VOLUMES} volumes"),
                    ours: format!("{idle:.1} -> {now:.1} MiB"),
                    beside: format!("kube-apiserver {apiserver:.0} MiB"),
                    ratio: Some(now / apiserver),
                    aim: if *name == "node" { "<= 20 MiB" } else { "" },
                }
            })
            .collect()
    }

    fn processes(&self, operator: &Service) -> [(&'static str, u32); 3] {
        [
            ("node", self.node),
            ("controller", self.controller),
            ("operator", operator.process().id()),
        ]
    }
}

/// Resident memory of a process in mebibytes.
pub(crate) fn resident(process: u32) -> f64 {
    mebibytes(process, "VmRSS:")
}

/// Peak resident memory of a process in mebibytes.
pub(crate) fn peak(process: u32) -> f64 {
    mebibytes(process, "VmHWM:")
}

fn mebibytes(process: u32, figure: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(figure));
    let kibibytes = line
        .and_then(|line| line.trim().strip_suffix(" kB"))
        .expect("the kernel counts in kB");
    kibibytes.parse::<f64>().expect("a number") / 1024.0
}
