//! Pods, as cgroups of a test. They need cgroup v2, which the virtual machine of `e2e/vm` has.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use cistern_host::io_limits::IoController;

use crate::harness::{must, run};

const CGROUPS: &str = "/sys/fs/cgroup";
const PODS: [&str; 2] = ["a", "b"];

/// A cgroup of all pods with two pods, of the test's own.
pub(crate) struct Pods(PathBuf);

impl Pods {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("test-{}-{number}/kubepods", std::process::id());
        let this = Self(Path::new(CGROUPS).join(name));
        for pod in PODS {
            fs::create_dir_all(this.0.join(pod)).unwrap();
        }
        // Writeback is charged to a cgroup that has both controllers.
        let parent = this.0.parent().unwrap();
        for folder in [Path::new(CGROUPS), parent, &this.0] {
            fs::write(folder.join("cgroup.subtree_control"), "+io +memory").unwrap();
        }
        this
    }

    /// The controller that a process in a pod finds.
    pub(crate) fn controller(&self) -> IoController {
        let own = self.0.strip_prefix(CGROUPS).unwrap().join(PODS[0]);
        let own = format!("0::/{}\n", own.display());
        must(IoController::below(Path::new(CGROUPS), &own))
    }

    /// The file that a process writes its number to, or 0, to be in a pod.
    pub(crate) fn processes(&self, pod: &str) -> PathBuf {
        self.0.join(pod).join("cgroup.procs")
    }

    /// Runs a script in both pods at the same time, with the name of the pod as `$1`.
    pub(crate) fn run(&self, script: &str) {
        std::thread::scope(|scope| {
            for pod in PODS {
                let processes = self.processes(pod);
                let script = format!("echo $$ >{}; {script}", processes.display());
                scope.spawn(move || run("sh", &["-euc", &script, "sh", pod]));
            }
        });
    }

    /// The file `io.max`: a line for each limited device.
    pub(crate) fn io_max(&self) -> String {
        fs::read_to_string(self.0.join("io.max")).unwrap()
    }

    /// Writes a line to the file `io.max`.
    pub(crate) fn set_io_max(&self, line: &str) {
        fs::write(self.0.join("io.max"), line).unwrap();
    }

    /// Major and minor number of the only limited device.
    pub(crate) fn limited_device(&self) -> String {
        let line = self.io_max();
        assert_eq!(line.lines().count(), 1, "{line}");
        line.split(' ').next().unwrap().to_owned()
    }

    /// Operations or bytes of all pods on a device, by their name in the file `io.stat`.
    pub(crate) fn statistic(&self, device: &str, name: &str) -> u64 {
        let text = fs::read_to_string(self.0.join("io.stat")).unwrap();
        let words = text.lines().map(|line| line.split(' '));
        let of_device = words.filter(|words| words.clone().next() == Some(device));
        let mut values = of_device.flatten().filter_map(|word| word.split_once('='));
        values
            .find(|(key, _)| *key == name)
            .map_or(0, |(_, value)| value.parse().unwrap())
    }
}

impl Drop for Pods {
    fn drop(&mut self) {
        for folder in ["a", "b", "", ".."] {
            let _ = fs::remove_dir(self.0.join(folder));
        }
    }
}
