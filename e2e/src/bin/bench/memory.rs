//! Resident memory of the three processes, idle and with volumes.

use cistern_e2e::{ControlPlane, Driver, measure::resident, service::Service};

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
